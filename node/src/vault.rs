//! How the keys of this node lie at rest: as they are, or sealed under one lock, which is kept under
//! a passphrase or in the keyring of the operating system.
//!
//! `keys.json` says which, and holds the lock where a passphrase opens it, as an age file. The space
//! keys are wrapped to the node's key in the authority log, so that one protects them all.
//!
//! Every step of a change leaves something that can be read: a file that is not sealed is read
//! whatever `keys.json` says, so the lock is durable before the first file is sealed, and taken away
//! after the last one is not.
mod error;
mod keyring;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use data_encoding::{BASE64, HEXLOWER};
use rhizome_identity::{
    Hash, KeyFileError, SecretKey,
    keyfile::{self, FileLock, KeyKind},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub(crate) use self::error::VaultError;
use crate::{
    backup::{self, Opener, Sealer, first_line},
    prompt,
};

/// The file that says how the keys lie here.
const FILE: &str = "keys.json";
/// The largest such file, in bytes.
const MAX_FILE: u64 = 64 * 1024;
/// The file with the passphrase, if this is set.
const PASSPHRASE_FILE: &str = "RHIZOME_PASSPHRASE_FILE";
/// The directory of a service's credentials, set by systemd, and the name of ours.
const CREDENTIALS: (&str, &str) = ("CREDENTIALS_DIRECTORY", "rhizome-passphrase");
/// What a passphrase is asked for as.
const PASSPHRASE: &str = "passphrase of this node's keys";

/// How the keys lie at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AtRest {
    /// In files that their owner alone can read.
    Plain,
    /// Under a passphrase.
    Passphrase,
    /// In the keyring of the operating system.
    Keyring,
}

impl AtRest {
    /// Returns the word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Passphrase => "passphrase",
            Self::Keyring => "keyring",
        }
    }

    /// Reads the word for it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Plain, Self::Passphrase, Self::Keyring]
            .into_iter()
            .find(|way| way.as_str() == text)
    }
}

/// What `keys.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    with: AtRest,
    /// Which lock it is, so that another one is not taken for it.
    lock: String,
    /// The lock as an age file in Base64, under a passphrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
    /// What the keyring knows it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<String>,
}

/// The keys of one data directory.
#[derive(Debug)]
pub(crate) struct Vault {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    kept: Option<Kept>,
    lock: Option<FileLock>,
}

impl Vault {
    /// Opens the keys of `dir`: reads how they lie, and gets the lock from where it is kept. A change
    /// that was interrupted is finished.
    ///
    /// # Errors
    /// [`VaultError`] if the lock cannot be had.
    pub(crate) fn open(dir: &Path) -> Result<Self, VaultError> {
        let kept = read(&dir.join(FILE))?;
        let lock = kept.as_ref().map(unlock).transpose()?;
        let vault = Self {
            dir: dir.to_owned(),
            state: Mutex::new(State { kept, lock }),
        };
        if let Some(lock) = vault.lock() {
            vault.seal_all(Some(&lock))?;
        }
        Ok(vault)
    }

    /// Returns how the keys of a directory lie, without opening them.
    ///
    /// # Errors
    /// [`VaultError`] if that cannot be read.
    pub(crate) fn at_rest_in(dir: &Path) -> Result<AtRest, VaultError> {
        Ok(read(&dir.join(FILE))?.map_or(AtRest::Plain, |kept| kept.with))
    }

    /// Returns how the keys lie.
    pub(crate) fn at_rest(&self) -> AtRest {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.as_ref().map_or(AtRest::Plain, |kept| kept.with)
    }

