//! Volumes: a client's are the mesh's, of the space that the node has.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_sandbox::{SandboxId, silent};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use super::{Body, create::keep, to_the_end};
use crate::{
    api::types::volume::{VolumeAttachBody, VolumeBody, VolumeDetachBody},
    daemon::memory::clip,
    e2b::{
        Door,
        error::{Answer, E2bError},
        registry::{Mount, VolumeRecord, new_token},
    },
};

/// Seconds between versions of a volume that a sandbox writes to.
const EVERY_SECS: u64 = 60;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct NewVolume {
    name: String,
}

pub(super) async fn create(State(door): State<Arc<Door>>, Body(asked): Body<NewVolume>) -> Answer {
    if by_name(&door, &asked.name).is_some() {
        let message = format!("there is a volume '{}' already", clip(&asked.name));
        return Err(E2bError::new(StatusCode::CONFLICT, "name_taken", message));
    }
    let of_task = Arc::clone(&door);
    let work = async move {
        let body = VolumeBody {
            name: asked.name,
            ..VolumeBody::default()
        };
        let made = Arc::clone(&of_task.node)
            .create_volume(body, silent())
            .await?;
        let record = VolumeRecord {
            id: made.volume.id,
            name: made.volume.name,
            space: made.volume.space.id,
            token: new_token()?,
        };
        keep(&of_task, move |door| door.registry.volumes.put(record)).await
    };
    let volume = to_the_end(&door, work).await?;
    Ok((StatusCode::CREATED, Json(with_token(&volume))).into_response())
}

pub(super) async fn list(State(door): State<Arc<Door>>) -> Json<Vec<Value>> {
    let all = door.registry.volumes.all();
    let shown = all
        .iter()
        .map(|volume| json!({"volumeID": volume.id, "name": volume.name}));
    Json(shown.collect())
}

pub(super) async fn show(State(door): State<Arc<Door>>, Path(id): Path<String>) -> Answer {
    match door.registry.volumes.get(&id) {
        Some(volume) => Ok(Json(with_token(&volume)).into_response()),
        None => Err(no_volume(&id)),
    }
}

pub(super) async fn remove(State(door): State<Arc<Door>>, Path(id): Path<String>) -> Answer {
    if door.registry.volumes.get(&id).is_none() {
        return Err(no_volume(&id));
    }
    let of_task = Arc::clone(&door);
    let work = async move {
        match of_task.node.remove_volume(&id).await {
            // Removed by other means, or on another node.
            Err(error) if error.code() != "unknown_volume" => return Err(error.into()),
            _ => {}
        }
        keep(&of_task, move |door| door.registry.volumes.remove(&id)).await
    };
    to_the_end(&door, work).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn secrets() -> E2bError {
    absent("secrets of clients; `rhizome secret set` keeps one on the node")
}

fn absent(what: &str) -> E2bError {
    let message = format!("this node does not support {what}");
    E2bError::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message)
}

fn with_token(volume: &VolumeRecord) -> Value {
    json!({"volumeID": volume.id, "name": volume.name, "token": volume.token})
}

pub(super) fn no_volume(id: &str) -> E2bError {
    E2bError::not_found(format!("volume '{}' was not found", clip(id)))
}

fn by_name(door: &Door, name: &str) -> Option<Arc<VolumeRecord>> {
    let all = door.registry.volumes.all();
    all.iter().find(|volume| volume.name == name).cloned()
}

/// Returns the space of the volumes that a new sandbox is to have; they must be of one.
pub(super) fn space_of(door: &Door, mounts: &[Mount]) -> Answer<Option<String>> {
    let mut space = None;
    for mount in mounts {
        let Some(volume) = by_name(door, &mount.name) else {
            return Err(no_volume(&mount.name));
        };
        if !mount.path.starts_with('/') {
            return Err(E2bError::bad_request(
                "a volume is mounted at an absolute path",
            ));
        }
        if space.get_or_insert_with(|| volume.space.clone()) != &volume.space {
            return Err(E2bError::unsupported(
                "volumes of several spaces in one sandbox",
            ));
        }
    }
    Ok(space)
}

/// Takes the volumes out of a sandbox that is about to end: what it wrote stays in them, and who
/// comes next may write. What cannot be kept (it may sleep, and was kept then) is only said.
pub(super) async fn detach(door: &Arc<Door>, sandbox: &SandboxId) {
    for volume in door.node.volumes.of(sandbox) {
        let body = VolumeDetachBody {
            sandbox: Some(sandbox.to_string()),
            force: true,
            ..VolumeDetachBody::default()
        };
        let node = Arc::clone(&door.node);
        if let Err(error) = node.detach_volume(volume.clone(), body, silent()).await {
            warn!(%sandbox, volume, %error, "it stays attached");
        }
    }
}

/// Puts the volumes of a new sandbox in their places.
pub(super) async fn attach(door: &Arc<Door>, sandbox: &str, mounts: &[Mount]) -> Answer<()> {
    for mount in mounts {
        let volume = by_name(door, &mount.name).ok_or_else(|| no_volume(&mount.name))?;
        let body = VolumeAttachBody {
            sandbox: sandbox.to_owned(),
            path: mount.path.clone(),
            newest: true,
            every_secs: EVERY_SECS,
            ..VolumeAttachBody::default()
        };
        let node = Arc::clone(&door.node);
        node.attach_volume(volume.id.clone(), body, silent())
            .await?;
    }
    Ok(())
}
