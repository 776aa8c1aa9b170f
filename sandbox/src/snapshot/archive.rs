//! A snapshot as one file: to keep it elsewhere, or to carry it to a node that no network reaches.
//!
//! The file holds what the snapshot consists of in the chunk store, as it lies there: sealed, so
//! that whoever keeps the file need not be trusted. Each part has the hash that names it, and the
//! whole one at its end; the image is not in it, whose id the manifest has.
//!
//! ```text
//! magic "RZSNAP\x01\n" · length of the reference (u32 LE) · the reference, JSON ·
//! for each object: length (u64 LE), bytes · BLAKE3 of all before (32 bytes)
//! ```

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
};

use super::SnapshotError;
use crate::{
    Progress, ProgressEvent, SnapshotRef,
    chunks::{ChunkError, ChunkStore, MAX_FILE_BYTES},
};

const MAGIC: [u8; 8] = *b"RZSNAP\x01\n";
/// Longest reference that is read, in bytes: sixty thousand packs.
const MAX_REFERENCE: u32 = 4 * 1024 * 1024;
const HASH_BYTES: usize = 32;

/// Writes a snapshot to a new file and returns the file's size in bytes. Durable on return; a file
/// of that name must not be there. Blocks.
///
/// # Errors
/// [`SnapshotError::Chunks`] if a part is not here, [`SnapshotError::Io`]; no file is left then.
pub fn export(
    store: &ChunkStore,
    snapshot: &SnapshotRef,
    to: &Path,
    progress: &Progress,
) -> Result<u64, SnapshotError> {
    let missing = store.missing(&snapshot.objects());
    if !missing.is_empty() {
        return Err(ChunkError::MissingPacks { packs: missing }.into());
    }
    let file = File::create_new(to).map_err(at(to))?;
    let written = write(store, snapshot, file, progress).map_err(at(to));
    if written.is_err() {
        let _ = fs::remove_file(to);
    }
    written
}

fn write(
    store: &ChunkStore,
    snapshot: &SnapshotRef,
    file: File,
    progress: &Progress,
) -> io::Result<u64> {
    let reference = serde_json::to_vec(snapshot).expect("a reference becomes JSON");
    let length = u32::try_from(reference.len()).map_err(io::Error::other)?;
    if length > MAX_REFERENCE {
        return Err(io::Error::other("the snapshot has too many parts"));
    }
    let mut out = Hashed::new(BufWriter::new(file));
    out.write_all(&MAGIC)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&reference)?;
    let objects = snapshot.objects();
    for (done, id) in objects.iter().enumerate() {
        tell(progress, "export", done, objects.len());
        let path = store
            .path(id)
            .ok_or_else(|| io::Error::other("a part of it is gone"))?;
        let object = File::open(path)?;
        let size = object.metadata()?.len();
        out.write_all(&size.to_le_bytes())?;
        if io::copy(&mut (&object).take(size), &mut out)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let hash = out.hasher.finalize();
    out.inner.write_all(hash.as_bytes())?;
    out.inner.flush()?;
    out.inner.get_ref().sync_all()?;
    Ok(out.inner.get_ref().metadata()?.len())
}

/// Reads which snapshot a file holds, without looking at the rest of it.
///
/// # Errors
/// [`SnapshotError::Archive`], [`SnapshotError::Io`].
pub fn peek(from: &Path) -> Result<SnapshotRef, SnapshotError> {
    let file = File::open(from).map_err(at(from))?;
    Reading::begin(BufReader::new(file), from).map(|(snapshot, _)| snapshot)
}

