//! The routes of the pool, for the node's own socket alone.
use std::sync::Arc;

use axum::{Json, extract::State, http::Method};

use super::{
    extract::{Answered, JsonBody},
    sandbox_routes::with_progress,
    table::{SANDBOXES, Table},
    types::pool::{Drained, Pool, WarmBody},
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/pool",
            list,
            "List the guests that wait for the next sandbox",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/pool",
            warm,
            "Make a guest wait",
        )
        .creates()
        .route(
            SANDBOXES,
            Method::DELETE,
            "/v1/pool",
            drain,
            "End the guests that wait",
        )
}

async fn list(State(node): Shared) -> Answer<Pool> {
    node.pool().map(Json)
}

async fn warm(State(node): Shared, JsonBody(body): JsonBody<WarmBody>) -> Answered<Pool> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.warm(body, progress).await
    }))
}

async fn drain(State(node): Shared) -> Answer<Drained> {
    node.drain_pool().map(Json)
}
