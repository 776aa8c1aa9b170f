//! What the changes of a context add up to.

use std::collections::BTreeMap;

use automerge::{Automerge, ChangeHash, ROOT, ReadDoc};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    At, ChangeMeta, DocIndex, DocKey,
    genesis::MAPS,
    statement::{parse, register, written_by},
};
use crate::{
    ContextState, ContextSummary,
    context::{Artifact, Entry, ErrorEntry, Note, Question, SandboxRef},
};

/// A context as far as what was changed in it counts.
struct Seen<'a> {
    document: &'a Automerge,
    index: &'a DocIndex,
    counts: &'a dyn Fn(&ChangeMeta) -> bool,
}

/// Returns the whole state; `None` if no change that counts names the task yet.
pub(crate) fn context_state(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
    counts: &dyn Fn(&ChangeMeta) -> bool,
) -> Option<ContextState> {
    let seen = &Seen {
        document,
        index,
        counts,
    };
    let task = first::<Note>(seen, "task")?.value.text;
    let mut changes: Vec<&ChangeMeta> = index.changes().iter().filter(|of| counts(of)).collect();
    changes.sort_by_key(|change| change.rank());
    Some(ContextState {
        doc: key.doc,
        space: key.space,
        task,
        goal: first(seen, "goal"),
        status: first(seen, "status"),
        explored: entries(seen, 0)
            .into_iter()
            .map(|(_, entry)| entry)
            .collect(),
        decisions: entries(seen, 1)
            .into_iter()
            .map(|(_, entry)| entry)
            .collect(),
        errors: errors(seen),
        questions: questions(seen),
        next: together(seen, "next"),
        artifacts: artifacts(seen),
        sandbox: first::<SandboxRef>(seen, "sandbox"),
        requires: together(seen, "requires"),
        fingerprint: changes.last()?.fingerprint,
        hlc: changes.last()?.hlc,
        fragments: changes.iter().map(|change| change.fragment).collect(),
    })
}

/// Returns one line about the context; `None` if no change that counts names the task yet.
pub(crate) fn context_summary(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
    counts: &dyn Fn(&ChangeMeta) -> bool,
) -> Option<ContextSummary> {
    let seen = &Seen {
        document,
        index,
        counts,
    };
    let task = first::<Note>(seen, "task")?.value.text;
    let changes = index.changes().iter().filter(|change| counts(change));
    let latest = changes.clone().max_by_key(|change| change.rank())?;
    Some(ContextSummary {
        doc: key.doc,
        space: key.space,
        task,
        goal: first::<Note>(seen, "goal").map(|goal| goal.value.text),
        status: first::<Note>(seen, "status").map(|status| status.value.text),
        fragments: changes.count(),
        by: latest.author,
        node: latest.node,
        at_ms: latest.hlc.unix_ms(),
        hlc: latest.hlc,
    })
}

fn entry<T>(value: T, change: &ChangeMeta) -> Entry<T> {
    Entry {
        value,
        by: change.author,
        node: change.node,
        at_ms: change.hlc.unix_ms(),
        fragment: change.fragment,
    }
}

fn first<T: DeserializeOwned + Serialize>(seen: &Seen<'_>, name: &str) -> Option<Entry<T>> {
    let (At { value, .. }, change) = values::<At<T>>(seen, name).into_iter().next()?;
    Some(entry(value, change))
}

/// Returns the values of a register that count; where none of those that stand does, the latest
/// that ever stood there and does.
fn values<'a, T: DeserializeOwned + Serialize>(
    seen: &Seen<'a>,
    name: &str,
) -> Vec<(T, &'a ChangeMeta)> {
    let mut standing = register::<T>(seen.document, seen.index, name);
    let is_empty = standing.is_empty();
    standing.retain(|(_, change)| (seen.counts)(change));
    if is_empty || !standing.is_empty() {
        return standing;
    }
    let mut earlier: Vec<&ChangeMeta> = seen.index.changes().iter().collect();
    earlier.retain(|change| (seen.counts)(change));
    earlier.sort_by_key(|change| std::cmp::Reverse(change.rank()));
    let set_by = |change: &'a ChangeMeta| {
        let at = [ChangeHash(change.hash)];
        let values = seen.document.get_all_at(ROOT, name, &at).ok()?;
        let own = values.iter().find(|(_, id)| {
            written_by(seen.index, id).is_some_and(|(_, by)| by.fragment == change.fragment)
        });
        Some((parse::<T>(&own?.0)?, change))
    };
    earlier.into_iter().find_map(set_by).into_iter().collect()
}

