//! Memories: publish, recall, show, why.
//!
//! [`guard`] keeps secrets out, [`again`] counts what is said a second time, [`list`] lists a page at
//! a time, [`watch`] tells what arrives, [`retract`] takes a memory back and tells its history,
//! [`redact`] takes what it said off every disk.
mod again;
mod guard;
mod list;
mod redact;
mod retract;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::http::StatusCode;
use rhizome_identity::{Authority, SpaceId};
use rhizome_memory::{
    Awaited, DocId, Draft, FragmentId, Kind, MemoryItem, PublishRequest, RecallQuery, Standing,
    Voice, same_text,
};
use rhizome_sandbox::Contract;

pub(crate) use self::{
    again::{Again, keep_counts},
    watch::WatchStart,
};
use super::{
    caller::{Caller, Scope},
    fail,
    names::Names,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        SCHEMA,
        memory::{
            Hit, Memory, MemoryShown, PublishBody, Published, RecallBody, Recalled, Trust, Why,
            WhyRecord, WhyState,
        },
    },
    error::ApiError,
};

/// Names of fields that the node alone may set.
const OWN_FIELDS: &str = "rhizome.";
/// The field that holds what a memory relies on, one requirement a line.
const REQUIRES_FIELD: &str = "rhizome.requires";
/// Most of what somebody wrote that a message repeats, in bytes.
const MAX_SHOWN: usize = 80;
const DEFAULT_HITS: usize = 10;
const MAX_HITS: usize = 100;
const DEFAULT_REPLICAS_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REPLICAS_TIMEOUT: Duration = Duration::from_secs(60);

impl Node {
    /// Publishes a memory; answers when it is durable here, and on as many others as asked.
    pub(crate) async fn publish(
        &self,
        caller: &Caller,
        body: PublishBody,
    ) -> Result<Published, ApiError> {
        let agent = caller.agent(self, body.agent.as_deref()).await?;
        let space = caller.space(self, body.space.as_deref())?;
        let replicas = body.replicas.unwrap_or(0);
        let patience = body
            .replicas_timeout_ms
            .map_or(DEFAULT_REPLICAS_TIMEOUT, Duration::from_millis)
            .min(MAX_REPLICAS_TIMEOUT);
        let mut draft = draft(body)?;
        stamp(caller, &mut draft);
        self.screen_draft(&mut draft)?;
        let same = same_text(&space, &draft);
        // Whoever says the same at this moment waits, so that one of the two is a confirmation.
        let turn = match &same {
            Some(same) => Some(self.again.turn(same).await),
            None => None,
        };
        let fingerprint = caller.fingerprint(self);
        let request = PublishRequest {
            space,
            draft,
            fingerprint,
        };
        let recent = same.and_then(|same| self.again.recent(&same));
        let (replica, key) = (self.replica.clone(), Arc::clone(&agent.key));
        let outcome = blocking(move || {
            if let Some(same) = same
                && let Some(item) = again::said_before(&replica, &space, &same, recent)?
            {
                return Ok(Err(item));
            }
            let published = replica.publish(&key, request).map_err(fail::publish)?;
            Ok::<_, ApiError>(Ok(published))
        });
        let (published, doc, confirmed) = match outcome.await?? {
            Ok(published) => {
                if let Some(same) = same {
                    self.again.remember(same, published.doc);
                }
                (published, published.doc, false)
            }
            Err(before) => {
                let published = self.confirm(&agent, fingerprint, &before).await?;
                (published, before.doc, true)
            }
        };
        drop(turn);
        let mut receipt = Published {
            schema: SCHEMA,
            id: published.id.to_string(),
            doc: doc.to_string(),
            space: space.to_string(),
            seq: published.seq,
            at_ms: published.hlc.unix_ms(),
            replicas: Vec::new(),
            confirmed,
        };
        if replicas > 0 {
            let holders = self
                .mesh
                .wait_replicas(space, published.id, replicas.into(), patience)
                .await
                .map_err(|error| fail::replicas(&error, &receipt.id))?;
            let authority = self.replica.authority();
            receipt.replicas = holders
                .iter()
                .map(|node| Names(&authority).node(node))
                .collect();
        }
        Ok(receipt)
    }

