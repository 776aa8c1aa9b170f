//! Snapshots that clients of E2B take, and make sandboxes from.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, RawQuery, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use rhizome_sandbox::silent;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Body,
    create::keep,
    list::{DEFAULT_PAGE, limit, pairs, read_token, with_next},
    to_the_end,
};
use crate::{
    api::types::lifecycle::SnapshotBody,
    e2b::{
        Door, Standing,
        error::{Answer, E2bError},
        registry::SnapshotRecord,
    },
};

/// Longest name of a snapshot, in bytes.
const MAX_NAME_BYTES: usize = 128;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Take {
    name: Option<String>,
    memory: Option<bool>,
}

pub(super) async fn take(
    State(door): State<Arc<Door>>,
    Path(id): Path<String>,
    Body(asked): Body<Take>,
) -> Answer {
    if asked.memory == Some(false) {
        return Err(E2bError::unsupported(
            "snapshots without memory (`memory: false`)",
        ));
    }
    let name = asked.name.filter(|name| !name.is_empty());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    if name
        .as_ref()
        .is_some_and(|name| name.len() > MAX_NAME_BYTES || !name.chars().all(plain))
    {
        let message = format!("a name is 1 to {MAX_NAME_BYTES} of a-z A-Z 0-9 - _ . / :");
        return Err(E2bError::bad_request(message));
    }
    let of_task = Arc::clone(&door);
    let work = async move {
        let door = &of_task;
        let turn = door.working.turn(&id);
        let _turn = turn.lock().await;
        let Some((record, _, standing)) = door.known(&id) else {
            return Err(E2bError::no_sandbox(&id));
        };
        if standing == Standing::Paused {
            // What it sleeps in goes with it; a snapshot is to outlive it.
            let message = format!("sandbox \"{id}\" is paused; connect to it first");
            return Err(E2bError::new(StatusCode::CONFLICT, "paused", message));
        }
        let taken = door
            .node
            .snapshot_sandbox(&id, SnapshotBody::default(), silent());
        let taken = taken.await?;
        let snapshot = SnapshotRecord {
            id: taken.snapshot.id,
            sandbox: id,
            names: name.into_iter().collect(),
            created_ms: now_ms(),
            template: record.template.clone(),
            envs: record.envs.clone(),
            user: record.user.clone(),
            cwd: record.cwd.clone(),
        };
        keep(door, move |door| door.registry.snapshots.put(snapshot)).await
    };
    let snapshot = to_the_end(&door, work).await?;
    Ok((StatusCode::CREATED, Json(shown(&snapshot))).into_response())
}

fn shown(snapshot: &SnapshotRecord) -> Value {
    json!({"snapshotID": snapshot.id, "names": snapshot.names})
}

pub(super) async fn list(State(door): State<Arc<Door>>, RawQuery(query): RawQuery) -> Answer {
    let (mut sandbox, mut name, mut most, mut after) = (None, None, DEFAULT_PAGE, None);
    for (key, value) in pairs(query.as_deref().unwrap_or_default()) {
        match &key[..] {
            _ if value.is_empty() => {}
            "sandboxID" => sandbox = Some(value),
            "name" => name = Some(value),
            "limit" => most = limit(&value)?,
            "nextToken" => after = Some(read_token(&value)?),
            _ => {}
        }
    }
    let key = |snapshot: &SnapshotRecord| (snapshot.created_ms, snapshot.id.clone());
    let mut found = door.registry.snapshots.all();
    found.retain(|snapshot| {
        let is_there = door
            .node
            .sandboxes()
            .is_ok_and(|sandboxes| sandboxes.find_snapshot(&snapshot.id).is_ok());
        is_there
            && sandbox.as_ref().is_none_or(|id| snapshot.sandbox == *id)
            && name
                .as_ref()
                .is_none_or(|name| snapshot.names.contains(name))
            && after.as_ref().is_none_or(|after| key(snapshot) < *after)
    });
    found.sort_by_key(|snapshot| std::cmp::Reverse(key(snapshot)));
    let more = found.len() > most;
    found.truncate(most);
    let next = found.last().filter(|_| more).map(|last| {
        let text = format!("{}:{}", last.created_ms, last.id);
        data_encoding::BASE64URL_NOPAD.encode(text.as_bytes())
    });
    let page: Vec<_> = found.iter().map(|snapshot| shown(snapshot)).collect();
    Ok(with_next(Json(page).into_response(), next))
}

/// Forgets a snapshot, by its id or a name.
pub(super) async fn remove(door: &Arc<Door>, snapshot: &SnapshotRecord) -> Answer<()> {
    match door.node.remove_snapshot(&snapshot.id).await {
        Err(error) if error.code() != "unknown_snapshot" => return Err(error.into()),
        _ => {}
    }
    let id = snapshot.id.clone();
    keep(door, move |door| door.registry.snapshots.remove(&id)).await?;
    Ok(())
}
