//! Reading a backup: all of it is checked before any of it is believed.
//!
//! Whoever made the file may be hostile. The list of contents is judged before anything is written:
//! its names are those of a data directory and nothing else, sizes are those such files can have,
//! and what follows has to be just what it says.
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    path::Path,
};

use rhizome_identity::{Hash, NodeKey, keyfile};
use rhizome_memory::{StoreAudit, StoreCounts};
use tar::{Archive, Entries, EntryType};
use zeroize::Zeroizing;

use super::{
    BackupError, Contents, Opener,
    contents::{CONTENTS, COUNTS, Class, Item, MAX_CONTENTS, SUMS, class_of, shown},
};

/// The longest line of the list of hashes, in bytes.
const MAX_SUM_LINE: u64 = 64 + 2 + 100 + 1;
/// The longest list of counts, in bytes.
const MAX_COUNTS: u64 = 4 * 1024;
/// How much padding may follow upon the last file, in bytes: tar fills up a record of 20 blocks.
const MAX_PADDING: u64 = 64 * 1024;
/// How much is read at once, in bytes.
const PIECE: usize = 64 * 1024;

/// Where the files of a backup go.
pub(super) trait Place {
    /// Is told what will come; nothing was written before.
    fn begin(&mut self, contents: &Contents) -> Result<(), BackupError>;
    /// Returns where a file of the list goes.
    fn file(&mut self, path: &str) -> Result<Box<dyn Write + '_>, BackupError>;
    /// Is told that the file just written is whole.
    fn whole(&mut self) -> Result<(), BackupError>;
}

/// Where they go when they are looked at alone.
struct Nowhere;

impl Place for Nowhere {
    fn begin(&mut self, _: &Contents) -> Result<(), BackupError> {
        Ok(())
    }

    fn file(&mut self, _: &str) -> Result<Box<dyn Write + '_>, BackupError> {
        Ok(Box::new(io::sink()))
    }

    fn whole(&mut self) -> Result<(), BackupError> {
        Ok(())
    }
}

/// What a backup was found to hold; every hash, checksum, signature and count in it is right.
#[derive(Debug)]
pub(crate) struct Checked {
    /// What it says of itself.
    pub(crate) contents: Contents,
    /// What its segments hold.
    pub(crate) counts: StoreCounts,
    /// The mesh it is of: id, name, how many members it had.
    pub(crate) mesh: Option<(String, String, usize)>,
    /// The length of all its files, in bytes.
    pub(crate) bytes: u64,
}

/// Reads a backup and checks all of it; writes nothing.
///
/// # Errors
/// [`BackupError`] says what is wrong with it.
pub(crate) fn verify(input: impl Read, opener: &Opener) -> Result<Checked, BackupError> {
    unpack(input, opener, &mut Nowhere)
}

/// Reads a backup, checks all of it, and hands its files to `place` as they come: what was handed
/// on before an error is worth nothing.
pub(super) fn unpack(
    input: impl Read,
    opener: &Opener,
    place: &mut dyn Place,
) -> Result<Checked, BackupError> {
    let mut archive = Archive::new(opener.open(input)?);
    let checked = {
        let entries = archive.entries().map_err(broken)?;
        // As they stand: no header that lends another one a longer name or size.
        Unpacking::begin(entries.raw(true), place)?.run(place)?
    };
    // The last piece says that it is the last: only there does it show that nothing was cut off.
    let mut rest = archive.into_inner().take(MAX_PADDING + 1);
    let mut padding = 0;
    let mut buffer = vec![0; PIECE];
    loop {
        match rest.read(&mut buffer).map_err(broken)? {
            0 => break,
            read if buffer[..read].iter().all(|byte| *byte == 0) => padding += read as u64,
            _ => return Err(BackupError::damaged("something follows upon its last file")),
        }
    }
    match padding > MAX_PADDING {
        true => Err(BackupError::damaged("something follows upon its last file")),
        false => Ok(checked),
    }
}

struct Unpacking<'a, R: Read> {
    entries: Entries<'a, R>,
    contents: Contents,
    bytes: u64,
    sums: BTreeMap<String, blake3::Hash>,
}

impl<'a, R: Read> Unpacking<'a, R> {
    fn begin(mut entries: Entries<'a, R>, place: &mut dyn Place) -> Result<Self, BackupError> {
        let contents = Contents::parse(&read_small(&mut entries, CONTENTS, MAX_CONTENTS)?)?;
        let bytes = contents.bytes()?;
        place.begin(&contents)?;
        Ok(Self {
            entries,
            contents,
            bytes,
            sums: BTreeMap::new(),
        })
    }

    fn run(mut self, place: &mut dyn Place) -> Result<Checked, BackupError> {
        let mut audit: Option<StoreAudit> = None;
        for item in std::mem::take(&mut self.contents.files) {
            let class = class_of(&item.path).expect("the list was judged");
            let content = self.file(&item, class, place)?;
            match class {
                Class::Key(kind) => {
                    let key = keyfile::read(&content, kind);
                    let key = key.ok_or_else(|| BackupError::Key {
                        path: item.path.clone(),
                    })?;
                    if audit.is_none() {
                        let node = NodeKey::from(key);
                        if node.id().to_string() != self.contents.node {
                            let what = "it is another node's";
                            return Err(BackupError::Contents {
                                path: item.path,
                                what,
                            });
                        }
                        audit = Some(StoreAudit::new(&node, true));
                    }
                }
                Class::Segment => {
                    let audit = audit.as_mut().expect("the node's key stands first");
                    let name = item.path.strip_prefix("store/").unwrap_or(&item.path);
                    audit.segment(name, &content)?;
                }
                Class::Small | Class::Body | Class::Blob => {}
            }
            self.contents.files.push(item);
        }
        self.check_sums()?;
        let audit = audit.expect("the node's key stands first");
        self.check_counts(audit.counts())?;
        let mesh = audit.mesh();
        Ok(Checked {
            counts: audit.counts().clone(),
            mesh: mesh.map(|(id, name, members)| (id.to_string(), name, members)),
            bytes: self.bytes,
            contents: self.contents,
        })
    }

