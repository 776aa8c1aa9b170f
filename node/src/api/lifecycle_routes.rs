//! The routes of a sandbox's life after its first boot, and of snapshots.
use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};

use super::{
    extract::JsonBody,
    sandbox_routes::with_progress,
    types::{
        Done,
        lifecycle::{
            ArchiveBody, ForkBody, Health, LeaseBody, Mended, RestoreBody, ResumeBody,
            SnapshotBody, SnapshotTaken, Snapshots,
        },
        sandbox::SandboxCreated,
    },
};
use crate::{
    daemon::{lifecycle::Verb, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// What a peer may ask too, as far as grants go.
pub(super) fn sandbox_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/sandboxes/{sandbox}/pause", post(pause))
        .route("/v1/sandboxes/{sandbox}/unpause", post(unpause))
        .route("/v1/sandboxes/{sandbox}/stop", post(stop))
        .route("/v1/sandboxes/{sandbox}/start", post(start))
        .route("/v1/sandboxes/{sandbox}/snapshot", post(snapshot))
        .route("/v1/sandboxes/{sandbox}/hibernate", post(hibernate))
        .route("/v1/sandboxes/{sandbox}/resume", post(resume))
        .route("/v1/sandboxes/{sandbox}/fork", post(fork))
        .route("/v1/sandboxes/{sandbox}/lease", post(lease))
        .route("/v1/sandboxes/{sandbox}/health", get(health))
}

pub(super) fn routes() -> Router<Arc<Node>> {
    sandbox_routes()
        .route("/v1/snapshots", get(snapshots))
        .route(
            "/v1/snapshots/{snapshot}",
            get(show_snapshot).delete(remove_snapshot),
        )
        .route("/v1/snapshots/{snapshot}/restore", post(restore))
        .route("/v1/snapshots/{snapshot}/export", post(export))
        .route("/v1/snapshots/import", post(import))
        .route("/v1/doctor/fix", post(fix))
}

async fn pause(State(node): Shared, Path(sandbox): Path<String>) -> Answer<SandboxCreated> {
    node.do_to_sandbox(&sandbox, Verb::Pause).await.map(Json)
}

async fn unpause(State(node): Shared, Path(sandbox): Path<String>) -> Answer<SandboxCreated> {
    node.do_to_sandbox(&sandbox, Verb::Unpause).await.map(Json)
}

async fn stop(State(node): Shared, Path(sandbox): Path<String>) -> Answer<SandboxCreated> {
    node.do_to_sandbox(&sandbox, Verb::Stop).await.map(Json)
}

async fn start(State(node): Shared, Path(sandbox): Path<String>) -> Result<Response, ApiError> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.start_sandbox(&sandbox, progress).await
    }))
}

async fn snapshot(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<SnapshotBody>,
) -> Result<Response, ApiError> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.snapshot_sandbox(&sandbox, body, progress).await
    }))
}

async fn hibernate(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<SnapshotBody>,
) -> Result<Response, ApiError> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.hibernate_sandbox(&sandbox, body, progress).await
    }))
}

async fn resume(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<ResumeBody>,
) -> Result<Response, ApiError> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.resume_sandbox(&sandbox, body, progress).await
    }))
}

async fn fork(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<ForkBody>,
) -> Result<Response, ApiError> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.fork_sandbox(&sandbox, body, progress).await
    }))
}

async fn lease(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<LeaseBody>,
) -> Answer<SandboxCreated> {
    node.lease_sandbox(&sandbox, body).map(Json)
}

async fn health(State(node): Shared, Path(sandbox): Path<String>) -> Answer<Health> {
    node.sandbox_health(&sandbox).await.map(Json)
}

async fn snapshots(State(node): Shared) -> Answer<Snapshots> {
    node.snapshots().await.map(Json)
}

async fn export(
    State(node): Shared,
    Path(snapshot): Path<String>,
    JsonBody(body): JsonBody<ArchiveBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| async move {
        node.export_snapshot(&snapshot, body, progress).await
    }))
}

async fn import(
    State(node): Shared,
    JsonBody(body): JsonBody<ArchiveBody>,
) -> Result<Response, ApiError> {
    Ok(with_progress(node, move |node, progress| async move {
        node.import_snapshot(body, progress).await
    }))
}

async fn show_snapshot(State(node): Shared, Path(snapshot): Path<String>) -> Answer<SnapshotTaken> {
    node.show_snapshot(&snapshot).map(Json)
}

async fn remove_snapshot(State(node): Shared, Path(snapshot): Path<String>) -> Answer<Done> {
    node.remove_snapshot(&snapshot).await?;
    Ok(Json(Done::default()))
}

async fn restore(
    State(node): Shared,
    Path(snapshot): Path<String>,
    JsonBody(body): JsonBody<RestoreBody>,
) -> Result<Response, ApiError> {
    node.show_snapshot(&snapshot)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.restore_snapshot(&snapshot, body, progress).await
    }))
}

async fn fix(State(node): Shared) -> Answer<Mended> {
    node.mend().await.map(Json)
}
