//! What the tools do: memories with the scopes, metadata and dates of mem0.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rhizome_identity::SpaceId;
use rhizome_memory::{DocId, ListQuery, MAX_TITLE, MemoryItem};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    date::{DAY_MS, day_of, from_ms},
    filter::{Fields, Filter},
};
use crate::{
    api::types::memory::{Memory, PublishBody, Published, RetractParams, Trust},
    daemon::{fail, node::blocking},
    error::ApiError,
    mcp::session::Session,
};

/// The fields of a memory that scope it.
pub(crate) const SCOPES: [&str; 4] = ["user_id", "agent_id", "app_id", "run_id"];
/// What the names of this profile's fields begin with.
const OURS: &str = "mem0.";
/// Says that a memory was written through this profile.
const WRITTEN: &str = "mem0";
/// The id of the memory that an update replaced first.
const ID: &str = "mem0.id";
const METADATA: &str = "mem0.metadata";
const EXPIRES: &str = "mem0.expiration_date";
const CREATED: &str = "mem0.created_at";
/// The field of a memory that says whether another one helped.
const VERDICT: &str = "feedback.verdict";
/// Most memories that one question looks at.
const MAX_LOOKED_AT: usize = 10_000;
/// Updates that are followed from a memory to what it became.
const MAX_UPDATES: usize = 256;

/// A memory as clients of mem0 read it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) memory: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) score: Option<f32>,
    #[serde(flatten)]
    pub(crate) scopes: BTreeMap<String, String>,
    pub(crate) metadata: Value,
    pub(crate) categories: Vec<String>,
    pub(crate) created_at: String,
    pub(crate) updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expiration_date: Option<String>,
    /// Who said it: what other servers of these tools cannot tell.
    pub(crate) rhizome: Origin,
    #[serde(skip)]
    at_ms: u64,
}

/// Whose word a memory is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Origin {
    pub(crate) fragment: String,
    pub(crate) doc: String,
    pub(crate) kind: String,
    pub(crate) author: String,
    pub(crate) author_id: String,
    pub(crate) node: String,
    pub(crate) space: String,
    pub(crate) trust: Trust,
    pub(crate) confirmations: u64,
}

/// What is to be added.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addition {
    pub(crate) text: String,
    pub(crate) scopes: BTreeMap<String, String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) expiration_date: Option<String>,
    pub(crate) role: Option<String>,
}

impl Found {
    fn of(memory: Memory, score: Option<f32>) -> Self {
        let fields = &memory.fields;
        let text = match (memory.text.is_empty(), fields.contains_key(WRITTEN)) {
            (true, _) => memory.title.clone(),
            (false, true) => memory.text.clone(),
            // What another profile says in its title is part of what it says.
            (false, false) if memory.text.starts_with(&memory.title) => memory.text.clone(),
            (false, false) => format!("{}\n{}", memory.title, memory.text),
        };
        let scopes = SCOPES.iter().filter_map(|scope| {
            let value = fields.get(&format!("{OURS}{scope}"))?;
            Some(((*scope).to_owned(), value.clone()))
        });
        let metadata = fields
            .get(METADATA)
            .and_then(|text| serde_json::from_str(text).ok());
        let created = fields
            .get(CREATED)
            .cloned()
            .unwrap_or_else(|| from_ms(memory.at_ms));
        Self {
            id: fields.get(ID).unwrap_or(&memory.doc).clone(),
            memory: text,
            score,
            scopes: scopes.collect(),
            metadata: metadata.unwrap_or(Value::Null),
            categories: memory.tags.clone(),
            created_at: created,
            updated_at: from_ms(memory.at_ms),
            expiration_date: fields.get(EXPIRES).cloned(),
            rhizome: Origin {
                fragment: memory.id,
                doc: memory.doc,
                kind: memory.kind,
                author: memory.author.to_string(),
                author_id: memory.author.id.clone(),
                node: memory.node.to_string(),
                space: memory.space.to_string(),
                trust: memory.trust,
                confirmations: memory.confirmations,
            },
            at_ms: memory.at_ms,
        }
    }
}

