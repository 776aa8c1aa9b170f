//! The routes of policies, denials and secrets.
use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::Method,
};

use super::{
    extract::JsonBody,
    table::{NETWORK, Table},
    types::{
        Done,
        network::{Denials, Network, NetworkBody, SecretBody, SecretSet, Secrets},
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner, and for other nodes as far as grants allow.
pub(super) fn table() -> Table {
    token_table().route(
        NETWORK,
        Method::POST,
        "/v1/sandboxes/{sandbox}/policy",
        set_policy,
        "Say what it may reach, at once",
    )
}

/// For the holder of a token: what its sandboxes may reach is told, and the owner's to say.
pub(super) fn token_table() -> Table {
    Table::default()
        .route(
            NETWORK,
            Method::GET,
            "/v1/sandboxes/{sandbox}/policy",
            policy,
            "Show what it may reach",
        )
        .route(
            NETWORK,
            Method::GET,
            "/v1/sandboxes/{sandbox}/egress/denials",
            denials,
            "List what was denied to it, the oldest first",
        )
        .lists("denials", "/number")
}

/// For the owner alone.
pub(super) fn secret_table() -> Table {
    Table::default()
        .route(
            NETWORK,
            Method::GET,
            "/v1/secrets",
            secrets,
            "List the secrets, without their values",
        )
        .lists("secrets", "/name")
        .route(
            NETWORK,
            Method::POST,
            "/v1/secrets",
            set_secret,
            "Keep a secret",
        )
        .creates()
        .route(
            NETWORK,
            Method::DELETE,
            "/v1/secrets/{name}",
            remove_secret,
            "Forget a secret",
        )
}

/// For a guest.
pub(super) fn guest_table() -> Table {
    Table::default()
        .route(
            NETWORK,
            Method::GET,
            "/v1/net/denials",
            own_denials,
            "List what was denied to the sandbox that asks",
        )
        .lists("denials", "/number")
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
    JsonBody(SecretBody(body)): JsonBody<SecretBody>,
) -> Answer<SecretSet> {
    node.set_secret(body).await.map(Json)
}

async fn remove_secret(State(node): Shared, Path(name): Path<String>) -> Answer<Done> {
    node.remove_secret(name).await?;
    Ok(Json(Done::default()))
}
