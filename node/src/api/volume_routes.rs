//! The routes of volumes: the owner's, and one for nodes that hold versions for each other.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};
use rhizome_sandbox::silent;
use serde::Deserialize;

use super::{
    extract::{JsonBody, Params},
    sandbox_routes::with_progress,
    types::volume::{
        PackChunks, PackChunksBody, VolumeAttachBody, VolumeBody, VolumeCheckpointBody,
        VolumeDetachBody, VolumeDiff, VolumeHoldBody, VolumeLog, VolumeVersionBody, Volumes,
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn owner_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/volumes", get(list).post(create))
        .route("/v1/volumes/{volume}/log", get(log))
        .route("/v1/volumes/{volume}/diff", get(diff))
        .route("/v1/volumes/{volume}/attach", post(attach))
        .route("/v1/volumes/{volume}/detach", post(detach))
        .route("/v1/volumes/{volume}/checkpoint", post(checkpoint))
        .route("/v1/volumes/{volume}/restore", post(restore))
        .route("/v1/volumes/{volume}/merge", post(merge))
        .route("/v1/volumes/{volume}/export", post(export))
        .route("/v1/volumes/{volume}/import", post(import))
}

/// What some other node may ask; the handler looks at its grants.
pub(super) fn peer_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/remote/volume", post(hold))
        .route("/v1/remote/pack-chunks", post(pack_chunks))
}

/// The query of `GET /v1/volumes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    space: Option<String>,
}

async fn list(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Answer<Volumes> {
    let listed = node.list_volumes(&caller, params.space.as_deref()).await;
    listed.map(Json)
}

async fn create(
    State(node): Shared,
    JsonBody(body): JsonBody<VolumeBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| {
        node.create_volume(body, progress)
    }))
}

async fn log(State(node): Shared, Path(volume): Path<String>) -> Answer<VolumeLog> {
    node.volume_log(&volume).await.map(Json)
}

/// The query of `GET /v1/volumes/{volume}/diff`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiffParams {
    from: Option<String>,
    to: Option<String>,
}

async fn diff(
    State(node): Shared,
    Path(volume): Path<String>,
    Params(params): Params<DiffParams>,
) -> Answer<VolumeDiff> {
    let (from, to) = (params.from.as_deref(), params.to.as_deref());
    let compared = node.volume_diff(&volume, from, to, &silent()).await;
    compared.map(Json)
}

async fn attach(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeAttachBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| {
        node.attach_volume(volume, body, progress)
    }))
}

async fn detach(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeDetachBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.detach_volume(volume, body, progress)
    }))
}

async fn checkpoint(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeCheckpointBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.checkpoint_volume(volume, body, progress)
    }))
}

async fn restore(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_restore(volume, body, progress)
    }))
}

async fn merge(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_merge(volume, body, progress)
    }))
}

async fn export(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_export(volume, body, progress)
    }))
}

async fn import(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_import(volume, body, progress)
    }))
}

async fn hold(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<VolumeHoldBody>,
) -> Result<Response, ApiError> {
    let Caller::Peer(peer) = caller else {
        return Err(ApiError::denied("only another node asks that"));
    };
    let held = node.accept_volume(&peer, &body).await?;
    Ok(with_progress(node, move |node, progress| async move {
        node.hold_volume(held, progress).await
    }))
}

async fn pack_chunks(
    State(node): Shared,
    JsonBody(body): JsonBody<PackChunksBody>,
) -> Answer<PackChunks> {
    node.pack_chunks(body).await.map(Json)
}