impl Fields for Found {
    fn values(&self, field: &str) -> Vec<Value> {
        let text = |text: &str| vec![Value::from(text)];
        match field {
            "id" | "memory_id" | "memory_ids" => text(&self.id),
            "memory" | "text" | "keywords" | "content" => text(&self.memory),
            "categories" | "tags" => self.categories.iter().cloned().map(Value::from).collect(),
            "created_at" | "timestamp" => text(&self.created_at),
            "updated_at" => text(&self.updated_at),
            "expiration_date" => self
                .expiration_date
                .as_deref()
                .map(text)
                .unwrap_or_default(),
            "kind" | "memory_type" => text(&self.rhizome.kind),
            "author" => vec![
                Value::from(self.rhizome.author.as_str()),
                Value::from(self.rhizome.author_id.as_str()),
            ],
            "node" => text(&self.rhizome.node),
            "space" => text(&self.rhizome.space),
            scope if SCOPES.contains(&scope) => self
                .scopes
                .get(scope)
                .map(|one| text(one))
                .unwrap_or_default(),
            // Any other name is one of the metadata.
            other => {
                let key = other.strip_prefix("metadata.").unwrap_or(other);
                match self.metadata.get(key) {
                    None | Some(Value::Null) => Vec::new(),
                    Some(Value::Array(values)) => values.clone(),
                    Some(one) => vec![one.clone()],
                }
            }
        }
    }
}

/// Returns whether a memory is one that lists and searches show.
fn is_current(item: &MemoryItem, shows_expired: bool, today: i64) -> bool {
    let is_expired = || {
        let last_day = item.fields.get(EXPIRES).and_then(|date| day_of(date));
        last_day.is_some_and(|last| last < today)
    };
    // A verdict on another memory is told with that one.
    let is_verdict = item.fields.contains_key(VERDICT);
    let is_now = item.superseded_by.is_empty() && !item.retracted && !is_verdict;
    is_now && (shows_expired || !is_expired())
}

fn today() -> i64 {
    i64::try_from(rhizome_memory::now_ms()).unwrap_or(i64::MAX) / DAY_MS
}

/// Adds a memory as it is said; returns it and whether it was there already.
pub(crate) async fn add(session: &Session, addition: Addition) -> Result<(String, bool), ApiError> {
    let mut fields = scope_fields(&addition.scopes);
    fields.insert(WRITTEN.to_owned(), "1".to_owned());
    if let Some(date) = &addition.expiration_date {
        if day_of(date).is_none() {
            return Err(ApiError::bad_request(
                "`expiration_date` is no day, which is written as YYYY-MM-DD",
            ));
        }
        fields.insert(EXPIRES.to_owned(), date.clone());
    }
    let mut metadata = addition.metadata;
    if let Some(role) = addition.role {
        metadata.entry("role").or_insert(Value::from(role));
    }
    if !metadata.is_empty() {
        fields.insert(METADATA.to_owned(), Value::from(metadata).to_string());
    }
    let published = publish(session, &addition.text, fields, Vec::new(), Vec::new()).await?;
    Ok((published.doc, published.confirmed))
}

async fn publish(
    session: &Session,
    text: &str,
    fields: BTreeMap<String, String>,
    tags: Vec<String>,
    supersedes: Vec<String>,
) -> Result<Published, ApiError> {
    if text.trim().is_empty() {
        return Err(ApiError::bad_request("the memory says nothing"));
    }
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or(text);
    let title = rhizome_sandbox::clip(line, MAX_TITLE).to_owned();
    let body = PublishBody {
        agent: session.agent.clone(),
        space: session.space.clone(),
        kind: "fact".to_owned(),
        // What fits the title is not said twice.
        text: if title == text {
            String::new()
        } else {
            text.to_owned()
        },
        title,
        tags,
        task: session.task.clone(),
        supersedes,
        fields,
        ..PublishBody::default()
    };
    session.node.publish(&session.caller, body).await
}