    /// Copies the next file, which has to be `item`; returns its content if that is looked at.
    fn file(
        &mut self,
        item: &Item,
        class: Class,
        place: &mut dyn Place,
    ) -> Result<Zeroizing<Vec<u8>>, BackupError> {
        let mut entry = next(&mut self.entries, &item.path)?;
        if entry.size() != item.bytes {
            let (path, what) = (item.path.clone(), "it has another length");
            return Err(BackupError::Contents { path, what });
        }
        let keeps = matches!(class, Class::Key(_) | Class::Segment);
        let mut content = Zeroizing::new(Vec::new());
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Zeroizing::new(vec![0; PIECE]);
        let mut left = item.bytes;
        {
            let mut out = place.file(&item.path)?;
            loop {
                let read = entry.read(&mut buffer).map_err(broken)?;
                if read == 0 {
                    break;
                }
                left = left.saturating_sub(read as u64);
                let piece = &buffer[..read];
                hasher.update(piece);
                if keeps {
                    content.extend_from_slice(piece);
                }
                let written = out.write_all(piece);
                written.map_err(BackupError::io("write", Path::new(&item.path)))?;
            }
            out.flush()
                .map_err(BackupError::io("write", Path::new(&item.path)))?;
        }
        if left > 0 {
            return Err(BackupError::damaged(format!(
                "it ends within `{}`",
                item.path
            )));
        }
        let sum = hasher.finalize();
        let name = item.path.rsplit('/').next().unwrap_or_default();
        if class == Class::Body && Hash::from_bytes(*sum.as_bytes()).to_string() != name {
            let (path, what) = (item.path.clone(), "its content is not what its name says");
            return Err(BackupError::Contents { path, what });
        }
        place.whole()?;
        self.sums.insert(item.path.clone(), sum);
        Ok(content)
    }

    fn check_sums(&mut self) -> Result<(), BackupError> {
        let limit = MAX_SUM_LINE * (self.sums.len() as u64);
        let text = read_small(&mut self.entries, SUMS, limit)?;
        let lines = String::from_utf8_lossy(&text);
        let mut lines = lines.lines();
        for Item { path, .. } in &self.contents.files {
            let said = lines.next().and_then(|line| line.split_once("  "));
            let sum = self.sums.get(path).map(|sum| sum.to_hex());
            let is_right = said.is_some_and(|(said, of)| {
                of == path && sum.as_ref().is_some_and(|sum| said == sum.as_str())
            });
            if !is_right {
                let (path, what) = (path.clone(), "its hash is another");
                return Err(BackupError::Contents { path, what });
            }
        }
        match lines.next() {
            None => Ok(()),
            Some(_) => Err(BackupError::damaged("there are more hashes than files")),
        }
    }

    fn check_counts(&mut self, found: &StoreCounts) -> Result<(), BackupError> {
        let text = read_small(&mut self.entries, COUNTS, MAX_COUNTS)?;
        let counted: StoreCounts = serde_json::from_slice(&text)
            .map_err(|_| BackupError::damaged("its counts cannot be read"))?;
        let pairs = [
            ("segments", found.segments, counted.segments),
            ("fragments", found.fragments, counted.fragments),
            ("authority records", found.records, counted.records),
            ("proofs of forks", found.evidence, counted.evidence),
            ("damaged regions", found.damaged, counted.damaged),
            ("arrivals", found.last_arrival, counted.last_arrival),
        ];
        match pairs
            .into_iter()
            .find(|(_, found, counted)| found != counted)
        {
            None => Ok(()),
            Some((what, found, counted)) => Err(BackupError::Count {
                what,
                found,
                counted,
            }),
        }
    }
}

/// Returns the next entry, which has to be the file `wanted`.
fn next<'a, R: Read>(
    entries: &mut Entries<'a, R>,
    wanted: &str,
) -> Result<tar::Entry<'a, R>, BackupError> {
    let entry = match entries.next() {
        Some(entry) => entry.map_err(broken)?,
        None => return Err(BackupError::damaged(format!("it ends before `{wanted}`"))),
    };
    let path = entry.path_bytes();
    if path != wanted.as_bytes() {
        let path = shown(&String::from_utf8_lossy(&path));
        let what = "it stands where another file has to be";
        return Err(BackupError::Contents { path, what });
    }
    if entry.header().entry_type() != EntryType::Regular {
        let (path, what) = (wanted.to_owned(), "it is no plain file");
        return Err(BackupError::Contents { path, what });
    }
    Ok(entry)
}

fn read_small<R: Read>(
    entries: &mut Entries<'_, R>,
    name: &str,
    limit: u64,
) -> Result<Vec<u8>, BackupError> {
    let mut entry = next(entries, name)?;
    let bytes = entry.size();
    if bytes > limit {
        let path = name.to_owned();
        return Err(BackupError::TooLarge { path, bytes, limit });
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(broken)?;
    match content.len() as u64 == bytes {
        true => Ok(content),
        false => Err(BackupError::damaged(format!("it ends within `{name}`"))),
    }
}

fn broken(error: io::Error) -> BackupError {
    BackupError::damaged(error.to_string())
}
