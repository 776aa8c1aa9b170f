//! The routes of the node itself: its state, settings, tokens and end.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    extract::{JsonBody, Params},
    table::{NODE, Table},
    types::{
        Done,
        audit::{AuditPage, AuditParams},
        e2b::E2bDoor,
        lifecycle::DownBody,
        node::{Doctor, Settings, Status},
        token::{TokenBody, TokenCreated, TokenRevoked, Tokens},
    },
};
use crate::{
    daemon::{lifecycle::OnDown, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner alone.
pub(super) fn table() -> Table {
    Table::default()
        .route(
            NODE,
            Method::GET,
            "/v1/status",
            status,
            "Show what the node is doing",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/config",
            config,
            "Show each setting, and where it came from",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/e2b",
            e2b_door,
            "Show where clients of E2B are answered, and what they have to know",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/tokens",
            tokens,
            "List the tokens, without what is sent",
        )
        .lists("tokens", "/name")
        .route(
            NODE,
            Method::POST,
            "/v1/tokens",
            create_token,
            "Make a token; its secret is told once",
        )
        .creates()
        .told_once()
        .route(
            NODE,
            Method::DELETE,
            "/v1/tokens/{token}",
            revoke_token,
            "Revoke a token",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/audit",
            audit,
            "Read who did what on this node",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/doctor",
            doctor,
            "Check what the node needs from its machine",
        )
        .route(NODE, Method::POST, "/v1/down", down, "Stop the daemon")
}

async fn status(State(node): Shared) -> Answer<Status> {
    node.status().await.map(Json)
}

async fn config(State(node): Shared) -> Answer<Settings> {
    Ok(Json(node.settings()))
}

async fn e2b_door(State(node): Shared) -> Answer<E2bDoor> {
    node.e2b_door().map(Json)
}

async fn tokens(State(node): Shared) -> Answer<Tokens> {
    Ok(Json(node.list_tokens()))
}

async fn create_token(
    State(node): Shared,
    JsonBody(body): JsonBody<TokenBody>,
) -> Answer<TokenCreated> {
    node.create_token(body).await.map(Json)
}

async fn revoke_token(State(node): Shared, Path(token): Path<String>) -> Answer<TokenRevoked> {
    node.revoke_token(token).await.map(Json)
}

async fn audit(State(node): Shared, Params(params): Params<AuditParams>) -> Answer<AuditPage> {
    node.audit_page(params).await.map(Json)
}

/// The query of `GET /v1/doctor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DoctorParams {
    /// 1 to boot once more instead of trusting what an earlier boot found.
    probe: Option<u8>,
}

async fn doctor(State(node): Shared, Params(params): Params<DoctorParams>) -> Answer<Doctor> {
    node.doctor(params.probe == Some(1)).await.map(Json)
}

async fn down(
    State(node): Shared,
    // Read also when there is nothing in it: closing on a client that still sends looks like a
    // failure.
    JsonBody(body): JsonBody<DownBody>,
) -> Answer<Done> {
    let what = OnDown::parse(body.sandboxes.as_deref())?;
    node.before_down(what).await?;
    node.set_on_down(what);
    // The connection finishes its answer before it heeds the stop.
    node.stop.cancel();
    Ok(Json(Done::default()))
}
