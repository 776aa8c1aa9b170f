//! What is in a client's volume: entries by their paths, opened by the volume's own token.
use std::sync::Arc;

use axum::{
    Json, body,
    extract::{FromRequestParts, Path, Query, Request},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
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

/// An entry of a volume, as a request names it, and the volume opened by the token it brings.
pub(super) struct Entry {
    door: Arc<Door>,
    volume: Arc<VolumeRecord>,
    asked: Asked,
}

impl FromRequestParts<Arc<Door>> for Entry {
    type Rejection = E2bError;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<Door>) -> Result<Self, E2bError> {
        let bad = |error: String| E2bError::bad_request(error);
        let Path(id) = Path::<String>::from_request_parts(parts, door)
            .await
            .map_err(|error| bad(error.body_text()))?;
        let Query(asked) = Query::<Asked>::from_request_parts(parts, door)
            .await
            .map_err(|error| bad(error.body_text()))?;
        let volume = opened(door, &id, &parts.headers)?;
        let door = Arc::clone(door);
        Ok(Self {
            door,
            volume,
            asked,
        })
    }
}

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

pub(super) async fn stat(entry: Entry) -> Answer {
    let (node, id) = (&entry.door.node, &entry.volume.id);
    let found = node.volume_entry(id, entry.asked.path()?).await?;
    Ok(Json(shown(&found)).into_response())
}

pub(super) async fn list(entry: Entry) -> Answer {
    let (node, id) = (&entry.door.node, &entry.volume.id);
    let depth = entry.asked.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    let listed = node.volume_dir(id, entry.asked.path()?, depth).await?;
    let shown: Vec<Value> = listed.iter().map(shown).collect();
    Ok(Json(shown).into_response())
}

pub(super) async fn read(entry: Entry) -> Answer {
    let (node, id) = (&entry.door.node, &entry.volume.id);
    let file = node.volume_file(id, entry.asked.path()?).await?;
    Ok(sent(file))
}

pub(super) async fn write(entry: Entry, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    // Before a byte is taken.
    let (path, ownership) = (entry.asked.path()?, entry.asked.ownership());
    let bytes = bytes_of(&head.headers, body)?;
    let (node, id) = (Arc::clone(&entry.door.node), entry.volume.id.clone());
    // What was stored of an upload is let go of also when its client is gone.
    let work = async move {
        let stored = node.store_for_volume(&id, bytes).await?;
        let change = Change::Put(stored);
        Ok(node.change_volume(&id, path, change, ownership).await?)
    };
    Ok(answered(to_the_end(&entry.door, work).await?))
}

pub(super) async fn make_dir(entry: Entry) -> Answer {
    let change = Change::MakeDir {
        above: entry.asked.force,
    };
    changed(entry, change).await
}

/// Mode and owner, as a body says them.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Owned {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

pub(super) async fn own(mut entry: Entry, Body(owned): Body<Owned>) -> Answer {
    let asked = &mut entry.asked;
    (asked.uid, asked.gid, asked.mode) = (owned.uid, owned.gid, owned.mode);
    let mut answer = changed(entry, Change::Own).await?;
    *answer.status_mut() = StatusCode::OK;
    Ok(answer)
}

pub(super) async fn remove(entry: Entry) -> Answer {
    changed(entry, Change::Remove).await
}

async fn changed(entry: Entry, change: Change) -> Answer {
    let (node, id) = (Arc::clone(&entry.door.node), entry.volume.id.clone());
    let (path, ownership) = (entry.asked.path()?, entry.asked.ownership());
    let work = async move { Ok(node.change_volume(&id, path, change, ownership).await?) };
    Ok(answered(to_the_end(&entry.door, work).await?))
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
