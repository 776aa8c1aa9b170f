//! What is in a client's volume: entries by their paths, opened by the volume's own token.
use std::sync::Arc;

use axum::{
    Json, body,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use rhizome_sandbox::volume::{Node as Item, Path as InVolume};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Body, bearer, to_the_end, volume::no_volume};
use crate::{
    cli::utc,
    daemon::volume::{Change, Found, Ownership, VolumeFile},
    e2b::{
        Door,
        envd::upload::bytes_of,
        error::{Answer, E2bError},
        registry::VolumeRecord,
        signature::constant_time_eq,
    },
};

/// Most levels of a listing.
const MAX_DEPTH: usize = 64;

type Shared = State<Arc<Door>>;

/// What a request says in its query.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    path: String,
    depth: Option<usize>,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
    force: bool,
}

impl Asked {
    fn path(&self) -> Answer<InVolume> {
        InVolume::parse(self.path.as_bytes())
            .map_err(|error| E2bError::bad_request(error.to_string()))
    }

    fn ownership(&self) -> Ownership {
        Ownership {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
        }
    }
}

pub(super) async fn stat(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    let found = door.node.volume_entry(&volume.id, asked.path()?).await?;
    Ok(Json(shown(&found)).into_response())
}

pub(super) async fn list(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    let depth = asked.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    let listed = door.node.volume_dir(&volume.id, asked.path()?, depth);
    let shown: Vec<Value> = listed.await?.iter().map(shown).collect();
    Ok(Json(shown).into_response())
}

pub(super) async fn read(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    let file = door.node.volume_file(&volume.id, asked.path()?).await?;
    Ok(sent(file))
}

pub(super) async fn write(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let volume = opened(&door, &id, &head.headers)?;
    // Before a byte is taken.
    let (path, ownership) = (asked.path()?, asked.ownership());
    let bytes = bytes_of(&head.headers, body)?;
    let (node, id) = (Arc::clone(&door.node), volume.id.clone());
    // What was stored of an upload is let go of also when its client is gone.
    let work = async move {
        let stored = node.store_for_volume(&id, bytes).await?;
        let change = Change::Put(stored);
        Ok(node.change_volume(&id, path, change, ownership).await?)
    };
    Ok(answered(to_the_end(&door, work).await?))
}

pub(super) async fn make_dir(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    let change = Change::MakeDir { above: asked.force };
    changed(&door, &volume, asked, change).await
}

/// Mode and owner, as a body says them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Owned {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

pub(super) async fn own(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    Body(owned): Body<Owned>,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    let asked = Asked {
        uid: owned.uid,
        gid: owned.gid,
        mode: owned.mode,
        ..asked
    };
    let mut answer = changed(&door, &volume, asked, Change::Own).await?;
    *answer.status_mut() = StatusCode::OK;
    Ok(answer)
}

pub(super) async fn remove(
    State(door): Shared,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Answer {
    let volume = opened(&door, &id, &headers)?;
    changed(&door, &volume, asked, Change::Remove).await
}

async fn changed(door: &Arc<Door>, volume: &VolumeRecord, asked: Asked, change: Change) -> Answer {
    let (node, id) = (Arc::clone(&door.node), volume.id.clone());
    let (path, ownership) = (asked.path()?, asked.ownership());
    let work = async move { Ok(node.change_volume(&id, path, change, ownership).await?) };
    Ok(answered(to_the_end(door, work).await?))
}

fn answered(found: Option<Found>) -> Response {
    match found {
        Some(found) => (StatusCode::CREATED, Json(shown(&found))).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Returns the volume that a token opens. The key of the node is none: whoever has that gets the
/// token by asking for the volume.
fn opened(door: &Door, id: &str, headers: &HeaderMap) -> Answer<Arc<VolumeRecord>> {
    let volume = door.registry.volumes.get(id).ok_or_else(|| no_volume(id))?;
    let sent = bearer(headers).unwrap_or_default();
    match constant_time_eq(sent.as_bytes(), volume.token.as_bytes()) {
        true => Ok(volume),
        false => Err(E2bError::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "the token of the volume is missing or wrong",
        )),
    }
}

fn shown(found: &Found) -> Value {
    let path = String::from_utf8_lossy(&found.path.to_bytes()).into_owned();
    let name = path.rsplit('/').next().unwrap_or_default();
    let (kind, size) = match &found.item {
        Item::File(content) => ("file", content.size()),
        Item::Dir(_) => ("directory", 0),
        Item::Symlink(target) => ("symlink", target.len() as u64),
    };
    // A tree has the time of the last change alone.
    let at = utc(u64::try_from(found.meta.mtime_ns / 1_000_000).unwrap_or_default());
    let mut shown = json!({
        "name": if name.is_empty() { "/" } else { name },
        "type": kind,
        "path": format!("/{path}"),
        "size": size,
        "mode": found.meta.mode,
        "uid": found.meta.uid,
        "gid": found.meta.gid,
        "atime": at,
        "mtime": at,
        "ctime": at,
    });
    if let Item::Symlink(target) = &found.item {
        shown["target"] = String::from_utf8_lossy(target).into();
    }
    shown
}

/// Sends a file piece by piece.
fn sent(file: VolumeFile) -> Response {
    let size = file.size();
    let pieces = futures::stream::try_unfold((file, 0), |(file, at)| async move {
        if at >= file.size() {
            return Ok(None);
        }
        let piece = file.piece(at).await.map_err(std::io::Error::other)?;
        let next = at + piece.len() as u64;
        // Nothing more, where there should be, ends the answer early, and the client sees that.
        Ok::<_, std::io::Error>((!piece.is_empty()).then_some((piece, (file, next))))
    });
    let mut response = Response::new(body::Body::from_stream(pieces));
    let said = response.headers_mut();
    said.insert(header::CONTENT_LENGTH, size.into());
    let kind = HeaderValue::from_static("application/octet-stream");
    said.insert(header::CONTENT_TYPE, kind);
    response
}
