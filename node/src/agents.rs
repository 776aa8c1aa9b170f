//! The agents whose keys lie on this node.
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use rhizome_identity::{AgentId, AgentKey, KeyFileError, keyfile::KeyKind};

use crate::vault::Vault;

/// The longest name of an agent, in bytes: it is also the name of a file.
const MAX_NAME_BYTES: usize = 64;

/// An agent this node can sign for.
#[derive(Debug, Clone)]
pub(crate) struct LocalAgent {
    pub(crate) name: String,
    pub(crate) key: Arc<AgentKey>,
}

impl LocalAgent {
    pub(crate) fn id(&self) -> AgentId {
        self.key.id()
    }
}

/// The key files under `agents/`, and `agent.key`: the agent the node speaks as by default.
#[derive(Debug)]
pub(crate) struct AgentKeys {
    dir: PathBuf,
    vault: Arc<Vault>,
    default: LocalAgent,
    named: Mutex<BTreeMap<String, LocalAgent>>,
}

impl AgentKeys {
    /// Reads the keys under `data_dir`, making the default one if there is none.
    pub(crate) fn open(
        data_dir: &Path,
        node_name: &str,
        vault: Arc<Vault>,
    ) -> Result<Self, AgentKeysError> {
        let default_path = data_dir.join("agent.key");
        let key = vault.load_or_make(&default_path, KeyKind::Agent)?;
        let default = LocalAgent {
            name: node_name.to_owned(),
            key: Arc::new(key.into()),
        };
        let dir = data_dir.join("agents");
        let mut named = BTreeMap::new();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let at_dir = |source| AgentKeysError::Read {
            path: dir.clone(),
            source,
        };
        for entry in entries.map_err(at_dir)? {
            let file = entry.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(".key"));
            // Anything else is a leftover of an editor or a backup, not ours to judge.
            let Some(name) = name.filter(|name| check_agent_name(name).is_ok()) else {
                continue;
            };
            let key = vault.load(&entry.path(), KeyKind::Agent)?;
            let agent = LocalAgent {
                name: name.to_owned(),
                key: Arc::new(key.into()),
            };
            named.insert(name.to_owned(), agent);
        }
        Ok(Self {
            dir,
            vault,
            default,
            named: Mutex::new(named),
        })
    }

    pub(crate) fn default_agent(&self) -> &LocalAgent {
        &self.default
    }

    pub(crate) fn by_id(&self, id: &AgentId) -> Option<LocalAgent> {
        if self.default.id() == *id {
            return Some(self.default.clone());
        }
        self.named()
            .values()
            .find(|agent| agent.id() == *id)
            .cloned()
    }

    /// Returns the key of `name`, made and durable on disk if it is new.
    ///
    /// A name that has a key keeps it: one whose certificate was lost to a crash is simply
    /// certified again.
    pub(crate) fn make(&self, name: &str) -> Result<LocalAgent, AgentKeysError> {
        check_agent_name(name)?;
        let mut named = self.named();
        if let Some(agent) = named.get(name) {
            return Ok(agent.clone());
        }
        let path = self.dir.join(format!("{name}.key"));
        let key = self.vault.load_or_make(&path, KeyKind::Agent)?;
        let agent = LocalAgent {
            name: name.to_owned(),
            key: Arc::new(key.into()),
        };
        named.insert(name.to_owned(), agent.clone());
        Ok(agent)
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<String, LocalAgent>> {
        self.named
            .lock()
            .expect("no code panics while it holds this lock")
    }
}

/// Checks a name that becomes part of a path.
pub(crate) fn check_agent_name(name: &str) -> Result<(), AgentKeysError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || name.starts_with('.')
        || !name.chars().all(plain)
    {
        return Err(AgentKeysError::Name {
            name: name.chars().take(MAX_NAME_BYTES).collect(),
        });
    }
    Ok(())
}

/// Why an agent's key could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentKeysError {
    /// The name cannot be used.
    #[error(
        "`{name}` cannot name an agent: 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` or `.`, the first no `.`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The directory could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A key file cannot be used.
    #[error("cannot use an agent's key")]
    Key(#[from] KeyFileError),
}

impl AgentKeysError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Key(error) => error.hint(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> AgentKeys {
        AgentKeys::open(dir, "laptop", Arc::new(Vault::open(dir).unwrap())).unwrap()
    }

    #[test]
    fn keys_are_kept_and_found_again() {
        let temp = tempfile::tempdir().unwrap();
        let keys = open(temp.path());
        let mender = keys.make("mender").unwrap();
        assert_eq!(keys.make("mender").unwrap().id(), mender.id());
        let again = open(temp.path());
        assert_eq!(again.by_id(&mender.id()).unwrap().name, "mender");
        assert_eq!(again.default_agent().id(), keys.default_agent().id());
        assert!(again.by_id(&again.default_agent().id()).is_some());
    }

    #[test]
    fn a_name_is_no_way_out_of_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let keys = open(temp.path());
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\0b",
            ".hidden",
            "ü",
            &"x".repeat(65),
        ] {
            let result = keys.make(name);
            assert!(
                matches!(result, Err(AgentKeysError::Name { .. })),
                "{name:?}"
            );
        }
    }
}
