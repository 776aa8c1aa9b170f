//! The routes that nodes alone use among themselves, and the owner's view of the nodes.
use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::Method,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    api::{
        extract::{Answered, JsonBody, Params, read_at_most},
        sandbox_routes::with_progress,
        table::{BETWEEN, IMAGES, MESH, SANDBOXES, Table},
        types::{
            image::{ImagePushed, PushBody},
            remote::{
                ClaimBody, Claimed, Facts, Held, HoldBody, Nodes, OfferBody, Offered, ResumeBody,
                Resumed, TakeBody,
            },
            wake::{Waiting, WakeOnBody},
        },
    },
    control::audit::layer::On,
    daemon::{caller::Caller, memory::clip, node::Node},
    error::ApiError,
};

/// The most that a webhook hands over to its sandbox.
const MAX_WAKE_BYTES: usize = 256 * 1024;

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What other nodes ask.
pub(crate) fn peer_table() -> Table {
    Table::default()
        .route(
            BETWEEN,
            Method::GET,
            "/v1/remote/facts",
            facts,
            "Tell what the node is and has room for",
        )
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/offer",
            offer,
            "Tell which packs are here",
        )
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/hold",
            hold,
            "Fetch a snapshot and keep it",
        )
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/claim",
            claim,
            "Ask whether a sandbox may be woken",
        )
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/image",
            take_image,
            "Fetch an image and keep it",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/resume",
            resume,
            "Wake a sandbox, here or elsewhere",
        )
}

/// What the owner asks about other nodes.
pub(crate) fn owner_table() -> Table {
    Table::default()
        .route(
            MESH,
            Method::GET,
            "/v1/nodes",
            nodes,
            "List the nodes of the mesh, and what each says of itself",
        )
        .lists("nodes", "/node/id")
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/resume",
            resume,
            "Wake a sandbox, here or elsewhere",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/wake/{token}",
            wake,
            "Call the webhook of a sandbox that sleeps",
        )
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/wake-on",
            show_wake_on,
            "Tell what a sandbox that sleeps waits for",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/wake-on",
            set_wake_on,
            "Say what a sandbox that sleeps waits for",
        )
        .route(
            IMAGES,
            Method::POST,
            "/v1/images/push",
            push_image,
            "Send an image to another node",
        )
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
) -> Answered<Held> {
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
) -> Answered<Resumed> {
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

async fn set_wake_on(
    State(node): Shared,
    JsonBody(body): JsonBody<WakeOnBody>,
) -> (Extension<On>, Answer<Waiting>) {
    // Also of what was refused it is written down to whom it was to be done.
    let on = On(clip(&body.what));
    (Extension(on), node.set_wake_on(body).await.map(Json))
}

/// The query of `GET /v1/wake-on`.
#[derive(Debug, Deserialize, JsonSchema)]
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
) -> Answered<ImagePushed> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.push_image(body, progress).await
    }))
}

async fn take_image(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<TakeBody>,
) -> Answered<Held> {
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