    /// Publishes memories that a view made, in their order; answers when all are durable here.
    ///
    /// The rule for secrets is asked of all of them before the first is published.
    pub(crate) async fn publish_drafts(
        &self,
        caller: &Caller,
        agent: Option<&str>,
        space: SpaceId,
        drafts: Vec<Draft>,
    ) -> Result<Vec<rhizome_memory::Published>, ApiError> {
        let agent = caller.agent(self, agent).await?;
        let fingerprint = caller.fingerprint(self);
        let mut requests = Vec::with_capacity(drafts.len());
        for mut draft in drafts {
            stamp(caller, &mut draft);
            self.may_publish(&mut draft)?;
            requests.push(PublishRequest {
                space,
                draft,
                fingerprint,
            });
        }
        let replica = self.replica.clone();
        let published = blocking(move || replica.publish_all(&agent.key, &requests)).await?;
        published
            .into_iter()
            .map(|published| published.map_err(fail::publish))
            .collect()
    }

    /// Finds memories by words.
    pub(crate) async fn recall(
        &self,
        caller: &Caller,
        body: RecallBody,
    ) -> Result<Recalled, ApiError> {
        let scope = caller.readable(self, body.space.as_deref())?;
        self.note_distrust();
        let query = RecallQuery {
            text: body.query,
            spaces: scope.0,
            kinds: body
                .kinds
                .iter()
                .map(|kind| parse_kind(kind))
                .collect::<Result<_, _>>()?,
            task: body.task,
            limit: body.limit.unwrap_or(DEFAULT_HITS).clamp(1, MAX_HITS),
        };
        let replica = self.replica.clone();
        let hits = blocking(move || replica.recall(&query))
            .await?
            .map_err(fail::recall)?;
        let authority = self.replica.authority();
        let hits = hits
            .into_iter()
            .map(|hit| Hit {
                memory: self.memory_of(&authority, hit.item),
                score: hit.score,
            })
            .collect();
        let hits = self.compare(caller, hits, |hit| &mut hit.memory).await?;
        Ok(Recalled {
            schema: SCHEMA,
            hits,
        })
    }

    /// Finds memories of a view by words: those that pass `passes`.
    pub(crate) async fn recall_where(
        &self,
        scope: Scope,
        text: &str,
        limit: usize,
        passes: impl Fn(&MemoryItem) -> bool + Send + 'static,
    ) -> Result<Vec<rhizome_memory::Hit>, ApiError> {
        self.note_distrust();
        let query = RecallQuery {
            text: text.to_owned(),
            spaces: scope.0,
            kinds: Vec::new(),
            task: None,
            limit: limit.clamp(1, MAX_HITS),
        };
        let replica = self.replica.clone();
        blocking(move || replica.recall_where(&query, &passes))
            .await?
            .map_err(fail::recall)
    }

    /// Shows one memory.
    pub(crate) async fn show(
        &self,
        caller: &Caller,
        doc: &str,
        space: Option<&str>,
    ) -> Result<MemoryShown, ApiError> {
        let scope = caller.readable(self, space)?;
        let doc = parse_doc(doc)?;
        let found = self.find_memory(scope.clone(), doc).await?;
        if found.as_ref().is_some_and(|item| item.retracted) {
            return Err(
                ApiError::not_found(format!("the memory {doc} was taken back"))
                    .hint("`rhizome memory history` shows what it said"),
            );
        }
        let item = found.ok_or_else(|| {
            self.redaction_of(&scope, doc).unwrap_or_else(|| {
                ApiError::not_found(format!("no memory with the document id {doc} is here"))
                    .hint("`rhizome memory list` shows what is here")
            })
        })?;
        let memory = self.memory_of(&self.replica.authority(), item);
        let mut compared = self.compare(caller, vec![memory], |memory| memory).await?;
        Ok(MemoryShown {
            schema: SCHEMA,
            memory: compared.remove(0),
        })
    }

    /// Says why a fragment counts, or what it waits for.
    pub(crate) async fn why(&self, caller: &Caller, fragment: &str) -> Result<Why, ApiError> {
        let scope = caller.readable(self, None)?;
        let id: FragmentId = fragment.parse().map_err(|error| {
            ApiError::bad_request(format!("`{}` is no fragment id", clip(fragment)))
                .caused_by(Some(&error))
        })?;
        let replica = self.replica.clone();
        let why = blocking(move || replica.why(&id))
            .await?
            .map_err(fail::replica)?;
        // Who is bound to spaces may not learn that a fragment of another space exists; the owner may see all.
        let hidden = |space: &SpaceId| caller.is_bound() && !scope.allows(space);
        let why = why.filter(|why| !hidden(&why.space)).ok_or_else(|| {
            ApiError::not_found(format!("no fragment {id} is here"))
                .hint("it may not have arrived yet; `rhizome peers` shows who is in sync")
        })?;
        Ok(self.why_of(&self.replica.authority(), why))
    }

