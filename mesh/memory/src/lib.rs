//! Shared memory: signed fragments, their chains, and what they add up to.
//!
//! Fragments are the truth and live in append-only segment files, which a [`Replica`] owns; the
//! documents, the search index and the working contexts are a [`View`] that can always be rebuilt
//! from them. [`Admission`] and [`IdSet`] are pure: a simulator drives the code of production.
//! Nothing here knows of sockets or peers.
#![forbid(unsafe_code)]

mod admission;
mod chain;
mod context;
mod disk;
mod document;
mod event;
mod fence;
mod file;
mod fork;
mod fragment;
#[doc(hidden)]
pub mod fuzz;
mod hlc;
mod id;
mod idset;
mod item;
mod kind;
mod link;
mod recall;
mod redaction;
mod replica;
mod same;
mod shares;
mod standing;
mod store;
mod view;
mod watch;
mod why;

pub use admission::{
    Admission, MAX_AWAITING_AUTHORITY, MAX_AWAITING_AUTHORITY_PER_AUTHOR, MAX_HELD, MAX_HELD_BYTES,
    MAX_HELD_PER_AUTHOR, Missing, RejectReason, Verdict, check_signatures,
};
pub use context::{
    Artifact, ContextPatch, ContextState, ContextSummary, Decision, Entry, ErrorEntry, Explored,
    MAX_ENTRY_TEXT, MAX_PATCH_BYTES, MAX_PATCH_ENTRIES, Note, Question, SandboxRef,
};
pub use document::{context_doc, file_doc, keyed_doc, single_doc};
pub use event::{EVENT_BACKLOG, Event};
pub use fence::{
    MAX_AUTHOR_BYTES, MAX_CHANGE, MAX_CHANGES_PER_AUTHOR, MAX_FILE_OPS, MAX_FILE_OPS_PER_AUTHOR,
    MAX_OPS, MAX_PREDS, Reason,
};
pub use file::{
    FileEdit, FileError, FilePath, FileSummary, FileText, MAX_COMPONENT, MAX_DEPTH, MAX_FILE,
    MAX_FILE_SHOWN, MAX_FILES, MAX_PATH, MEMORIES, PathError, TreePath, merge_texts,
};
pub use fork::{FORK_TURN, ForkWatch, ForkedChain, ForksDue, MAX_FORKS_WAITING, fork_wait};
pub use fragment::{
    FRAGMENT_VERSION, Fragment, FragmentError, Header, MAX_AUTH_HEADS, MAX_BODY, MAX_DEPS,
    MAX_ENVELOPE, MAX_INLINE_BODY, MAX_WIRE,
};
pub use hlc::{Hlc, HlcClock, MAX_HLC_LEAD_MS, now_ms};
pub use id::{DocId, FragmentId, Lane};
pub use idset::{Fingerprint, IdSet, Ids};
pub use item::{
    BoundsError, Conflict, Draft, MAX_EVIDENCE, MAX_EVIDENCE_BYTES, MAX_FIELD_NAME,
    MAX_FIELD_VALUE, MAX_FIELDS, MAX_KEY, MAX_LINKS, MAX_TAG, MAX_TAGS, MAX_TASK, MAX_TEXT,
    MAX_TITLE, MemoryItem,
};
pub use kind::{Kind, ParseKindError};
pub use recall::{Hit, MAX_HITS, MAX_QUERY, RecallError, RecallQuery, StandingQuery};
pub use redaction::MAX_REASON;
pub use replica::{
    AdmitOutcome, CheckpointRequest, Edited, FileRequest, Fork, OpenError, PublishError,
    PublishRequest, Published, RecordOutcome, RedactRequest, Redacted, Replica, ReplicaConfig,
    ReplicaError, SpaceStats,
};
pub use same::{RETRACTED_FIELD, confirmation, is_retracted, retraction, same_text};
pub use shares::{Limit, MAX_COUNTED, Share, ShareLimits, ShareUse, Sharer, Shares, Spent};
pub use standing::{Standing, Voice};
pub use store::{
    AuditError, Damage, LogError, PLACE, RecoveryReport, StoreAudit, StoreCounts, StoreError,
    StorePoint,
};
pub use view::{
    Applied, ComposeContext, ComposeError, Composed, ListPage, ListPlace, ListQuery, MAX_WAITING,
    MAX_WAITING_PER_AUTHOR, Opened, Quarantined, Reader, View, ViewError,
};
pub use watch::{MAX_WATCH, WatchEvent};
pub use why::{Awaited, RedactedBy, Verification, VerifiedFragment, Why, WhyState};

#[cfg(test)]
extern crate self as rhizome_memory;
