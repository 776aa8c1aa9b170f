//! Pins: which packs must stay, as files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{ChunkError, PackId, disk::Disk};

/// Longest name of a pin, in bytes.
pub(super) const MAX_NAME: usize = 200;
/// Longest file name that a pin's name is spelled out in.
const MAX_SPELLED: usize = 200;
/// Largest pin file that is read, in bytes: two million packs.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
const MAGIC: [u8; 8] = *b"RZPINS\x01\n";

/// What a directory of pins holds.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pub(super) held: BTreeMap<String, Vec<PackId>>,
    /// A file that cannot be read; while there is one, nothing may be removed.
    pub(super) damaged: Option<PathBuf>,
}

/// Reads every pin; unfinished files are removed.
pub(super) fn load(dir: &Path) -> Result<Pins, ChunkError> {
    let mut pins = Pins::default();
    for entry in fs::read_dir(dir).map_err(ChunkError::io(dir))? {
        let path = entry.map_err(ChunkError::io(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "new") {
            fs::remove_file(&path).map_err(ChunkError::io(&path))?;
            continue;
        }
        let size = fs::metadata(&path).map_err(ChunkError::io(&path))?.len();
        let read = || {
            (size <= MAX_FILE_BYTES)
                .then(|| fs::read(&path).ok())
                .flatten()
        };
        match read().and_then(|bytes| parse(&bytes)) {
            Some((name, packs)) if path == file(dir, &name) => {
                pins.held.insert(name, packs);
            }
            _ => pins.damaged = Some(path),
        }
    }
    Ok(pins)
}

/// Writes a pin whole: after a crash there is the old one or the new one.
pub(super) fn save(
    disk: &Disk,
    dir: &Path,
    name: &str,
    packs: &[PackId],
) -> Result<(), ChunkError> {
    let path = file(dir, name);
    let draft = path.with_extension("new");
    let written = || {
        disk.remove(&draft)?;
        let mut file = disk.create(&draft)?;
        disk.write(&mut file, &draft, &encode(name, packs))?;
        disk.sync(&file, &draft)?;
        disk.rename(&draft, &path)?;
        disk.sync_dir(dir)
    };
    written().map_err(ChunkError::io(&path))
}

pub(super) fn remove(disk: &Disk, dir: &Path, name: &str) -> Result<(), ChunkError> {
    let path = file(dir, name);
    let removed = disk.remove(&path).and_then(|()| disk.sync_dir(dir));
    removed.map_err(ChunkError::io(&path))
}

pub(super) fn check_name(name: &str) -> Result<(), ChunkError> {
    if (1..=MAX_NAME).contains(&name.len()) {
        Ok(())
    } else {
        Err(ChunkError::PinName)
    }
}

/// Any name is a file name once every byte beyond letters, digits, `-` and `_` is `%` and two
/// digits; one that is too long then is its hash.
fn file(dir: &Path, name: &str) -> PathBuf {
    let mut escaped = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02x}"));
        }
    }
    if escaped.len() > MAX_SPELLED {
        escaped = format!("%{}", blake3::hash(name.as_bytes()).to_hex());
    }
    dir.join(escaped)
}

fn encode(name: &str, packs: &[PackId]) -> Vec<u8> {
    let len = u8::try_from(name.len()).expect("a pin's name was checked");
    let mut bytes = MAGIC.to_vec();
    bytes.push(len);
    bytes.extend_from_slice(name.as_bytes());
    for pack in packs {
        bytes.extend_from_slice(pack.as_bytes());
    }
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(sum.as_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(String, Vec<PackId>)> {
    let (body, sum) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(body).as_bytes() != sum {
        return None;
    }
    let (&len, rest) = body.strip_prefix(&MAGIC)?.split_first()?;
    let (name, packs) = rest.split_at_checked(len.into())?;
    let name = String::from_utf8(name.to_vec()).ok()?;
    let (packs, []) = packs.as_chunks::<32>() else {
        return None;
    };
    let packs = packs.iter().copied().map(PackId::from_bytes).collect();
    check_name(&name).ok()?;
    Some((name, packs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let packs = [PackId::from_bytes([1; 32]), PackId::from_bytes([2; 32])];
        let names = ["a", "snapshot/x.new", "..", "é\n", &"é".repeat(100)];
        for name in names {
            save(&Disk::default(), dir.path(), name, &packs).unwrap();
        }
        save(&Disk::default(), dir.path(), "a", &packs[..1]).unwrap();
        remove(&Disk::default(), dir.path(), "..").unwrap();
        fs::write(dir.path().join("half.new"), "x").unwrap();
        let pins = load(dir.path()).unwrap();
        assert_eq!(pins.damaged, None);
        assert_eq!(pins.held.len(), 4);
        assert_eq!(pins.held["a"], packs[..1]);
        assert_eq!(pins.held["é\n"], packs);
        assert!(matches!(check_name(""), Err(ChunkError::PinName)));
        assert!(check_name(&"x".repeat(201)).is_err());
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let bytes = encode("pin", &[PackId::from_bytes([1; 32])]);
        assert!(parse(&bytes).is_some());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(parse(&flipped), None);
            assert_eq!(parse(&bytes[..at]), None);
        }
    }
}
