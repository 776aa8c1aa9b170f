//! The routes that nodes alone use among themselves, and the owner's view of the nodes.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::State,
    response::Response,
    routing::{get, post},
};

use crate::{
    api::{
        extract::JsonBody,
        sandbox_routes::with_progress,
        types::remote::{
            ClaimBody, Claimed, Facts, HoldBody, Nodes, OfferBody, Offered, ResumeBody,
        },
    },
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What other nodes ask.
pub(crate) fn peer_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/remote/facts", get(facts))
        .route("/v1/remote/offer", post(offer))
        .route("/v1/remote/hold", post(hold))
        .route("/v1/remote/claim", post(claim))
        .route("/v1/resume", post(resume))
}

/// What the owner asks about other nodes.
pub(crate) fn owner_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/nodes", get(nodes))
        .route("/v1/resume", post(resume))
}

async fn facts(State(node): Shared) -> Answer<Facts> {
    node.own_facts().await.map(Json)
}

async fn nodes(State(node): Shared) -> Answer<Nodes> {
    node.nodes().await.map(Json)
}

async fn offer(State(node): Shared, JsonBody(body): JsonBody<OfferBody>) -> Answer<Offered> {
    node.offer(body).await.map(Json)
}

async fn hold(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<HoldBody>,
) -> Result<Response, ApiError> {
    let peer = of_peer(&caller)?;
    let whose = node.accept_hold(&peer, &body).await?;
    Ok(with_progress(node, move |node, progress| async move {
        node.hold(peer, whose, body, progress).await
    }))
}

async fn claim(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ClaimBody>,
) -> Answer<Claimed> {
    node.answer_claim(&of_peer(&caller)?, body).await.map(Json)
}

async fn resume(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ResumeBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| async move {
        node.resume(&caller, body, progress).await
    }))
}

/// These routes are for nodes alone.
fn of_peer(caller: &Caller) -> Result<rhizome_identity::NodeId, ApiError> {
    match caller {
        Caller::Peer(peer) => Ok(*peer),
        _ => Err(ApiError::denied("only another node asks that")),
    }
}
