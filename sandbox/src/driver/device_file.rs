//! The file that holds the state of a guest's devices.
//!
//! ```text
//! 0   8   "RZDEV\0\0\1"
//! 8   8   length of what follows the header, little endian
//! 16  32  BLAKE3 of it
//! 48  4   length of the machine's description, little endian
//! 52  …   the description, then the state as the monitor wrote it
//! ```
//!
//! The monitor reads its own format with little suspicion: a flipped bit in it may well give a
//! guest that runs and is wrong, and so may a machine with one processor more. So nothing is
//! handed to it that is not whole and for an equal machine.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{DriverError, launch::io_error};

const MAGIC: &[u8; 8] = b"RZDEV\0\0\x01";
const HEADER_BYTES: usize = 48;
/// Largest state, in bytes; a guest's is some 13 to 300 KiB.
pub(super) const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How much of another machine's description is shown.
const MAX_SHOWN_CHARS: usize = 300;

/// Makes a file without a name for the monitor to write to or read from.
pub(super) fn blank() -> io::Result<File> {
    Ok(memfd_create("rhizome-device", MemfdFlags::CLOEXEC)?.into())
}

/// Opens such a file once more, to be written to and no more: the monitor wants it so.
pub(super) fn to_write(state: &File) -> io::Result<File> {
    fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", state.as_raw_fd()))
}

/// Writes what the monitor left in `state` to `to`.
pub(super) fn write(state: &File, machine: &str, to: &Path) -> Result<(), DriverError> {
    let size = state.metadata().map_err(io_error(to))?.len();
    if size > MAX_BYTES {
        return Err(unlikely(size));
    }
    let mut bytes = vec![0; usize::try_from(size).expect("it is below the limit")];
    state.read_exact_at(&mut bytes, 0).map_err(io_error(to))?;
    write_bytes(&bytes, machine, to)
}

/// Writes a state to `to`.
pub(super) fn write_bytes(state: &[u8], machine: &str, to: &Path) -> Result<(), DriverError> {
    let size = state.len() as u64;
    if size == 0 || size > MAX_BYTES {
        return Err(unlikely(size));
    }
    let length = u32::try_from(machine.len()).expect("a description is a line");
    let mut body = length.to_le_bytes().to_vec();
    body.extend_from_slice(machine.as_bytes());
    body.extend_from_slice(state);
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&(body.len() as u64).to_le_bytes());
    header.extend_from_slice(blake3::hash(&body).as_bytes());
    let draft = to.with_extension("new");
    let written = || {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&header)?;
        file.write_all(&body)?;
        // Not synced: the guest waits, and whoever wants it to last stores it elsewhere.
        fs::rename(&draft, to)
    };
    written().map_err(io_error(to))
}

/// Reads a state that is whole and of an equal machine, into a file for the monitor.
pub(super) fn read(from: &Path, machine: &str) -> Result<File, DriverError> {
    let state = read_bytes(from, machine)?;
    let blank = blank().map_err(io_error(from))?;
    blank.write_all_at(&state, 0).map_err(io_error(from))?;
    Ok(blank)
}

/// Reads a state that is whole and of an equal machine.
pub(super) fn read_bytes(from: &Path, machine: &str) -> Result<Vec<u8>, DriverError> {
    let cut_off = || saved("the file of the devices is cut off".to_owned());
    let file = File::open(from).map_err(io_error(from))?;
    let mut content = Vec::new();
    file.take(2 * MAX_BYTES)
        .read_to_end(&mut content)
        .map_err(io_error(from))?;
    let (header, body) = content.split_at_checked(HEADER_BYTES).ok_or_else(cut_off)?;
    if &header[..8] != MAGIC {
        return Err(saved("the file of the devices is none".to_owned()));
    }
    if header[8..16] != (body.len() as u64).to_le_bytes() {
        return Err(cut_off());
    }
    if header[16..] != *blake3::hash(body).as_bytes() {
        return Err(saved("the file of the devices is damaged".to_owned()));
    }
    let (length, rest) = body.split_first_chunk().ok_or_else(cut_off)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (described, state) = rest.split_at_checked(length).ok_or_else(cut_off)?;
    if described != machine.as_bytes() {
        let kept = |c: &char| c.is_ascii_graphic() || *c == ' ';
        let described: String = String::from_utf8_lossy(described)
            .chars()
            .filter(kept)
            .take(MAX_SHOWN_CHARS)
            .collect();
        return Err(saved(format!(
            "it is of the machine `{described}`, and this one is `{machine}`"
        )));
    }
    Ok(state.to_vec())
}

fn unlikely(size: u64) -> DriverError {
    saved(format!("the monitor wrote {size} bytes of it"))
}

fn saved(what: String) -> DriverError {
    DriverError::Saved { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        let state = blank().unwrap();
        assert!(write(&state, "m", &path).is_err());
        state.write_all_at(b"some state", 0).unwrap();
        write(&state, "m", &path).unwrap();
        let mut back = [0; 10];
        read(&path, "m")
            .unwrap()
            .read_exact_at(&mut back, 0)
            .unwrap();
        assert_eq!(&back, b"some state");

        let error = read(&path, "n").unwrap_err();
        assert!(error.to_string().contains("`m`"), "{error}");

        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(read(&path, "m"), Err(DriverError::Saved { .. })));
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, flipped).unwrap();
            assert!(matches!(read(&path, "m"), Err(DriverError::Saved { .. })));
        }
    }
}
