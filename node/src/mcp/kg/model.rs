//! Entities, observations and relations as memories.
//!
//! Each is a memory of its own under a key made of what it says, so that what several agents add
//! at once merges: the same relation said twice is one, and two observations on one entity are two.
use rhizome_identity::SpaceId;
use rhizome_memory::{DocId, Draft, Kind, MAX_TITLE, MemoryItem, RETRACTED_FIELD, keyed_doc};
use serde::{Deserialize, Serialize};

/// The field that says what a memory is in a graph: `entity`, `observation` or `relation`.
pub(crate) const FIELD: &str = "kg";
/// What the key of every memory of a graph begins with.
pub(crate) const PREFIX: &str = "kg/";
/// A part of a key that is longer stands there as its hash.
const MAX_PART: usize = 120;

/// An entity with what is known of it, as clients write and read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entity {
    pub(crate) name: String,
    pub(crate) entity_type: String,
    pub(crate) observations: Vec<String>,
}

/// A relation between two entities, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Relation {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) relation_type: String,
}

/// One memory of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Entity { name: String, entity_type: String },
    Observation { entity: String, text: String },
    Relation(Relation),
}

impl Part {
    pub(crate) fn entity(entity: &Entity) -> Self {
        Self::Entity {
            name: entity.name.clone(),
            entity_type: entity.entity_type.clone(),
        }
    }

    pub(crate) fn observation(entity: &str, text: &str) -> Self {
        Self::Observation {
            entity: entity.to_owned(),
            text: text.to_owned(),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Entity { .. } => "entity",
            Self::Observation { .. } => "observation",
            Self::Relation(_) => "relation",
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Observation { .. } => Kind::Observation,
            Self::Entity { .. } | Self::Relation(_) => Kind::Fact,
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Entity { name, .. } => format!("{PREFIX}entity/{}", part(name)),
            Self::Observation { entity, text } => {
                format!("{PREFIX}observation/{}/{}", part(entity), hash(text))
            }
            Self::Relation(Relation {
                from,
                to,
                relation_type,
            }) => format!(
                "{PREFIX}relation/{}/{}/{}",
                part(from),
                part(relation_type),
                part(to)
            ),
        }
    }

    /// Returns the document of this part in a space.
    pub(crate) fn doc(&self, space: &SpaceId) -> DocId {
        keyed_doc(space, self.kind(), &self.key())
    }

    /// Returns the memory that says it.
    pub(crate) fn draft(&self) -> Draft {
        let (title, text) = match self {
            Self::Entity { name, entity_type } => (name.clone(), entity_type.clone()),
            Self::Observation { entity, text } => (entity.clone(), text.clone()),
            Self::Relation(relation) => (
                format!(
                    "{} {} {}",
                    relation.from, relation.relation_type, relation.to
                ),
                String::new(),
            ),
        };
        let mut draft = Draft::new(self.kind(), headline(&title), text);
        draft.key = Some(self.key());
        let mut field = |name: &str, value: &str| {
            draft.fields.insert(name.to_owned(), value.to_owned());
        };
        field(FIELD, self.word());
        match self {
            Self::Entity { name, .. } => field("kg.name", name),
            Self::Observation { entity, .. } => field("kg.entity", entity),
            Self::Relation(relation) => {
                field("kg.from", &relation.from);
                field("kg.to", &relation.to);
                field("kg.relation", &relation.relation_type);
            }
        }
        draft
    }

    /// Returns the memory that takes it back.
    pub(crate) fn retraction(&self) -> Draft {
        let mut draft = Draft::new(self.kind(), "retracted", "");
        draft.key = Some(self.key());
        draft.fields = [(FIELD, self.word()), (RETRACTED_FIELD, "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        draft
    }

    /// Reads a memory; `None` if it is no part of a graph, or claims to be another than it is.
    pub(crate) fn of(item: &MemoryItem) -> Option<Self> {
        let field = |name: &str| item.fields.get(name).cloned();
        let part = match field(FIELD)?.as_str() {
            "entity" => Self::Entity {
                name: field("kg.name")?,
                entity_type: item.text.clone(),
            },
            "observation" => Self::Observation {
                entity: field("kg.entity")?,
                text: item.text.clone(),
            },
            "relation" => Self::Relation(Relation {
                from: field("kg.from")?,
                to: field("kg.to")?,
                relation_type: field("kg.relation")?,
            }),
            _ => return None,
        };
        (item.key.as_ref() == Some(&part.key()) && item.kind == part.kind()).then_some(part)
    }
}

/// Returns a name as a part of a key: readable, without a `/` of its own, and short.
fn part(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '/' => part.push_str("%2F"),
            '%' => part.push_str("%25"),
            '#' => part.push_str("%23"),
            c => part.push(c),
        }
        if part.len() > MAX_PART {
            return format!("#{}", hash(name));
        }
    }
    part
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..40].to_owned()
}

/// Returns one line that fits a title and says something.
fn headline(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "(nameless)".to_owned();
    }
    rhizome_sandbox::clip(&line, MAX_TITLE).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        let long = "ß".repeat(400);
        vec![
            Part::Entity {
                name: "Ada Lovelace".into(),
                entity_type: "person".into(),
            },
            Part::Entity {
                name: String::new(),
                entity_type: String::new(),
            },
            Part::observation("Ada Lovelace", "wrote\nthe first program"),
            Part::observation("Ada Lovelace", ""),
            Part::observation(&long, &long),
            Part::Relation(Relation {
                from: "a/b".into(),
                to: "c".into(),
                relation_type: "d".into(),
            }),
            Part::Relation(Relation {
                from: "a".into(),
                to: "c".into(),
                relation_type: "b/d".into(),
            }),
            Part::Relation(Relation {
                from: long.clone(),
                to: long.clone(),
                relation_type: long,
            }),
        ]
    }

    #[test]
    fn each_part_is_a_memory_of_its_own() {
        let space = SpaceId::from_bytes([7; 32]);
        let parts = parts();
        let mut docs = std::collections::BTreeSet::new();
        for part in &parts {
            let draft = part.draft();
            draft.check().unwrap();
            part.retraction().check().unwrap();
            assert_eq!(draft.key, part.retraction().key);
            assert_eq!(draft.kind, part.retraction().kind);
            assert!(docs.insert(part.doc(&space)), "{part:?}");
        }
        let of_type = Part::Entity {
            name: "Ada Lovelace".into(),
            entity_type: "ship".into(),
        };
        assert_eq!(of_type.doc(&space), parts[0].doc(&space));
    }

    #[test]
    fn clients_see_the_names_they_know_in_their_order() {
        let entity = Entity {
            name: "a".into(),
            entity_type: "t".into(),
            observations: vec!["x".into()],
        };
        let json = serde_json::to_string(&entity).unwrap();
        assert_eq!(
            json,
            r#"{"name":"a","entityType":"t","observations":["x"]}"#
        );
        let relation = r#"{"from":"a","to":"b","relationType":"r"}"#;
        let read: Relation = serde_json::from_str(relation).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), relation);
    }
}
