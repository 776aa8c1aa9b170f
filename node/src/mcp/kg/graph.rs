//! The graph that the memories of a space add up to.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rhizome_memory::{DocId, Hlc, MemoryItem, Standing};
use serde::Serialize;

use super::model::{Entity, Part, Relation};

/// What clients get of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    pub(crate) entities: Vec<Entity>,
    pub(crate) relations: Vec<Relation>,
}

/// One part, with who said it last.
#[derive(Debug, Clone)]
struct Said {
    part: Part,
    standing: Standing,
    hlc: Hlc,
}

/// The parts of a graph, each by its document.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    parts: BTreeMap<DocId, Said>,
    shown: Option<Arc<Shown>>,
}

impl Graph {
    /// Takes in a memory as it stands now.
    pub(crate) fn note(&mut self, item: &MemoryItem, standing: Standing) {
        let part = (!item.retracted).then(|| Part::of(item)).flatten();
        let changed = match part {
            Some(part) => {
                let said = Said {
                    part,
                    standing,
                    hlc: item.hlc,
                };
                self.parts.insert(item.doc, said);
                true
            }
            None => self.parts.remove(&item.doc).is_some(),
        };
        if changed {
            self.shown = None;
        }
    }

    /// Returns whether a document is part of the graph.
    pub(crate) fn has(&self, doc: &DocId) -> bool {
        self.parts.contains_key(doc)
    }

    /// Returns everything that `delete_entities` takes back: the entities, what is known of them,
    /// and the relations from and to them.
    pub(crate) fn about(&self, names: &BTreeSet<String>) -> Vec<Part> {
        let is_about = |part: &Part| match part {
            Part::Entity { name, .. } => names.contains(name),
            Part::Observation { entity, .. } => names.contains(entity),
            Part::Relation(relation) => {
                names.contains(&relation.from) || names.contains(&relation.to)
            }
        };
        let parts = self.parts.values().map(|said| &said.part);
        parts.filter(|part| is_about(part)).cloned().collect()
    }

    /// Returns the whole graph, in the order in which its parts were said; what doubtful authors
    /// say stands last.
    pub(crate) fn shown(&mut self) -> Arc<Shown> {
        if let Some(shown) = &self.shown {
            return Arc::clone(shown);
        }
        let mut said: Vec<(&DocId, &Said)> = self.parts.iter().collect();
        said.sort_by_key(|(doc, said)| (std::cmp::Reverse(said.standing), said.hlc, **doc));
        let mut shown = Shown::default();
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, said) in &said {
            if let Part::Entity { name, entity_type } = &said.part {
                places.insert(name, shown.entities.len());
                shown.entities.push(Entity {
                    name: name.clone(),
                    entity_type: entity_type.clone(),
                    observations: Vec::new(),
                });
            }
        }
        for (_, said) in &said {
            match &said.part {
                Part::Entity { .. } => {}
                // One whose entity is gone is still a memory, but no part of the graph.
                Part::Observation { entity, text } => {
                    if let Some(place) = places.get(entity.as_str()) {
                        shown.entities[*place].observations.push(text.clone());
                    }
                }
                Part::Relation(relation) => shown.relations.push(relation.clone()),
            }
        }
        let shown = Arc::new(shown);
        self.shown = Some(Arc::clone(&shown));
        shown
    }
}

impl Shown {
    /// Returns these entities, in the order of `names`, with every relation that has one of them at
    /// an end.
    pub(crate) fn only(&self, names: &[String]) -> Self {
        let places: BTreeMap<&str, &Entity> = self
            .entities
            .iter()
            .map(|entity| (entity.name.as_str(), entity))
            .collect();
        let mut seen = BTreeSet::new();
        let entities: Vec<Entity> = names
            .iter()
            .filter(|name| seen.insert(name.as_str()))
            .filter_map(|name| places.get(name.as_str()).map(|entity| (*entity).clone()))
            .collect();
        let here: BTreeSet<&str> = entities.iter().map(|entity| entity.name.as_str()).collect();
        let is_near = |relation: &&Relation| {
            here.contains(relation.from.as_str()) || here.contains(relation.to.as_str())
        };
        let relations = self.relations.iter().filter(is_near).cloned().collect();
        Self {
            entities,
            relations,
        }
    }

