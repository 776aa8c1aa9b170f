//! What the changes of a context add up to.

use std::collections::BTreeMap;

use automerge::{Automerge, ROOT, ReadDoc};
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

/// Returns the whole state; `None` if no change names the task yet.
pub(crate) fn context_state(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
) -> Option<ContextState> {
    let task = first::<Note>(document, index, "task")?.value.text;
    let mut changes: Vec<&ChangeMeta> = index.changes().iter().collect();
    changes.sort_by_key(|change| change.rank());
    Some(ContextState {
        doc: key.doc,
        space: key.space,
        task,
        goal: first(document, index, "goal"),
        status: first(document, index, "status"),
        explored: entries(document, index, 0)
            .into_iter()
            .map(|(_, entry)| entry)
            .collect(),
        decisions: entries(document, index, 1)
            .into_iter()
            .map(|(_, entry)| entry)
            .collect(),
        errors: errors(document, index),
        questions: questions(document, index),
        next: together(document, index, "next"),
        artifacts: artifacts(document, index),
        sandbox: first::<SandboxRef>(document, index, "sandbox"),
        requires: together(document, index, "requires"),
        fingerprint: changes.last()?.fingerprint,
        hlc: changes.last()?.hlc,
        fragments: changes.iter().map(|change| change.fragment).collect(),
    })
}

/// Returns one line about the context; `None` if no change names the task yet.
pub(crate) fn context_summary(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
) -> Option<ContextSummary> {
    let task = first::<Note>(document, index, "task")?.value.text;
    let latest = index.changes().iter().max_by_key(|change| change.rank())?;
    Some(ContextSummary {
        doc: key.doc,
        space: key.space,
        task,
        goal: first::<Note>(document, index, "goal").map(|goal| goal.value.text),
        status: first::<Note>(document, index, "status").map(|status| status.value.text),
        fragments: index.len(),
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

fn first<T: DeserializeOwned + Serialize>(
    document: &Automerge,
    index: &DocIndex,
    name: &str,
) -> Option<Entry<T>> {
    let (At { value, .. }, change) = register::<At<T>>(document, index, name)
        .into_iter()
        .next()?;
    Some(entry(value, change))
}

/// The entries of a map, by clock, ties by fragment, those of one fragment as they were written.
fn entries<'a, T: DeserializeOwned + Serialize>(
    document: &Automerge,
    index: &'a DocIndex,
    map: usize,
) -> Vec<(&'a ChangeMeta, Entry<T>)> {
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

fn errors(document: &Automerge, index: &DocIndex) -> Vec<Entry<ErrorEntry>> {
    let all = entries::<ErrorEntry>(document, index, 2)
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

fn artifacts(document: &Automerge, index: &DocIndex) -> Vec<Entry<Artifact>> {
    let all = entries::<Artifact>(document, index, 5)
        .into_iter()
        .map(|(_, entry)| entry)
        .collect();
    folded(all, |artifact| artifact.name.clone(), |later, _| later)
}

/// A question is resolved by the same words said at or after the moment it was last asked.
fn questions(document: &Automerge, index: &DocIndex) -> Vec<Entry<Question>> {
    let mut resolved = BTreeMap::new();
    for (change, note) in entries::<Note>(document, index, 4) {
        resolved.insert(note.value.text, change.rank());
    }
    let asked = entries::<Note>(document, index, 3)
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
fn together(document: &Automerge, index: &DocIndex, name: &str) -> Vec<Entry<Note>> {
    let mut lines: Vec<Entry<Note>> = Vec::new();
    for (At { value, .. }, change) in register::<At<Vec<String>>>(document, index, name) {
        for text in value {
            if !lines.iter().any(|line| line.value.text == text) {
                lines.push(entry(Note { text }, change));
            }
        }
    }
    lines
}
