//! Which files of a data directory belong to a backup, and the list of them.
use std::collections::BTreeSet;

use rhizome_identity::keyfile::KeyKind;
use serde::{Deserialize, Serialize};

use super::BackupError;

/// The format of a backup.
pub(super) const FORMAT: u32 = 1;
/// The names of what is no file of the node's.
pub(super) const CONTENTS: &str = "contents.json";
pub(super) const SUMS: &str = "BLAKE3SUMS";
pub(super) const COUNTS: &str = "counts.json";
/// The longest list of contents, in bytes: some half a million files.
pub(super) const MAX_CONTENTS: u64 = 64 * 1024 * 1024;
/// The longest path; what fits the head of a tar entry.
const MAX_PATH: usize = 100;
/// The largest segment, in bytes: one is read at once, and ends with the batch that fills it.
const MAX_SEGMENT: u64 = 512 * 1024 * 1024;
/// The largest file of settings, keys or notes, in bytes.
pub(super) const MAX_SMALL: u64 = 64 * 1024 * 1024;
/// The largest key, in bytes.
const MAX_KEY: u64 = 256;
/// The largest body of a memory, in bytes, with what encryption adds.
const MAX_BODY: u64 = rhizome_memory::MAX_BODY as u64 + 64;

/// What a file is, and so how it is copied and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A secret key.
    Key(KeyKind),
    /// Settings and notes: read at once, or as far as they were written.
    Small,
    /// A segment of the store.
    Segment,
    /// A body of the store, named by its hash.
    Body,
    /// A pack of chunks or what says of one: as large as it likes.
    Blob,
}

/// What a node's files are called, in the order in which they stand in a backup: a file, or a
/// directory when it ends with `/`, of which every file has the ending.
const PLACES: [(&str, &str, Class); 25] = [
    ("node.key", "", Class::Key(KeyKind::Node)),
    ("agent.key", "", Class::Key(KeyKind::Agent)),
    ("root.key", "", Class::Key(KeyKind::Root)),
    ("next-root.key", "", Class::Key(KeyKind::Root)),
    ("next-root.key.new", "", Class::Key(KeyKind::Root)),
    ("agents/", ".key", Class::Key(KeyKind::Agent)),
    ("config.json", "", Class::Small),
    ("tokens.json", "", Class::Small),
    ("quotas.json", "", Class::Small),
    ("net/peers.book", "", Class::Small),
    ("secrets/", ".json", Class::Small),
    ("usage/", "", Class::Small),
    ("audit/", ".log", Class::Small),
    ("files/", ".json", Class::Small),
    ("e2b/", "", Class::Small),
    ("e2b/sandboxes/", ".json", Class::Small),
    ("e2b/snapshots/", ".json", Class::Small),
    ("e2b/templates/", ".json", Class::Small),
    ("e2b/volumes/", ".json", Class::Small),
    ("store/segments/", ".seg", Class::Segment),
    ("store/bodies/", "", Class::Body),
    ("sandboxes/snapshots/", ".json", Class::Blob),
    ("chunks/pins/", "", Class::Blob),
    ("chunks/own/", "", Class::Blob),
    ("chunks/held/", "", Class::Blob),
];

/// Returns the files and directories that are copied as they are; those of the store are told by
/// the store, and blobs are copied when asked for.
pub(super) fn places(
    with_blobs: bool,
) -> impl Iterator<Item = (&'static str, &'static str, Class)> {
    let wanted = move |class: Class| match class {
        Class::Key(_) | Class::Small => true,
        Class::Segment | Class::Body => false,
        Class::Blob => with_blobs,
    };
    PLACES
        .into_iter()
        .filter(move |(_, _, class)| wanted(*class))
}

/// Returns what a file is sorted by: its place in a backup, then its name.
pub(super) fn order_of(path: &str) -> (usize, String) {
    let is_of = |(place, _, _): &(&str, &str, Class)| match place.ends_with('/') {
        true => path.starts_with(place),
        false => path == *place,
    };
    let at = PLACES.iter().position(is_of).unwrap_or(PLACES.len());
    (at, path.to_owned())
}

