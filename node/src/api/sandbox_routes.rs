//! The routes of sandboxes, for the owner, and for other nodes as far as grants allow.
use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::{Method, header},
    response::{IntoResponse, Response},
};
use futures::TryStreamExt;
use rhizome_sandbox::{Progress as SandboxProgress, ProgressEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::io::{ReaderStream, StreamReader};

use super::{
    extract::{Answered, JsonBody, Lines, Params, Progressing},
    table::{FILES, SANDBOXES, Table},
    types::{
        Done, Progress, ProgressLine, SCHEMA,
        sandbox::{
            DirListing, FileStat, FileWritten, PathParams, SandboxBody, SandboxCreated, Sandboxes,
        },
    },
};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// Bytes of a download that are read at once.
const DOWNLOAD_BYTES: usize = 64 * 1024;
/// Permission bits of a file that is written without saying which.
const FILE_MODE: u32 = 0o644;
/// Permission bits of a directory that is made without saying which.
const DIR_MODE: u32 = 0o755;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/sandboxes",
            list,
            "List the sandboxes, newest first",
        )
        .lists("sandboxes", "/id")
        .route(
            SANDBOXES,
            Method::POST,
            "/v1/sandboxes",
            create,
            "Make a sandbox",
        )
        .creates()
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/sandboxes/{sandbox}",
            show,
            "Show a sandbox",
        )
        .route(
            SANDBOXES,
            Method::DELETE,
            "/v1/sandboxes/{sandbox}",
            kill,
            "End a sandbox",
        )
        .route(
            SANDBOXES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/logs",
            logs,
            "Read the end of its console",
        )
        .route(
            FILES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/file",
            read_file,
            "Read a file in it",
        )
        .also(|operation| operation.answers_as("application/octet-stream"))
        .route(
            FILES,
            Method::PUT,
            "/v1/sandboxes/{sandbox}/file",
            write_file,
            "Write a file in it, whole or not at all",
        )
        .route(
            FILES,
            Method::DELETE,
            "/v1/sandboxes/{sandbox}/file",
            remove_file,
            "Remove a file in it",
        )
        .route(
            FILES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/stat",
            stat,
            "Tell what is at a path in it",
        )
        .route(
            FILES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/dir",
            list_dir,
            "List a directory in it",
        )
        .route(
            FILES,
            Method::PUT,
            "/v1/sandboxes/{sandbox}/dir",
            make_dir,
            "Make a directory in it, and those above it",
        )
}

/// The query of `GET /v1/sandboxes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListParams {
    /// 1 to ask the nodes that are connected for theirs too.
    all: Option<u8>,
}

async fn list(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Answer<Sandboxes> {
    match caller {
        Caller::Owner if params.all == Some(1) => node.sandboxes_everywhere().await,
        _ => node.list_sandboxes(&caller).await,
    }
    .map(Json)
}

async fn show(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Path(sandbox): Path<String>,
) -> Answer<SandboxCreated> {
    node.show_sandbox(&caller, &sandbox).await.map(Json)
}

async fn create(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<SandboxBody>,
) -> Answered<SandboxCreated> {
    node.sandboxes()?;
    // Refused before the answer begins, so that the asker may try another node.
    let body = match caller {
        Caller::Peer(peer) => node.accept_sandbox(&peer, body).await?,
        Caller::Token(holder) => node.accept_sandbox_of(&holder, body)?,
        Caller::Owner | Caller::Guest(_) => body,
    };
    Ok(with_progress(node, move |node, progress| async move {
        node.create_sandbox(body, progress).await
    }))
}

async fn kill(State(node): Shared, Path(sandbox): Path<String>) -> Answer<Done> {
    node.kill_sandbox(&sandbox).await?;
    Ok(Json(Done::default()))
}

async fn logs(State(node): Shared, Path(sandbox): Path<String>) -> Result<String, ApiError> {
    node.sandbox_logs(&sandbox).await
}

/// Answers with the progress of `work` and then its result, line by line.
///
/// The work goes on when nobody reads any more: half an image helps no one.
pub(crate) fn with_progress<T, F>(
    node: Arc<Node>,
    work: impl FnOnce(Arc<Node>, SandboxProgress) -> F,
) -> Progressing<T>
where
    T: Serialize + Send + Sync,
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let (lines, response) = Lines::answer();
    let sender = lines.clone();
    let progress: SandboxProgress = Arc::new(move |event: ProgressEvent<'_>| {
        sender.try_send(&ProgressLine::<()>::Progress(Progress {
            step: event.step.to_owned(),
            detail: event.detail.to_owned(),
            done: event.done,
            total: event.total,
        }));
    });
    let work = work(Arc::clone(&node), progress);
    node.tasks.spawn(async move {
        let last = match work.await {
            Ok(done) => ProgressLine::Done(done),
            Err(error) => ProgressLine::Failed(error.into_info()),
        };
        let _ = lines.send(&last).await;
    });
    Progressing::new(response)
}

