//! The address book on disk: written whole, renamed into place, synced.
//!
//! `magic (8) | BLAKE3 of the rest (32) | CBOR array of entries`. A damaged file is set aside and
//! the book starts empty: other members and invites fill it again.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use minicbor::{Decode, Encode};
use rhizome_identity::NodeId;
use tracing::warn;

const MAGIC: &[u8; 8] = b"RHZBOOK1";
/// The largest file that is read: some 10,000 members.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// What is kept of one member.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct Saved {
    #[n(0)]
    pub(super) node: NodeId,
    /// Its signed address-book entry; empty when none was ever heard.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(super) info: Vec<u8>,
    /// When a session with it was last up, in unix milliseconds.
    #[n(2)]
    pub(super) last_seen_ms: Option<u64>,
}

/// Reads the book; a missing file is an empty book.
pub(super) fn load(path: &Path) -> io::Result<Vec<Saved>> {
    let bytes = match fs::metadata(path) {
        Ok(meta) if meta.len() > MAX_BYTES => return Ok(set_aside(path, "it is too large")),
        Ok(_) => fs::read(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    match parse(&bytes) {
        Some(saved) => Ok(saved),
        None => Ok(set_aside(path, "it is damaged")),
    }
}

/// Replaces the book; when this returns, the new one survives a crash.
pub(super) fn store(path: &Path, entries: &[Saved]) -> io::Result<()> {
    let body = minicbor::to_vec(entries).expect("encoding into memory cannot fail");
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(&framed(&body))?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    // The rename itself is durable once the directory is.
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

/// Puts magic and checksum before the entries.
pub(super) fn framed(body: &[u8]) -> Vec<u8> {
    [MAGIC, &blake3::hash(body).as_bytes()[..], body].concat()
}

pub(super) fn parse(bytes: &[u8]) -> Option<Vec<Saved>> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (hash, body) = rest.split_first_chunk::<32>()?;
    if blake3::hash(body) != *hash {
        return None;
    }
    minicbor::decode(body).ok()
}

fn set_aside(path: &Path, why: &str) -> Vec<Saved> {
    let aside = path.with_extension("damaged");
    let moved = fs::rename(path, &aside);
    warn!(path = %path.display(), aside = %aside.display(), moved = moved.is_ok(), why, "address book set aside");
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Saved> {
        (1..4)
            .map(|n| Saved {
                node: NodeId::from_bytes([n; 32]),
                info: vec![n; 100],
                last_seen_ms: (n > 1).then_some(u64::from(n)),
            })
            .collect()
    }

    #[test]
    fn the_book_survives_and_replaces_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.book");
        assert_eq!(load(&path).unwrap(), Vec::new());
        store(&path, &[]).unwrap();
        store(&path, &entries()).unwrap();
        assert_eq!(load(&path).unwrap(), entries());
    }

    #[test]
    fn a_damaged_book_is_set_aside_at_any_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.book");
        store(&path, &entries()).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert_eq!(load(&path).unwrap(), Vec::new(), "byte {at}");
            assert!(path.with_extension("damaged").exists());
        }
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut]), None, "cut at {cut}");
        }
    }
}
