//! The strings that changes put into documents, and what a memory's add up to.

use automerge::{Automerge, ObjId, ROOT, ReadDoc, ScalarValue, Value};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ChangeMeta, DocIndex, DocKey, genesis::STATEMENT};
use crate::{
    Draft, Hlc,
    item::{Conflict, MemoryItem},
};

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
    Some(item)
}

/// Returns what a memory says by a single statement.
pub(crate) fn stated_item(key: &DocKey, draft: Draft, change: &ChangeMeta) -> MemoryItem {
    MemoryItem {
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
