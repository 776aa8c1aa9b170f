//! The routes of a sandbox's life after its first boot, and of snapshots.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};

use super::{
    extract::{Answered, JsonBody},
    sandbox_routes::with_progress,
    table::{NODE, SANDBOXES, SNAPSHOTS, Table},
    types::{
        Done,
        lifecycle::{
            ArchiveBody, ForkBody, Forked, Health, LeaseBody, Mended, RestoreBody, ResumeBody,
            SnapshotBody, SnapshotExported, SnapshotTaken, Snapshots,
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
pub(super) fn sandbox_table() -> Table {
    Table::default()
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/pause",
            pause,
            "Stop its clock; its memory stays",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/unpause",
            unpause,
            "Let a paused sandbox go on",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/stop",
            stop,
            "Shut it down; its disk stays",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/start",
            start,
            "Boot a stopped sandbox",
        )
        .route(
            SNAPSHOTS,
            Method::POST,
            "/v1/sandboxes/{sandbox}/snapshot",
            snapshot,
            "Take a snapshot of it",
        )
        .creates()
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/hibernate",
            hibernate,
            "Put it to sleep",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/resume",
            resume,
            "Wake it, or let a paused one go on",
        )
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/fork",
            fork,
            "Make copies of it, all or none",
        )
        .creates()
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes/{sandbox}/lease",
            lease,
            "Say until when it lives",
        )
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/health",
            health,
            "Ask its guest whether it answers",
        )
}

pub(super) fn table() -> Table {
    sandbox_table()
        .route(
            SNAPSHOTS,
            Method::GET,
            "/v1/snapshots",
            snapshots,
            "List the snapshots, newest first",
        )
        .lists("snapshots", "/id")
        .route(
            SNAPSHOTS,
            Method::GET,
            "/v1/snapshots/{snapshot}",
            show_snapshot,
            "Show a snapshot",
        )
        .route(
            SNAPSHOTS,
            Method::DELETE,
            "/v1/snapshots/{snapshot}",
            remove_snapshot,
            "Forget a snapshot that was taken on request",
        )
        .route(
            SNAPSHOTS,
            Method::POST,
            "/v1/snapshots/{snapshot}/restore",
            restore,
            "Make a sandbox of a snapshot",
        )
        .creates()
        .route(
            SNAPSHOTS,
            Method::POST,
            "/v1/snapshots/{snapshot}/export",
            export,
            "Write a snapshot to a file of the machine",
        )
        .creates()
        .route(
            SNAPSHOTS,
            Method::POST,
            "/v1/snapshots/import",
            import,
            "Read a snapshot from a file of the machine",
        )
        .creates()
        .route(
            NODE,
            Method::POST,
            "/v1/doctor/fix",
            fix,
            "Mend what an interruption left",
        )
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

async fn start(State(node): Shared, Path(sandbox): Path<String>) -> Answered<SandboxCreated> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.start_sandbox(&sandbox, progress).await
    }))
}

async fn snapshot(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<SnapshotBody>,
) -> Answered<SnapshotTaken> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.snapshot_sandbox(&sandbox, body, progress).await
    }))
}

async fn hibernate(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<SnapshotBody>,
) -> Answered<SnapshotTaken> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.hibernate_sandbox(&sandbox, body, progress).await
    }))
}

async fn resume(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<ResumeBody>,
) -> Answered<SandboxCreated> {
    node.find_sandbox(&sandbox)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.resume_sandbox(&sandbox, body, progress).await
    }))
}

async fn fork(
    State(node): Shared,
    Path(sandbox): Path<String>,
    JsonBody(body): JsonBody<ForkBody>,
) -> Answered<Forked> {
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
) -> Answered<SnapshotExported> {
    Ok(with_progress(node, move |node, progress| async move {
        node.export_snapshot(&snapshot, body, progress).await
    }))
}

async fn import(
    State(node): Shared,
    JsonBody(body): JsonBody<ArchiveBody>,
) -> Answered<SnapshotTaken> {
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
) -> Answered<SandboxCreated> {
    node.show_snapshot(&snapshot)?;
    Ok(with_progress(node, move |node, progress| async move {
        node.restore_snapshot(&snapshot, body, progress).await
    }))
}

async fn fix(State(node): Shared) -> Answer<Mended> {
    node.mend().await.map(Json)
}