    /// Says of each memory how the runtime it was learned in stands to the caller's.
    async fn compare<T: Send + 'static>(
        &self,
        caller: &Caller,
        mut found: Vec<T>,
        memory: impl Fn(&mut T) -> &mut Memory + Send + 'static,
    ) -> Result<Vec<T>, ApiError> {
        let spaces = caller.readable(self, None)?.0;
        let Some(mut reader) = self.reader(caller, spaces) else {
            return Ok(found);
        };
        let (replica, runtimes) = (self.replica.clone(), Arc::clone(&self.runtimes));
        blocking(move || {
            for item in &mut found {
                let memory = memory(item);
                let Ok(runtime) = memory.fingerprint.parse() else {
                    continue;
                };
                let requires = &memory.requires;
                let standing = reader.standing(&runtimes, &replica, &runtime, requires);
                (memory.differs, memory.breaks) = (standing.differs, standing.breaks);
            }
            found
        })
        .await
    }

    pub(crate) fn memory_of(&self, authority: &Authority, item: MemoryItem) -> Memory {
        let names = Names(authority);
        let trust = self.trust_of(names, &item);
        let again = item.confirmations + self.again.pending(&item.space, &item.doc);
        let mut fields = item.fields;
        let requires = fields.remove(REQUIRES_FIELD).unwrap_or_default();
        Memory {
            id: item.id.to_string(),
            doc: item.doc.to_string(),
            space: names.space(&item.space),
            kind: item.kind.to_string(),
            title: item.title,
            text: item.text,
            tags: item.tags,
            key: item.key,
            task: item.task,
            evidence: item.evidence,
            supersedes: item.supersedes.iter().map(ToString::to_string).collect(),
            superseded_by: item.superseded_by.iter().map(ToString::to_string).collect(),
            depends_on: item.depends_on.iter().map(ToString::to_string).collect(),
            fields,
            author: names.agent(&item.author),
            node: names.node(&item.node),
            at_ms: item.at_ms,
            fingerprint: item.fingerprint.to_string(),
            requires: requires.lines().map(str::to_owned).collect(),
            differs: Vec::new(),
            breaks: Vec::new(),
            trust,
            confirmations: 1 + again,
            confirmed_by: 1 + item.confirmed_by,
            conflicts: item
                .conflicts
                .iter()
                .filter_map(|conflict| serde_json::to_value(conflict).ok())
                .collect(),
        }
    }

    /// Returns whose word a memory is, seen from this node.
    fn trust_of(&self, names: Names<'_>, item: &MemoryItem) -> Trust {
        let trust = names.trust(&self.id(), &item.author, &item.node);
        if self.replica.standing(&Voice::of(item)) == Standing::Trusted || trust == Trust::Unknown {
            return trust;
        }
        let is_expired = names
            .0
            .agent(&item.author)
            .and_then(|agent| agent.not_after_ms)
            .is_some_and(|end| rhizome_memory::now_ms() > end);
        if is_expired {
            Trust::Unknown
        } else {
            Trust::Distrusted
        }
    }

    fn why_of(&self, authority: &Authority, why: rhizome_memory::Why) -> Why {
        let names = Names(authority);
        use rhizome_memory::WhyState as State;
        let state = match why.state {
            State::Applied => WhyState::Applied,
            State::WaitingFor {
                what,
                named_by,
                named_by_author,
            } => WhyState::Waiting {
                what: match what {
                    Awaited::Fragment(id) => format!("fragment {id}"),
                    Awaited::Body(hash) => format!("its body {hash}"),
                    Awaited::Authority => "records of the authority log".to_owned(),
                    _ => "something else".to_owned(),
                },
                named_by: Some(named_by.to_string()),
                named_by_author: Some(names.agent(&named_by_author)),
            },
            State::Quarantined { reason } => WhyState::Quarantined { reason },
            State::Redacted(by) => WhyState::Redacted {
                redacted: redact::redaction(authority, by),
            },
            State::SetAside { up_to, by, carried } => WhyState::SetAside {
                up_to,
                by: by
                    .iter()
                    .map(|id| self.describe_record(authority, id))
                    .collect(),
                carried,
            },
            State::Unreadable { epoch } => WhyState::Other {
                what: format!("stored and served, but this node has no key of epoch {epoch}"),
            },
            State::Pending => WhyState::Other {
                what: "durable, about to be applied".to_owned(),
            },
            _ => WhyState::Other {
                what: "in a state this release has no word for".to_owned(),
            },
        };
        let fork = self.forks(authority).into_iter().find(|fork| {
            fork.author.id == why.author.to_string() && fork.space.id == why.space.to_string()
        });
        Why {
            schema: SCHEMA,
            fork,
            id: why.id.to_string(),
            arrival: why.arrival,
            state,
            author: names.author(&why.author),
            node: names.node(&why.node),
            role: why.role,
            space: names.space(&why.space),
            doc: why.doc.to_string(),
            kind: why.kind.to_string(),
            seq: why.seq,
            prev: why.prev.map(|prev| prev.to_string()),
            deps: why.deps.iter().map(ToString::to_string).collect(),
            at_ms: why.hlc.unix_ms(),
            body_len: why.body_len,
            denied: why.denied,
            auth_heads: why.auth_heads.iter().map(ToString::to_string).collect(),
            chain: why
                .proof
                .iter()
                .map(|id| WhyRecord {
                    id: id.to_string(),
                    ..self.describe_record(authority, id)
                })
                .collect(),
        }
    }
}

