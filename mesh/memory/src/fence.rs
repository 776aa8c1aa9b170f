//! The fence between what others send and our documents.
//!
//! A valid signature says who sent a change, not that it is harmless: of automerge 0.12 it is known
//! that one change of 120 bytes can panic it, or be taken and leave a document that no longer
//! loads. So a change has to pass, in this order:
//!
//! 1. its size and the counts it claims ([`scan`]), on raw bytes: nothing is built from it yet;
//! 2. decoding, and an encoding equal to the input: one change has one spelling;
//! 3. its place: actor bound to author and document, dependencies those of the signed header, the
//!    next sequence number after its author's last, the operation counter that follows from its
//!    dependencies;
//! 4. the schema: only strings, only where its shape has room for them, only over operations that
//!    it had seen; in a text, only characters, beside or in the place of those that it had seen;
//! 5. automerge itself, in a batch, on a copy, behind `catch_unwind`; then save and a strict reload,
//!    and only the reloaded document is kept. A memory's first change needs no document: past step
//!    4 it has one form, which is ours, and is kept as it is until a second one comes.
//!
//! What each step looks at is the change, its header and what it builds on, never what else has
//! arrived: equal sets of fragments get equal verdicts in any order.

mod panics;
pub(crate) mod probe;
mod scan;
mod schema;
mod text;

use automerge::{
    Automerge, Change, ChangeHash, LoadOptions, OnPartialLoad, ReadDoc, SaveOptions,
    VerificationMode,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::panics::fenced;
pub use self::scan::{MAX_FILE_OPS, MAX_OPS, MAX_PREDS};
use self::{
    scan::{ScanError, scan},
    schema::check_schema,
};
use crate::{
    Draft, FragmentId, Opened,
    document::{ChangeMeta, DocIndex, DocKey, Shape, actor, genesis, is_first_statement},
};

/// Most bytes of one change.
pub const MAX_CHANGE: usize = 1024 * 1024;
/// Most changes that one author may make on one document.
pub const MAX_CHANGES_PER_AUTHOR: u64 = 20_000;
/// Most bytes that one author's changes may take on one document.
pub const MAX_AUTHOR_BYTES: u64 = 32 * 1024 * 1024;
/// Most operations that one author may make on one file: so often its whole text may change.
pub const MAX_FILE_OPS_PER_AUTHOR: u64 = 16 * MAX_FILE_OPS;
/// Greatest operation counter; automerge itself ends at 32 bits.
const MAX_COUNTER: u64 = 1 << 30;

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It is a compressed chunk, whose size is unknown until it is too late.
    #[error("the change is compressed")]
    Compressed,
    /// It is larger than a change may be; both sizes in bytes.
    #[error("the change is {size} bytes; at most {limit} are allowed")]
    TooLarge {
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// It claims to hold more than a change may.
    #[error("the change claims too many {what}")]
    TooMany {
        /// Of what.
        what: String,
    },
    /// It is no automerge change.
    #[error("the change is malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// It encodes its content in another way than automerge does.
    #[error("the change is not in its canonical encoding")]
    NotCanonical,
    /// Its actor is not the one bound to its author and document.
    #[error("the change speaks for an actor that is not its author's")]
    WrongActor,
    /// Its author has already made another change with the same number.
    #[error("the author made another change with the same number: fragment {other}")]
    Forked {
        /// The fragment that carries the other one.
        other: FragmentId,
    },
    /// Its number does not follow the author's last one.
    #[error("the change has number {seq} of its author; {expected} was due")]
    WrongSeq {
        /// Its number.
        seq: u64,
        /// The number that was due.
        expected: u64,
    },
    /// It builds on other changes than its signed header names.
    #[error("the change and its header name different dependencies")]
    DepsDisagree,
    /// Its header names a fragment of another document.
    #[error("fragment {on}, which it builds on, is of another document")]
    OtherDocument {
        /// The fragment.
        on: FragmentId,
    },
    /// It builds on a fragment that was refused.
    #[error("fragment {on}, which it builds on, was refused")]
    DependsOnRefused {
        /// The fragment.
        on: FragmentId,
    },
    /// Its body was redacted.
    #[error("its body was redacted")]
    Redacted,
    /// Its operations are numbered other than its dependencies demand.
    #[error("the change begins with operation {start}; {expected} was due")]
    WrongStart {
        /// The number.
        start: u64,
        /// The number that was due.
        expected: u64,
    },
    /// It does something that documents of this shape have no place for.
    #[error("the change does not fit its document: {what}")]
    Schema {
        /// What does not fit.
        what: String,
    },
    /// Its author has used up what one author may write on one document.
    #[error("the author has used up its room in this document")]
    OverBudget,
    /// automerge refused it.
    #[error("automerge refused the change: {what}")]
    Refused {
        /// What it said.
        what: String,
    },
    /// automerge panicked on it.
    #[error("automerge panicked on the change: {what}")]
    Panicked {
        /// What it said.
        what: String,
    },
    /// The document with it could be saved, but not loaded again.
    #[error("the document could not be loaded again with this change: {what}")]
    DoesNotReload {
        /// What is wrong.
        what: String,
    },
    /// Too many fragments wait for others already; it is tried again when the view is next opened.
    #[error("too many fragments wait for others")]
    Crowded,
}

/// A change that has passed all but automerge, and its entry for the index.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) change: Change,
    pub(crate) meta: ChangeMeta,
    /// What it states, if it is the first change of a memory and has the form of all of these.
    pub(crate) first: Option<Draft>,
}

