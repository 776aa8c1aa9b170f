//! Making the change that publishes a draft or a patch.

use automerge::{
    ActorId, Automerge, AutomergeError, ChangeHash, PatchLog, ROOT, ReadDoc,
    transaction::Transactable,
};
use serde::Serialize;

use super::{
    At, Statement,
    genesis::{MAPS, STATEMENT},
    statement::to_canonical,
};
use crate::{ContextPatch, Draft, Hlc, context::Note};

/// Why no change was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error(transparent)]
    Automerge(#[from] AutomergeError),
    #[error("the change is empty")]
    Empty,
    #[error(transparent)]
    File(#[from] crate::FileError),
}

/// Writes `draft` upon `heads` of `document`, and returns the change.
pub(crate) fn write_memory(
    document: &mut Automerge,
    actor: ActorId,
    heads: &[ChangeHash],
    at: Hlc,
    draft: &Draft,
) -> Result<Vec<u8>, WriteError> {
    let statement = to_canonical(&Statement {
        at,
        draft: draft.clone(),
    });
    write(document, actor, heads, |write, _| {
        Ok(write.put(ROOT, STATEMENT, statement.as_str())?)
    })
}

/// Writes `patch` upon `heads` of `document`, and returns the change.
pub(crate) fn write_patch(
    document: &mut Automerge,
    actor: ActorId,
    heads: &[ChangeHash],
    at: Hlc,
    task: &str,
    patch: &ContextPatch,
) -> Result<Vec<u8>, WriteError> {
    // The document's id is a hash: its first changes say of which task.
    let name_task = document.get_at(ROOT, "task", heads)?.is_none();
    write(document, actor, heads, |write, entry| {
        if name_task {
            set(
                write,
                "task",
                at,
                &Note {
                    text: task.to_owned(),
                },
            )?;
        }
        if let Some(goal) = &patch.goal {
            set(write, "goal", at, &Note { text: goal.clone() })?;
        }
        if let Some(status) = &patch.status {
            set(
                write,
                "status",
                at,
                &Note {
                    text: status.clone(),
                },
            )?;
        }
        if let Some(next) = &patch.next {
            set(write, "next", at, next)?;
        }
        if let Some(sandbox) = &patch.sandbox {
            set(write, "sandbox", at, sandbox)?;
        }
        if let Some(requires) = &patch.requires {
            set(write, "requires", at, requires)?;
        }
        add(write, entry, 0, &patch.explored)?;
        add(write, entry, 1, &patch.decisions)?;
        add(write, entry, 2, &patch.errors)?;
        add(write, entry, 3, &notes(&patch.questions))?;
        add(write, entry, 4, &notes(&patch.resolved_questions))?;
        add(write, entry, 5, &patch.artifacts)
    })
}

/// The key of an entry: who wrote it, in which of its changes, at which place.
pub(crate) fn entry_key(actor: &ActorId, seq: u64, place: usize) -> String {
    format!("{}.{seq:x}.{place:x}", actor.to_hex_string())
}

/// Names the entries of one change.
pub(super) struct EntryKeys {
    actor: ActorId,
    seq: u64,
}

/// Writes upon `heads` of `document` what `fill` says, and returns the change.
pub(super) fn write(
    document: &mut Automerge,
    actor: ActorId,
    heads: &[ChangeHash],
    fill: impl FnOnce(
        &mut automerge::transaction::Transaction<'_>,
        &EntryKeys,
    ) -> Result<(), WriteError>,
) -> Result<Vec<u8>, WriteError> {
    document.set_actor(actor.clone());
    let seq = document
        .get_last_local_change()
        .map_or(1, |change| change.seq() + 1);
    let mut all = document.get_heads();
    all.sort();
    let mut wanted = heads.to_vec();
    wanted.sort();
    let mut write = if all == wanted {
        document.transaction()
    } else {
        let isolated = document.transaction_at(PatchLog::inactive(), heads);
        isolated.map_err(AutomergeError::from)?
    };
    fill(&mut write, &EntryKeys { actor, seq })?;
    write.commit().0.ok_or(WriteError::Empty)?;
    let change = document.get_last_local_change().ok_or(WriteError::Empty)?;
    Ok(change.raw_bytes().to_vec())
}

fn set<T: Serialize + Clone>(
    write: &mut automerge::transaction::Transaction<'_>,
    register: &str,
    at: Hlc,
    value: &T,
) -> Result<(), WriteError> {
    let text = to_canonical(&At {
        at,
        value: value.clone(),
    });
    Ok(write.put(ROOT, register, text.as_str())?)
}

fn add<T: Serialize>(
    write: &mut automerge::transaction::Transaction<'_>,
    keys: &EntryKeys,
    map: usize,
    entries: &[T],
) -> Result<(), WriteError> {
    if entries.is_empty() {
        return Ok(());
    }
    let Some((_, object)) = write.get(ROOT, MAPS[map])? else {
        return Ok(());
    };
    for (place, entry) in entries.iter().enumerate() {
        write.put(
            &object,
            entry_key(&keys.actor, keys.seq, place),
            to_canonical(entry).as_str(),
        )?;
    }
    Ok(())
}

fn notes(texts: &[String]) -> Vec<Note> {
    texts
        .iter()
        .map(|text| Note { text: text.clone() })
        .collect()
}
