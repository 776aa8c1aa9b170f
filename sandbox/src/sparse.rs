//! Files with holes.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use rustix::{
    fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek},
    io::Errno,
};

/// Bytes that one thread copies before it looks for more; and that are moved by hand at once
/// where the kernel will not.
const PIECE_BYTES: usize = 8 * 1024 * 1024;
const BUFFER_BYTES: usize = 1024 * 1024;
/// Most threads that copy one file.
const MAX_THREADS: usize = 4;

/// Returns the next range at or after `from` that is not a hole; `None` when only holes follow.
///
/// On a file system that knows no holes, all is one range.
pub(crate) fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if from >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) if start >= size => return Ok(None),
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok(Some(start..end))
}

/// Copies the first `size` bytes of `from` to the empty file `to`, leaves holes where there are
/// holes, and returns the bytes copied: none if the file system shares them.
///
/// # Errors
/// When either file fails, or `from` is shorter than `size`.
pub(crate) fn copy(from: &File, to: &File, size: u64) -> io::Result<u64> {
    if from.metadata()?.len() < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if ioctl_ficlone(to, from).is_ok() {
        to.set_len(size)?;
        return Ok(0);
    }
    if to.metadata()?.len() != size {
        to.set_len(size)?;
    }
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(data) = next_data(from, at, size)? {
        at = data.end;
        for start in (data.start..data.end).step_by(PIECE_BYTES) {
            pieces.push(start..data.end.min(start + PIECE_BYTES as u64));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        let mut by_hand = None;
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            copy_piece(from, to, piece.clone(), &mut by_hand)?;
        }
        Ok(())
    };
    // What is copied costs more to make room for than to move: a second processor helps.
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(MAX_THREADS).min(pieces.len());
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut ended = work();
        for other in others {
            ended = ended.and(other.join().expect("copying does not panic"));
        }
        ended
    })?;
    Ok(pieces.iter().map(|piece| piece.end - piece.start).sum())
}

fn copy_piece(
    from: &File,
    to: &File,
    piece: Range<u64>,
    by_hand: &mut Option<Vec<u8>>,
) -> io::Result<()> {
    let mut at = piece.start;
    while at < piece.end {
        let wanted = usize::try_from(piece.end - at).expect("a piece is small");
        let moved = match by_hand {
            Some(buffer) => copy_by_hand(from, to, at, wanted, buffer)?,
            None => {
                let (mut source, mut target) = (at, at);
                match copy_file_range(from, Some(&mut source), to, Some(&mut target), wanted) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(moved) => moved,
                    Err(Errno::INTR) => 0,
                    // Two file systems, or one that cannot.
                    Err(_) => {
                        *by_hand = Some(vec![0; BUFFER_BYTES]);
                        0
                    }
                }
            }
        };
        at += moved as u64;
    }
    Ok(())
}

fn copy_by_hand(
    from: &File,
    to: &File,
    at: u64,
    wanted: usize,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let wanted = wanted.min(buffer.len());
    let piece = &mut buffer[..wanted];
    from.read_exact_at(piece, at)?;
    to.write_all_at(piece, at)?;
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 8 * 1024 * 1024;

    fn holes() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&[1; 5000], 1024 * 1024).unwrap();
        file.write_all_at(&[2; 10], SIZE - 10).unwrap();
        file
    }

    #[test]
    fn a_copy_is_equal_and_as_sparse() {
        use std::os::unix::fs::MetadataExt;
        let (from, to) = (holes(), tempfile::tempfile().unwrap());
        let copied = copy(&from, &to, SIZE).unwrap();
        assert!(copied < 1024 * 1024, "{copied}");
        assert!(to.metadata().unwrap().blocks() * 512 < 1024 * 1024);
        let (mut a, mut b) = (vec![0; 8 << 20], vec![9; 8 << 20]);
        from.read_exact_at(&mut a, 0).unwrap();
        to.read_exact_at(&mut b, 0).unwrap();
        assert!(a == b);
        assert!(copy(&from, &to, SIZE + 1).is_err());
    }

    #[test]
    fn data_is_found_between_holes() {
        let file = holes();
        let first = next_data(&file, 0, SIZE).unwrap().unwrap();
        assert!(first.contains(&(1024 * 1024)), "{first:?}");
        let second = next_data(&file, first.end, SIZE).unwrap().unwrap();
        assert_eq!(second.end, SIZE);
        assert_eq!(next_data(&file, SIZE, SIZE).unwrap(), None);
        let empty = tempfile::tempfile().unwrap();
        empty.set_len(SIZE).unwrap();
        assert_eq!(next_data(&empty, 0, SIZE).unwrap(), None);
    }
}
