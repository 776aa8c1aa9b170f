//! Who did what on this node, in the order it was done.
//!
//! An action is any request that changes something, a command in a sandbox included; what an agent
//! publishes is not, since its fragment is signed and kept. An entry is written and synced before
//! the action is answered. Each carries the hash of the one before, so that a line that was changed
//! or taken out later shows. The log is bounded: the oldest file goes when there are too many.

mod action;
pub(crate) mod layer;
mod log;

use std::{path::Path, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use self::log::Log;
pub(crate) use self::log::{AuditError, Page};
use crate::daemon::caller::Caller;

/// Entries that may wait for the disk; more make their actions wait.
const QUEUE: usize = 256;
/// Longest text in an entry, in bytes.
const MAX_TEXT: usize = 512;

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Who {
    /// Whoever can open the node's socket.
    Owner,
    /// What runs in a sandbox of this node, for its agent.
    Sandbox {
        /// The sandbox.
        id: String,
        /// The agent it works for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// Whoever holds a token.
    Token {
        /// The token's name.
        name: String,
        /// The agent it speaks as.
        agent: String,
    },
    /// Another node of the mesh.
    Node {
        /// Its id.
        id: String,
    },
    /// The node itself: a lease that ended, a connection it refused.
    Daemon,
}

impl From<&Caller> for Who {
    fn from(caller: &Caller) -> Self {
        match caller {
            Caller::Owner => Self::Owner,
            Caller::Peer(node) => Self::Node {
                id: node.to_string(),
            },
            Caller::Token(holder) => Self::Token {
                name: holder.name.clone(),
                agent: holder.agent.to_string(),
            },
            Caller::Guest(guest) => Self::Sandbox {
                id: guest.sandbox.clone(),
                agent: guest.agent.map(|agent| agent.to_string()),
            },
        }
    }
}

/// One action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub struct Entry {
    /// Its number, from 0, without gaps.
    pub seq: u64,
    /// When it was done, in Unix milliseconds.
    pub at_ms: u64,
    /// Who asked.
    pub who: Who,
    /// What was done: `sandbox.create`, `sandbox.exec`, `invite.create`, …
    pub action: String,
    /// To what, where it has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// `ok`, `started` for what goes on, `left` where the asker did not wait, or the error's code.
    pub outcome: String,
    /// More about it, such as the command of an `exec`; never an environment or an input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The first 32 digits of the BLAKE3 hash of the line before; of nothing for the first.
    pub prev: String,
}

/// What an action is told to the log as; number, time and hash are the log's to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) who: Who,
    pub(crate) action: String,
    pub(crate) on: Option<String>,
    pub(crate) outcome: String,
    pub(crate) detail: Option<String>,
    pub(crate) took_ms: u64,
}

impl Note {
    /// Returns a note of something that the node did or refused by itself.
    pub(crate) fn of_daemon(action: &str, on: Option<String>, outcome: &str) -> Self {
        Self {
            who: Who::Daemon,
            action: action.to_owned(),
            on,
            outcome: outcome.to_owned(),
            detail: None,
            took_ms: 0,
        }
    }

    /// Adds more about it.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// The log; cheap to clone. One thread owns the files.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    requests: mpsc::Sender<Request>,
    dir: Arc<Path>,
}

enum Request {
    Note(Note, Option<oneshot::Sender<()>>),
}

impl Audit {
    /// Opens the log in `dir`; what a crash tore at its end is cut off.
    ///
    /// # Errors
    /// [`AuditError`] if the directory cannot be made, read or written.
    pub(crate) fn open(dir: &Path) -> Result<Self, AuditError> {
        let log = Log::open(dir)?;
        let (requests, queue) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(log, queue))
            .map_err(|source| AuditError::Io {
                what: "start the writer of",
                path: dir.to_owned(),
                source,
            })?;
        Ok(Self {
            requests,
            dir: dir.into(),
        })
    }

    /// Writes one entry; returns once it is synced.
    ///
    /// A disk that does not take it is a warning in the node's log: refusing the action would
    /// help nobody who wants to clean that disk up.
    pub(crate) async fn note(&self, note: Note) {
        let (done, synced) = oneshot::channel();
        if self
            .requests
            .send(Request::Note(note, Some(done)))
            .await
            .is_ok()
        {
            let _ = synced.await;
        }
    }

    /// Writes one entry from where nobody can wait; a full queue drops it with a warning.
    pub(crate) fn note_soon(&self, note: Note) {
        if let Err(error) = self.requests.try_send(Request::Note(note, None)) {
            warn!(%error, "an action was not written to the audit log");
        }
    }

    /// Returns entries from number `after` on, oldest first. Reads the disk.
    ///
    /// # Errors
    /// [`AuditError`] if a file cannot be read.
    pub(crate) fn read(&self, after: u64, limit: usize) -> Result<Page, AuditError> {
        log::read(&self.dir, after, limit)
    }

    /// Returns the number that the next entry gets. Reads the disk.
    ///
    /// # Errors
    /// [`AuditError`] if a file cannot be read.
    pub(crate) fn next(&self) -> Result<u64, AuditError> {
        log::next(&self.dir)
    }
}

/// Takes notes until every handle is gone; what waits together is synced together.
fn write(mut log: Log, mut queue: mpsc::Receiver<Request>) {
    let mut batch = Vec::with_capacity(QUEUE);
    while queue.blocking_recv_many(&mut batch, QUEUE) > 0 {
        let mut waiting = Vec::new();
        for Request::Note(note, done) in batch.drain(..) {
            if let Err(error) = log.append(note) {
                warn!(%error, "an action was not written to the audit log");
            }
            waiting.extend(done);
        }
        if let Err(error) = log.sync() {
            warn!(%error, "the audit log was not synced");
        }
        for done in waiting {
            let _ = done.send(());
        }
    }
}

/// Returns as much of `text` as an entry holds, without what a terminal would act on.
fn clip(text: &str) -> String {
    let clipped = rhizome_sandbox::clip(text, MAX_TEXT).chars();
    clipped
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(action: &str) -> Note {
        Note {
            who: Who::Owner,
            action: action.to_owned(),
            on: Some("box".to_owned()),
            outcome: "ok".to_owned(),
            detail: None,
            took_ms: 3,
        }
    }

    #[tokio::test]
    async fn what_was_noted_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.note(note("sandbox.create")).await;
        audit
            .note(note("sandbox.kill").detail("at\u{1b}[31m once"))
            .await;
        drop(audit);
        let audit = Audit::open(dir.path()).unwrap();
        audit.note(note("mesh.init")).await;
        let page = audit.read(0, 10).unwrap();
        let actions: Vec<_> = page
            .entries
            .iter()
            .map(|e| (e.seq, &e.action[..]))
            .collect();
        assert_eq!(
            actions,
            [(0, "sandbox.create"), (1, "sandbox.kill"), (2, "mesh.init")]
        );
        assert_eq!(page.entries[1].detail.as_deref(), Some("at [31m once"));
        assert_eq!(page.broken_at, None);
        assert_eq!(audit.read(2, 10).unwrap().entries.len(), 1);
        assert_eq!(audit.read(0, 2).unwrap().entries.len(), 2);
    }
}