/// The entries of a map, by clock, ties by fragment, those of one fragment as they were written.
fn entries<'a, T: DeserializeOwned + Serialize>(
    seen: &Seen<'a>,
    map: usize,
) -> Vec<(&'a ChangeMeta, Entry<T>)> {
    let (document, index) = (seen.document, seen.index);
    let Ok(Some((_, object))) = document.get(ROOT, MAPS[map]) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for key in document.keys(&object) {
        let Ok(Some((value, id))) = document.get(&object, key) else {
            continue;
        };
        let Some((counter, change)) = written_by(index, &id) else {
            continue;
        };
        if !(seen.counts)(change) {
            continue;
        }
        let Some(value) = parse::<T>(&value) else {
            continue;
        };
        found.push((change.rank(), counter, change, entry(value, change)));
    }
    found.sort_by_key(|(rank, counter, ..)| (*rank, *counter));
    found
        .into_iter()
        .map(|(_, _, change, entry)| (change, entry))
        .collect()
}

/// Folds entries of one name into the first one's place: what comes later wins.
fn folded<T>(
    entries: Vec<Entry<T>>,
    name: impl Fn(&T) -> String,
    merge: impl Fn(T, &T) -> T,
) -> Vec<Entry<T>> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut folded: Vec<Entry<T>> = Vec::new();
    for mut entry in entries {
        match places.get(&name(&entry.value)) {
            Some(place) => {
                entry.value = merge(entry.value, &folded[*place].value);
                folded[*place] = entry;
            }
            None => {
                places.insert(name(&entry.value), folded.len());
                folded.push(entry);
            }
        }
    }
    folded
}

fn errors(seen: &Seen<'_>) -> Vec<Entry<ErrorEntry>> {
    let all = entries::<ErrorEntry>(seen, 2)
        .into_iter()
        .map(|(_, entry)| entry)
        .collect();
    folded(
        all,
        |error| error.error.clone(),
        |later, earlier| ErrorEntry {
            error: later.error,
            cause: later.cause.or_else(|| earlier.cause.clone()),
            fix: later.fix.or_else(|| earlier.fix.clone()),
            status: later.status.or_else(|| earlier.status.clone()),
        },
    )
}

fn artifacts(seen: &Seen<'_>) -> Vec<Entry<Artifact>> {
    let all = entries::<Artifact>(seen, 5)
        .into_iter()
        .map(|(_, entry)| entry)
        .collect();
    folded(all, |artifact| artifact.name.clone(), |later, _| later)
}

/// A question is resolved by the same words said at or after the moment it was last asked.
fn questions(seen: &Seen<'_>) -> Vec<Entry<Question>> {
    let mut resolved = BTreeMap::new();
    for (change, note) in entries::<Note>(seen, 4) {
        resolved.insert(note.value.text, change.rank());
    }
    let asked = entries::<Note>(seen, 3)
        .into_iter()
        .map(|(change, note)| {
            let is_resolved = resolved
                .get(&note.value.text)
                .is_some_and(|when| *when >= change.rank());
            entry(
                Question {
                    text: note.value.text,
                    resolved: is_resolved,
                },
                change,
            )
        })
        .collect();
    folded(
        asked,
        |question: &Question| question.text.clone(),
        |later, _| later,
    )
}

/// Lists written without knowing of each other both stay: the later first, each line once.
fn together(seen: &Seen<'_>, name: &str) -> Vec<Entry<Note>> {
    let mut lines: Vec<Entry<Note>> = Vec::new();
    for (At { value, .. }, change) in values::<At<Vec<String>>>(seen, name) {
        for text in value {
            if !lines.iter().any(|line| line.value.text == text) {
                lines.push(entry(Note { text }, change));
            }
        }
    }
    lines
}
