//! Files and directories that the host reads, writes, lists and removes.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rhizome_guest::wire::{
    Entry, FailureCode, FileEnd, FileKind, FileRead, FileWrite, Frame, Kind, MAX_PAYLOAD, MakeDir,
    PathOnly, Payload, Remove, Stat,
};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{failure::Failed, stream::Stream};

/// A frame of entries is sent when the next one might not fit.
const ENTRIES_BYTES: usize = MAX_PAYLOAD - 8 * 1024;

/// Answers one request about files.
pub(crate) fn run(stream: &Arc<Stream>, frame: &Frame) {
    let result = match frame.kind {
        Kind::FileStat => stat(stream, frame),
        Kind::FileList => list(stream, frame),
        Kind::FileRead => read(stream, frame),
        Kind::FileWrite => write(stream, frame),
        Kind::FileMakeDir => make_dir(frame).map(|()| done(stream)),
        _ => remove(frame).map(|()| done(stream)),
    };
    if let Err(Failed(failure)) = result {
        stream.send(Kind::Failed, &failure);
    }
}

fn done(stream: &Stream) {
    stream.send_empty(Kind::Done);
}

fn stat(stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let path = path_of(frame)?;
    let stat = stat_of(&path, &fs::symlink_metadata(&path)?);
    stream.send(Kind::FileMeta, &stat);
    Ok(())
}

fn list(stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path_of(frame)?)? {
        let entry = entry?;
        // It may be gone since its name was read.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let name = entry.file_name().into_vec();
        let stat = stat_of(&entry.path(), &metadata);
        entries.extend_from_slice(&Entry { name, stat }.to_payload());
        if entries.len() > ENTRIES_BYTES {
            if !stream.send_whole(Kind::FileEntries, &entries) {
                return Ok(());
            }
            entries.clear();
        }
    }
    if stream.send_whole(Kind::FileEntries, &entries) {
        done(stream);
    }
    Ok(())
}

fn read(stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let request: FileRead = frame.message()?;
    let path = PathBuf::from(OsString::from_vec(request.path));
    // Opening a pipe must not wait for its writer.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(&path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Failed::new(FailureCode::IsADirectory, "it is a directory"));
    }
    if !metadata.is_file() {
        return Err(Failed::new(
            FailureCode::Invalid,
            "it is not a regular file",
        ));
    }
    if !stream.send(Kind::FileMeta, &stat_of(&path, &metadata)) {
        return Ok(());
    }
    if request.from > 0 {
        file.seek(SeekFrom::Start(request.from))?;
    }
    let mut size = 0;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let len = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        size += len as u64;
        hasher.update(&buffer[..len]);
        if !stream.send_data(Kind::FileData, &buffer[..len]) {
            return Ok(());
        }
    }
    stream.send(
        Kind::FileEnd,
        &FileEnd {
            size,
            checksum: *hasher.finalize().as_bytes(),
        },
    );
    Ok(())
}

/// A file that is being written. Unless it is kept, it goes with this.
pub(super) struct Draft {
    path: PathBuf,
    pub(super) file: File,
}

impl Draft {
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let name = format!(".rhizome-{:016x}", u64::from_ne_bytes(random));
        let path = target.with_file_name(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self { path, file })
    }

    /// Takes what the host sends until its end, which has to fit. Returns whether there was one.
    pub(super) fn fill(&mut self, stream: &Stream) -> Result<bool, Failed> {
        let mut size = 0;
        let mut hasher = blake3::Hasher::new();
        loop {
            // Without an end there is no file.
            let Some(frame) = stream.next() else {
                return Ok(false);
            };
            match frame.kind {
                Kind::FileData => {
                    size += frame.payload.len() as u64;
                    hasher.update(&frame.payload);
                    self.file.write_all(&frame.payload)?;
                }
                Kind::FileEnd => {
                    let seen = FileEnd {
                        size,
                        checksum: *hasher.finalize().as_bytes(),
                    };
                    if frame.message::<FileEnd>()? != seen {
                        return Err(Failed::new(
                            FailureCode::Checksum,
                            "the data is not what was sent",
                        ));
                    }
                    return Ok(true);
                }
                _ => return Err(Failed::new(FailureCode::Invalid, "a file has other frames")),
            }
        }
    }

    /// Gives it its name.
    pub(super) fn keep(self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Fails when it was kept under its real name.
        let _ = fs::remove_file(&self.path);
    }
}

fn write(stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let request: FileWrite = frame.message()?;
    let target = target_of(PathBuf::from(OsString::from_vec(request.path)))?;
    if let (true, Some(parent)) = (request.parents, target.parent()) {
        fs::create_dir_all(parent)?;
    }
    let mut draft = Draft::beside(&target)?;
    if !draft.fill(stream)? {
        return Ok(());
    }
    draft
        .file
        .set_permissions(fs::Permissions::from_mode(request.mode))?;
    draft.keep(&target)?;
    done(stream);
    Ok(())
}

/// Returns the file that is written for a path: what a link leads to is replaced, not the link.
pub(super) fn target_of(path: PathBuf) -> Result<PathBuf, Failed> {
    let directory = || Failed::new(FailureCode::IsADirectory, "it is a directory");
    if path.file_name().is_none() {
        return Err(directory());
    }
    let target = match fs::symlink_metadata(&path) {
        Ok(found) if found.is_symlink() => fs::canonicalize(&path)?,
        Ok(_) | Err(_) => path,
    };
    match fs::symlink_metadata(&target) {
        Ok(found) if found.is_dir() => Err(directory()),
        Ok(found) if !found.is_file() => Err(Failed::new(
            FailureCode::Invalid,
            "it is not a regular file",
        )),
        Ok(_) | Err(_) => Ok(target),
    }
}

fn make_dir(frame: &Frame) -> Result<(), Failed> {
    let request: MakeDir = frame.message()?;
    let path = PathBuf::from(OsString::from_vec(request.path));
    if request.parents {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
    }
    fs::DirBuilder::new().mode(0o700).create(&path)?;
    // Set apart, since what is created is subject to the mask.
    fs::set_permissions(&path, fs::Permissions::from_mode(request.mode))?;
    Ok(())
}

fn remove(frame: &Frame) -> Result<(), Failed> {
    let request: Remove = frame.message()?;
    let path = PathBuf::from(OsString::from_vec(request.path));
    let metadata = fs::symlink_metadata(&path)?;
    match (metadata.is_dir(), request.recursive) {
        (true, true) => fs::remove_dir_all(&path)?,
        (true, false) => fs::remove_dir(&path)?,
        (false, _) => fs::remove_file(&path)?,
    }
    Ok(())
}

fn path_of(frame: &Frame) -> Result<PathBuf, Failed> {
    Ok(PathBuf::from(OsString::from_vec(
        frame.message::<PathOnly>()?.path,
    )))
}

fn stat_of(path: &Path, metadata: &fs::Metadata) -> Stat {
    let kind = metadata.file_type();
    let kind = if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else {
        FileKind::Other
    };
    let target = match kind {
        FileKind::Symlink => fs::read_link(path).unwrap_or_default(),
        _ => PathBuf::new(),
    };
    let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
    let millis = u64::try_from(metadata.mtime_nsec()).unwrap_or(0) / 1_000_000;
    Stat {
        kind,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.len(),
        modified_ms: seconds.saturating_mul(1000).saturating_add(millis),
        target: target.as_os_str().as_bytes().to_vec(),
    }
}
