//! Drafts with a meaning of their own: what was said before, and what is taken back.
//!
//! Two drafts say the same if kind, words, tags, task, evidence and fields agree, upper and lower
//! case and white space aside. Saying it again is no second memory but a confirmation of the first:
//! one small document of each agent, which holds a number.

use std::collections::{BTreeMap, BTreeSet};

use rhizome_identity::{AgentId, SpaceId};

use crate::{DocId, Draft, Kind, MemoryItem};

/// The field that takes a memory back when its value is `1`.
pub const RETRACTED_FIELD: &str = "retracted";
/// The field of a confirmation that names the memory.
const OF: &str = "of";
/// The field of a confirmation that counts.
const TIMES: &str = "times";
/// What the node stamps on a memory, which is not what it says.
const STAMPS: [&str; 2] = ["rhizome.sandbox", "rhizome.image"];

/// Returns whether these fields take their memory back.
#[must_use]
pub fn is_retracted(fields: &BTreeMap<String, String>) -> bool {
    fields
        .get(RETRACTED_FIELD)
        .is_some_and(|value| value == "1")
}

/// Returns the draft that takes a memory back: under its own key if it has one, else under a key
/// made of its document. Stating the same without the field brings it back.
#[must_use]
pub fn retraction(item: &MemoryItem) -> Draft {
    let fields = BTreeMap::from([(RETRACTED_FIELD.to_owned(), "1".to_owned())]);
    let mut draft = Draft::new(item.kind, "retracted", "");
    draft.fields = fields;
    match &item.key {
        Some(key) => draft.key = Some(key.clone()),
        None => {
            draft.key = Some(format!("retract/{}", item.doc));
            draft.supersedes = vec![item.doc];
        }
    }
    draft
}

/// Returns the draft by which `agent` says that it said what `doc` says `times` times.
#[must_use]
pub fn confirmation(doc: &DocId, agent: &AgentId, times: u64) -> Draft {
    let mut draft = Draft::new(Kind::Confirmation, "confirmed", "");
    draft.key = Some(key(doc, agent));
    draft.fields = BTreeMap::from([
        (OF.to_owned(), doc.to_string()),
        (TIMES.to_owned(), times.to_string()),
    ]);
    draft
}

fn key(doc: &DocId, agent: &AgentId) -> String {
    format!("confirm/{doc}/{agent}")
}

/// Reads a confirmation: of what, and how often. One that speaks for another agent is none.
pub(crate) fn confirmed(item: &MemoryItem) -> Option<(DocId, u64)> {
    let doc: DocId = item.fields.get(OF)?.parse().ok()?;
    let times = item.fields.get(TIMES)?.parse().ok()?;
    let is_own = item.key.as_deref() == Some(&key(&doc, &item.author));
    is_own.then_some((doc, times))
}

/// What a draft or a memory says, for [`same_text`].
pub(crate) struct Said<'a> {
    pub(crate) kind: Kind,
    pub(crate) title: &'a str,
    pub(crate) text: &'a str,
    pub(crate) tags: &'a [String],
    pub(crate) task: Option<&'a str>,
    pub(crate) evidence: &'a [String],
    pub(crate) fields: &'a BTreeMap<String, String>,
}

/// Returns what is equal for drafts that say the same in a space; `None` for one that has a key, or
/// replaces or rests on others: it says more than its words.
#[must_use]
pub fn same_text(space: &SpaceId, draft: &Draft) -> Option<[u8; 32]> {
    let is_plain =
        draft.key.is_none() && draft.supersedes.is_empty() && draft.depends_on.is_empty();
    let is_memory = !draft.kind.is_record() && draft.kind != Kind::Context;
    (is_plain && is_memory).then(|| {
        hash(
            space,
            &Said {
                kind: draft.kind,
                title: &draft.title,
                text: &draft.text,
                tags: &draft.tags,
                task: draft.task.as_deref(),
                evidence: &draft.evidence,
                fields: &draft.fields,
            },
        )
    })
}

/// Returns the same of a memory that is here.
pub(crate) fn same_text_of(item: &MemoryItem) -> Option<[u8; 32]> {
    let is_plain = item.key.is_none() && item.supersedes.is_empty() && item.depends_on.is_empty();
    (is_plain && !item.kind.is_record()).then(|| {
        hash(
            &item.space,
            &Said {
                kind: item.kind,
                title: &item.title,
                text: &item.text,
                tags: &item.tags,
                task: item.task.as_deref(),
                evidence: &item.evidence,
                fields: &item.fields,
            },
        )
    })
}

fn hash(space: &SpaceId, said: &Said<'_>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("rhizome same text");
    hasher.update(space.as_bytes());
    hasher.update(&[said.kind.number()]);
    // Each part ends with a byte that UTF-8 does not have.
    let mut part = |text: &str, folds: bool| {
        if folds {
            let mut words = text.split_whitespace();
            if let Some(first) = words.next() {
                hasher.update(first.to_lowercase().as_bytes());
            }
            for word in words {
                hasher.update(b" ");
                hasher.update(word.to_lowercase().as_bytes());
            }
        } else {
            hasher.update(text.as_bytes());
        }
        hasher.update(&[0xff]);
    };
    part(said.title, true);
    part(said.text, true);
    part(said.task.unwrap_or_default(), false);
    let tags: BTreeSet<&String> = said.tags.iter().collect();
    for tag in tags {
        part(tag, false);
    }
    part("", false);
    for evidence in said.evidence {
        part(evidence, false);
    }
    part("", false);
    for (name, value) in said.fields {
        if !STAMPS.contains(&name.as_str()) {
            part(name, false);
            part(value, false);
        }
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_space_say_nothing_but_scope_does() {
        let space = SpaceId::from_bytes([1; 32]);
        let draft = |title: &str, text: &str| Draft::new(Kind::Fact, title, text);
        let same = |draft: &Draft| same_text(&space, draft);
        let first = draft("The door  is open", "and\nwarm");
        assert_eq!(same(&first), same(&draft("the DOOR is open ", "And warm")));
        assert_ne!(same(&first), same(&draft("the door is open and", "warm")));
        assert_ne!(same(&first), same(&draft("the door is opened", "and warm")));
        let other = SpaceId::from_bytes([2; 32]);
        assert_ne!(same(&first), same_text(&other, &first));
        let mut of_ann = first.clone();
        of_ann.fields.insert("mem0.user_id".into(), "ann".into());
        assert_ne!(same(&first), same(&of_ann), "another scope, another memory");
        let mut stamped = first.clone();
        stamped.fields.insert("rhizome.sandbox".into(), "s".into());
        assert_eq!(same(&first), same(&stamped));
        let mut keyed = first.clone();
        keyed.key = Some("k".into());
        assert_eq!(same(&keyed), None);
    }

    #[test]
    fn nobody_confirms_for_another() {
        let (doc, ann, bob) = (
            DocId::from_bytes([9; 32]),
            AgentId::from_bytes([1; 32]),
            AgentId::from_bytes([2; 32]),
        );
        let draft = confirmation(&doc, &ann, 7);
        draft.check().unwrap();
        let of = |author| MemoryItem {
            key: draft.key.clone(),
            fields: draft.fields.clone(),
            author,
            kind: Kind::Confirmation,
            ..crate::recall::tests_item("confirmed")
        };
        assert_eq!(confirmed(&of(ann)), Some((doc, 7)));
        assert_eq!(confirmed(&of(bob)), None);
    }
}