/// Takes the parts of the snapshot in a file into the store; `incoming` is a directory for what is
/// being read, on the store's own file system. Durable on return. Blocks.
///
/// Nothing says here that the parts stay: pin them first.
///
/// # Errors
/// [`SnapshotError::Archive`] if the file is no such file, cut short, or not what was written;
/// [`SnapshotError::Chunks`], [`SnapshotError::Io`].
pub fn import(
    store: &ChunkStore,
    from: &Path,
    incoming: &Path,
    progress: &Progress,
) -> Result<SnapshotRef, SnapshotError> {
    let file = File::open(from).map_err(at(from))?;
    let (snapshot, mut reading) = Reading::begin(BufReader::new(file), from)?;
    let objects = snapshot.objects();
    for (done, id) in objects.iter().enumerate() {
        tell(progress, "import", done, objects.len());
        let part = incoming.join(format!("{id}.part"));
        let taken = reading.object(&part).and_then(|()| {
            store.import(id, &part).map_err(|error| match error {
                ChunkError::NotThatPack { .. } | ChunkError::Damaged { .. } => {
                    wrong("a part of it is not what was written")
                }
                error => error.into(),
            })
        });
        if taken.is_err() {
            let _ = fs::remove_file(&part);
        }
        taken?;
    }
    reading.end()?;
    Ok(snapshot)
}

struct Reading<'a, R> {
    input: R,
    hasher: blake3::Hasher,
    from: &'a Path,
}

impl<'a, R: Read> Reading<'a, R> {
    fn begin(input: R, from: &'a Path) -> Result<(SnapshotRef, Self), SnapshotError> {
        let mut reading = Self {
            input,
            hasher: blake3::Hasher::new(),
            from,
        };
        if reading.array()? != MAGIC {
            return Err(wrong("it is no snapshot, or one of a later release"));
        }
        let length = u32::from_le_bytes(reading.array()?);
        if length > MAX_REFERENCE {
            return Err(wrong("it says that it has too many parts"));
        }
        let mut reference = vec![0; length as usize];
        reading.exactly(&mut reference)?;
        let snapshot: SnapshotRef = serde_json::from_slice(&reference)
            .map_err(|_| wrong("it does not say of which parts it consists"))?;
        let mut objects = snapshot.objects();
        objects.sort_unstable();
        objects.dedup();
        if objects.len() != snapshot.packs.len() + 1 {
            return Err(wrong("it names a part twice"));
        }
        Ok((snapshot, reading))
    }

    /// Writes the next object to a new file.
    fn object(&mut self, to: &Path) -> Result<(), SnapshotError> {
        let size = u64::from_le_bytes(self.array()?);
        if size > MAX_FILE_BYTES {
            return Err(wrong("a part of it is too large"));
        }
        let mut file = File::create(to).map_err(at(to))?;
        let mut left = size;
        let mut piece = vec![0; 64 * 1024];
        while left > 0 {
            let len = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            self.exactly(&mut piece[..len])?;
            file.write_all(&piece[..len]).map_err(at(to))?;
            left -= len as u64;
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), SnapshotError> {
        let expected = self.hasher.finalize();
        let found: [u8; HASH_BYTES] = self.array()?;
        // Not secret: what anybody can work out from the file.
        if found != *expected.as_bytes() {
            return Err(wrong("it is damaged"));
        }
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(wrong("there is more behind its end")),
            Err(source) => Err(at(self.from)(source)),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.exactly(&mut bytes)?;
        Ok(bytes)
    }

    fn exactly(&mut self, into: &mut [u8]) -> Result<(), SnapshotError> {
        match self.input.read_exact(into) {
            Ok(()) => {
                self.hasher.update(into);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(wrong("it ends too early"))
            }
            Err(source) => Err(at(self.from)(source)),
        }
    }
}

/// Hashes what it writes.
struct Hashed<W> {
    inner: W,
    hasher: blake3::Hasher,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hasher: blake3::Hasher::new(),
        }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn tell(progress: &Progress, step: &str, done: usize, total: usize) {
    progress(ProgressEvent {
        step,
        detail: "parts of the snapshot",
        done: done as u64,
        total: total as u64,
    });
}

fn wrong(what: &str) -> SnapshotError {
    SnapshotError::Archive {
        what: what.to_owned(),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError + '_ {
    move |source| SnapshotError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
