//! Volumes to and from directories of this host.
//!
//! An export goes into a directory that is new and private until it is whole, and follows no
//! link: a tree that somebody else made can write nowhere else.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::{Path as HostPath, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rhizome_guest::xattr::{self, Attributes};

use super::{Chunker, Content, Entry, Meta, Name, Node, Path, Trees, VolumeError, tree::Budget};
use crate::chunks::PackWriter;

/// Bytes read at once.
const READ_BYTES: usize = 256 * 1024;

/// What an import took in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The tree.
    pub root: Content,
    /// Files, directories and links in it.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Devices, pipes and sockets, which volumes don't hold.
    pub skipped: u64,
    /// Further names of files that have several: they become files of their own.
    pub hard_links: u64,
}

/// Stores a directory of this host. Links are stored, not followed.
///
/// `progress` is told of bytes read.
///
/// # Errors
/// [`VolumeError::Folder`], [`VolumeError::TooLarge`], [`VolumeError::Chunks`].
pub fn import(
    folder: &HostPath,
    writer: &mut PackWriter,
    progress: &mut dyn FnMut(u64),
) -> Result<Imported, VolumeError> {
    let mut import = Import {
        writer,
        progress,
        budget: Budget::default(),
        several_names: BTreeSet::new(),
        done: Imported {
            root: Content::default(),
            entries: 0,
            bytes: 0,
            skipped: 0,
            hard_links: 0,
        },
    };
    import.done.root = import.dir(folder, &Path::default())?;
    Ok(import.done)
}

struct Import<'a> {
    writer: &'a mut PackWriter,
    progress: &'a mut dyn FnMut(u64),
    budget: Budget,
    several_names: BTreeSet<(u64, u64)>,
    done: Imported,
}

impl Import<'_> {
    /// Recursion ends with the budget's depth.
    fn dir(&mut self, folder: &HostPath, path: &Path) -> Result<Content, VolumeError> {
        let mut entries = Vec::new();
        for found in fs::read_dir(folder).map_err(VolumeError::folder(folder))? {
            let found = found.map_err(VolumeError::folder(folder))?;
            let name = Name::new(found.file_name().into_vec())?;
            let below = path.join(&name);
            self.budget.spend(&below)?;
            let host = found.path();
            let meta = fs::symlink_metadata(&host).map_err(VolumeError::folder(&host))?;
            let Some(node) = self.node(&host, &below, &meta)? else {
                self.done.skipped += 1;
                continue;
            };
            self.done.entries += 1;
            let attributes = match &node {
                Node::Symlink(_) => Vec::new(),
                _ => xattr::read(&host).map_err(VolumeError::folder(&host))?,
            };
            let meta = meta_of(&meta, attributes);
            entries.push(Entry { name, meta, node });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Content::store(self.writer, &super::tree::encode_tree(&entries))
    }

    fn node(
        &mut self,
        host: &HostPath,
        path: &Path,
        meta: &fs::Metadata,
    ) -> Result<Option<Node>, VolumeError> {
        if meta.is_dir() {
            return self.dir(host, path).map(|tree| Some(Node::Dir(tree)));
        }
        if meta.is_symlink() {
            let target = fs::read_link(host).map_err(VolumeError::folder(host))?;
            return Ok(Some(Node::Symlink(target.into_os_string().into_vec())));
        }
        if !meta.is_file() {
            return Ok(None);
        }
        if meta.nlink() > 1 && !self.several_names.insert((meta.dev(), meta.ino())) {
            self.done.hard_links += 1;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(host)
            .map_err(VolumeError::folder(host))?;
        let mut chunker = Chunker::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => {
                    chunker.push(self.writer, &buffer[..len])?;
                    self.done.bytes += len as u64;
                    (self.progress)(len as u64);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(VolumeError::folder(host)(error)),
            }
        }
        Ok(Some(Node::File(chunker.finish(self.writer)?)))
    }
}

fn meta_of(meta: &fs::Metadata, attributes: Attributes) -> Meta {
    Meta {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        mtime_ns: meta
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(meta.mtime_nsec()),
        attributes,
    }
}

