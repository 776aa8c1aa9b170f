//! Writing a backup of a node, while it is in use.
//!
//! What belongs to one moment is taken down in a moment: how far each segment counts, and every
//! small file, by its content or by a handle that keeps it as it is. Then the files are copied,
//! which takes as long as it takes; the store only grows meanwhile.
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rhizome_identity::{
    NodeKey,
    keyfile::{self, KeyKind},
};
use rhizome_memory::{Replica, StoreAudit, now_ms};
use zeroize::Zeroizing;

use super::{
    BackupError, Contents,
    contents::{CONTENTS, COUNTS, Class, FORMAT, Item, SUMS, class_of, order_of, places},
};
use crate::vault::Vault;

/// A file that is no longer than this is kept in memory rather than open, in bytes.
const KEPT: u64 = 64 * 1024;
/// The store within a data directory.
const STORE: &str = "store";

/// Everything that belongs to a backup, as of one moment.
#[derive(Debug)]
pub(crate) struct Pack {
    dir: PathBuf,
    node: NodeKey,
    replica: Replica,
    contents: Contents,
    held: BTreeMap<String, Held>,
}

/// What would not stay as it is on its own.
enum Held {
    Content(Zeroizing<Vec<u8>>),
    Open(File),
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Content(_) => "Held(content)",
            Self::Open(_) => "Held(open)",
        })
    }
}

impl Pack {
    /// Takes down what belongs to this moment.
    ///
    /// `replica` is the store of `dir`, `vault` opens its keys, and whoever calls keeps keys and certificates from being
    /// made meanwhile.
    ///
    /// # Errors
    /// [`BackupError`] if a file cannot be read.
    pub(crate) fn collect(
        dir: &Path,
        vault: &Vault,
        node: &NodeKey,
        name: &str,
        replica: &Replica,
        with_blobs: bool,
    ) -> Result<Self, BackupError> {
        let contents = Contents {
            format: FORMAT,
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            made_ms: now_ms(),
            node: node.id().to_string(),
            name: name.to_owned(),
            files: Vec::new(),
        };
        let mut pack = Self {
            dir: dir.to_owned(),
            node: node.clone(),
            replica: replica.clone(),
            contents,
            held: BTreeMap::new(),
        };
        // The store first: a key that is made afterwards is one too many, not one too few.
        let store = dir.join(STORE);
        let point = replica
            .point()
            .map_err(BackupError::io("look at", &store))?;
        for (place, ending, class) in places(with_blobs) {
            let at = dir.join(place);
            for path in listed(dir, place, ending).map_err(BackupError::io("list", &at))? {
                pack.hold(path, class, vault)?;
            }
        }
        for (name, bytes) in point.segments {
            let path = format!("{STORE}/{name}");
            let file =
                File::open(dir.join(&path)).map_err(BackupError::io("open", &dir.join(&path)))?;
            pack.add(path, bytes, Some(Held::Open(file)));
        }
        for name in point.bodies {
            let path = format!("{STORE}/{name}");
            match fs::metadata(dir.join(&path)) {
                Ok(metadata) => pack.add(path, metadata.len(), None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(BackupError::io("look at", &dir.join(&path))(error)),
            }
        }
        pack.contents.files.sort_by_key(|item| order_of(&item.path));
        Ok(pack)
    }

    /// Returns what will be written.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Writes it all, in the order of its list.
    ///
    /// # Errors
    /// [`BackupError`]; what was written is of no use then.
    pub(crate) fn write<W: Write>(mut self, out: W) -> Result<W, BackupError> {
        let mut tar = tar::Builder::new(out);
        let made_s = self.contents.made_ms / 1000;
        let list = serde_json::to_vec(&self.contents).expect("it has string keys");
        append(&mut tar, CONTENTS, made_s, list.len() as u64, &list[..])?;
        let mut audit = StoreAudit::new(&self.node, false);
        let mut sums = String::new();
        for Item { path, bytes } in std::mem::take(&mut self.contents.files) {
            let sum = match self.held.remove(&path) {
                Some(Held::Content(content)) => {
                    append(&mut tar, &path, made_s, bytes, &content[..])?
                }
                Some(Held::Open(file)) if class_of(&path) == Some(Class::Segment) => {
                    let segment = self
                        .replica
                        .unchanging(|| read_exactly(&path, file, bytes))?;
                    let name = path.strip_prefix("store/").unwrap_or(&path);
                    audit.segment(name, &segment)?;
                    append(&mut tar, &path, made_s, bytes, &segment[..])?
                }
                Some(Held::Open(file)) => append(&mut tar, &path, made_s, bytes, file)?,
                None => {
                    let file =
                        File::open(self.dir.join(&path)).map_err(|error| match error.kind() {
                            io::ErrorKind::NotFound => BackupError::Changed { path: path.clone() },
                            _ => BackupError::io("open", &self.dir.join(&path))(error),
                        })?;
                    append(&mut tar, &path, made_s, bytes, file)?
                }
            };
            sums.push_str(&format!("{}  {path}\n", sum.to_hex()));
        }
        append(&mut tar, SUMS, made_s, sums.len() as u64, sums.as_bytes())?;
        let counts = serde_json::to_vec(audit.counts()).expect("it has string keys");
        append(&mut tar, COUNTS, made_s, counts.len() as u64, &counts[..])?;
        tar.into_inner()
            .map_err(BackupError::io("write", Path::new("the backup")))
    }

    fn hold(&mut self, path: String, class: Class, vault: &Vault) -> Result<(), BackupError> {
        let at = self.dir.join(&path);
        if let Class::Key(kind) = class {
            let key = vault.load(&at, kind)?;
            let text = Zeroizing::new(keyfile::spell(kind, &key).as_bytes().to_vec());
            self.add(path, text.len() as u64, Some(Held::Content(text)));
            return Ok(());
        }
        let mut file = match File::open(&at) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(BackupError::io("open", &at)(error)),
        };
        let bytes = file
            .metadata()
            .map_err(BackupError::io("look at", &at))?
            .len();
        if bytes > class.limit() {
            let limit = class.limit();
            return Err(BackupError::TooLarge { path, bytes, limit });
        }
        if bytes > KEPT {
            let held = (class != Class::Blob).then_some(Held::Open(file));
            self.add(path, bytes, held);
            return Ok(());
        }
        let mut content = Zeroizing::new(Vec::new());
        let read = Read::by_ref(&mut file).take(KEPT).read_to_end(&mut content);
        read.map_err(BackupError::io("read", &at))?;
        self.add(path, content.len() as u64, Some(Held::Content(content)));
        Ok(())
    }

