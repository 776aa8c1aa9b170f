//! The routes of memories.
use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::{HeaderMap, Method},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    extract::{Events, JsonBody, Lines, Params},
    sse,
    table::{MEMORY, Table},
    types::{
        import::{ImportBody, Imported},
        memory::{
            ListParams, MemoryHistory, MemoryList, MemoryShown, PublishBody, Published, RecallBody,
            Recalled, RedactBody, RedactReceipt, RetractParams, WatchEvent, WatchParams, Why,
        },
        node::SelfInfo,
    },
};
use crate::{
    daemon::{caller::Caller, memory::WatchStart, node::Node},
    error::ApiError,
    mcp,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            MEMORY,
            Method::GET,
            "/v1/self",
            self_info,
            "Say who asks, and what that one may use",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory",
            list,
            "List memories, newest first",
        )
        .pages("memories", "/doc")
        .route(
            MEMORY,
            Method::POST,
            "/v1/memory",
            publish,
            "Publish a memory",
        )
        .creates()
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory/{doc}",
            show,
            "Show a memory",
        )
        .route(
            MEMORY,
            Method::DELETE,
            "/v1/memory/{doc}",
            retract,
            "Take a memory back; its history stays",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory/{doc}/history",
            history,
            "List what was ever said in a memory",
        )
        .route(
            MEMORY,
            Method::POST,
            "/v1/memory/{doc}/redact",
            redact,
            "Take what a memory says off every disk, for good",
        )
        .creates()
        .route(
            MEMORY,
            Method::POST,
            "/v1/memory/import",
            import,
            "Bring in the memory of another system",
        )
        .route(
            MEMORY,
            Method::POST,
            "/v1/recall",
            recall,
            "Find memories by words, best first",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/why/{fragment}",
            why,
            "Tell why a fragment counts, or what it waits for",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/watch",
            watch,
            "Watch what arrives",
        )
        .also(|operation| {
            operation.answers_events();
            let arrival = serde_json::json!({"type": "string", "pattern": "^[0-9]{1,20}$"});
            operation.takes_header(
                "Last-Event-ID",
                arrival,
                "The `id` of the last event one has: as `after`",
            );
        })
}

async fn self_info(State(node): Shared, Extension(caller): Extension<Caller>) -> Answer<SelfInfo> {
    node.self_info(&caller).await.map(Json)
}

async fn publish(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<PublishBody>,
) -> Answer<Published> {
    node.publish(&caller, body).await.map(Json)
}

async fn recall(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<RecallBody>,
) -> Answer<Recalled> {
    node.recall(&caller, body).await.map(Json)
}

async fn list(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Answer<MemoryList> {
    node.list(&caller, params).await.map(Json)
}

/// The query of `GET /v1/memory/{doc}`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowParams {
    space: Option<String>,
}

async fn show(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<ShowParams>,
) -> Answer<MemoryShown> {
    node.show(&caller, &doc, params.space.as_deref())
        .await
        .map(Json)
}

async fn retract(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<RetractParams>,
) -> Answer<Published> {
    node.retract(&caller, &doc, params).await.map(Json)
}

async fn redact(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    JsonBody(body): JsonBody<RedactBody>,
) -> Answer<RedactReceipt> {
    node.redact(&caller, &doc, body).await.map(Json)
}

async fn import(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ImportBody>,
) -> Answer<Imported> {
    mcp::kg::store::import(&node, &caller, body).await.map(Json)
}

async fn history(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<ShowParams>,
) -> Answer<MemoryHistory> {
    node.history(&caller, &doc, params.space.as_deref())
        .await
        .map(Json)
}

async fn why(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(fragment): Path<String>,
) -> Answer<Why> {
    node.why(&caller, &fragment).await.map(Json)
}

async fn watch(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Params(params): Params<WatchParams>,
) -> Result<Events<WatchEvent>, ApiError> {
    let scope = caller.readable(&node, params.space.as_deref())?;
    let sse = sse::is_wanted(&headers);
    let params = match sse {
        true => sse::resumed(&headers, params)?,
        false => params,
    };
    let start = WatchStart::parse(&params)?;
    let permit = caller.stream_permit(&node)?;
    let (lines, response) = if sse {
        Lines::events()
    } else {
        Lines::answer()
    };
    let watching = Arc::clone(&node).watch(scope, start, permit, lines);
    node.tasks.spawn(watching);
    Ok(Events::new(response))
}
