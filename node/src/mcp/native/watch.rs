//! `watch`: what arrived since a cursor, with a bounded wait.
use std::time::Duration;

use rmcp::model::{CallToolResult, JsonObject};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api::types::memory::WatchEvent,
    error::ApiError,
    mcp::{
        answer,
        session::Session,
        shown::{DATA, age, bar, by, trust_word},
    },
};

/// The longest wait of one call: clients give up on calls, and a sandbox's door on requests.
const MAX_WAIT: Duration = Duration::from_secs(30);
const DEFAULT_EVENTS: usize = 20;
const MAX_EVENTS: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watch {
    cursor: Option<u64>,
    #[serde(default)]
    wait_s: u64,
    limit: Option<usize>,
}

pub(super) async fn call(
    session: &Session,
    arguments: JsonObject,
) -> Result<CallToolResult, ApiError> {
    let asked: Watch = answer::arguments(arguments)?;
    let limit = asked.limit.unwrap_or(DEFAULT_EVENTS).clamp(1, MAX_EVENTS);
    let node = &session.node;
    let scope = session.scope()?;
    let mut arrivals = match asked.cursor {
        Some(after) => node.arrivals_after(after),
        None => node.arrivals_from_now().await?,
    };
    let mut events = node.read_arrivals(&scope, &mut arrivals, limit).await?;
    let wait = Duration::from_secs(asked.wait_s).min(MAX_WAIT);
    if events.is_empty() && !wait.is_zero() {
        let _permit = session.caller.stream_permit(node)?;
        let more = node.next_arrivals(&scope, &mut arrivals, limit);
        if let Ok(more) = tokio::time::timeout(wait, more).await {
            events = more?;
        }
    }
    let now = rhizome_memory::now_ms();
    let mut text = match events.len() {
        0 => "Nothing new.".to_owned(),
        many => format!("{many} new, oldest first. {DATA}\n"),
    };
    let mut shown = Vec::new();
    for event in &events {
        write(event, now, &mut text);
        shown.push(json_of(event, now));
    }
    let cursor = arrivals.after();
    text.push_str(&format!("\ncursor: {cursor}"));
    Ok(answer::told(
        text,
        &json!({"events": shown, "cursor": cursor}),
    ))
}

fn age_s(event: &WatchEvent, now: u64) -> u64 {
    now.saturating_sub(event.at_ms) / 1_000
}

fn write(event: &WatchEvent, now: u64, text: &mut String) {
    text.push_str(&format!(
        "\n{} by {}, {} (trust {}), doc {}\n",
        event.kind,
        by(&event.author, &event.node),
        age(age_s(event, now)),
        trust_word(event.trust),
        event.doc,
    ));
    bar(&event.title, text);
    bar(&event.text, text);
}

fn json_of(event: &WatchEvent, now: u64) -> Value {
    json!({
        "cursor": event.arrival,
        "id": event.id,
        "doc": event.doc,
        "kind": event.kind,
        "title": event.title,
        "text": event.text,
        "task": event.task,
        "author": event.author.to_string(),
        "author_id": event.author.id,
        "node": event.node.to_string(),
        "space": event.space.to_string(),
        "trust": event.trust,
        "age_s": age_s(event, now),
        "at_ms": event.at_ms,
        "own": event.own,
    })
}