    fn add(&mut self, path: String, bytes: u64, held: Option<Held>) {
        if let Some(held) = held {
            self.held.insert(path.clone(), held);
        }
        self.contents.files.push(Item { path, bytes });
    }
}

/// Returns every key file of a data directory.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn key_files(dir: &Path) -> io::Result<Vec<(PathBuf, KeyKind)>> {
    let mut files = Vec::new();
    for (place, ending, class) in places(false) {
        if let Class::Key(kind) = class {
            let paths = listed(dir, place, ending)?.into_iter();
            files.extend(paths.map(|path| (dir.join(path), kind)));
        }
    }
    Ok(files)
}

/// Returns the paths of a place that are there and can be in a backup, relative to `dir`.
fn listed(dir: &Path, place: &str, ending: &str) -> io::Result<Vec<String>> {
    if !place.ends_with('/') {
        let is_there = dir.join(place).is_file();
        return Ok(is_there.then(|| place.to_owned()).into_iter().collect());
    }
    let entries = match fs::read_dir(dir.join(place)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let name = entry.file_name().into_string().unwrap_or_default();
        let path = format!("{place}{name}");
        // Half-written files end otherwise, or begin with a dot.
        let is_whole = name.ends_with(ending) && !name.ends_with(".new");
        if is_file && is_whole && class_of(&path).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Appends a file of exactly `bytes` bytes and returns its hash.
fn append(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    made_s: u64,
    bytes: u64,
    content: impl Read,
) -> Result<blake3::Hash, BackupError> {
    let failed = |source| BackupError::io("write", Path::new("the backup"))(source);
    let mut header = tar::Header::new_gnu();
    header.set_path(path).map_err(failed)?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_mtime(made_s);
    header.set_cksum();
    let mut hashed = Hashed {
        content: content.take(bytes),
        hasher: blake3::Hasher::new(),
        read: 0,
    };
    tar.append(&header, &mut hashed).map_err(failed)?;
    match hashed.read == bytes {
        true => Ok(hashed.hasher.finalize()),
        false => Err(BackupError::Changed {
            path: path.to_owned(),
        }),
    }
}

/// Hashes what is read through it.
struct Hashed<R> {
    content: R,
    hasher: blake3::Hasher,
    read: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

fn read_exactly(path: &str, file: File, bytes: u64) -> Result<Vec<u8>, BackupError> {
    let mut content = Vec::new();
    let read = file.take(bytes).read_to_end(&mut content);
    read.map_err(BackupError::io("read", Path::new(path)))?;
    match content.len() as u64 == bytes {
        true => Ok(content),
        false => Err(BackupError::Changed {
            path: path.to_owned(),
        }),
    }
}
