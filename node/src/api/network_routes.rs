//! The routes of policies, denials and secrets.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{Path, State},
    routing::{delete, get},
};
use rhizome_sandbox::egress::SecretParts;

use super::{
    extract::JsonBody,
    types::{
        Done,
        network::{Denials, Network, NetworkBody, SecretSet, Secrets},
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner, and for other nodes as far as grants allow.
pub(super) fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route(
            "/v1/sandboxes/{sandbox}/policy",
            get(policy).post(set_policy),
        )
        .route("/v1/sandboxes/{sandbox}/egress/denials", get(denials))
}

/// For the holder of a token: what its sandboxes may reach is told, and the owner's to say.
pub(super) fn token_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/sandboxes/{sandbox}/policy", get(policy))
        .route("/v1/sandboxes/{sandbox}/egress/denials", get(denials))
}

/// For the owner alone.
pub(super) fn secret_routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/secrets", get(secrets).post(set_secret))
        .route("/v1/secrets/{name}", delete(remove_secret))
}

/// For a guest.
pub(super) fn guest_routes() -> Router<Arc<Node>> {
    Router::new().route("/v1/net/denials", get(own_denials))
}

async fn policy(State(node): Shared, Path(sandbox): Path<String>) -> Answer<Network> {
    node.network(&sandbox).map(Json)
}

async fn set_policy(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<NetworkBody>,
) -> Answer<Network> {
    node.set_network(&caller, &sandbox, body).await.map(Json)
}

async fn denials(State(node): Shared, Path(sandbox): Path<String>) -> Answer<Denials> {
    node.denials(&sandbox).map(Json)
}

async fn own_denials(State(node): Shared, Extension(caller): Extension<Caller>) -> Answer<Denials> {
    match caller {
        Caller::Guest(guest) => node.denials(&guest.sandbox).map(Json),
        _ => Err(ApiError::bad_request("this is for what runs in a sandbox")
            .hint("`rhizome sandbox denials <sandbox>` shows those of any")),
    }
}

async fn secrets(State(node): Shared) -> Answer<Secrets> {
    node.secrets().await.map(Json)
}

async fn set_secret(
    State(node): Shared,
    JsonBody(body): JsonBody<SecretParts>,
) -> Answer<SecretSet> {
    node.set_secret(body).await.map(Json)
}

async fn remove_secret(State(node): Shared, Path(name): Path<String>) -> Answer<Done> {
    node.remove_secret(name).await?;
    Ok(Json(Done::default()))
}