/// Finds memories by words.
pub(crate) async fn search(
    session: &Session,
    query: &str,
    filter: &Filter,
    limit: usize,
    shows_expired: bool,
) -> Result<Vec<Found>, ApiError> {
    let scope = session.scope()?;
    let today = today();
    let node = &session.node;
    let filter = filter.clone();
    let looking = Arc::clone(node);
    let passes = move |item: &MemoryItem| {
        is_current(item, shows_expired, today) && {
            let authority = looking.replica.authority();
            filter.passes(&Found::of(
                looking.memory_of(&authority, item.clone()),
                None,
            ))
        }
    };
    let hits = node.recall_where(scope, query, limit, passes).await?;
    let best = hits.iter().map(|hit| hit.score).fold(0.0, f32::max);
    let authority = node.replica.authority();
    let found = hits.into_iter().map(|hit| {
        let score = if best > 0.0 { hit.score / best } else { 0.0 };
        Found::of(node.memory_of(&authority, hit.item), Some(score))
    });
    Ok(found.collect())
}

/// Lists memories, the newest first.
pub(crate) async fn list(
    session: &Session,
    filter: &Filter,
    shows_expired: bool,
) -> Result<Vec<Found>, ApiError> {
    let scope = session.scope()?;
    let node = &session.node;
    node.note_distrust();
    let replica = node.replica.clone();
    let query = ListQuery {
        spaces: Some(scope.0),
        limit: MAX_LOOKED_AT,
        ..ListQuery::default()
    };
    let items = blocking(move || replica.list(&query))
        .await?
        .map_err(fail::replica)?;
    let today = today();
    let authority = node.replica.authority();
    let mut ids = BTreeSet::new();
    let found = items
        .into_iter()
        .filter(|item| is_current(item, shows_expired, today))
        .map(|item| Found::of(node.memory_of(&authority, item), None))
        .filter(|found| filter.passes(found))
        // Two updates at once leave two statements: the newest speaks for the memory.
        .filter(|found| ids.insert(found.id.clone()));
    Ok(found.collect())
}

/// Returns a memory as it is now, whatever it was updated to.
pub(crate) async fn get(session: &Session, id: &str) -> Result<Found, ApiError> {
    let item = latest(session, id).await?;
    let authority = session.node.replica.authority();
    Ok(Found::of(session.node.memory_of(&authority, item), None))
}

async fn latest(session: &Session, id: &str) -> Result<MemoryItem, ApiError> {
    let unknown = || {
        let id: String = id.chars().take(80).collect();
        ApiError::not_found(format!("there is no memory with the id `{id}`"))
            .hint("`get_memories` and `search_memories` give ids")
    };
    let doc: DocId = id.parse().map_err(|_| unknown())?;
    let scope = session.scope()?;
    let replica = session.node.replica.clone();
    session.node.note_distrust();
    let found = blocking(move || {
        for space in &scope.0 {
            if let Some(item) = follow(&replica, space, doc).map_err(fail::replica)? {
                return Ok(Some(item));
            }
        }
        Ok::<_, ApiError>(None)
    })
    .await??;
    found.filter(|item| !item.retracted).ok_or_else(unknown)
}

/// Follows a memory to what it was updated to last.
fn follow(
    replica: &rhizome_memory::Replica,
    space: &SpaceId,
    doc: DocId,
) -> Result<Option<MemoryItem>, rhizome_memory::ReplicaError> {
    let Some(mut item) = replica.memory(space, &doc)? else {
        return Ok(None);
    };
    let mut seen = BTreeSet::from([doc]);
    for _ in 0..MAX_UPDATES {
        let mut next: Option<MemoryItem> = None;
        for doc in item.superseded_by.clone() {
            if !seen.insert(doc) {
                continue;
            }
            let by = replica.memory(space, &doc)?.filter(|by| !by.retracted);
            if let Some(by) = by
                && next.as_ref().is_none_or(|next| by.hlc > next.hlc)
            {
                next = Some(by);
            }
        }
        match next {
            Some(next) => item = next,
            None => break,
        }
    }
    Ok(Some(item))
}