async fn stat(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
) -> Answer<FileStat> {
    node.stat(&sandbox, &absolute(&params)?).await.map(Json)
}

async fn list_dir(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
) -> Answer<DirListing> {
    node.list_dir(&sandbox, &absolute(&params)?).await.map(Json)
}

async fn make_dir(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
) -> Answer<Done> {
    let mode = mode(&params, DIR_MODE)?;
    node.make_dir(&sandbox, &absolute(&params)?, mode).await?;
    Ok(Json(Done::default()))
}

async fn read_file(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
) -> Result<Response, ApiError> {
    let file = node.read_file(&sandbox, &absolute(&params)?).await?;
    let mut response =
        Body::from_stream(ReaderStream::with_capacity(file.reader, DOWNLOAD_BYTES)).into_response();
    let headers = response.headers_mut();
    // A guest that sends less than it announced breaks the connection, which the client sees.
    headers.insert(header::CONTENT_LENGTH, file.size.into());
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/octet-stream"),
    );
    let mode = format!("{:o}", file.mode & 0o7777);
    headers.insert(
        "rhizome-mode",
        mode.parse().expect("octal digits make a header"),
    );
    Ok(response)
}

async fn remove_file(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
) -> Answer<Done> {
    node.remove_file(&sandbox, &absolute(&params)?).await?;
    Ok(Json(Done::default()))
}

async fn write_file(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<PathParams>,
    body: Body,
) -> Answer<FileWritten> {
    let mode = mode(&params, FILE_MODE)?;
    let stream = body.into_data_stream().map_err(std::io::Error::other);
    let reader = StreamReader::new(stream);
    let bytes = node
        .write_file(&sandbox, &absolute(&params)?, mode, reader)
        .await?;
    Ok(Json(FileWritten {
        schema: SCHEMA,
        bytes,
    }))
}

fn absolute(params: &PathParams) -> Result<String, ApiError> {
    if params.path.starts_with('/') && !params.path.contains('\0') {
        return Ok(params.path.clone());
    }
    Err(ApiError::bad_request("a path in a sandbox begins with `/`"))
}

fn mode(params: &PathParams, default: u32) -> Result<u32, ApiError> {
    let Some(text) = &params.mode else {
        return Ok(default);
    };
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(ApiError::bad_request(
            "`mode` is octal permission bits, such as 755",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_paths_are_checked() {
        let params = |path: &str, mode: Option<&str>| PathParams {
            path: path.into(),
            mode: mode.map(Into::into),
        };
        assert_eq!(mode(&params("/a", None), FILE_MODE).unwrap(), 0o644);
        assert_eq!(mode(&params("/a", Some("755")), FILE_MODE).unwrap(), 0o755);
        for bad in ["8", "-1", "17777", "rwx", ""] {
            assert!(mode(&params("/a", Some(bad)), FILE_MODE).is_err(), "{bad}");
        }
        assert!(absolute(&params("a", None)).is_err());
        assert!(absolute(&params("/a\0b", None)).is_err());
    }
}