    /// Returns the names of the entities that hold the whole of `query` in name, type or an
    /// observation, upper and lower case aside; in the order of the graph.
    pub(crate) fn holding(&self, query: &str) -> Vec<String> {
        let query = query.to_lowercase();
        let holds = |text: &String| text.to_lowercase().contains(&query);
        let holding = self.entities.iter().filter(|entity| {
            holds(&entity.name)
                || holds(&entity.entity_type)
                || entity.observations.iter().any(holds)
        });
        holding.map(|entity| entity.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rhizome_identity::SpaceId;

    use super::*;

    fn graph(parts: &[Part]) -> Graph {
        let mut graph = Graph::default();
        for (n, part) in parts.iter().enumerate() {
            let said = Said {
                part: part.clone(),
                standing: Standing::Trusted,
                hlc: Hlc::from_ms(n as u64 + 1),
            };
            graph
                .parts
                .insert(part.doc(&SpaceId::from_bytes([1; 32])), said);
        }
        graph
    }

    fn entity(name: &str, entity_type: &str) -> Part {
        Part::Entity {
            name: name.into(),
            entity_type: entity_type.into(),
        }
    }

    fn relation(from: &str, to: &str) -> Part {
        Part::Relation(Relation {
            from: from.into(),
            to: to.into(),
            relation_type: "knows".into(),
        })
    }

    #[test]
    fn parts_come_in_the_order_in_which_they_were_said() {
        let mut graph = graph(&[
            entity("zoe", "person"),
            Part::observation("zoe", "second by name"),
            entity("adam", "person"),
            Part::observation("zoe", "a third"),
            Part::observation("nobody", "lost"),
            relation("zoe", "adam"),
        ]);
        let shown = graph.shown();
        assert_eq!(shown.entities[0].name, "zoe");
        assert_eq!(
            shown.entities[0].observations,
            ["second by name", "a third"]
        );
        assert_eq!(shown.entities.len(), 2);
        assert_eq!(shown.relations.len(), 1);
    }

    #[test]
    fn what_a_doubtful_author_says_comes_last() {
        let mut graph = graph(&[entity("evil", "person"), entity("good", "person")]);
        let doc = entity("evil", "").doc(&SpaceId::from_bytes([1; 32]));
        graph.parts.get_mut(&doc).unwrap().standing = Standing::Doubtful;
        let names: Vec<_> = graph
            .shown()
            .entities
            .iter()
            .map(|e| e.name.clone())
            .collect();
        assert_eq!(names, ["good", "evil"]);
    }

    #[test]
    fn opening_shows_relations_with_one_end_and_searching_holds_substrings() {
        let mut graph = graph(&[
            entity("alice", "person"),
            entity("bob", "Person"),
            entity("carol", "ship"),
            Part::observation("carol", "flies the BLUE flag"),
            relation("alice", "bob"),
            relation("bob", "carol"),
            relation("carol", "dave"),
        ]);
        let shown = graph.shown();
        let opened = shown.only(&["carol".into(), "nobody".into(), "carol".into()]);
        assert_eq!(opened.entities.len(), 1);
        assert_eq!(opened.relations.len(), 2);
        assert_eq!(shown.holding("e blue F"), ["carol"]);
        assert_eq!(shown.holding("person"), ["alice", "bob"]);
        assert_eq!(shown.holding("").len(), 3);
    }

    #[test]
    fn deleting_an_entity_takes_all_that_is_about_it() {
        let graph = graph(&[
            entity("alice", "person"),
            entity("bob", "person"),
            Part::observation("alice", "x"),
            Part::observation("bob", "x"),
            relation("alice", "bob"),
            relation("bob", "alice"),
            relation("bob", "bob"),
        ]);
        assert_eq!(graph.about(&["alice".to_owned()].into()).len(), 4);
    }
}
