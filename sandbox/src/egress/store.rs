//! The secrets of a node, each in a file that is its owner's alone.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use super::secrets::Secret;

/// Secrets of one node.
const MAX_SECRETS: usize = 256;
/// Largest file that is read as one, in bytes.
const MAX_FILE: u64 = 64 * 1024;
const ENDING: &str = "json";

/// The secrets of a node. Which sandbox may use which is said elsewhere.
#[derive(Debug, Clone)]
pub struct SecretStore {
    dir: PathBuf,
}

/// Why the secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretStoreError {
    /// A file or directory could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is none of that name.
    #[error("there is no secret called `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// There are too many.
    #[error("a node has at most {MAX_SECRETS} secrets")]
    TooMany,
}

impl SecretStore {
    /// The store in `dir`, which is made with the first secret.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns all secrets, by name. Files that are none are passed over.
    ///
    /// # Errors
    /// [`SecretStoreError::Io`].
    pub fn list(&self) -> Result<Vec<Secret>, SecretStoreError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&self.dir)(error)),
        };
        let mut secrets = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed(&self.dir))?.path();
            if path.extension().is_some_and(|ending| ending == ENDING)
                && let Some(secret) = read(&path)
            {
                secrets.push(secret);
            }
        }
        secrets.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(secrets)
    }

    /// Returns the secrets with these names; one that is not there is left out, and its
    /// placeholder then stands for nothing.
    ///
    /// # Errors
    /// [`SecretStoreError::Io`].
    pub fn named(&self, names: &[String]) -> Result<Vec<Secret>, SecretStoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut secrets = self.list()?;
        secrets.retain(|secret| names.iter().any(|name| name == secret.name()));
        Ok(secrets)
    }

    /// Keeps a secret; one of the same name gives way.
    ///
    /// # Errors
    /// [`SecretStoreError::Io`] and [`SecretStoreError::TooMany`].
    pub fn set(&self, secret: &Secret) -> Result<(), SecretStoreError> {
        let path = self.path(secret.name());
        if !path.exists() && self.list()?.len() >= MAX_SECRETS {
            return Err(SecretStoreError::TooMany);
        }
        let json = Zeroizing::new(serde_json::to_vec(secret).expect("a secret becomes JSON"));
        self.write(&path, &json).map_err(failed(&path))
    }

    fn write(&self, path: &Path, json: &[u8]) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        // Nobody else may read it, not even for a moment.
        let draft = path.with_extension("new");
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(json)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Forgets a secret.
    ///
    /// # Errors
    /// [`SecretStoreError::Unknown`] and [`SecretStoreError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), SecretStoreError> {
        // A name that is none cannot lead out of the directory.
        let known = self.list()?.iter().any(|secret| secret.name() == name);
        if !known {
            return Err(SecretStoreError::Unknown {
                name: name.escape_debug().take(64).collect(),
            });
        }
        let path = self.path(name);
        fs::remove_file(&path).map_err(failed(&path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name).with_extension(ENDING)
    }
}

fn read(path: &Path) -> Option<Secret> {
    let mut json = Zeroizing::new(Vec::new());
    let file = File::open(path).ok()?;
    file.take(MAX_FILE).read_to_end(&mut json).ok()?;
    let secret: Secret = serde_json::from_slice(&json).ok()?;
    let named = path.file_stem().is_some_and(|stem| stem == secret.name());
    named.then_some(secret)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> SecretStoreError + '_ {
    move |source| SecretStoreError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::egress::SecretParts;

    fn secret(name: &str, value: &str) -> Secret {
        let parts = SecretParts {
            name: name.into(),
            domain: "api.example.org".into(),
            header: "authorization".into(),
            format: "Bearer {}".into(),
            value: value.to_owned().into(),
        };
        parts.try_into().unwrap()
    }

    #[test]
    fn secrets_are_kept_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = SecretStore::new(dir.path().join("secrets"));
        assert!(store.list().unwrap().is_empty());
        store.set(&secret("B", "hunter2hunter2")).unwrap();
        store.set(&secret("A", "swordfish-swordfish")).unwrap();
        store.set(&secret("B", "correct-horse-battery")).unwrap();
        let names: Vec<_> = store
            .list()
            .unwrap()
            .iter()
            .map(|s| s.name().to_owned())
            .collect();
        assert_eq!(names, ["A", "B"]);
        assert_eq!(
            store.named(&["B".into(), "C".into()]).unwrap(),
            [secret("B", "correct-horse-battery")]
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.dir), 0o700);
        assert_eq!(mode(&store.path("B")), 0o600);
        store.remove("B").unwrap();
        assert!(matches!(
            store.remove("B"),
            Err(SecretStoreError::Unknown { .. })
        ));
        assert!(matches!(
            store.remove("../secrets/A"),
            Err(SecretStoreError::Unknown { .. })
        ));
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_secret_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = SecretStore::new(dir.path());
        store.set(&secret("A", "hunter2hunter2")).unwrap();
        fs::copy(store.path("A"), store.path("B")).unwrap();
        fs::write(store.path("C"), "{}").unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
    }
}
