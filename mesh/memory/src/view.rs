//! What the fragments add up to: documents, items, search. Always rebuildable.

use std::path::Path;

use bytes::Bytes;
use rhizome_identity::{AgentId, NodeId, SpaceId};

use crate::{
    BoundsError, ContextPatch, ContextState, ContextSummary, DocId, Draft, FragmentId, Header, Hit,
    Hlc, Kind, MemoryItem, RecallError, RecallQuery,
};

/// A fragment whose body was decrypted.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The fragment.
    pub id: FragmentId,
    /// Its header, signature checked.
    pub header: Header,
    /// The automerge change in its body, without the version byte.
    pub change: Bytes,
}

/// Who composes, where and when.
#[derive(Debug, Clone, Copy)]
pub struct ComposeContext {
    /// The agent that will sign.
    pub author: AgentId,
    /// The node it writes on.
    pub node: NodeId,
    /// The moment that the header will carry.
    pub now: Hlc,
    /// The space.
    pub space: SpaceId,
}

/// A change ready to be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composed {
    /// The document it changes.
    pub doc: DocId,
    /// The kind that the header has to carry.
    pub kind: Kind,
    /// The automerge change.
    pub change: Vec<u8>,
    /// The fragments it builds on; the header has to carry exactly these, in this order.
    pub deps: Vec<FragmentId>,
}

/// Why nothing was composed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComposeError {
    /// A field is too large or blank.
    #[error("the draft cannot be published")]
    Bounds(#[from] BoundsError),
    /// The document holds too many changes.
    #[error("the document holds {changes} changes; at most {limit} are allowed")]
    Full {
        /// What it holds.
        changes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// An earlier change of this document was composed, but not yet named by its fragment.
    #[error("an earlier change of this document is still being published")]
    Busy,
    /// automerge failed.
    #[error("automerge: {0}")]
    Automerge(String),
    /// The view's database failed.
    #[error("the view failed")]
    View(#[from] ViewError),
}

/// What became of a fragment in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// It is part of its document.
    Applied,
    /// It waits for these fragments.
    Waiting(Vec<FragmentId>),
    /// It was refused, and why; the rest of the space goes on.
    Quarantined(Reason),
}

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// TODO
    #[error("x")]
    X,
}

/// Why the view failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The database failed.
    #[error("the view's database failed")]
    Database(#[source] Box<redb::Error>),
}

/// Which memories to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only in this space.
    pub space: Option<SpaceId>,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only of this task.
    pub task: Option<String>,
    /// Most items wanted; 0 means 50.
    pub limit: usize,
}

/// A fragment that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The fragment.
    pub id: FragmentId,
    /// The space.
    pub space: SpaceId,
    /// Who signed it.
    pub author: AgentId,
    /// Why it was refused.
    pub reason: Reason,
}

/// What the fragments add up to.
#[derive(Debug)]
pub struct View {}

impl View {
    /// Opens the view in `dir`, or starts an empty one.
    ///
    /// # Errors
    /// If the directory cannot be written. A damaged view is thrown away and started anew.
    pub fn open(dir: &Path) -> Result<Self, ViewError> {
        let _ = dir;
        todo!()
    }

    /// Returns the arrival up to which everything is applied; replay begins after it.
    #[must_use]
    pub fn watermark(&self) -> u64 {
        todo!()
    }

    /// Composes the change that publishes `draft`.
    ///
    /// Call [`Self::reserve`] with the fragment made of it before composing on the same document
    /// again, and [`Self::release`] if that fragment never became durable.
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose(
        &mut self,
        ctx: ComposeContext,
        draft: &Draft,
    ) -> Result<Composed, ComposeError> {
        let _ = (ctx, draft);
        todo!()
    }

    /// Composes the change that checkpoints `patch`; see [`Self::compose`].
    ///
    /// # Errors
    /// See [`ComposeError`].
    pub fn compose_context(
        &mut self,
        ctx: ComposeContext,
        task: &str,
        patch: &ContextPatch,
    ) -> Result<Composed, ComposeError> {
        let _ = (ctx, task, patch);
        todo!()
    }

    /// Names the fragment that carries a composed change, so that the next one can build on it
    /// before this one is durable and applied.
    pub fn reserve(&mut self, space: &SpaceId, composed: &Composed, id: FragmentId) {
        let _ = (space, composed, id);
        todo!()
    }

    /// Forgets a composed change, and what was composed upon it, that will never be durable.
    pub fn release(&mut self, space: &SpaceId, composed: &Composed) {
        let _ = (space, composed);
        todo!()
    }

    /// Applies fragments; `arrival` is that of the last of them.
    ///
    /// Fragments of one author in one space come in the order of their chain. Applying again what
    /// was applied changes nothing.
    pub fn apply(&mut self, arrival: u64, batch: Vec<Opened>) -> Vec<(FragmentId, Applied)> {
        let _ = (arrival, batch);
        todo!()
    }

    /// Returns what became of a fragment, if it was ever applied.
    pub fn state(&self, id: &FragmentId) -> Option<Applied> {
        let _ = id;
        todo!()
    }

    /// Finds memories by words.
    ///
    /// # Errors
    /// See [`RecallError`].
    pub fn recall(&self, query: &RecallQuery) -> Result<Vec<Hit>, RecallError> {
        let _ = query;
        todo!()
    }

    /// Returns one memory.
    ///
    /// # Errors
    /// If the database fails.
    pub fn memory(&self, space: &SpaceId, doc: &DocId) -> Result<Option<MemoryItem>, ViewError> {
        let _ = (space, doc);
        todo!()
    }

    /// Lists memories, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ViewError> {
        let _ = query;
        todo!()
    }

    /// Returns the context of a task.
    ///
    /// # Errors
    /// If the database fails.
    pub fn context(&self, space: &SpaceId, task: &str) -> Result<Option<ContextState>, ViewError> {
        let _ = (space, task);
        todo!()
    }

    /// Lists contexts, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn contexts(&self, space: Option<&SpaceId>) -> Result<Vec<ContextSummary>, ViewError> {
        let _ = space;
        todo!()
    }

    /// Lists what was refused; at most `limit`, in the order of the fragments' ids.
    ///
    /// # Errors
    /// If the database fails.
    pub fn quarantine(
        &self,
        space: Option<&SpaceId>,
        limit: usize,
    ) -> Result<Vec<Quarantined>, ViewError> {
        let _ = (space, limit);
        todo!()
    }

    /// Returns how many fragments of a space wait, and how many were refused.
    #[must_use]
    pub fn counts(&self, space: &SpaceId) -> (usize, usize) {
        let _ = space;
        todo!()
    }

    /// Makes everything applied so far durable.
    ///
    /// # Errors
    /// If the database fails.
    pub fn flush(&self) -> Result<(), ViewError> {
        todo!()
    }
}
