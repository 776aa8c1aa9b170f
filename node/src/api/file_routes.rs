//! Routes of files of memory.
use std::sync::Arc;

use axum::{Extension, Json, body::Body, extract::State, http::Method};
use rhizome_memory::MAX_FILE;

use super::{
    extract::{JsonBody, Params, read_at_most},
    table::{MEMORY_FILES, Table},
    types::file::{FileBody, FileChanged, FileList, FileOp, FileParams, FileShown},
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;

/// What the owner, a guest and whoever holds a token may ask.
pub(crate) fn table() -> Table {
    Table::default()
        .route(
            MEMORY_FILES,
            Method::GET,
            "/v1/files",
            list,
            "List files of memory",
        )
        .lists("files", "/path")
        .route(
            MEMORY_FILES,
            Method::GET,
            "/v1/file",
            show,
            "Read a file of memory",
        )
        .route(
            MEMORY_FILES,
            Method::PUT,
            "/v1/file",
            write,
            "Write a file of memory",
        )
        .route(
            MEMORY_FILES,
            Method::POST,
            "/v1/file",
            change,
            "Change a file of memory",
        )
        .creates()
        .route(
            MEMORY_FILES,
            Method::DELETE,
            "/v1/file",
            remove,
            "Remove a file of memory",
        )
}

async fn list(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<FileParams>,
) -> Answer<FileList> {
    node.files(&caller, params).await.map(Json)
}

async fn show(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<FileParams>,
) -> Answer<FileShown> {
    node.file(&caller, params).await.map(Json)
}

async fn change(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<FileBody>,
) -> Answer<FileChanged> {
    node.change_file(&caller, body).await.map(Json)
}

async fn write(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<FileParams>,
    body: Body,
) -> Answer<FileChanged> {
    let text = read_at_most(body, MAX_FILE).await?;
    let text = String::from_utf8(text.into()).map_err(|error| {
        ApiError::bad_request("the file is not UTF-8 text").caused_by(Some(&error))
    })?;
    let path = params.path.unwrap_or_default();
    let body = FileBody {
        agent: params.agent,
        space: params.space,
        edit: FileOp::Write { path, text },
    };
    node.change_file(&caller, body).await.map(Json)
}

async fn remove(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<FileParams>,
) -> Answer<FileChanged> {
    let path = params.path.unwrap_or_default();
    let body = FileBody {
        agent: params.agent,
        space: params.space,
        edit: FileOp::Delete {
            path,
            only_if: None,
        },
    };
    node.change_file(&caller, body).await.map(Json)
}
