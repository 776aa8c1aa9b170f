//! Secret keys on disk: one short text file each, readable by its owner alone.
//!
//! ```text
//! rhizome node key
//! <64 hex digits: the seed>
//! <8 hex digits: a checksum over kind and seed>
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::{
    id::Hash,
    keys::{SecretKey, fill_random},
};

/// The largest key file that is read, in bytes.
const MAX_BYTES: u64 = 256;

/// Whose key a file holds; a key of one kind is not taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A node's.
    Node,
    /// An agent's.
    Agent,
    /// A mesh's root.
    Root,
}

impl KeyKind {
    fn header(self) -> &'static str {
        match self {
            KeyKind::Node => "rhizome node key",
            KeyKind::Agent => "rhizome agent key",
            KeyKind::Root => "rhizome root key",
        }
    }
}

/// Why a key file could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// There is a file already; keys are never overwritten.
    #[error("`{}` exists already", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// There is no such file.
    #[error("there is no key at `{}`", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Others can read the file.
    #[error("others than the owner can use `{}` (mode {mode:o})", path.display())]
    Exposed {
        /// The path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds another kind of key, or something else.
    #[error("`{}` does not hold a {}", path.display(), expected.header())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What was looked for.
        expected: KeyKind,
    },
    /// The file is of the right kind but damaged.
    #[error("the key in `{}` is damaged", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot use the key file `{}`", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl KeyFileError {
    /// Says what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Exposed { path, .. } => Some(format!(
                "make it private with `chmod 600 {}`",
                path.display()
            )),
            Self::Exists { .. } => Some("move it away first; keys are never overwritten".into()),
            Self::Damaged { .. } | Self::WrongKind { .. } => {
                Some("restore it from a backup; without it this identity is lost".into())
            }
            Self::Missing { .. } | Self::Io { .. } => None,
        }
    }
}

/// Writes `key` to a new file (0600) at `path`, durably; a missing parent is made (0700).
///
/// # Errors
/// [`KeyFileError::Exists`] if anything is there, [`KeyFileError::Io`] if the system refuses; a
/// file that could not be written whole is taken away again.
pub fn save(path: &Path, kind: KeyKind, key: &SecretKey) -> Result<(), KeyFileError> {
    let at = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists {
            path: path.to_owned(),
        },
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(at)?;
    if path.symlink_metadata().is_ok() {
        return Err(KeyFileError::Exists {
            path: path.to_owned(),
        });
    }
    let mut random = [0; 8];
    fill_random(&mut random);
    let draft = parent.join(format!(".key-{:016x}", u64::from_le_bytes(random)));
    // The link is what publishes the file: whole or not at all, and never over another.
    let written = write(&draft, kind, key).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    written.and(removed).map_err(at)?;
    // The name must survive power loss as well as the content.
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(at)
}

fn write(draft: &Path, kind: KeyKind, key: &SecretKey) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(spell(kind, key).as_bytes())?;
    file.sync_all()
}

/// Returns the text of a key file.
pub fn spell(kind: KeyKind, key: &SecretKey) -> Zeroizing<String> {
    let seed = key.seed();
    let digits = Zeroizing::new(Hash::from_bytes(*seed).to_string());
    Zeroizing::new(format!(
        "{}\n{}\n{}\n",
        kind.header(),
        *digits,
        checksum(kind, &seed)
    ))
}

/// Reads what [`spell`] returns, and nothing else.
pub fn read(text: &[u8], kind: KeyKind) -> Option<SecretKey> {
    let rest = text.strip_prefix(kind.header().as_bytes())?;
    let rest = std::str::from_utf8(rest.strip_prefix(b"\n")?).ok()?;
    let (digits, sum) = rest.split_once('\n')?;
    let seed: Hash = digits.parse().ok()?;
    // One key has one spelling.
    let spelled = digits.bytes().all(|c| !c.is_ascii_uppercase());
    let right = sum.strip_suffix('\n') == Some(checksum(kind, seed.as_bytes()).as_str());
    (spelled && right).then(|| SecretKey::from_seed(*seed.as_bytes()))
}

/// A digit that changed on disk would make another key, and with it another node.
fn checksum(kind: KeyKind, seed: &[u8; 32]) -> String {
    let input = Zeroizing::new([kind.header().as_bytes(), seed].concat());
    let sum = Hash::keyed("rhizome 2026-11-30 key file checksum", &input);
    sum.to_string()[..8].to_owned()
}

/// Reads a key that [`save`] wrote.
///
/// # Errors
/// [`KeyFileError`] says whether it is missing, exposed to others, of another kind, or damaged.
pub fn load(path: &Path, kind: KeyKind) -> Result<SecretKey, KeyFileError> {
    let at = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => KeyFileError::Missing {
            path: path.to_owned(),
        },
        _ => KeyFileError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let file = File::open(path).map_err(at)?;
    let mode = file.metadata().map_err(at)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    file.take(MAX_BYTES).read_to_end(&mut text).map_err(at)?;
    let header = text.strip_prefix(kind.header().as_bytes());
    if !header.is_some_and(|rest| rest.starts_with(b"\n")) {
        return Err(KeyFileError::WrongKind {
            path: path.to_owned(),
            expected: kind,
        });
    }
    read(&text, kind).ok_or_else(|| KeyFileError::Damaged {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_saved_key_is_private_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys/node.key");
        let key = SecretKey::generate();
        save(&path, KeyKind::Node, &key).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777,
            0o700
        );
        assert_eq!(load(&path, KeyKind::Node).unwrap().public(), key.public());
        let again = save(&path, KeyKind::Node, &SecretKey::generate());
        assert!(matches!(again, Err(KeyFileError::Exists { .. })));
        assert_eq!(load(&path, KeyKind::Node).unwrap().public(), key.public());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        assert!(matches!(
            load(&path, KeyKind::Node),
            Err(KeyFileError::Missing { .. })
        ));
        save(&path, KeyKind::Agent, &SecretKey::generate()).unwrap();
        assert!(matches!(
            load(&path, KeyKind::Node),
            Err(KeyFileError::WrongKind { .. })
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let exposed = load(&path, KeyKind::Agent).unwrap_err();
        assert!(matches!(exposed, KeyFileError::Exposed { mode: 0o640, .. }));
        assert!(exposed.hint().unwrap().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 18..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(
                matches!(
                    load(&path, KeyKind::Agent),
                    Err(KeyFileError::Damaged { .. })
                ),
                "{length}"
            );
        }
        for at in 18..whole.len() {
            let mut changed = whole.clone();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            fs::write(&path, &changed).unwrap();
            assert!(load(&path, KeyKind::Agent).is_err(), "{at}");
        }
        // Nothing is left beside it, and a directory is no key.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(load(dir.path(), KeyKind::Agent).is_err());
        fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
        assert!(matches!(
            load(&path, KeyKind::Agent),
            Err(KeyFileError::Damaged { .. })
        ));
    }
}
