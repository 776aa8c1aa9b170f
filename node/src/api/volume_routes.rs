//! The routes of volumes: the owner's, and one for nodes that hold versions for each other.
use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::Method,
};
use rhizome_sandbox::silent;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    extract::{Answered, JsonBody, Params},
    sandbox_routes::with_progress,
    table::{BETWEEN, Table, VOLUMES},
    types::Done,
    types::volume::{
        PackChunks, PackChunksBody, VolumeAttachBody, VolumeBody, VolumeCheckpointBody,
        VolumeCommitted, VolumeDetachBody, VolumeDiff, VolumeForgetBody, VolumeForgotten,
        VolumeHoldBody, VolumeLog, VolumeRepackBody, VolumeRepacked, VolumeShown,
        VolumeVersionBody, Volumes,
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What is done to a volume in a sandbox, by the owner and by other nodes.
fn in_sandboxes(table: Table) -> Table {
    table
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/attach",
            attach,
            "Put it into a sandbox",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/detach",
            detach,
            "Take it out of a sandbox",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/checkpoint",
            checkpoint,
            "Make a version of what it holds",
        )
        .creates()
}

pub(super) fn owner_table() -> Table {
    in_sandboxes(Table::default())
        .route(
            VOLUMES,
            Method::GET,
            "/v1/volumes",
            list,
            "List the volumes",
        )
        .lists("volumes", "/id")
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes",
            create,
            "Make a volume",
        )
        .creates()
        .route(
            VOLUMES,
            Method::GET,
            "/v1/volumes/{volume}/log",
            log,
            "List its versions",
        )
        .lists("versions", "/id")
        .route(
            VOLUMES,
            Method::GET,
            "/v1/volumes/{volume}/diff",
            diff,
            "Tell in what two versions differ",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/restore",
            restore,
            "Make an old version the newest",
        )
        .creates()
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/merge",
            merge,
            "Make one version of several",
        )
        .creates()
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/forget",
            forget,
            "Forget versions",
        )
        .route(
            VOLUMES,
            Method::DELETE,
            "/v1/volumes/{volume}",
            remove,
            "Remove it, with all of its versions",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/repack",
            repack,
            "Put packs together that are mostly dead, or small",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/export",
            export,
            "Write a version to a directory of the machine",
        )
        .route(
            VOLUMES,
            Method::POST,
            "/v1/volumes/{volume}/import",
            import,
            "Make a version of a directory of the machine",
        )
        .creates()
}

/// What some other node may ask; the handler looks at its grants.
pub(super) fn peer_table() -> Table {
    in_sandboxes(Table::default())
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/volume",
            hold,
            "Hold a version of a volume",
        )
        .route(
            BETWEEN,
            Method::POST,
            "/v1/remote/pack-chunks",
            pack_chunks,
            "Tell which chunks are in packs",
        )
}

/// The query of `GET /v1/volumes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListParams {
    space: Option<String>,
    /// A node: only volumes of which it holds a version.
    held_by: Option<String>,
}

async fn list(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Answer<Volumes> {
    let (space, held_by) = (params.space.as_deref(), params.held_by.as_deref());
    let listed = node.list_volumes(&caller, space, held_by).await;
    listed.map(Json)
}

async fn create(
    State(node): Shared,
    JsonBody(body): JsonBody<VolumeBody>,
) -> Answered<VolumeShown> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| {
        node.create_volume(body, progress)
    }))
}

async fn forget(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeForgetBody>,
) -> Answer<VolumeForgotten> {
    node.forget_versions(&volume, body).await.map(Json)
}

/// The query of `GET /v1/volumes/{volume}/log`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogParams {
    /// A node: only versions that it holds.
    held_by: Option<String>,
}

async fn log(
    State(node): Shared,
    Path(volume): Path<String>,
    Params(params): Params<LogParams>,
) -> Answer<VolumeLog> {
    let held_by = params.held_by.as_deref();
    node.volume_log(&volume, held_by).await.map(Json)
}

async fn repack(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeRepackBody>,
) -> Answered<VolumeRepacked> {
    Ok(with_progress(node, move |node, progress| {
        node.repack_volume(volume, body, progress)
    }))
}

async fn remove(State(node): Shared, Path(volume): Path<String>) -> Answer<Done> {
    node.remove_volume(&volume).await?;
    Ok(Json(Done::default()))
}

/// The query of `GET /v1/volumes/{volume}/diff`.
#[derive(Debug, Deserialize, JsonSchema)]
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
    Extension(caller): Extension<Caller>,
    Path(volume): Path<String>,
    JsonBody(mut body): JsonBody<VolumeAttachBody>,
) -> Answered<VolumeShown> {
    node.sandboxes()?;
    let (volume, sandbox) = node
        .volume_in_sandbox(&caller, volume, Some(body.sandbox))
        .await?;
    body.sandbox = sandbox.unwrap_or_default();
    Ok(with_progress(node, move |node, progress| {
        node.attach_volume(volume, body, progress)
    }))
}

async fn detach(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(volume): Path<String>,
    JsonBody(mut body): JsonBody<VolumeDetachBody>,
) -> Answered<VolumeShown> {
    let (volume, sandbox) = node
        .volume_in_sandbox(&caller, volume, body.sandbox)
        .await?;
    body.sandbox = sandbox;
    Ok(with_progress(node, move |node, progress| {
        node.detach_volume(volume, body, progress)
    }))
}

async fn checkpoint(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(volume): Path<String>,
    JsonBody(mut body): JsonBody<VolumeCheckpointBody>,
) -> Answered<VolumeCommitted> {
    let (volume, sandbox) = node
        .volume_in_sandbox(&caller, volume, body.sandbox)
        .await?;
    body.sandbox = sandbox;
    Ok(with_progress(node, move |node, progress| {
        node.checkpoint_volume(volume, body, progress)
    }))
}

async fn restore(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Answered<VolumeCommitted> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_restore(volume, body, progress)
    }))
}

async fn merge(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Answered<VolumeCommitted> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_merge(volume, body, progress)
    }))
}

async fn export(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Answered<VolumeCommitted> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_export(volume, body, progress)
    }))
}

async fn import(
    State(node): Shared,
    Path(volume): Path<String>,
    JsonBody(body): JsonBody<VolumeVersionBody>,
) -> Answered<VolumeCommitted> {
    Ok(with_progress(node, move |node, progress| {
        node.volume_import(volume, body, progress)
    }))
}

async fn hold(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<VolumeHoldBody>,
) -> Answered<Done> {
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
