//! Secret keys on disk: one short text file each, readable by its owner alone.
//!
//! ```text
//! rhizome node key
//! <64 hex digits: the seed>
//! <8 hex digits: a checksum over kind and seed>
//! ```
//!
//! or, sealed under a key of their own ([`FileLock`]), which is kept elsewhere:
//!
//! ```text
//! rhizome node key, sealed
//! <64 hex digits: the public key>
//! <144 hex digits: a nonce, and the seed encrypted with XChaCha20-Poly1305>
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::{
    epoch::{SpaceKey, open_body, random_nonce, seal_body},
    id::{Hash, PublicKey},
    keys::{SecretKey, fill_random},
};

/// The largest key file that is read, in bytes.
const MAX_BYTES: u64 = 512;
/// What the first line of a sealed file ends with.
const SEALED: &str = ", sealed";
/// The bytes of a nonce, a seed and its tag.
const SEALED_BYTES: usize = 24 + 32 + 16;

/// What key files are sealed under; without it they are of no use to whoever takes them.
#[derive(Debug, Clone)]
pub struct FileLock(SpaceKey);

impl FileLock {
    /// Makes one from the operating system's randomness.
    pub fn generate() -> Self {
        Self(SpaceKey::generate())
    }

    /// Returns the lock of 32 secret bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(SpaceKey::from_bytes(bytes))
    }

    /// Returns the 32 secret bytes.
    pub fn secret_bytes(&self) -> Zeroizing<[u8; 32]> {
        self.0.secret_bytes()
    }

    /// Returns a hash that tells locks apart without giving any away.
    pub fn commitment(&self) -> Hash {
        Hash::of(&self.0.derive("rhizome 2026-12-01 key file lock commitment"))
    }
}

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
    /// The file is sealed, and what opens it was not given.
    #[error("the key in `{}` is sealed", path.display())]
    Sealed {
        /// The path.
        path: PathBuf,
    },
    /// The file is sealed under something else, or damaged.
    #[error("the key in `{}` does not open with what protects the keys here", path.display())]
    WrongLock {
        /// The path.
        path: PathBuf,
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
            Self::Sealed { .. } | Self::WrongLock { .. } => Some(
                "it opens with the `keys.json` it was sealed under; `rhizome keys show` says how"
                    .into(),
            ),
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
    save_under(path, kind, key, None)
}

/// As [`save`], sealed under `lock` if there is one.
///
/// # Errors
/// As [`save`].
pub fn save_under(
    path: &Path,
    kind: KeyKind,
    key: &SecretKey,
    lock: Option<&FileLock>,
) -> Result<(), KeyFileError> {
    if path.symlink_metadata().is_ok() {
        return Err(KeyFileError::Exists {
            path: path.to_owned(),
        });
    }
    // The link is what publishes the file: whole or not at all, and never over another.
    publish(path, &text_of(kind, key, lock), |draft| {
        let linked = fs::hard_link(draft, path);
        linked.and(fs::remove_file(draft))
    })
}

/// Writes `key` over the file at `path`, which holds it already, sealed under `lock` if there is
/// one: after a crash there is the old file or the new one.
///
/// # Errors
/// [`KeyFileError::Io`] if the system refuses.
pub fn replace_under(
    path: &Path,
    kind: KeyKind,
    key: &SecretKey,
    lock: Option<&FileLock>,
) -> Result<(), KeyFileError> {
    publish(path, &text_of(kind, key, lock), |draft| {
        fs::rename(draft, path)
    })
}

fn text_of(kind: KeyKind, key: &SecretKey, lock: Option<&FileLock>) -> Zeroizing<String> {
    lock.map_or_else(|| spell(kind, key), |lock| spell_sealed(kind, key, lock))
}

fn publish(
    path: &Path,
    text: &str,
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), KeyFileError> {
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
    let mut random = [0; 8];
    fill_random(&mut random);
    let draft = parent.join(format!(".key-{:016x}", u64::from_le_bytes(random)));
    let written = write(&draft, text).and_then(|()| name(&draft));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.map_err(at)?;
    // The name must survive power loss as well as the content.
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(at)
}

