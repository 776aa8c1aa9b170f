//! `remember`, `recall`, `supersede`, `feedback`, `why`.
use std::collections::BTreeMap;

use axum::http::StatusCode;
use rmcp::model::{CallToolResult, JsonObject};
use serde::Deserialize;
use serde_json::json;

use crate::{
    api::types::memory::{Memory, PublishBody, Published, RecallBody},
    error::ApiError,
    mcp::{
        answer,
        session::Session,
        shown::{DATA, Shown, by, quoted},
    },
};

/// Hits of one recall at most: each costs the model context.
const MAX_HITS: usize = 50;
const DEFAULT_HITS: usize = 10;
/// The field of a memory that is somebody's verdict on another.
const VERDICT: &str = "feedback.verdict";
/// The field that says on which.
const ABOUT: &str = "feedback.doc";

type Outcome = Result<CallToolResult, ApiError>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remember {
    title: String,
    #[serde(default)]
    text: String,
    kind: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    key: Option<String>,
    task: Option<String>,
    #[serde(default)]
    evidence: Vec<String>,
    #[serde(default)]
    depends_on: Vec<String>,
    #[serde(default)]
    requires: Vec<String>,
}

pub(super) async fn remember(session: &Session, arguments: JsonObject) -> Outcome {
    let asked: Remember = answer::arguments(arguments)?;
    let body = PublishBody {
        agent: session.agent.clone(),
        space: session.space.clone(),
        kind: asked.kind.unwrap_or_else(|| "observation".to_owned()),
        title: asked.title,
        text: asked.text,
        tags: asked.tags,
        key: asked.key,
        task: asked.task.or_else(|| session.task.clone()),
        evidence: asked.evidence,
        depends_on: asked.depends_on,
        requires: asked.requires,
        ..PublishBody::default()
    };
    let published = session.node.publish(&session.caller, body).await?;
    Ok(receipt("Remembered", &published))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recall {
    query: String,
    #[serde(default)]
    kinds: Vec<String>,
    task: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn recall(session: &Session, arguments: JsonObject) -> Outcome {
    let asked: Recall = answer::arguments(arguments)?;
    let limit = asked.limit.unwrap_or(DEFAULT_HITS).clamp(1, MAX_HITS);
    let body = RecallBody {
        query: asked.query,
        space: session.space.clone(),
        kinds: asked.kinds,
        task: asked.task,
        limit: Some(limit),
    };
    let found = session.node.recall(&session.caller, body).await?.hits;
    let now = rhizome_memory::now_ms();
    let mut hits: Vec<_> = found
        .into_iter()
        .filter(|hit| !hit.memory.fields.contains_key(VERDICT))
        .map(|hit| Shown::of(hit.memory, Some(hit.score), now))
        .collect();
    count_verdicts(session, &mut hits).await?;
    let mut text = match hits.len() {
        0 => "Nothing is known about that here.".to_owned(),
        1 => format!("1 memory. {DATA}\n"),
        many => format!("{many} memories, best first. {DATA}\n"),
    };
    for (number, hit) in hits.iter().enumerate() {
        text.push('\n');
        hit.write(number + 1, &mut text);
    }
    Ok(answer::told(text, &json!({ "hits": hits })))
}

/// Adds to `hits` how many agents each has helped or misled.
///
/// Verdicts are found by their keys: one look at the table of keys for all of them, where a search for
/// them would cost as much as the one for the hits.
async fn count_verdicts(session: &Session, hits: &mut [Shown]) -> Result<(), ApiError> {
    if hits.is_empty() {
        return Ok(());
    }
    let keys = hits.iter().map(|hit| verdict_key(&hit.doc, "")).collect();
    let spaces = session.scope()?.0;
    let found = session.node.keyed(spaces, keys).await?;
    let authority = session.node.replica.authority();
    for item in found {
        let memory = session.node.memory_of(&authority, item);
        let fields = &memory.fields;
        let (Some(verdict), Some(about)) = (fields.get(VERDICT), fields.get(ABOUT)) else {
            continue;
        };
        // A vote counts once for its author, and where that one could read what it is about.
        let is_own = memory.key == Some(verdict_key(about, &memory.author.id));
        let mine = |hit: &&mut Shown| hit.doc == *about && hit.space == memory.space.to_string();
        let Some(hit) = hits.iter_mut().find(mine).filter(|_| is_own) else {
            continue;
        };
        match &verdict[..] {
            "helped" => hit.helped += 1,
            "misled" => hit.misled += 1,
            _ => {}
        }
    }
    Ok(())
}

/// The key of the verdict of `speaker` on a document: one vote an agent, which can change.
fn verdict_key(doc: &str, speaker: &str) -> String {
    format!("feedback/{doc}/{speaker}")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Supersede {
    doc: String,
    title: String,
    #[serde(default)]
    text: String,
    kind: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    evidence: Vec<String>,
}

pub(super) async fn supersede(session: &Session, arguments: JsonObject) -> Outcome {
    let asked: Supersede = answer::arguments(arguments)?;
    let old = show(session, &asked.doc).await?;
    let body = PublishBody {
        agent: session.agent.clone(),
        space: Some(old.space.id.clone()),
        kind: asked.kind.unwrap_or(old.kind),
        title: asked.title,
        text: asked.text,
        tags: asked.tags,
        task: old.task,
        evidence: asked.evidence,
        supersedes: vec![old.doc],
        ..PublishBody::default()
    };
    let published = session.node.publish(&session.caller, body).await?;
    Ok(receipt(
        "The old memory is marked; remembered instead",
        &published,
    ))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Feedback {
    doc: String,
    verdict: Verdict,
    #[serde(default)]
    note: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Helped,
    Misled,
}

pub(super) async fn feedback(session: &Session, arguments: JsonObject) -> Outcome {
    let asked: Feedback = answer::arguments(arguments)?;
    let about = show(session, &asked.doc).await?;
    let speaker = session
        .caller
        .agent(&session.node, session.agent.as_deref())
        .await?
        .id();
    let verdict = match asked.verdict {
        Verdict::Helped => "helped",
        Verdict::Misled => "misled",
    };
    let body = PublishBody {
        agent: session.agent.clone(),
        space: Some(about.space.id),
        kind: "outcome".to_owned(),
        title: format!("feedback: {verdict}"),
        text: asked.note,
        key: Some(verdict_key(&about.doc, &speaker.to_string())),
        task: session.task.clone(),
        depends_on: vec![about.doc.clone()],
        fields: BTreeMap::from([
            (VERDICT.to_owned(), verdict.to_owned()),
            (ABOUT.to_owned(), about.doc),
        ]),
        ..PublishBody::default()
    };
    let published = session.node.publish(&session.caller, body).await?;
    Ok(receipt("Noted", &published))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskWhy {
    id: String,
}

pub(super) async fn why(session: &Session, arguments: JsonObject) -> Outcome {
    let asked: AskWhy = answer::arguments(arguments)?;
    let scope = session.scope()?;
    let in_scope = |space: &str| space.parse().is_ok_and(|space| scope.allows(&space));
    let found = session.node.why(&session.caller, &asked.id).await;
    let found = match found {
        Ok(why) if in_scope(&why.space.id) => Ok(why),
        Ok(_) => Err(ApiError::not_found(format!(
            "no fragment {} is here",
            quoted(&asked.id)
        ))),
        Err(error) if error.status() == StatusCode::NOT_FOUND => Err(error),
        Err(error) => return Err(error),
    };
    let why = match found {
        Ok(why) => why,
        // Perhaps it is a document: then its last fragment is meant.
        Err(error) => {
            let memory = show(session, &asked.id).await.map_err(|_| error)?;
            session.node.why(&session.caller, &memory.id).await?
        }
    };
    let state = serde_json::to_value(&why.state).unwrap_or_default();
    let state = state["state"].as_str().unwrap_or_default().to_owned();
    let mut text = format!(
        "{state}: {} by {}, number {} of its chain in {}, doc {}\n",
        why.kind,
        by(&why.author, &why.node),
        why.seq,
        quoted(&why.space.to_string()),
        why.doc,
    );
    if let Some(denied) = &why.denied {
        text.push_str(&format!(
            "the author may not write any more: {}\n",
            quoted(denied)
        ));
    }
    text.push_str("it may write because of:\n");
    for record in &why.chain {
        text.push_str(&format!("- {}: {}\n", record.kind, quoted(&record.says)));
    }
    Ok(answer::told(text, &why))
}

async fn show(session: &Session, doc: &str) -> Result<Memory, ApiError> {
    let shown = session
        .node
        .show(&session.caller, doc, session.space.as_deref())
        .await?;
    Ok(shown.memory)
}

fn receipt(done: &str, published: &Published) -> CallToolResult {
    let text = format!("{done}: doc {}", published.doc);
    answer::told(
        text,
        &json!({
            "doc": published.doc,
            "id": published.id,
            "space": published.space,
            "at_ms": published.at_ms,
        }),
    )
}
