//! Tokens: credentials of the API over TCP, and where they are kept.
//!
//! A token names an agent of this node and spaces, and says whether it opens sandboxes. What is
//! sent is 32 random bytes; kept is their hash, so that whoever reads the file cannot use it.
//! Scope comes from the token alone: nothing in a request widens it.
use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::http::StatusCode;
use rhizome_identity::{AgentId, SpaceId};
use rhizome_memory::now_ms;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::types::{
    SCHEMA,
    token::{Token, TokenBody, TokenCreated, TokenRevoked, Tokens as TokenList},
};
use crate::{
    agents::check_agent_name,
    daemon::{fail, names::Names, node::Node, node::blocking, sandbox::Bound},
    door::limit::Limits,
    error::ApiError,
};

/// Tokens of one node.
const MAX_TOKENS: usize = 256;
/// What a token begins with, so that scanners of leaked secrets know one when they see it.
const PREFIX: &str = "rzt_";
/// Random bytes of a token.
const SECRET_BYTES: usize = 32;
/// The longest text that is looked at as a token.
const MAX_SENT: usize = 128;
/// The format of the file.
const VERSION: u32 = 1;

/// Who holds a token, as the routes see it.
#[derive(Debug)]
pub(crate) struct Holder {
    /// The token's name, which the audit log shows.
    pub(crate) name: String,
    /// The agent it speaks as.
    pub(crate) agent: AgentId,
    /// The spaces it may use, its default first.
    pub(crate) spaces: Vec<SpaceId>,
    /// Whether it may use sandboxes of those spaces.
    pub(crate) may_sandbox: bool,
    /// Shared by all its connections.
    pub(crate) limits: Arc<Limits>,
    /// Cancelled once the token is revoked: its streams end.
    pub(crate) revoked: CancellationToken,
}

/// The tokens of this node.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug, Clone)]
struct Entry {
    record: Record,
    hash: blake3::Hash,
    holder: Arc<Holder>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    name: String,
    /// BLAKE3 of what is sent, as hex.
    hash: String,
    agent: String,
    spaces: Vec<String>,
    sandboxes: bool,
    created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_after_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TokenFile {
    version: u32,
    tokens: Vec<Record>,
}

/// Why tokens cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("cannot understand `{}`", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// Where and why, if the JSON is at fault.
        source: Option<serde_json::Error>,
    },
    /// There are too many.
    #[error("this node has {MAX_TOKENS} tokens already")]
    TooMany,
    /// There is one of that name.
    #[error("there is a token called `{name}` already")]
    Taken {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("no token is called `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
}

impl TokenError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Damaged { .. } => {
                Some("move the file away and make the tokens anew with `rhizome token create`")
            }
            Self::TooMany | Self::Taken { .. } => {
                Some("revoke one that is not used any more with `rhizome token revoke`")
            }
            Self::Unknown { .. } => Some("`rhizome token list` shows those that are there"),
            Self::Io { .. } => None,
        }
    }
}

impl From<TokenError> for ApiError {
    fn from(error: TokenError) -> Self {
        let (status, code) = match &error {
            _ if crate::error::is_disk_full(&error) => {
                (StatusCode::INSUFFICIENT_STORAGE, "disk_full")
            }
            TokenError::TooMany => (StatusCode::TOO_MANY_REQUESTS, "limit_reached"),
            TokenError::Taken { .. } => (StatusCode::CONFLICT, "name_taken"),
            TokenError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown_token"),
            TokenError::Io { .. } | TokenError::Damaged { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "store_failed")
            }
        };
        Self::of(status, code, &error).maybe_hint(error.hint())
    }
}