/// Checks a change whose header's dependencies are all in `index`.
pub(crate) fn check(key: &DocKey, index: &DocIndex, opened: &Opened) -> Result<Checked, Reason> {
    let bytes = &opened.change;
    if bytes.len() > MAX_CHANGE {
        return Err(Reason::TooLarge {
            size: bytes.len(),
            limit: MAX_CHANGE,
        });
    }
    scan(bytes, key.shape).map_err(|error| match error {
        ScanError::Compressed => Reason::Compressed,
        ScanError::Malformed(what) => Reason::Malformed {
            what: what.to_owned(),
        },
        ScanError::TooMany(what) => Reason::TooMany {
            what: what.to_owned(),
        },
    })?;
    let (change, operations) = decode(bytes)?;

    let header = &opened.header;
    let author_actor = actor(&header.author, &key.doc);
    if change.actor_id() != &author_actor {
        return Err(Reason::WrongActor);
    }
    let actor_bytes =
        <[u8; 16]>::try_from(author_actor.to_bytes()).expect("our actors have 16 bytes");

    let deps = dependencies(key, index, opened, &change)?;
    let closure = index.closure(&deps);

    let last = index.last_of(&actor_bytes);
    let expected = last.map_or(1, |last| index.at(last).seq + 1);
    if change.seq() != expected || last.is_some_and(|last| !closure.contains(&last)) {
        let same = index
            .changes()
            .iter()
            .find(|other| other.actor == actor_bytes && other.seq == change.seq());
        return Err(match same {
            Some(other) => Reason::Forked {
                other: other.fragment,
            },
            None => Reason::WrongSeq {
                seq: change.seq(),
                expected,
            },
        });
    }
    let author_bytes = last.map_or(0, |last| index.at(last).author_bytes) + bytes.len() as u64;
    if change.seq() > MAX_CHANGES_PER_AUTHOR || author_bytes > MAX_AUTHOR_BYTES {
        return Err(Reason::OverBudget);
    }

    let author_ops = last.map_or(0, |last| index.at(last).author_ops) + operations.len() as u64;
    if key.shape == Shape::File && author_ops > MAX_FILE_OPS_PER_AUTHOR {
        return Err(Reason::OverBudget);
    }

    let start = change.start_op().get();
    let expected = deps
        .iter()
        .map(|dep| index.at(*dep).max_op)
        .fold(genesis(key.shape).max_op, u64::max)
        + 1;
    if start != expected {
        return Err(Reason::WrongStart { start, expected });
    }
    let max_op = start + operations.len() as u64 - 1;
    if max_op > MAX_COUNTER {
        return Err(Reason::OverBudget);
    }

    let allowed = check_schema(key, index, &closure, header, &change, &operations)
        .map_err(|what| Reason::Schema { what })?;
    let is_first = key.shape == Shape::Memory && index.len() == 0 && is_first_statement(&change);
    let meta = ChangeMeta {
        hash: change.hash().0,
        fragment: opened.id,
        author: header.author,
        node: header.node,
        hlc: header.hlc,
        kind: header.kind,
        fingerprint: header.fingerprint,
        actor: actor_bytes,
        seq: change.seq(),
        start_op: start,
        max_op,
        author_bytes,
        deps,
        registers: allowed.registers,
        inserts: allowed.inserts,
        author_ops,
    };
    let first = allowed.statement.filter(|_| is_first);
    Ok(Checked {
        change,
        meta,
        first,
    })
}

