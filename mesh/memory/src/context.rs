//! The working context of a task: what an agent resumes from.
//!
//! A [`ContextPatch`] adds to a context; a [`ContextState`] is what all patches add up to. Every
//! entry says who wrote it, where and when, through the fragment that carried it: a patch has no
//! field in which a writer could claim to be someone else.
//!
//! How concurrent patches merge:
//! - lists grow: both sides' entries are there, in the order of their clocks, ties by fragment;
//! - an error given again with the same `error` text updates the earlier entry, field by field;
//! - `goal`, `status` and `sandbox`: the later by clock is shown, ties by fragment;
//! - `next` and `requires` replace every list that their writer knew of; of two written without
//!   knowing of each other both stay, the later first, each line once.

mod patch;

use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};
use serde::{Deserialize, Serialize};

pub(crate) use self::patch::Bounded;
pub use self::patch::{Artifact, ContextPatch, Decision, ErrorEntry, Explored, SandboxRef};
use crate::{DocId, FragmentId, Hlc};

/// Most entries of one list in one patch.
pub const MAX_PATCH_ENTRIES: usize = 128;
/// Most bytes of one text in a context.
pub const MAX_ENTRY_TEXT: usize = 16 * 1024;
/// Most bytes of all texts of one patch together.
pub const MAX_PATCH_BYTES: usize = 256 * 1024;

/// What someone wrote, with the fragment that shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<T> {
    /// What was written.
    #[serde(flatten)]
    pub value: T,
    /// Who signed the fragment.
    pub by: AgentId,
    /// The node it was written on.
    pub node: NodeId,
    /// When, in Unix milliseconds by that node's clock.
    pub at_ms: u64,
    /// The fragment that carries it.
    pub fragment: FragmentId,
}

/// One plain line: a goal, a status, a next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What it says.
    pub text: String,
}

/// A question, open until a patch resolves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What it asks.
    pub text: String,
    /// Whether a patch has resolved it.
    pub resolved: bool,
}

/// What the fragments of one context add up to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextState {
    /// The document.
    pub doc: DocId,
    /// The space.
    pub space: SpaceId,
    /// The task.
    pub task: String,
    /// What is to be reached.
    pub goal: Option<Entry<Note>>,
    /// Where it stands.
    pub status: Option<Entry<Note>>,
    /// The paths taken, dead ends included.
    pub explored: Vec<Entry<Explored>>,
    /// The choices made.
    pub decisions: Vec<Entry<Decision>>,
    /// What went wrong, and what mended it.
    pub errors: Vec<Entry<ErrorEntry>>,
    /// What is not known.
    pub questions: Vec<Entry<Question>>,
    /// What to do next, in order.
    pub next: Vec<Entry<Note>>,
    /// What was made; an artifact given again under its name replaces the earlier one.
    pub artifacts: Vec<Entry<Artifact>>,
    /// Where the work is done.
    pub sandbox: Option<Entry<SandboxRef>>,
    /// What is relied on in the runtime, one requirement each.
    pub requires: Vec<Entry<Note>>,
    /// The runtime of the latest fragment.
    pub fingerprint: Hash,
    /// The clock of the latest fragment.
    pub hlc: Hlc,
    /// Every fragment this state was made from, in the order of their clocks.
    pub fragments: Vec<FragmentId>,
}

/// One line about a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// The document.
    pub doc: DocId,
    /// The space.
    pub space: SpaceId,
    /// The task.
    pub task: String,
    /// What is to be reached.
    pub goal: Option<String>,
    /// Where it stands.
    pub status: Option<String>,
    /// How many fragments it is made of.
    pub fragments: usize,
    /// Who wrote the latest of them.
    pub by: AgentId,
    /// The node it was written on.
    pub node: NodeId,
    /// When, in Unix milliseconds by that node's clock.
    pub at_ms: u64,
    /// The same with its counter.
    pub hlc: Hlc,
}