impl Tokens {
    /// Opens the tokens kept in `path`; none if it is not there.
    ///
    /// # Errors
    /// [`TokenError`] if the file cannot be read or is damaged: a node that forgot a revocation
    /// would be worse than one that does not start.
    pub(crate) fn open(path: PathBuf) -> Result<Self, TokenError> {
        let damaged = |source| TokenError::Damaged {
            path: path.clone(),
            source,
        };
        let file = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| damaged(Some(error)))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => TokenFile {
                version: VERSION,
                tokens: Vec::new(),
            },
            Err(source) => {
                return Err(TokenError::Io {
                    what: "read",
                    path,
                    source,
                });
            }
        };
        if file.version != VERSION || file.tokens.len() > MAX_TOKENS {
            return Err(damaged(None));
        }
        let entries = file.tokens.into_iter().map(Entry::of);
        let entries = entries
            .collect::<Option<_>>()
            .ok_or_else(|| damaged(None))?;
        Ok(Self {
            path,
            entries: Mutex::new(entries),
        })
    }

    /// Returns who holds `sent`, if anybody does.
    pub(crate) fn holder(&self, sent: &str, now_ms: u64) -> Option<Arc<Holder>> {
        if sent.len() > MAX_SENT {
            return None;
        }
        let hash = blake3::hash(sent.as_bytes());
        let entries = self.lock();
        // Hashes of this type are compared in constant time, and all of them: how long it takes
        // says nothing about which is near.
        let mut found = None;
        for entry in &*entries {
            if entry.hash == hash {
                found = Some(entry);
            }
        }
        let found = found?;
        let holds = found.record.not_after_ms.is_none_or(|until| now_ms < until);
        holds.then(|| Arc::clone(&found.holder))
    }

    /// Keeps a new token durably and returns what is sent.
    fn create(&self, mut record: Record) -> Result<(Record, String), TokenError> {
        let mut entries = self.lock();
        if entries.iter().any(|entry| entry.record.name == record.name) {
            return Err(TokenError::Taken { name: record.name });
        }
        if entries.len() >= MAX_TOKENS {
            return Err(TokenError::TooMany);
        }
        let mut bytes = [0; SECRET_BYTES];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
            |errno| TokenError::Io {
                what: "draw random bytes for",
                path: self.path.clone(),
                source: errno.into(),
            },
        )?;
        let secret = format!("{PREFIX}{}", data_encoding::HEXLOWER.encode(&bytes));
        record.hash = blake3::hash(secret.as_bytes()).to_hex().to_string();
        let entry = Entry::of(record.clone()).expect("a record made here parses");
        let mut records: Vec<_> = entries.iter().map(|entry| entry.record.clone()).collect();
        records.push(record.clone());
        self.write(records)?;
        entries.push(entry);
        Ok((record, secret))
    }

    /// Forgets a token durably; its streams end.
    fn revoke(&self, name: &str) -> Result<Record, TokenError> {
        let mut entries = self.lock();
        let place = entries.iter().position(|entry| entry.record.name == name);
        let place = place.ok_or_else(|| TokenError::Unknown {
            name: name.chars().take(80).collect(),
        })?;
        let mut records: Vec<_> = entries.iter().map(|entry| entry.record.clone()).collect();
        records.remove(place);
        self.write(records)?;
        let entry = entries.remove(place);
        entry.holder.revoked.cancel();
        Ok(entry.record)
    }

    fn list(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.lock().iter().map(|e| e.record.clone()).collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        records
    }

    fn write(&self, tokens: Vec<Record>) -> Result<(), TokenError> {
        let file = TokenFile {
            version: VERSION,
            tokens,
        };
        let json = serde_json::to_vec_pretty(&file).expect("tokens become JSON");
        write_private(&self.path, &json).map_err(|source| TokenError::Io {
            what: "write",
            path: self.path.clone(),
            source,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn of(record: Record) -> Option<Self> {
        let holder = Holder {
            name: record.name.clone(),
            agent: record.agent.parse().ok()?,
            spaces: record
                .spaces
                .iter()
                .map(|space| space.parse().ok())
                .collect::<Option<_>>()?,
            may_sandbox: record.sandboxes,
            limits: Arc::new(Limits::new(Instant::now())),
            revoked: CancellationToken::new(),
        };
        Some(Self {
            hash: blake3::Hash::from_hex(&record.hash).ok()?,
            holder: Arc::new(holder),
            record,
        })
    }
}

/// Puts `bytes` in the place of what `path` holds, readable by its owner alone; durable when this
/// returns, and whole or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    match path.parent() {
        Some(dir) => fs::File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

impl Node {
    /// Makes a token for an agent of this node.
    pub(crate) async fn create_token(
        self: &Arc<Self>,
        body: TokenBody,
    ) -> Result<TokenCreated, ApiError> {
        check_agent_name(&body.name).map_err(|error| fail::agent_keys(&error))?;
        let agent = match body.agent {
            Some(agent) => agent,
            None => self.default_agent().await?.name,
        };
        // The same rules as for the agent of a sandbox: here, certified, for those spaces.
        let labels = self.door_labels(&agent, &body.spaces).await?;
        let bound = Bound::of_labels(&labels);
        let agent = bound
            .agent
            .ok_or_else(|| ApiError::internal("an agent that was found has no id"))?;
        let created_ms = now_ms();
        let record = Record {
            name: body.name,
            hash: String::new(),
            agent: agent.to_string(),
            spaces: bound.spaces.iter().map(ToString::to_string).collect(),
            sandboxes: body.sandboxes,
            created_ms,
            not_after_ms: body
                .expires_secs
                .map(|secs| created_ms.saturating_add(secs.saturating_mul(1_000))),
        };
        let node = Arc::clone(self);
        let (record, secret) = blocking(move || node.tokens.create(record)).await??;
        Ok(TokenCreated {
            schema: SCHEMA,
            token: self.token_shown(record),
            secret,
        })
    }

    /// Lists the tokens of this node.
    pub(crate) fn list_tokens(&self) -> TokenList {
        let tokens = self.tokens.list();
        TokenList {
            schema: SCHEMA,
            tokens: tokens.into_iter().map(|t| self.token_shown(t)).collect(),
        }
    }

    /// Revokes a token.
    pub(crate) async fn revoke_token(
        self: &Arc<Self>,
        name: String,
    ) -> Result<TokenRevoked, ApiError> {
        let node = Arc::clone(self);
        let record = blocking(move || node.tokens.revoke(&name)).await??;
        Ok(TokenRevoked {
            schema: SCHEMA,
            token: self.token_shown(record),
        })
    }

    fn token_shown(&self, record: Record) -> Token {
        let authority = self.replica.authority();
        let names = Names(&authority);
        let agent: Option<AgentId> = record.agent.parse().ok();
        let spaces: Vec<SpaceId> = record.spaces.iter().flat_map(|s| s.parse()).collect();
        Token {
            name: record.name,
            agent: agent.map_or_else(
                || super::types::Named {
                    id: record.agent.clone(),
                    name: String::new(),
                },
                |agent| names.agent(&agent),
            ),
            spaces: names.spaces(&spaces),
            sandboxes: record.sandboxes,
            created_ms: record.created_ms,
            not_after_ms: record.not_after_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            hash: String::new(),
            agent: "00".repeat(32),
            spaces: vec!["11".repeat(32)],
            sandboxes: false,
            created_ms: 1,
            not_after_ms: Some(1_000),
        }
    }

    #[test]
    fn a_token_opens_until_it_is_revoked_or_ends_and_is_kept_as_a_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let tokens = Tokens::open(path.clone()).unwrap();
        let (_, secret) = tokens.create(record("ci")).unwrap();
        assert!(matches!(
            tokens.create(record("ci")),
            Err(TokenError::Taken { .. })
        ));
        let kept = fs::read_to_string(&path).unwrap();
        assert!(!kept.contains(&secret) && !kept.contains(&secret[PREFIX.len()..]));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Also after a restart.
        let tokens = Tokens::open(path.clone()).unwrap();
        let holder = tokens.holder(&secret, 999).unwrap();
        assert_eq!(holder.name, "ci");
        assert!(tokens.holder(&secret, 1_000).is_none(), "it has ended");
        assert!(tokens.holder("", 1).is_none());
        assert!(tokens.holder(&secret[..secret.len() - 1], 1).is_none());
        assert!(tokens.holder(&"a".repeat(10_000), 1).is_none());
        tokens.revoke("ci").unwrap();
        assert!(holder.revoked.is_cancelled());
        assert!(tokens.holder(&secret, 1).is_none());
        assert!(Tokens::open(path).unwrap().list().is_empty());
    }

    #[test]
    fn a_damaged_file_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        for bad in [
            "",
            "{}",
            r#"{"version":2,"tokens":[]}"#,
            r#"{"version":1,"tokens":[{"name":"a","hash":"zz","agent":"","spaces":[],"sandboxes":true,"created_ms":1}]}"#,
        ] {
            fs::write(&path, bad).unwrap();
            let opened = Tokens::open(path.clone());
            assert!(matches!(opened, Err(TokenError::Damaged { .. })), "{bad}");
        }
    }
}
