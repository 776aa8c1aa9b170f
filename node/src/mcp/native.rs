//! The profile `native`: Rhizome's own verbs, eight tools at most.

mod context;
mod memory;
mod sandbox;
mod tools;
mod watch;

use futures::future::BoxFuture;
use rmcp::{
    ErrorData,
    model::{CallToolResult, JsonObject, ReadResourceResult, Resource, ResourceContents, Tool},
};

use super::{answer, profile::Profile, server, session::Session};
use crate::{
    api::types::memory::{ListParams, WatchEvent},
    error::ApiError,
};

/// The resource that changes with every memory: the newest of them.
const MEMORIES: &str = "rhizome://memories";
/// The contexts, the last touched first.
const CONTEXTS: &str = "rhizome://contexts";
/// How many of them a read returns.
const NEWEST: usize = 50;

/// Rhizome's own verbs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Native;

impl Profile for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn tools(&self) -> Vec<Tool> {
        tools::TOOLS.clone()
    }

    fn offers(&self, session: &Session, tool: &str) -> bool {
        tool != "sandbox" || session.may_sandbox()
    }

    fn instructions(&self) -> &'static str {
        "Recall before you try something; remember what you learned, errors and failed attempts too. \
Save progress with `context` (checkpoint) so that another agent can resume the task. \
Tell with `feedback` whether a memory helped."
    }

    fn call<'a>(
        &'a self,
        session: &'a Session,
        tool: &'a str,
        arguments: JsonObject,
    ) -> BoxFuture<'a, Option<Result<CallToolResult, ErrorData>>> {
        Box::pin(async move {
            let outcome = match tool {
                "remember" => memory::remember(session, arguments).await,
                "recall" => memory::recall(session, arguments).await,
                "supersede" => memory::supersede(session, arguments).await,
                "feedback" => memory::feedback(session, arguments).await,
                "why" => memory::why(session, arguments).await,
                "context" => context::call(session, arguments).await,
                "watch" => watch::call(session, arguments).await,
                "sandbox" => sandbox::call(session, arguments).await,
                _ => return None,
            };
            Some(Ok(answer::of(outcome)))
        })
    }

    fn leaves_no_fragment(&self, tool: &str) -> bool {
        tool == "sandbox"
    }

    fn resources(&self, _: &Session) -> Vec<Resource> {
        vec![
            Resource::new(MEMORIES, "memories")
                .with_description("The newest memories, as JSON; changes with every memory")
                .with_mime_type("application/json"),
            Resource::new(CONTEXTS, "contexts")
                .with_description("The tasks with a saved context, as JSON")
                .with_mime_type("application/json"),
        ]
    }

    fn read<'a>(
        &'a self,
        session: &'a Session,
        uri: &'a str,
    ) -> BoxFuture<'a, Option<Result<ReadResourceResult, ErrorData>>> {
        Box::pin(async move {
            let text = match uri {
                MEMORIES => newest(session).await,
                CONTEXTS => context::all(session).await,
                _ => return None,
            };
            let text = text.map_err(|error| server::refused(&error));
            Some(text.map(|text| {
                let contents = ResourceContents::text(text, uri).with_mime_type("application/json");
                ReadResourceResult::new(vec![contents])
            }))
        })
    }

    fn is_resource(&self, _: &Session, uri: &str) -> bool {
        // Checkpoints are not among the arrivals, so nobody could be told of them.
        uri == MEMORIES
    }

    fn changes(&self, _: &Session, uri: &str, _: &WatchEvent) -> bool {
        uri == MEMORIES
    }
}

async fn newest(session: &Session) -> Result<String, ApiError> {
    let params = ListParams {
        space: session.space.clone(),
        limit: Some(NEWEST),
        ..ListParams::default()
    };
    let list = session.node.list(&session.caller, params).await?;
    let now = rhizome_memory::now_ms();
    let shown: Vec<_> = list
        .memories
        .into_iter()
        .map(|memory| super::shown::Shown::of(memory, None, now))
        .collect();
    let value = serde_json::json!({"about": super::shown::DATA_IN_JSON, "memories": shown});
    Ok(serde_json::to_string_pretty(&value).expect("it has string keys"))
}