/// Writes a tree to `folder`, which must not be there yet: it appears whole or not at all.
/// Owners are set if this process may.
///
/// `progress` is told of bytes written.
///
/// # Errors
/// [`VolumeError::Folder`], those of reading.
pub fn export(
    trees: Trees<'_>,
    root: &Content,
    folder: &HostPath,
    progress: &mut dyn FnMut(u64),
) -> Result<(), VolumeError> {
    if fs::symlink_metadata(folder).is_ok() {
        let there = std::io::ErrorKind::AlreadyExists.into();
        return Err(VolumeError::folder(folder)(there));
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.with_file_name(format!(".{name}.new-{}", std::process::id()));
    make_dir(&draft)?;
    let exported = Export {
        trees,
        progress,
        budget: Budget::default(),
        own: rustix::process::geteuid().is_root(),
    }
    .dir(root, &draft, &Path::default())
    .and_then(|()| {
        let open_to_all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&draft, open_to_all).map_err(VolumeError::folder(&draft))?;
        fs::rename(&draft, folder).map_err(VolumeError::folder(folder))
    });
    if exported.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    exported
}

struct Export<'a> {
    trees: Trees<'a>,
    progress: &'a mut dyn FnMut(u64),
    budget: Budget,
    /// Whether owners can be set.
    own: bool,
}

impl Export<'_> {
    /// Recursion ends with the budget's depth.
    fn dir(&mut self, tree: &Content, folder: &HostPath, path: &Path) -> Result<(), VolumeError> {
        for entry in self.trees.list(tree)? {
            let below = path.join(&entry.name);
            self.budget.spend(&below)?;
            // A name has no slash and is not `..`: this stays in the folder.
            let host = folder.join(OsStr::from_bytes(entry.name.as_bytes()));
            match &entry.node {
                Node::Dir(tree) => {
                    make_dir(&host)?;
                    self.dir(tree, &host, &below)?;
                }
                Node::File(content) => self.file(content, &host)?,
                Node::Symlink(target) => {
                    symlink(OsStr::from_bytes(target), &host)
                        .map_err(VolumeError::folder(&host))?;
                }
            }
            self.finish(&entry, &host)?;
        }
        Ok(())
    }

    fn file(&mut self, content: &Content, host: &PathBuf) -> Result<(), VolumeError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(host)
            .map_err(VolumeError::folder(host))?;
        content.for_each_piece(self.trees.chunks(), &mut |piece| {
            file.write_all(piece).map_err(VolumeError::folder(host))?;
            (self.progress)(piece.len() as u64);
            Ok(())
        })
    }

    /// Sets owner, mode and time: after what is in a directory, which changes its time.
    fn finish(&self, entry: &Entry, host: &PathBuf) -> Result<(), VolumeError> {
        let meta = &entry.meta;
        if self.own {
            std::os::unix::fs::lchown(host, Some(meta.uid), Some(meta.gid))
                .map_err(VolumeError::folder(host))?;
        }
        if matches!(entry.node, Node::Symlink(_)) {
            return Ok(());
        }
        for (name, value) in &meta.attributes {
            let flags = rustix::fs::XattrFlags::empty();
            match rustix::fs::lsetxattr(host, name.as_slice(), value, flags) {
                // Where there are none, the tree is whole without them.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(error) => return Err(VolumeError::folder(host)(error.into())),
            }
        }
        fs::set_permissions(host, fs::Permissions::from_mode(meta.mode))
            .map_err(VolumeError::folder(host))?;
        let since = Duration::from_nanos(meta.mtime_ns.unsigned_abs());
        let time = if meta.mtime_ns < 0 {
            UNIX_EPOCH.checked_sub(since)
        } else {
            UNIX_EPOCH.checked_add(since)
        };
        // A file that its owner may not read cannot be opened; its time is then the export's.
        if let Ok(file) = File::open(host) {
            file.set_modified(time.unwrap_or(SystemTime::UNIX_EPOCH))
                .map_err(VolumeError::folder(host))?;
        }
        Ok(())
    }
}

fn make_dir(path: &HostPath) -> Result<(), VolumeError> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    made.map_err(VolumeError::folder(path))
}
