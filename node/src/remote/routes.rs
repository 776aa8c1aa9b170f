//! The routes that nodes alone use among themselves, and the owner's view of the nodes.
use std::sync::Arc;

use axum::{Json, Router, extract::State, routing::get};

use crate::{
    api::types::remote::{Facts, Nodes},
    daemon::node::Node,
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What other nodes ask.
pub(crate) fn peer_routes() -> Router<Arc<Node>> {
    Router::new().route("/v1/remote/facts", get(facts))
}

/// What the owner asks about other nodes.
pub(crate) fn owner_routes() -> Router<Arc<Node>> {
    Router::new().route("/v1/nodes", get(nodes))
}

async fn facts(State(node): Shared) -> Answer<Facts> {
    node.own_facts().await.map(Json)
}

async fn nodes(State(node): Shared) -> Answer<Nodes> {
    node.nodes().await.map(Json)
}