fn decode(bytes: &[u8]) -> Result<(Change, Vec<automerge::legacy::Op>), Reason> {
    let decoded = fenced(|| {
        let change = Change::from_bytes(bytes.to_vec()).map_err(|error| error.to_string())?;
        let expanded = change.decode();
        let operations = expanded.operations.clone();
        let again = Change::from(expanded);
        Ok::<_, String>((again.raw_bytes() == bytes).then_some((change, operations)))
    });
    match decoded {
        Err(what) => Err(Reason::Panicked { what }),
        Ok(Err(what)) => Err(Reason::Malformed {
            what: what.chars().take(200).collect(),
        }),
        Ok(Ok(None)) => Err(Reason::NotCanonical),
        Ok(Ok(Some(decoded))) => Ok(decoded),
    }
}

/// Returns the positions of what the change builds on: exactly what its header names.
fn dependencies(
    key: &DocKey,
    index: &DocIndex,
    opened: &Opened,
    change: &Change,
) -> Result<Vec<u32>, Reason> {
    let mut named = Vec::with_capacity(opened.header.deps.len());
    for fragment in &opened.header.deps {
        named.push(index.by_fragment(fragment).ok_or(Reason::DepsDisagree)?);
    }
    named.sort_unstable();
    let mut built_on = Vec::with_capacity(named.len());
    // What builds on nothing builds on the genesis alone.
    if change.deps() != [genesis(key.shape).hash] {
        for hash in change.deps() {
            built_on.push(index.by_hash(hash).ok_or(Reason::DepsDisagree)?);
        }
        if built_on.is_empty() {
            return Err(Reason::DepsDisagree);
        }
    }
    built_on.sort_unstable();
    if named != built_on || !named.is_sorted_by(|a, b| a < b) {
        return Err(Reason::DepsDisagree);
    }
    Ok(built_on)
}

/// Applies checked changes to a copy of `document`, and returns the copy as it reloads, with the
/// bytes that it reloads from.
///
/// `heads` are the heads the document must then have; `read` reads it for the view, in here, so that
/// a document on which reading panics is not taken in either.
pub(crate) fn apply<T>(
    document: &Automerge,
    changes: &[Change],
    heads: &[ChangeHash],
    read: impl FnOnce(&Automerge) -> T,
) -> Result<(Automerge, Vec<u8>, T), Reason> {
    fenced(|| {
        #[cfg(test)]
        trip::trip(changes);
        let mut scratch = document.clone();
        scratch
            .apply_changes(changes.iter().cloned())
            .map_err(|error| Reason::Refused {
                what: short(&error),
            })?;
        let saved = scratch.save_with_options(SaveOptions {
            deflate: false,
            retain_orphans: false,
        });
        let reloaded = load(&saved).map_err(|what| Reason::DoesNotReload { what })?;
        let mut found = reloaded.get_heads();
        let mut wanted = heads.to_vec();
        found.sort_unstable();
        wanted.sort_unstable();
        if found != wanted || !scratch.get_missing_deps(&[]).is_empty() {
            return Err(Reason::DoesNotReload {
                what: "its heads differ".to_owned(),
            });
        }
        let read = read(&reloaded);
        Ok((reloaded, saved, read))
    })
    .unwrap_or_else(|what| Err(Reason::Panicked { what }))
}

/// Loads a document that was saved here, strictly.
pub(crate) fn load(saved: &[u8]) -> Result<Automerge, String> {
    let options = LoadOptions::new()
        .on_partial_load(OnPartialLoad::Error)
        .verification_mode(VerificationMode::Check);
    Automerge::load_with_options(saved, options).map_err(|error| short(&error))
}

fn short(error: &dyn std::fmt::Display) -> String {
    error.to_string().chars().take(200).collect()
}

#[cfg(test)]
pub(crate) mod trip;

#[cfg(test)]
mod tests;
