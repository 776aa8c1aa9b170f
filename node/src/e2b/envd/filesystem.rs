//! `filesystem.Filesystem`: paths of a sandbox, and what changes below them.
use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Request, State},
    response::Response,
    routing::post,
};
use rhizome_sandbox::{
    FileKind,
    channel::{FileError, PathFacts},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    entry::entry,
    guest, of_file,
    rpc::{self, Call},
    user_of, watch,
};
use crate::e2b::{Door, Target, connect::ConnectError};

/// Deepest listing that may be asked for.
const MAX_DEPTH: u32 = 256;

type Shared = State<Arc<Door>>;
type Whose = Extension<Target>;
type Answer = Result<Response, ConnectError>;

pub(super) fn routes() -> Router<Arc<Door>> {
    Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/ListDir", post(list_dir))
        .route("/filesystem.Filesystem/MakeDir", post(make_dir))
        .route("/filesystem.Filesystem/Move", post(move_to))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .route("/filesystem.Filesystem/WatchDir", post(watch::stream))
        .route("/filesystem.Filesystem/CreateWatcher", post(watch::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watch::take))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watch::remove))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OfPath {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListRequest {
    path: String,
    depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    source: String,
    destination: String,
}

async fn stat(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<OfPath> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let user = user_of(&call.headers, &target)?;
        let guest = guest(&door, &target.sandbox).await?;
        one(guest.look(&user, &call.message.path).await)
    })
    .await
}

async fn list_dir(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<ListRequest> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let user = user_of(&call.headers, &target)?;
        // None at all means the directory alone.
        let depth = call.message.depth.clamp(1, MAX_DEPTH);
        let guest = guest(&door, &target.sandbox).await?;
        let all = guest.look_below(&user, &call.message.path, depth).await;
        let all = all.map_err(|error| of_file(&error))?;
        let shown = all.iter().filter(|facts| !watch::is_draft(facts.name()));
        Ok(json!({ "entries": shown.map(entry).collect::<Vec<_>>() }))
    })
    .await
}

async fn make_dir(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<OfPath> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let user = user_of(&call.headers, &target)?;
        let guest = guest(&door, &target.sandbox).await?;
        one(guest.make_dir_of(&user, &call.message.path).await)
    })
    .await
}

async fn move_to(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<MoveRequest> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let user = user_of(&call.headers, &target)?;
        let guest = guest(&door, &target.sandbox).await?;
        let MoveRequest {
            source,
            destination,
        } = &call.message;
        one(guest.rename(&user, source, destination).await)
    })
    .await
}

async fn remove(State(door): Shared, Extension(target): Whose, request: Request) -> Answer {
    let call: Call<OfPath> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let user = user_of(&call.headers, &target)?;
        let guest = guest(&door, &target.sandbox).await?;
        match guest.remove_all(&user, &call.message.path).await {
            // As `envd`: what is not there is removed.
            Ok(()) | Err(FileError::NotFound { .. }) => Ok(json!({})),
            Err(error) => Err(of_file(&error)),
        }
    })
    .await
}

fn one(facts: Result<PathFacts, FileError>) -> Result<Value, ConnectError> {
    let facts = facts.map_err(|error| of_file(&error))?;
    Ok(json!({ "entry": entry(&facts) }))
}

/// Returns the absolute path of a directory that may be watched.
pub(super) async fn directory(
    door: &Door,
    sandbox: &str,
    user: &str,
    path: &str,
) -> Result<String, ConnectError> {
    let found = guest(door, sandbox).await?.look(user, path).await;
    let found = found.map_err(|error| of_file(&error))?;
    match found.kind {
        FileKind::Directory => Ok(found.path),
        _ => Err(ConnectError::invalid(format!(
            "`{}` is no directory",
            found.path
        ))),
    }
}
