//! What the tools do: reading the graph of a space, and adding to it.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex as Lock, PoisonError},
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use rhizome_identity::{RecordId, SpaceId};
use rhizome_memory::{DocId, Draft, MemoryItem, Published, Voice};
use rmcp::model::MetaObject;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;

use super::{
    graph::{Graph, Shown},
    model::{Entity, FIELD, PREFIX, Part, Relation},
};
use crate::{
    api::types::{
        SCHEMA,
        import::{ImportBody, Imported, RefusedLine},
    },
    daemon::{
        caller::Caller,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// For how long a graph that only grew is kept: who is trusted may change with the time.
const FRESH: Duration = Duration::from_secs(60);
/// A graph that so much has arrived since is read anew.
const MAX_BEHIND: u64 = 4_096;
/// Events read at a time.
const PAGE: usize = 1_024;
/// Memories that a search ranks by words.
const RANKED: usize = 100;
/// Memories of other profiles that a search shows.
const OTHERS: usize = 10;
/// The field of a memory that says whether another one helped.
const VERDICT: &str = "feedback.verdict";
/// Entities whose authors an answer names.
const MAX_AUTHORS: usize = 200;
/// What the name of an entity begins with that is a memory of another profile.
const OTHER: &str = "memory:";

/// The graphs of this node's spaces, as far as somebody asked for them.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Lock<BTreeMap<SpaceId, Arc<Mutex<Cached>>>>);

#[derive(Debug, Default)]
struct Cached {
    graph: Graph,
    /// The arrival up to which it is; `None`: nothing was read yet.
    arrival: Option<u64>,
    heads: Vec<RecordId>,
    read_at: Option<Instant>,
}

impl Graphs {
    /// Returns the graph of a space; while it is locked nobody else here changes it.
    fn of(&self, space: SpaceId) -> Arc<Mutex<Cached>> {
        let mut graphs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(graphs.entry(space).or_default())
    }
}

/// Where a request works, and as whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) caller: &'a Caller,
    pub(crate) agent: Option<&'a str>,
    pub(crate) space: Option<&'a str>,
}

/// New observations on one entity.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewObservations {
    pub(crate) entity_name: String,
    pub(crate) contents: Vec<String>,
}

/// Those of them that were not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AddedObservations {
    pub(crate) entity_name: String,
    pub(crate) added_observations: Vec<String>,
}

/// Observations to delete.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Deletion {
    pub(crate) entity_name: String,
    pub(crate) observations: Vec<String>,
}

/// What a graph lacks of what somebody wants to add.
struct Lacking<'a> {
    graph: &'a Graph,
    space: SpaceId,
    taken: BTreeSet<DocId>,
    drafts: Vec<Draft>,
}

impl Lacking<'_> {
    /// Whether the graph has the part.
    fn has(&self, part: &Part) -> bool {
        self.graph.has(&part.doc(&self.space))
    }

    /// Takes the part if it is not there, and was not taken before.
    fn take(&mut self, part: Part) -> bool {
        let is_new = self.is_new(&part);
        if is_new {
            self.drafts.push(part.draft());
        }
        is_new
    }

    /// Notes that the part is wanted; `true` the first time, if it is not there.
    fn is_new(&mut self, part: &Part) -> bool {
        !self.has(part) && self.taken.insert(part.doc(&self.space))
    }
}

