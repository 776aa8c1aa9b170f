//! The routes of the pool, for the node's own socket alone.
use std::sync::Arc;

use axum::{Json, Router, extract::State, response::Response, routing::get};

use super::{
    extract::JsonBody,
    sandbox_routes::with_progress,
    types::pool::{Drained, Pool, WarmBody},
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn routes() -> Router<Arc<Node>> {
    Router::new().route("/v1/pool", get(list).post(warm).delete(drain))
}

async fn list(State(node): Shared) -> Answer<Pool> {
    node.pool().map(Json)
}

async fn warm(
    State(node): Shared,
    JsonBody(body): JsonBody<WarmBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.warm(body, progress).await
    }))
}

async fn drain(State(node): Shared) -> Answer<Drained> {
    node.drain_pool().map(Json)
}
