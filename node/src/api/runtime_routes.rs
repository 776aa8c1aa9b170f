//! The routes of runtimes.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};

use super::{
    table::{RUNTIMES, Table},
    types::runtime::{Runtime, RuntimeDifferences, Runtimes},
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner alone.
pub(super) fn table() -> Table {
    Table::default()
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes",
            runtimes,
            "List the runtimes that memories name",
        )
        .lists("runtimes", "/hash")
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes/{runtime}",
            show_runtime,
            "Show what a runtime is made of",
        )
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes/{was}/differences/{is}",
            diff_runtimes,
            "Tell in what two runtimes differ",
        )
}

async fn runtimes(State(node): Shared) -> Answer<Runtimes> {
    node.list_runtimes().await.map(Json)
}

async fn show_runtime(State(node): Shared, Path(runtime): Path<String>) -> Answer<Runtime> {
    node.show_runtime(&runtime).await.map(Json)
}

async fn diff_runtimes(
    State(node): Shared,
    Path((was, is)): Path<(String, String)>,
) -> Answer<RuntimeDifferences> {
    node.diff_runtimes(&was, &is).await.map(Json)
}
