//! The routes that nodes alone use among themselves, and the owner's view of the nodes.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};
use serde::Deserialize;

use crate::{
    api::{
        extract::{JsonBody, Params, read_at_most},
        sandbox_routes::with_progress,
        types::{
            image::PushBody,
            remote::{
                ClaimBody, Claimed, Facts, HoldBody, Nodes, OfferBody, Offered, ResumeBody,
                Resumed, TakeBody,
            },
            wake::{Waiting, WakeOnBody},
        },
    },
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

/// The most that a webhook hands over to its sandbox.
const MAX_WAKE_BYTES: usize = 256 * 1024;

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What other nodes ask.
pub(crate) fn peer_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/remote/facts", get(facts))
        .route("/v1/remote/offer", post(offer))
        .route("/v1/remote/hold", post(hold))
        .route("/v1/remote/claim", post(claim))
        .route("/v1/remote/image", post(take_image))
        .route("/v1/resume", post(resume))
}

/// What the owner asks about other nodes.
pub(crate) fn owner_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/nodes", get(nodes))
        .route("/v1/resume", post(resume))
        .route("/v1/wake/{token}", post(wake))
        .route("/v1/wake-on", get(show_wake_on).post(set_wake_on))
        .route("/v1/images/push", post(push_image))
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

async fn wake(
    State(node): Shared,
    Path(token): Path<String>,
    body: Body,
) -> Result<Json<Resumed>, ApiError> {
    let body = read_at_most(body, MAX_WAKE_BYTES).await?;
    node.wake_by_hook(&token, body).await.map(Json)
}

async fn set_wake_on(State(node): Shared, JsonBody(body): JsonBody<WakeOnBody>) -> Answer<Waiting> {
    node.set_wake_on(body).await.map(Json)
}

/// The query of `GET /v1/wake-on`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WakeOnParams {
    what: String,
}

async fn show_wake_on(
    State(node): Shared,
    Params(params): Params<WakeOnParams>,
) -> Answer<Waiting> {
    node.show_wake_on(&params.what).await.map(Json)
}

async fn push_image(
    State(node): Shared,
    JsonBody(body): JsonBody<PushBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.push_image(body, progress).await
    }))
}

async fn take_image(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<TakeBody>,
) -> Result<Response, ApiError> {
    let peer = of_peer(&caller)?;
    node.accept_image(&peer, &body).await?;
    Ok(with_progress(node, move |node, progress| async move {
        node.take_image(peer, body, progress).await
    }))
}

/// These routes are for nodes alone.
fn of_peer(caller: &Caller) -> Result<rhizome_identity::NodeId, ApiError> {
    match caller {
        Caller::Peer(peer) => Ok(*peer),
        _ => Err(ApiError::denied("only another node asks that")),
    }
}