fn write(draft: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
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

/// Returns the text of a sealed key file.
fn spell_sealed(kind: KeyKind, key: &SecretKey, lock: &FileLock) -> Zeroizing<String> {
    let nonce = random_nonce();
    let public = key.public();
    let sealed = seal_body(&lock.0, &nonce, &sealed_aad(kind, &public), &*key.seed());
    let digits = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    Zeroizing::new(format!(
        "{}{SEALED}\n{public}\n{}{}\n",
        kind.header(),
        digits(&nonce),
        digits(&sealed)
    ))
}

/// Reads what [`spell_sealed`] returns, and nothing else.
fn read_sealed(text: &[u8], kind: KeyKind, lock: &FileLock) -> Option<SecretKey> {
    let rest = std::str::from_utf8(text)
        .ok()?
        .strip_prefix(kind.header())?;
    let (public, rest) = rest
        .strip_prefix(SEALED)?
        .strip_prefix('\n')?
        .split_once('\n')?;
    let public: PublicKey = public.parse().ok()?;
    let digits = rest.strip_suffix('\n')?.as_bytes();
    if digits.len() != 2 * SEALED_BYTES {
        return None;
    }
    let pairs = digits.chunks_exact(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = pairs.collect::<Option<_>>()?;
    let (nonce, sealed) = bytes.split_first_chunk::<24>()?;
    let seed = Zeroizing::new(open_body(&lock.0, nonce, &sealed_aad(kind, &public), sealed).ok()?);
    let key = SecretKey::from_seed(seed.as_slice().try_into().ok()?);
    (key.public() == public).then_some(key)
}

fn sealed_aad(kind: KeyKind, public: &PublicKey) -> Vec<u8> {
    [kind.header().as_bytes(), b"\n", public.as_bytes()].concat()
}

/// Returns whether the text of a key file is sealed.
fn is_sealed(text: &[u8], kind: KeyKind) -> bool {
    let rest = text.strip_prefix(kind.header().as_bytes());
    rest.is_some_and(|rest| rest.starts_with(SEALED.as_bytes()))
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
    load_under(path, kind, None).map(|(key, _)| key)
}

/// As [`load`], and opens what is sealed under `lock`; tells also whether it was.
///
/// # Errors
/// As [`load`], and [`KeyFileError::Sealed`], [`KeyFileError::WrongLock`].
pub fn load_under(
    path: &Path,
    kind: KeyKind,
    lock: Option<&FileLock>,
) -> Result<(SecretKey, bool), KeyFileError> {
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
    let mut text = Zeroizing::new(Vec::with_capacity(512));
    file.take(MAX_BYTES).read_to_end(&mut text).map_err(at)?;
    if is_sealed(&text, kind) {
        let path = || path.to_owned();
        let lock = lock.ok_or_else(|| KeyFileError::Sealed { path: path() })?;
        let key = read_sealed(&text, kind, lock);
        return key
            .map(|key| (key, true))
            .ok_or_else(|| KeyFileError::WrongLock { path: path() });
    }
    let header = text.strip_prefix(kind.header().as_bytes());
    if !header.is_some_and(|rest| rest.starts_with(b"\n")) {
        return Err(KeyFileError::WrongKind {
            path: path.to_owned(),
            expected: kind,
        });
    }
    let key = read(&text, kind).ok_or_else(|| KeyFileError::Damaged {
        path: path.to_owned(),
    })?;
    Ok((key, false))
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

    #[test]
    fn a_sealed_key_opens_with_its_lock_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let (key, lock) = (SecretKey::generate(), FileLock::generate());
        save(&path, KeyKind::Node, &key).unwrap();
        // What is not sealed yet is read all the same.
        let (_, sealed) = load_under(&path, KeyKind::Node, Some(&lock)).unwrap();
        assert!(!sealed);
        replace_under(&path, KeyKind::Node, &key, Some(&lock)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = fs::read(&path).unwrap();
        let seed = key.seed();
        let hex = Hash::from_bytes(*seed).to_string();
        for secret in [&seed[..], hex.as_bytes()] {
            assert!(!text.windows(secret.len()).any(|piece| piece == secret));
        }
        let (again, sealed) = load_under(&path, KeyKind::Node, Some(&lock)).unwrap();
        assert_eq!((again.public(), sealed), (key.public(), true));
        assert!(matches!(
            load(&path, KeyKind::Node),
            Err(KeyFileError::Sealed { .. })
        ));
        let other = load_under(&path, KeyKind::Node, Some(&FileLock::generate()));
        assert!(matches!(other, Err(KeyFileError::WrongLock { .. })));
        let other = load_under(&path, KeyKind::Agent, Some(&lock));
        assert!(matches!(other, Err(KeyFileError::WrongKind { .. })));
        let again = save_under(&path, KeyKind::Node, &key, Some(&lock));
        assert!(matches!(again, Err(KeyFileError::Exists { .. })));
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            let read = load_under(&path, KeyKind::Node, Some(&lock));
            assert!(read.is_err(), "{at}");
        }
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            assert!(
                load_under(&path, KeyKind::Node, Some(&lock)).is_err(),
                "{length}"
            );
        }
        replace_under(&path, KeyKind::Node, &key, None).unwrap();
        assert_eq!(load(&path, KeyKind::Node).unwrap().public(), key.public());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