impl Place<'_> {
    fn writable(&self) -> Result<SpaceId, ApiError> {
        self.caller.space(self.node, self.space)
    }

    /// Adds entities; returns those that were not there.
    pub(crate) async fn create_entities(
        &self,
        entities: Vec<Entity>,
    ) -> Result<Vec<Entity>, ApiError> {
        self.add(|lacking| {
            let mut new = Vec::new();
            for entity in entities {
                if !lacking.take(Part::entity(&entity)) {
                    continue;
                }
                for text in &entity.observations {
                    lacking.take(Part::observation(&entity.name, text));
                }
                new.push(entity);
            }
            Ok(new)
        })
        .await
    }

    /// Adds relations; returns those that were not there.
    pub(crate) async fn create_relations(
        &self,
        mut relations: Vec<Relation>,
    ) -> Result<Vec<Relation>, ApiError> {
        self.add(|lacking| {
            relations.retain(|relation| lacking.take(Part::Relation(relation.clone())));
            Ok(relations)
        })
        .await
    }

    /// Adds observations to entities that are there; all of them, or none.
    pub(crate) async fn add_observations(
        &self,
        additions: Vec<NewObservations>,
    ) -> Result<Vec<AddedObservations>, ApiError> {
        self.add(|lacking| {
            let mut added = Vec::new();
            for addition in additions {
                let name = addition.entity_name;
                let entity = Part::Entity {
                    name: name.clone(),
                    entity_type: String::new(),
                };
                if !lacking.has(&entity) {
                    // The words that clients of the reference server know.
                    let message = format!("Entity with name {name} not found");
                    return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message));
                }
                let mut contents = addition.contents;
                contents.retain(|text| lacking.take(Part::observation(&name, text)));
                added.push(AddedObservations {
                    entity_name: name,
                    added_observations: contents,
                });
            }
            Ok(added)
        })
        .await
    }

    /// Publishes what `wanted` takes of what the graph lacks, and returns what it says of that;
    /// nobody else here changes the graph meanwhile.
    async fn add<T>(
        &self,
        wanted: impl FnOnce(&mut Lacking<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let space = self.writable()?;
        let cached = self.node.graphs.of(space);
        let mut cached = cached.lock().await;
        self.bring_up(&space, &mut cached).await?;
        let mut lacking = Lacking {
            graph: &cached.graph,
            space,
            taken: BTreeSet::new(),
            drafts: Vec::new(),
        };
        let answer = wanted(&mut lacking)?;
        let drafts = lacking.drafts;
        self.publish(space, drafts).await?;
        Ok(answer)
    }

    /// Takes back entities with all that is about them.
    pub(crate) async fn delete_entities(&self, names: Vec<String>) -> Result<(), ApiError> {
        let names = names.into_iter().collect();
        self.take_back(|graph| graph.about(&names)).await
    }

    /// Takes back parts that are there.
    async fn delete(&self, parts: Vec<Part>) -> Result<(), ApiError> {
        self.take_back(|_| parts).await
    }

    /// Takes back those parts of `unwanted` that are there.
    async fn take_back(&self, unwanted: impl FnOnce(&Graph) -> Vec<Part>) -> Result<(), ApiError> {
        let space = self.writable()?;
        let cached = self.node.graphs.of(space);
        let mut cached = cached.lock().await;
        self.bring_up(&space, &mut cached).await?;
        let mut seen = BTreeSet::new();
        let drafts = unwanted(&cached.graph)
            .iter()
            .map(|part| (part.doc(&space), part))
            .filter(|(doc, _)| cached.graph.has(doc) && seen.insert(*doc))
            .map(|(_, part)| part.retraction())
            .collect();
        self.publish(space, drafts).await.map(drop)
    }

    /// Takes back observations.
    pub(crate) async fn delete_observations(
        &self,
        deletions: Vec<Deletion>,
    ) -> Result<(), ApiError> {
        let parts = deletions.iter().flat_map(|deletion| {
            let texts = deletion.observations.iter();
            texts.map(|text| Part::observation(&deletion.entity_name, text))
        });
        self.delete(parts.collect()).await
    }

    /// Takes back relations.
    pub(crate) async fn delete_relations(&self, relations: Vec<Relation>) -> Result<(), ApiError> {
        self.delete(relations.into_iter().map(Part::Relation).collect())
            .await
    }

    /// Returns the graph of every space that the caller may read, as one.
    pub(crate) async fn read(&self) -> Result<Arc<Shown>, ApiError> {
        let spaces = self.caller.readable(self.node, self.space)?.0;
        let mut whole: Option<Arc<Shown>> = None;
        for space in spaces {
            let cached = self.node.graphs.of(space);
            let mut cached = cached.lock().await;
            self.bring_up(&space, &mut cached).await?;
            let shown = cached.graph.shown();
            whole = Some(match whole {
                None => shown,
                Some(before) if shown.entities.is_empty() && shown.relations.is_empty() => before,
                Some(before) => Arc::new(merged(&before, &shown)),
            });
        }
        Ok(whole.unwrap_or_default())
    }

    /// Returns some entities by name, with what is connected to them.
    pub(crate) async fn open(&self, names: &[String]) -> Result<Shown, ApiError> {
        let graph = self.read().await?;
        // The reference answers in the order of the graph.
        let wanted: BTreeSet<&String> = names.iter().collect();
        let in_order = graph.entities.iter().map(|entity| &entity.name);
        let in_order: Vec<String> = in_order
            .filter(|name| wanted.contains(name))
            .cloned()
            .collect();
        let mut shown = graph.only(&in_order);
        for doc in names.iter().filter_map(|name| name.strip_prefix(OTHER)) {
            if let Ok(found) = self.node.show(self.caller, doc, self.space).await {
                shown.entities.push(other(&found.memory));
            }
        }
        Ok(shown)
    }

    /// Finds entities: first by words, best first, then those that hold the whole query; last a few
    /// memories of other profiles.
    pub(crate) async fn search(&self, query: &str) -> Result<Shown, ApiError> {
        let graph = self.read().await?;
        let mut names = Vec::new();
        let mut others = Vec::new();
        if !query.trim().is_empty() {
            let query = rhizome_sandbox::clip(query, rhizome_memory::MAX_QUERY);
            let scope = self.caller.readable(self.node, self.space)?;
            let is_part = |item: &MemoryItem| item.fields.contains_key(FIELD);
            let is_verdict = |item: &MemoryItem| item.fields.contains_key(VERDICT);
            let node = self.node;
            let mut hits = node
                .recall_where(scope.clone(), query, RANKED, move |item| !is_verdict(item))
                .await?;
            // Of many memories the best may all be of other profiles.
            if !graph.entities.is_empty() && !hits.iter().any(|hit| is_part(&hit.item)) {
                hits.extend(node.recall_where(scope, query, RANKED, is_part).await?);
            }
            let authority = node.replica.authority();
            for hit in hits {
                match Part::of(&hit.item) {
                    Some(Part::Entity { name, .. }) => names.push(name),
                    Some(Part::Observation { entity, .. }) => names.push(entity),
                    Some(Part::Relation(relation)) => names.extend([relation.from, relation.to]),
                    None if is_part(&hit.item) || others.len() >= OTHERS => {}
                    None => others.push(other(&node.memory_of(&authority, hit.item))),
                }
            }
        }
        names.extend(graph.holding(query));
        let mut shown = graph.only(&names);
        shown.entities.extend(others);
        Ok(shown)
    }

    /// Returns who said what an answer shows, as its metadata: of each entity the memory that names
    /// it, with author, time and trust.
    pub(crate) async fn authors(&self, shown: &Shown) -> Result<MetaObject, ApiError> {
        let spaces = self.caller.readable(self.node, self.space)?.0;
        let replica = self.node.replica.clone();
        let names: Vec<String> = shown
            .entities
            .iter()
            .map(|entity| entity.name.clone())
            .filter(|name| !name.starts_with(OTHER))
            .take(MAX_AUTHORS)
            .collect();
        let items = blocking(move || {
            let mut items = Vec::new();
            for name in names {
                let part = Part::Entity {
                    name: name.clone(),
                    entity_type: String::new(),
                };
                for space in &spaces {
                    let found = replica.memory(space, &part.doc(space)).ok().flatten();
                    items.extend(found.map(|item| (name.clone(), item)));
                }
            }
            items
        })
        .await?;
        let authority = self.node.replica.authority();
        let authors: serde_json::Map<_, _> = items
            .into_iter()
            .map(|(name, item)| {
                let memory = self.node.memory_of(&authority, item);
                let said = json!({
                    "id": memory.id,
                    "doc": memory.doc,
                    "author": memory.author,
                    "node": memory.node,
                    "at_ms": memory.at_ms,
                    "trust": memory.trust,
                });
                (name, said)
            })
            .collect();
        let mut meta = MetaObject::default();
        meta.0.insert("rhizome/authors".to_owned(), authors.into());
        Ok(meta)
    }

    async fn publish(
        &self,
        space: SpaceId,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Published>, ApiError> {
        if drafts.is_empty() {
            return Ok(Vec::new());
        }
        self.node
            .publish_drafts(self.caller, self.agent, space, drafts)
            .await
    }

    /// Takes into a graph what has arrived since it was read.
    async fn bring_up(&self, space: &SpaceId, cached: &mut Cached) -> Result<(), ApiError> {
        let node = self.node;
        let replica = node.replica.clone();
        let heads = node.replica.authority().heads().to_vec();
        let looking = replica.clone();
        let now = blocking(move || looking.last_arrival()).await?;
        let is_fresh = cached.read_at.is_some_and(|at| at.elapsed() < FRESH);
        if let Some(from) = cached.arrival
            && is_fresh
            && heads == cached.heads
            && now.saturating_sub(from) < MAX_BEHIND
        {
            if now == from {
                return Ok(());
            }
            let space = *space;
            let changed = blocking(move || {
                let mut changed = Vec::new();
                let mut after = from;
                loop {
                    let page = replica.watch(Some(space), after, PAGE);
                    let is_last = page.len() < PAGE;
                    if let Some(last) = page.last() {
                        after = last.arrival;
                    }
                    for event in page {
                        let standing = replica.standing(&Voice::of(&event.item));
                        changed.push((event.item, standing));
                    }
                    if is_last {
                        return (changed, after);
                    }
                }
            })
            .await?;
            for (item, standing) in &changed.0 {
                cached.graph.note(item, *standing);
            }
            cached.arrival = Some(now.max(changed.1));
            return Ok(());
        }
        let items = node.keyed(vec![*space], vec![PREFIX.to_owned()]).await?;
        let mut graph = Graph::default();
        for item in &items {
            graph.note(item, node.replica.standing(&Voice::of(item)));
        }
        *cached = Cached {
            graph,
            arrival: Some(now),
            heads,
            read_at: Some(Instant::now()),
        };
        Ok(())
    }
}

/// Adds what lines of a file say and what is not there yet; a line that cannot be taken does not
/// hold up the others.
pub(crate) async fn import(
    node: &Arc<Node>,
    caller: &Caller,
    body: ImportBody,
) -> Result<Imported, ApiError> {
    let place = Place {
        node,
        caller,
        agent: body.agent.as_deref(),
        space: body.space.as_deref(),
    };
    let mut parts: Vec<(u64, Part)> = Vec::new();
    for entity in body.entities {
        let name = entity.name;
        for text in &entity.observations {
            parts.push((entity.line, Part::observation(&name, text)));
        }
        let entity_type = entity.entity_type;
        parts.push((entity.line, Part::Entity { name, entity_type }));
    }
    parts.extend(body.relations.into_iter().map(|relation| {
        let part = Part::Relation(Relation {
            from: relation.from,
            to: relation.to,
            relation_type: relation.relation_type,
        });
        (relation.line, part)
    }));
    // An entity before what is known of it: in the order of the graph as in the file.
    parts.sort_by_key(|(line, part)| (*line, !matches!(part, Part::Entity { .. })));

    let mut answer = Imported {
        schema: SCHEMA,
        entities: 0,
        observations: 0,
        relations: 0,
        known: 0,
        refused: Vec::new(),
    };
    place
        .add(|lacking| {
            for (line, part) in parts {
                if !lacking.is_new(&part) {
                    answer.known += 1;
                    continue;
                }
                let mut draft = part.draft();
                if let Err(error) = node.may_publish(&mut draft) {
                    let reason = error.info().message.clone();
                    answer.refused.push(RefusedLine { line, reason });
                    continue;
                }
                match part {
                    Part::Entity { .. } => answer.entities += 1,
                    Part::Observation { .. } => answer.observations += 1,
                    Part::Relation(_) => answer.relations += 1,
                }
                lacking.drafts.push(draft);
            }
            Ok(answer)
        })
        .await
}

/// Makes one graph of those of two spaces; an entity of one name is one.
fn merged(first: &Shown, second: &Shown) -> Shown {
    let mut shown = first.clone();
    let places: BTreeMap<String, usize> = shown
        .entities
        .iter()
        .enumerate()
        .map(|(place, entity)| (entity.name.clone(), place))
        .collect();
    for entity in &second.entities {
        match places.get(&entity.name) {
            None => shown.entities.push(entity.clone()),
            Some(place) => {
                let known = &mut shown.entities[*place].observations;
                for text in &entity.observations {
                    if !known.contains(text) {
                        known.push(text.clone());
                    }
                }
            }
        }
    }
    let known: BTreeSet<Relation> = shown.relations.iter().cloned().collect();
    let new = second.relations.iter();
    shown
        .relations
        .extend(new.filter(|relation| !known.contains(relation)).cloned());
    shown
}

/// Shows a memory of another profile as an entity: named by its document, marked with its author.
fn other(memory: &crate::api::types::memory::Memory) -> Entity {
    let mut observations = vec![memory.title.clone()];
    if !memory.text.is_empty() {
        observations.push(memory.text.clone());
    }
    observations.push(super::attribution(memory));
    Entity {
        name: format!("{OTHER}{}", memory.doc),
        entity_type: memory.kind.clone(),
        observations,
    }
}
