//! The routes of contexts.
use std::sync::Arc;

use axum::{Extension, Json, extract::State, http::Method};

use super::{
    extract::{JsonBody, Params},
    table::{CONTEXTS, Table},
    types::{
        context::{CheckpointBody, Context, ContextParams, Contexts, ContextsParams},
        memory::Published,
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            CONTEXTS,
            Method::GET,
            "/v1/context",
            context,
            "Show the context of a task",
        )
        .route(
            CONTEXTS,
            Method::POST,
            "/v1/context/checkpoint",
            checkpoint,
            "Add to the context of a task",
        )
        .creates()
        .route(
            CONTEXTS,
            Method::GET,
            "/v1/contexts",
            contexts,
            "List the contexts, last touched first",
        )
        .lists("contexts", "/doc")
}

async fn context(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ContextParams>,
) -> Answer<Context> {
    node.context(&caller, params).await.map(Json)
}

async fn checkpoint(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<CheckpointBody>,
) -> Answer<Published> {
    node.checkpoint(&caller, body).await.map(Json)
}

async fn contexts(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ContextsParams>,
) -> Answer<Contexts> {
    node.contexts(&caller, params).await.map(Json)
}
