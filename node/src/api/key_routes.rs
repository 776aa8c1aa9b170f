//! The routes of the node's keys, for its own socket alone.
use std::sync::Arc;

use axum::{Json, extract::State, http::Method};

use super::{
    extract::JsonBody,
    table::{NODE, Table},
    types::keys::{KeysAtRest, ProtectBody},
};
use crate::{daemon::node::Node, error::ApiError};

pub(super) fn table() -> Table {
    Table::default()
        .route(
            NODE,
            Method::GET,
            "/v1/keys",
            show,
            "Tell how the keys of this node lie at rest",
        )
        .route(
            NODE,
            Method::POST,
            "/v1/keys",
            protect,
            "Have the keys of this node lie plain, under a passphrase or in the keyring",
        )
}

async fn show(State(node): State<Arc<Node>>) -> Json<KeysAtRest> {
    Json(node.keys_at_rest())
}

async fn protect(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<ProtectBody>,
) -> Result<Json<KeysAtRest>, ApiError> {
    node.protect_keys(body).await.map(Json)
}