/// Says in a draft of a guest where it was found out.
fn stamp(caller: &Caller, draft: &mut Draft) {
    if let Some(guest) = caller.guest() {
        let mut field = |name: &str, value: &String| {
            draft.fields.insert(name.to_owned(), value.clone());
        };
        field("rhizome.sandbox", &guest.sandbox);
        field("rhizome.image", &guest.image);
    }
}

fn draft(body: PublishBody) -> Result<Draft, ApiError> {
    let own = body.fields.keys().find(|name| name.starts_with(OWN_FIELDS));
    if let Some(name) = own {
        let message = format!("the field `{}` is the node's to set", clip(name));
        return Err(ApiError::denied(message).hint("choose another name for it"));
    }
    let mut fields: BTreeMap<_, _> = body.fields;
    let requires = parse_contract(body.requires)?;
    if !requires.is_empty() {
        let lines: Vec<String> = requires.into();
        fields.insert(REQUIRES_FIELD.to_owned(), lines.join("\n"));
    }
    let kind = parse_kind(&body.kind)?;
    if kind.is_record() {
        let message = format!("a `{kind}` is a record that nodes keep");
        return Err(ApiError::denied(message).hint("publish an `artifact` that names it"));
    }
    Ok(Draft {
        kind,
        title: body.title,
        text: body.text,
        tags: body.tags,
        key: body.key,
        task: body.task,
        evidence: body.evidence,
        supersedes: parse_docs(&body.supersedes)?,
        depends_on: parse_docs(&body.depends_on)?,
        fields,
    })
}

/// Reads what somebody says a memory, a context or a sandbox relies on.
pub(crate) fn parse_contract(lines: Vec<String>) -> Result<Contract, ApiError> {
    Contract::try_from(lines).map_err(|error| {
        let refused = ApiError::bad_request(error.to_string());
        match error.hint() {
            Some(hint) => refused.hint(hint),
            None => refused,
        }
    })
}

fn parse_kind(text: &str) -> Result<Kind, ApiError> {
    text.parse().map_err(|error| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "unknown_kind",
            format!("`{}` is no kind of memory", clip(text)),
        )
        .caused_by(Some(&error))
    })
}

fn parse_docs(texts: &[String]) -> Result<Vec<DocId>, ApiError> {
    texts.iter().map(|text| parse_doc(text)).collect()
}

fn parse_doc(text: &str) -> Result<DocId, ApiError> {
    text.parse().map_err(|error| {
        ApiError::bad_request(format!("`{}` is no document id", clip(text))).caused_by(Some(&error))
    })
}

/// Returns the beginning of what somebody wrote, short enough for a message.
pub(crate) fn clip(text: &str) -> String {
    rhizome_sandbox::clip(text, MAX_SHOWN).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_own_fields_cannot_be_forged() {
        let mut body = PublishBody {
            kind: "fact".into(),
            title: "t".into(),
            ..Default::default()
        };
        draft(body.clone()).unwrap();
        body.fields
            .insert("rhizome.sandbox".into(), "another".into());
        assert_eq!(draft(body).unwrap_err().code(), "denied");
    }
}