    /// Loads a key.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub(crate) fn load(&self, path: &Path, kind: KeyKind) -> Result<SecretKey, KeyFileError> {
        keyfile::load_under(path, kind, self.lock().as_ref()).map(|(key, _)| key)
    }

    /// Stores a new key.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub(crate) fn save(
        &self,
        path: &Path,
        kind: KeyKind,
        key: &SecretKey,
    ) -> Result<(), KeyFileError> {
        keyfile::save_under(path, kind, key, self.lock().as_ref())
    }

    /// Loads the key at `path`, or makes one and stores it there first.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub(crate) fn load_or_make(
        &self,
        path: &Path,
        kind: KeyKind,
    ) -> Result<SecretKey, KeyFileError> {
        if fs::symlink_metadata(path).is_ok() {
            return self.load(path, kind);
        }
        let key = SecretKey::generate();
        self.save(path, kind, &key)?;
        Ok(key)
    }

    /// Has the keys lie another way from now on.
    ///
    /// # Errors
    /// [`VaultError`]; then they lie as before, or the change is finished by the next start or by
    /// doing it again.
    pub(crate) fn protect(&self, with: AtRest, passphrase: Option<&str>) -> Result<(), VaultError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.kept.as_ref().and_then(|kept| kept.item.clone());
        let path = self.dir.join(FILE);
        if with == AtRest::Plain {
            self.seal_with(state.lock.as_ref(), None)?;
            remove(&path)?;
            *state = State {
                kept: None,
                lock: None,
            };
        } else {
            let lock = state.lock.clone().unwrap_or_else(FileLock::generate);
            let mut kept = Kept {
                version: 1,
                with,
                lock: lock.commitment().to_string(),
                sealed: None,
                item: None,
            };
            let digits = Zeroizing::new(HEXLOWER.encode(&lock.secret_bytes()[..]));
            if with == AtRest::Keyring {
                let item = SecretKey::generate().public().fmt_short();
                keyring::store(&item, &digits)?;
                kept.item = Some(item);
            } else {
                let passphrase = passphrase.filter(|passphrase| !passphrase.is_empty());
                let sealer = Sealer::for_passphrase(passphrase.ok_or(VaultError::NoPassphrase)?);
                let sealed = sealer.seal_all(digits.as_bytes());
                let sealed = sealed.map_err(|error| VaultError::Age(error.to_string()))?;
                kept.sealed = Some(BASE64.encode(&sealed));
            }
            // The lock is durable before anything is sealed under it.
            write(&path, &kept)?;
            let was = state.lock.replace(lock.clone());
            state.kept = Some(kept);
            self.seal_with(was.as_ref().or(Some(&lock)), Some(&lock))?;
        }
        drop(state);
        if let Some(item) = before {
            keyring::forget(&item);
        }
        Ok(())
    }

    fn lock(&self) -> Option<FileLock> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lock.clone()
    }

    /// Seals every key that is not.
    fn seal_all(&self, lock: Option<&FileLock>) -> Result<(), VaultError> {
        self.seal_with(lock, lock)
    }

    /// Has every key file lie under `to`; what is sealed opens with `from`.
    fn seal_with(&self, from: Option<&FileLock>, to: Option<&FileLock>) -> Result<(), VaultError> {
        for (path, kind) in backup::key_files(&self.dir).map_err(VaultError::io(&self.dir))? {
            let (key, is_sealed) = keyfile::load_under(&path, kind, from)?;
            if is_sealed != to.is_some() {
                keyfile::replace_under(&path, kind, &key, to)?;
            }
        }
        Ok(())
    }
}

/// Gets the lock from where it is kept.
fn unlock(kept: &Kept) -> Result<FileLock, VaultError> {
    let digits = match (kept.with, &kept.sealed, &kept.item) {
        (AtRest::Passphrase, Some(sealed), _) => {
            let sealed = BASE64.decode(sealed.as_bytes());
            let sealed = sealed.map_err(|_| VaultError::Damaged)?;
            let opener = Opener::from_passphrase(&passphrase()?);
            let opened = opener.open_all(&sealed, MAX_FILE);
            opened.map_err(|error| match error {
                backup::BackupError::WrongKey { .. } => VaultError::WrongPassphrase,
                other => VaultError::Age(other.to_string()),
            })?
        }
        (AtRest::Keyring, _, Some(item)) => keyring::look_up(item)?,
        _ => return Err(VaultError::Damaged),
    };
    let bytes = HEXLOWER.decode(digits.trim_ascii());
    let bytes = Zeroizing::new(bytes.map_err(|_| VaultError::Damaged)?);
    let bytes: [u8; 32] = bytes
        .as_slice()
        .try_into()
        .map_err(|_| VaultError::Damaged)?;
    let lock = FileLock::from_bytes(bytes);
    match kept.lock.parse::<Hash>() {
        Ok(said) if said == lock.commitment() => Ok(lock),
        _ => Err(VaultError::Damaged),
    }
}

/// Returns the passphrase from where the environment says, or asks for it.
fn passphrase() -> Result<Zeroizing<String>, VaultError> {
    let named = std::env::var_os(PASSPHRASE_FILE).map(PathBuf::from);
    let credential = std::env::var_os(CREDENTIALS.0)
        .map(|dir| PathBuf::from(dir).join(CREDENTIALS.1))
        .filter(|path| path.exists());
    match named.or(credential) {
        Some(path) => first_line(&path).map_err(|error| VaultError::PassphraseFile {
            path,
            why: error.to_string(),
        }),
        None => prompt::secret(PASSPHRASE).map_err(VaultError::Prompt),
    }
}

fn read(path: &Path) -> Result<Option<Kept>, VaultError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(VaultError::io(path)(error)),
        Ok(metadata) if metadata.len() > MAX_FILE => return Err(VaultError::Damaged),
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(VaultError::io(path))?;
    let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| VaultError::Damaged)?;
    match kept.version {
        1 => Ok(Some(kept)),
        version => Err(VaultError::Version(version)),
    }
}

/// Writes it whole or not at all, durably.
fn write(path: &Path, kept: &Kept) -> Result<(), VaultError> {
    let draft = path.with_extension("json.new");
    let json = serde_json::to_vec_pretty(kept).expect("it has string keys");
    let written = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft)?;
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        sync_parent(path)
    };
    written().map_err(VaultError::io(path))
}

fn remove(path: &Path) -> Result<(), VaultError> {
    match fs::remove_file(path).and_then(|()| sync_parent(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VaultError::io(path)(error)),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().expect("it lies in a data directory"))?.sync_all()
}