/// Puts another text in the place of a memory's; its id, scopes and metadata stay.
pub(crate) async fn update(
    session: &Session,
    id: &str,
    text: &str,
    metadata: Option<Map<String, Value>>,
) -> Result<Found, ApiError> {
    let item = latest(session, id).await?;
    if item.key.is_some() {
        return Err(ApiError::bad_request(
            "this memory is kept by another profile under a key of its own",
        )
        .hint("change it with the tools it was made with, or add a memory beside it"));
    }
    let mut fields = item.fields.clone();
    fields.retain(|name, _| !name.starts_with("rhizome."));
    fields.insert(WRITTEN.to_owned(), "1".to_owned());
    fields
        .entry(ID.to_owned())
        .or_insert_with(|| item.doc.to_string());
    fields
        .entry(CREATED.to_owned())
        .or_insert_with(|| from_ms(item.at_ms));
    if let Some(metadata) = metadata {
        fields.insert(METADATA.to_owned(), Value::from(metadata).to_string());
    }
    let supersedes = vec![item.doc.to_string()];
    let published = publish(session, text, fields, item.tags.clone(), supersedes).await?;
    get(session, &published.doc).await
}

/// Takes a memory back, with everything that it was before.
pub(crate) async fn delete(session: &Session, id: &str) -> Result<(), ApiError> {
    let item = latest(session, id).await?;
    delete_found(session, item.space, item.doc).await
}

async fn delete_found(session: &Session, space: SpaceId, doc: DocId) -> Result<(), ApiError> {
    let replica = session.node.replica.clone();
    let said = blocking(move || replica.history(&space, &doc))
        .await?
        .map_err(fail::replica)?;
    let item = said.iter().find(|item| item.doc == doc);
    let first = item.and_then(|item| item.fields.get(ID)).cloned();
    let is_of_it = |item: &&MemoryItem| {
        item.doc == doc
            || (first.is_some()
                && (item.fields.get(ID) == first.as_ref() || Some(item.doc.to_string()) == first))
    };
    let docs: BTreeSet<DocId> = said
        .iter()
        .filter(is_of_it)
        .filter(|item| !item.retracted)
        .map(|item| item.doc)
        .collect();
    for doc in docs {
        let params = RetractParams {
            agent: session.agent.clone(),
            space: Some(space.to_string()),
        };
        session
            .node
            .retract(&session.caller, &doc.to_string(), params)
            .await?;
    }
    Ok(())
}

/// Takes back every memory of some scopes; returns how many.
pub(crate) async fn delete_all(
    session: &Session,
    scopes: &BTreeMap<String, String>,
) -> Result<usize, ApiError> {
    if scopes.is_empty() {
        return Err(ApiError::bad_request(
            "`delete_all_memories` takes at least one of user_id, agent_id, app_id, run_id",
        )
        .hint("a memory that no scope names is taken back with `delete_memory`"));
    }
    let filter = Filter::parse(&json!(scopes)).map_err(ApiError::bad_request)?;
    let all = list(session, &filter, true).await?;
    let mut deleted = 0;
    for found in &all {
        // Only what was written with a scope has one, so nothing of another profile is here.
        delete(session, &found.id).await?;
        deleted += 1;
    }
    Ok(deleted)
}

/// Counts the memories of each user, agent, app and run.
pub(crate) async fn entities(session: &Session) -> Result<Vec<Value>, ApiError> {
    let all = list(session, &Filter::All(Vec::new()), true).await?;
    let mut counts: BTreeMap<(&str, &str), (u64, u64, u64)> = BTreeMap::new();
    for found in &all {
        for (scope, value) in &found.scopes {
            let entity = scope.strip_suffix("_id").unwrap_or(scope);
            let count = counts.entry((entity, value)).or_insert((0, u64::MAX, 0));
            count.0 += 1;
            count.1 = count.1.min(found.at_ms);
            count.2 = count.2.max(found.at_ms);
        }
    }
    let entity = |((kind, name), (total, first, last)): ((&str, &str), (u64, u64, u64))| {
        json!({
            "id": name,
            "name": name,
            "type": kind,
            "total_memories": total,
            "created_at": from_ms(first),
            "updated_at": from_ms(last),
        })
    };
    Ok(counts.into_iter().map(entity).collect())
}

fn scope_fields(scopes: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let field = |(scope, value): (&String, &String)| (format!("{OURS}{scope}"), value.clone());
    scopes.iter().map(field).collect()
}
