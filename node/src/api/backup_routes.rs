//! The route of backups, for the node's own socket alone.
use std::sync::Arc;

use axum::{extract::State, http::Method, response::Response};

use super::{
    extract::JsonBody,
    table::{NODE, Table},
    types::backup::BackupBody,
};
use crate::{daemon::node::Node, error::ApiError};

pub(super) fn table() -> Table {
    Table::default()
        .route(
            NODE,
            Method::POST,
            "/v1/backup",
            backup,
            "Read everything the node needs, keys included, as one age file",
        )
        .also(|operation| operation.answers_as("application/octet-stream"))
}

async fn backup(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<BackupBody>,
) -> Result<Response, ApiError> {
    node.backup(body).await
}
