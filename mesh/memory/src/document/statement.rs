//! The strings that changes put into documents, and what a memory's add up to.

use std::collections::BTreeMap;

use automerge::{Automerge, ChangeHash, ObjId, ROOT, ReadDoc, ScalarValue, Value};
use rhizome_identity::AgentId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ChangeMeta, DocIndex, DocKey, genesis::STATEMENT};
use crate::{
    Draft, Hlc,
    item::{Conflict, MemoryItem},
    same::is_retracted,
};

/// Authors whose overwritten statement can be found by.
const MAX_BURIED: usize = 8;
/// Bytes of each of its parts.
const MAX_BURIED_BYTES: usize = 4 * 1024;

/// A whole memory as its author stated it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Statement {
    /// The clock of the fragment: makes the same words said twice two statements.
    pub(crate) at: Hlc,
    pub(crate) draft: Draft,
}

/// The value of a register, with the clock of the fragment that set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct At<T> {
    pub(crate) at: Hlc,
    pub(crate) value: T,
}

/// Reads JSON that is written exactly as we would write it: one value, one spelling.
pub(crate) fn from_canonical<T: DeserializeOwned + Serialize>(text: &str) -> Option<T> {
    let value: T = serde_json::from_str(text).ok()?;
    (to_canonical(&value) == text).then_some(value)
}

pub(crate) fn to_canonical<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("these types have string keys only")
}

/// Returns the values of a register, each with the change that wrote it, the first in rank first.
pub(crate) fn register<'a, T: DeserializeOwned + Serialize>(
    document: &Automerge,
    index: &'a DocIndex,
    name: &str,
) -> Vec<(T, &'a ChangeMeta)> {
    let values = document.get_all(ROOT, name).unwrap_or_default();
    let mut found: Vec<(T, &ChangeMeta)> = values
        .iter()
        .filter_map(|(value, id)| Some((parse(value)?, written_by(index, id)?.1)))
        .collect();
    found.sort_by_key(|(_, change)| std::cmp::Reverse(change.rank()));
    found
}

/// Returns the operation's counter and the change that holds it.
pub(crate) fn written_by<'a>(index: &'a DocIndex, id: &ObjId) -> Option<(u64, &'a ChangeMeta)> {
    let ObjId::Id(counter, actor, _) = id else {
        return None;
    };
    Some((*counter, index.at(index.by_op(actor.to_bytes(), *counter)?)))
}

pub(crate) fn parse<T: DeserializeOwned + Serialize>(value: &Value<'_>) -> Option<T> {
    match value {
        Value::Scalar(scalar) => match scalar.as_ref() {
            ScalarValue::Str(text) => from_canonical(text),
            _ => None,
        },
        Value::Object(_) => None,
    }
}

/// Returns what a memory's document says now; `None` if it says nothing yet.
///
/// Of statements made without knowing of each other, the later by clock is shown, ties by fragment;
/// the others stand in `conflicts`.
pub(crate) fn memory_item(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
) -> Option<MemoryItem> {
    let mut statements = register::<Statement>(document, index, STATEMENT).into_iter();
    let (Statement { draft, .. }, change) = statements.next()?;
    let mut item = stated_item(key, draft, change);
    item.conflicts = statements
        .map(|(Statement { draft, .. }, change)| Conflict {
            id: change.fragment,
            kind: change.kind,
            title: draft.title,
            text: draft.text,
            fields: draft.fields,
            author: change.author,
            node: change.node,
            at_ms: change.hlc.unix_ms(),
            hlc: change.hlc,
        })
        .collect();
    item.buried = buried(document, index, &item);
    Some(item)
}

/// Returns the words of what others stated last in a document and what is shown stands over: should
/// its author lose its standing, they are what the memory says, and have to be found by.
fn buried(document: &Automerge, index: &DocIndex, shown: &MemoryItem) -> String {
    let mut latest: BTreeMap<AgentId, &ChangeMeta> = BTreeMap::new();
    for change in index.changes() {
        if change.author != shown.author {
            let last = latest.entry(change.author).or_insert(change);
            if last.rank() < change.rank() {
                *last = change;
            }
        }
    }
    let beside = |id| shown.conflicts.iter().any(|conflict| conflict.id == id);
    let mut latest: Vec<_> = latest
        .into_values()
        .filter(|change| !beside(change.fragment))
        .collect();
    latest.sort_by_key(|change| std::cmp::Reverse(change.rank()));
    let mut words = String::new();
    for change in latest.into_iter().take(MAX_BURIED) {
        if let Some(draft) = stated_in(document, index, change) {
            for text in [&draft.title, &draft.text] {
                let mut end = text.len().min(MAX_BURIED_BYTES);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                words.push('\n');
                words.push_str(&text[..end]);
            }
        }
    }
    words
}

/// Returns what one change stated, whatever came after it.
fn stated_in(document: &Automerge, index: &DocIndex, change: &ChangeMeta) -> Option<Draft> {
    let at = [ChangeHash(change.hash)];
    let values = document.get_all_at(ROOT, STATEMENT, &at).ok()?;
    let own = values.iter().find(|(_, id)| {
        written_by(index, id).is_some_and(|(_, by)| by.fragment == change.fragment)
    });
    parse::<Statement>(&own?.0).map(|statement| statement.draft)
}

/// Returns what was ever stated in a memory's document, the latest by clock first, at most `limit`.
pub(crate) fn statements(
    key: &DocKey,
    document: &Automerge,
    index: &DocIndex,
    limit: usize,
) -> Vec<MemoryItem> {
    let mut changes: Vec<&ChangeMeta> = index.changes().iter().collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.rank()));
    let stated = |change: &ChangeMeta| {
        let draft = stated_in(document, index, change)?;
        Some(stated_item(key, draft, change))
    };
    changes.into_iter().filter_map(stated).take(limit).collect()
}

/// Returns what a memory says by a single statement.
pub(crate) fn stated_item(key: &DocKey, draft: Draft, change: &ChangeMeta) -> MemoryItem {
    let retracted = is_retracted(&draft.fields);
    MemoryItem {
        retracted,
        confirmations: 0,
        confirmed_by: 0,
        buried: String::new(),
        id: change.fragment,
        doc: key.doc,
        space: key.space,
        kind: change.kind,
        title: draft.title,
        text: draft.text,
        tags: draft.tags,
        key: draft.key,
        task: draft.task,
        evidence: draft.evidence,
        supersedes: draft.supersedes,
        superseded_by: Vec::new(),
        depends_on: draft.depends_on,
        fields: draft.fields,
        author: change.author,
        node: change.node,
        at_ms: change.hlc.unix_ms(),
        hlc: change.hlc,
        fingerprint: change.fingerprint,
        conflicts: Vec::new(),
    }
}