/// Returns what the file at `path` is; `None` if no backup has such a file.
pub(super) fn class_of(path: &str) -> Option<Class> {
    let of = |(place, ending, class): &(&str, &str, Class)| {
        if !place.ends_with('/') {
            return (path == *place).then_some(*class);
        }
        let name = path.strip_prefix(place)?;
        (is_name(name) && name.ends_with(ending) && name != *ending).then_some(*class)
    };
    (path.len() <= MAX_PATH).then(|| PLACES.iter().find_map(of))?
}

/// Whether this names a file in a directory, and no way out of it.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

impl Class {
    /// Returns how many bytes such a file has at most.
    pub(super) fn limit(self) -> u64 {
        match self {
            Self::Key(_) => MAX_KEY,
            Self::Small => MAX_SMALL,
            Self::Segment => MAX_SEGMENT,
            Self::Body => MAX_BODY,
            Self::Blob => u64::MAX,
        }
    }
}

/// A file in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// Where it lies in the data directory.
    pub(super) path: String,
    /// Its length in bytes.
    pub(super) bytes: u64,
}

/// What stands first in a backup: whose it is, when it was made, and which files follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    /// [`FORMAT`].
    pub(super) format: u32,
    /// The version of the program that made it.
    pub(crate) made_by: String,
    /// When it was made, in Unix milliseconds.
    pub(crate) made_ms: u64,
    /// The node's id.
    pub(crate) node: String,
    /// The node's name.
    pub(crate) name: String,
    /// The files in their order.
    pub(super) files: Vec<Item>,
}

/// The part of a list of contents that every version has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Contents {
    /// Reads a list of contents and judges it: format, names, sizes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BackupError> {
        let unreadable = |_| BackupError::damaged("its list of contents cannot be read");
        let Version { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(BackupError::Version { found: format });
        }
        let contents: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        contents.check()?;
        Ok(contents)
    }

    fn check(&self) -> Result<(), BackupError> {
        let mut seen = BTreeSet::new();
        for Item { path, bytes } in &self.files {
            let class = class_of(path).ok_or_else(|| BackupError::Path { path: shown(path) })?;
            let limit = class.limit();
            if *bytes > limit {
                let (path, bytes) = (path.clone(), *bytes);
                return Err(BackupError::TooLarge { path, bytes, limit });
            }
            if !seen.insert(path) {
                let (path, what) = (path.clone(), "it is there twice");
                return Err(BackupError::Contents { path, what });
            }
        }
        // The segments can be read with the node's key alone, so it stands before them.
        if self
            .files
            .first()
            .is_none_or(|first| first.path != "node.key")
        {
            let (path, what) = ("node.key".to_owned(), "it is not the first file");
            return Err(BackupError::Contents { path, what });
        }
        self.bytes().map(|_| ())
    }

    /// Returns how many bytes all files have together.
    pub(crate) fn bytes(&self) -> Result<u64, BackupError> {
        let mut sizes = self.files.iter().map(|item| item.bytes);
        let total = sizes.try_fold(0_u64, u64::checked_add);
        total.ok_or_else(|| BackupError::TooLarge {
            path: CONTENTS.to_owned(),
            bytes: u64::MAX,
            limit: u64::MAX,
        })
    }

    /// Returns how many files there are.
    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }
}

/// Returns as much of a name from outside as can be printed.
pub(super) fn shown(path: &str) -> String {
    path.chars()
        .take(MAX_PATH)
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_of_a_data_directory_and_no_way_out_of_it() {
        let body = format!("store/bodies/{}", "0".repeat(64));
        for path in [
            "node.key",
            "agents/mender.key",
            "store/segments/00000001.seg",
            &body,
            "e2b/ca.pem",
        ] {
            assert!(class_of(path).is_some(), "{path}");
        }
        for path in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../node.key",
            "agents/../node.key",
            "agents//x.key",
            "agents/.key",
            "agents/x",
            "agents/a/b.key",
            "store/segments/../../x.seg",
            "node.key/",
            "store/view/view.redb",
            "store/replica.place",
            "daemon.pid",
            "agents/x.key\0",
            "e2b/.x",
            "agents/\u{fc}.key",
        ] {
            assert!(class_of(path).is_none(), "{path:?}");
        }
        assert!(class_of(&format!("e2b/{}", "x".repeat(200))).is_none());
    }
}
