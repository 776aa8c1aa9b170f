//! What was changed in a volume: a walk over the upper directory of its overlay.

use std::{
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rhizome_guest::{
    wire::{Kind, MAX_PAYLOAD, Payload, VolumeEntry, VolumeKind},
    xattr,
};

use super::super::stream::Stream;

/// Bytes of entries that go out together.
const BATCH_BYTES: usize = MAX_PAYLOAD / 2;

/// Sends every change, each directory before what is in it. Returns whether the stream still is.
pub(super) fn send(upper: &Path, stream: &Stream) -> io::Result<bool> {
    let mut batch = Vec::new();
    let mut alive = true;
    let attributes = has_attributes(upper);
    walk(upper, attributes, &mut |entry| {
        let bytes = entry.to_payload();
        if batch.len() + bytes.len() > BATCH_BYTES && !batch.is_empty() {
            alive = stream.send_whole(Kind::VolumeEntries, &batch);
            batch.clear();
        }
        batch.extend_from_slice(&bytes);
        alive
    })?;
    Ok(alive && (batch.is_empty() || stream.send_whole(Kind::VolumeEntries, &batch)))
}

/// Visits every change until `visit` returns false.
pub(super) fn walk(
    upper: &Path,
    attributes: bool,
    visit: &mut dyn FnMut(&VolumeEntry) -> bool,
) -> io::Result<()> {
    let mut left: Vec<PathBuf> = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        let read = match fs::read_dir(upper.join(&dir)) {
            Ok(read) => read,
            // It went while we walked; the next walk sees that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for found in read {
            let found = found?;
            let meta = match fs::symlink_metadata(found.path()) {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let path = dir.join(found.file_name());
            if !visit(&entry(&found.path(), &path, &meta, attributes)?) {
                return Ok(());
            }
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    Ok(())
}

fn entry(
    host: &Path,
    path: &Path,
    meta: &fs::Metadata,
    attributes: bool,
) -> io::Result<VolumeEntry> {
    let kind = meta.file_type();
    let mut target = Vec::new();
    let kind = if kind.is_file() {
        VolumeKind::File
    } else if kind.is_dir() {
        if is_opaque(host) {
            VolumeKind::FreshDirectory
        } else {
            VolumeKind::Directory
        }
    } else if kind.is_symlink() {
        match fs::read_link(host) {
            Ok(link) => target = link.into_os_string().into_vec(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        VolumeKind::Symlink
    } else if kind.is_char_device() && meta.rdev() == 0 {
        VolumeKind::Gone
    } else {
        VolumeKind::Other
    };
    let attributes = match kind {
        _ if !attributes => None,
        VolumeKind::File | VolumeKind::Directory | VolumeKind::FreshDirectory => {
            match xattr::read(host) {
                Ok(attributes) => Some(attributes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    let message = format!("attributes of `{}`: {error}", path.display());
                    return Err(io::Error::new(error.kind(), message));
                }
            }
        }
        _ => Some(Vec::new()),
    };
    let nanos = |seconds: i64, nanos: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos);
    Ok(VolumeEntry {
        path: path.as_os_str().as_bytes().to_vec(),
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        mtime_ns: nanos(meta.mtime(), meta.mtime_nsec()),
        stamp: [
            meta.ino(),
            nanos(meta.ctime(), meta.ctime_nsec()).cast_unsigned(),
        ],
        target,
        attributes,
    })
}

/// Whether the attributes of users can be set where the changes lie: the kernel drops what a file
/// had of them when it copies the file to a file system that has none.
pub(super) fn has_attributes(upper: &Path) -> bool {
    let probe = "user.rhizome.probe";
    let flags = rustix::fs::XattrFlags::empty();
    let can = rustix::fs::lsetxattr(upper, probe, b"", flags).is_ok();
    if can {
        // The root of a volume has no attributes, so one that stays is seen by nobody.
        let _ = rustix::fs::lremovexattr(upper, probe);
    }
    can
}

/// Whether a directory hides all that the one below it holds.
fn is_opaque(host: &Path) -> bool {
    let mut value = [0; 1];
    matches!(
        rustix::fs::lgetxattr(host, "trusted.overlay.opaque", &mut value[..]),
        Ok(1) if value == *b"y"
    )
}
