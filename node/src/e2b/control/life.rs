//! The life of a sandbox after its first boot: paused, woken, given time, copied, ended.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use rhizome_sandbox::{SandboxInfo, life::Phase, silent};
use serde::Deserialize;
use serde_json::json;

use super::{
    Body,
    create::{check_timeout, keep, lease},
    list, to_the_end,
};
use crate::{
    api::types::lifecycle::{ForkBody, LeaseBody, ResumeBody, SnapshotBody},
    daemon::lifecycle::Verb,
    e2b::{
        Door, Standing,
        error::{Answer, E2bError},
        registry::{OnTimeout, Record, new_token},
    },
};

/// Seconds that a sandbox is given by `connect` and `resume` when nobody says.
const CONNECT_SECS: u64 = 300;
/// Seconds that a copy is given when nobody says.
const FORK_SECS: u64 = 15;
/// Most copies of one request.
const MAX_COPIES: usize = 64;

type Shared = State<Arc<Door>>;

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
}

/// Wakes a sandbox if it sleeps, and sees that it has time left.
pub(super) async fn connect(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Connect>,
) -> Answer {
    let (record, info) = connected(&door, id, asked).await?;
    let headers = list::extras(&door, &info);
    let made = list::made(&door, &record, &info);
    Ok((StatusCode::OK, headers, Json(made)).into_response())
}

/// The same, as the oldest clients ask for it.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resume {
    timeout: Option<u64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
}

pub(super) async fn resume(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Resume>,
) -> Answer {
    match door.known(&id) {
        None => return Err(E2bError::no_sandbox(&id)),
        Some((.., Standing::Paused)) => {}
        Some(_) => {
            let message = format!("sandbox \"{id}\" runs already");
            return Err(E2bError::new(StatusCode::CONFLICT, "running", message));
        }
    }
    if let Some(pause) = asked.auto_pause {
        let on_timeout = if pause {
            OnTimeout::Pause
        } else {
            OnTimeout::Kill
        };
        let id = id.clone();
        let change = move |door: &Door| {
            let set = |record: &mut Record| record.on_timeout = on_timeout;
            door.registry.sandboxes.change(&id, set)
        };
        keep(&door, change).await?;
    }
    let asked = Connect {
        timeout: asked.timeout,
        memory: None,
    };
    let (record, info) = connected(&door, id, asked).await?;
    let headers = list::extras(&door, &info);
    let made = list::made(&door, &record, &info);
    Ok((StatusCode::CREATED, headers, Json(made)).into_response())
}

async fn connected(
    door: &Arc<Door>,
    id: String,
    asked: Connect,
) -> Answer<(Arc<Record>, SandboxInfo)> {
    let secs = asked.timeout.unwrap_or(CONNECT_SECS).max(1);
    check_timeout(secs)?;
    let Some((record, info, standing)) = door.known(&id) else {
        return Err(E2bError::no_sandbox(&id));
    };
    if asked.memory == Some(false) && !record.stopped && standing == Standing::Paused {
        return Err(E2bError::unsupported(
            "a boot without the memory that a sandbox sleeps in (`memory: false`); pause it with `memory: false` instead",
        ));
    }
    if standing == Standing::Running {
        // Never less than it has left.
        let until_ms = now_ms().saturating_add(secs.saturating_mul(1000));
        let failed = |error| crate::daemon::fail::sandbox(&error);
        let sandboxes = door.node.sandboxes()?;
        let info = sandboxes.renew_lease(&info.id, until_ms).map_err(failed)?;
        return Ok((record, info));
    }
    let info = wake(door, &record, Some(secs)).await?;
    let record = door.registry.get(&record.id).unwrap_or(record);
    Ok((record, info))
}

/// Wakes a sandbox that sleeps, for `secs` or what it had last.
///
/// One that somebody else wakes meanwhile is fine.
pub(crate) async fn wake(
    door: &Arc<Door>,
    record: &Record,
    secs: Option<u64>,
) -> Answer<SandboxInfo> {
    let (of_task, id) = (Arc::clone(door), record.id.clone());
    let work = async move {
        let door = &of_task;
        let turn = door.working.turn(&id);
        let _turn = turn.lock().await;
        let Some((record, info, standing)) = door.known(&id) else {
            return Err(E2bError::no_sandbox(&id));
        };
        if standing == Standing::Running {
            return Ok(info);
        }
        let node = &door.node;
        let woken = match info.state.phase() {
            Phase::Stopped | Phase::Stopping => node.start_sandbox(&id, silent()).await,
            Phase::Paused => node.do_to_sandbox(&id, Verb::Unpause).await,
            _ => {
                node.resume_sandbox(&id, ResumeBody::default(), silent())
                    .await
            }
        };
        woken?;
        let secs = secs.unwrap_or(record.timeout_secs);
        give_time(door, &record, secs)?;
        let of_record = id.clone();
        let change = move |door: &Door| {
            door.registry.sandboxes.change(&of_record, |record| {
                record.started_ms = now_ms();
                record.timeout_secs = secs;
                record.stopped = false;
            })
        };
        keep(door, change).await?;
        Ok(node.find_sandbox(&id)?)
    };
    to_the_end(door, work).await
}

/// Sets until when a sandbox lives, as its maker wants it to end.
pub(super) fn give_time(door: &Door, record: &Record, secs: u64) -> Answer<()> {
    let lease = lease(secs, record.on_timeout);
    door.node.lease_sandbox(&record.id, lease)?;
    Ok(())
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pause {
    memory: Option<bool>,
    #[serde(rename = "requireHealthyGuest")]
    healthy: bool,
}

pub(super) async fn pause(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Pause>,
) -> Answer {
    let of_task = Arc::clone(&door);
    let work = async move {
        let turn = of_task.working.turn(&id);
        let _turn = turn.lock().await;
        paused(&of_task, &id, asked).await
    };
    to_the_end(&door, work).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn paused(door: &Arc<Door>, id: &str, asked: Pause) -> Answer<()> {
    let node = &door.node;
    let Some((record, info, standing)) = door.known(id) else {
        return Err(E2bError::no_sandbox(id));
    };
    if standing == Standing::Paused {
        let message = format!("sandbox \"{id}\" is paused already");
        return Err(E2bError::new(StatusCode::CONFLICT, "paused", message));
    }
    if asked.healthy {
        let health = node.sandbox_health(id).await?;
        if !health.answers {
            let code = "sandbox_snapshot_guest_agent_unresponsive";
            let why = health.problem.unwrap_or_default();
            let message = format!("the agent in sandbox \"{id}\" does not answer: {why}");
            return Err(E2bError::new(StatusCode::CONFLICT, code, message).error_code(code));
        }
    }
    // One that sleeps is not ended when its time is over: from here on, time puts it to sleep.
    let left_ms = info
        .lease
        .as_ref()
        .map(|lease| lease.until_ms.saturating_sub(now_ms()).max(1000));
    if left_ms.is_some() && record.on_timeout == OnTimeout::Kill {
        let asleep = LeaseBody {
            for_ms: left_ms,
            ..lease(1, OnTimeout::Pause)
        };
        node.lease_sandbox(id, asleep)?;
    }
    let stops = asked.memory == Some(false);
    if stops {
        let of_record = id.to_owned();
        let change = move |door: &Door| {
            let set = |record: &mut Record| record.stopped = true;
            door.registry.sandboxes.change(&of_record, set)
        };
        keep(door, change).await?;
    }
    let done = match stops {
        true => node.do_to_sandbox(id, Verb::Stop).await.map(drop),
        false => node
            .hibernate_sandbox(id, SnapshotBody::default(), silent())
            .await
            .map(drop),
    };
    if let Err(error) = done {
        // As it was before.
        if let (Some(left_ms), OnTimeout::Kill) = (left_ms, record.on_timeout) {
            let before = LeaseBody {
                for_ms: Some(left_ms),
                ..lease(1, OnTimeout::Kill)
            };
            let _ = node.lease_sandbox(id, before);
        }
        return Err(error.into());
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Timeout {
    timeout: u64,
}

pub(super) async fn timeout(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Timeout>,
) -> Answer {
    let secs = asked.timeout.max(1);
    check_timeout(secs)?;
    let record = running(&door, &id)?;
    give_time(&door, &record, secs)?;
    let change = move |door: &Door| {
        let set = |record: &mut Record| record.timeout_secs = secs;
        door.registry.sandboxes.change(&id, set)
    };
    keep(&door, change).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refresh {
    duration: Option<u64>,
}

pub(super) async fn refreshes(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Refresh>,
) -> Answer {
    let secs = asked.duration.unwrap_or(FORK_SECS).max(1);
    check_timeout(secs)?;
    let record = running(&door, &id)?;
    let longer = LeaseBody {
        renew: true,
        ..lease(secs, record.on_timeout)
    };
    door.node.lease_sandbox(&id, longer)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn running(door: &Door, id: &str) -> Answer<Arc<Record>> {
    match door.known(id) {
        None => Err(E2bError::no_sandbox(id)),
        Some((.., Standing::Paused)) => {
            let message = format!("sandbox \"{id}\" is paused; connect to it first");
            Err(E2bError::new(StatusCode::CONFLICT, "paused", message))
        }
        Some((record, ..)) => Ok(record),
    }
}

pub(super) async fn kill(State(door): Shared, Path(id): Path<String>) -> Answer {
    if door.known(&id).is_none() {
        return Err(E2bError::no_sandbox(&id));
    }
    let of_task = Arc::clone(&door);
    to_the_end(&door, async move { end(&of_task, &id).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends a sandbox and forgets it.
pub(super) async fn end(door: &Arc<Door>, id: &str) -> Answer<()> {
    if let Some((_, info, _)) = door.known(id) {
        super::volume::detach(door, &info.id).await;
    }
    match door.node.kill_sandbox(id).await {
        Err(error) if error.code() != "unknown_sandbox" => return Err(error.into()),
        _ => {}
    }
    door.working.forget(id);
    let id = id.to_owned();
    keep(door, move |door| door.registry.sandboxes.remove(&id)).await?;
    Ok(())
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fork {
    timeout: Option<u64>,
    count: Option<usize>,
}

pub(super) async fn fork(
    State(door): Shared,
    Path(id): Path<String>,
    Body(asked): Body<Fork>,
) -> Answer {
    let secs = asked.timeout.unwrap_or(FORK_SECS).max(1);
    check_timeout(secs)?;
    let count = asked.count.unwrap_or(1);
    if !(1..=MAX_COPIES).contains(&count) {
        return Err(E2bError::bad_request(format!(
            "`count` is 1 to {MAX_COPIES}"
        )));
    }
    let Some((record, ..)) = door.known(&id) else {
        return Err(E2bError::no_sandbox(&id));
    };
    let of_task = Arc::clone(&door);
    let work = async move { Ok(copies(&of_task, &record, count, secs).await) };
    let entries = to_the_end(&door, work).await?;
    Ok((StatusCode::CREATED, Json(entries)).into_response())
}

/// Makes copies, and says of each what became of it.
async fn copies(
    door: &Arc<Door>,
    record: &Record,
    count: usize,
    secs: u64,
) -> Vec<serde_json::Value> {
    let mut entries = Vec::new();
    let failed = |error: &E2bError| {
        let code = error.status().as_u16();
        json!({"error": {"code": code, "message": error.message()}})
    };
    match copy(door, record, count, secs).await {
        Ok(made) => entries.extend(made),
        // All or none; so one after another, as far as it goes.
        Err(error) if count > 1 && error.status() == StatusCode::TOO_MANY_REQUESTS => {
            while entries.len() < count {
                match copy(door, record, 1, secs).await {
                    Ok(made) => entries.extend(made),
                    Err(error) => {
                        let rest = count - entries.len();
                        entries.extend(std::iter::repeat_n(failed(&error), rest));
                    }
                }
            }
        }
        Err(error) => entries.extend(std::iter::repeat_n(failed(&error), count)),
    }
    entries
}

async fn copy(
    door: &Arc<Door>,
    record: &Record,
    count: usize,
    secs: u64,
) -> Answer<Vec<serde_json::Value>> {
    let body = ForkBody {
        count: Some(count),
        lease: Some(lease(secs, record.on_timeout)),
        ..ForkBody::default()
    };
    let made = door.node.fork_sandbox(&record.id, body, silent()).await?;
    let mut entries = Vec::new();
    for made in made.sandboxes {
        let copy = Record {
            id: made.id.clone(),
            access_token: new_token()?,
            traffic_token: record
                .traffic_token
                .as_ref()
                .map(|_| new_token())
                .transpose()?,
            timeout_secs: secs,
            started_ms: now_ms(),
            stopped: false,
            mounts: Vec::new(),
            ..record.clone()
        };
        let kept = keep(door, move |door| door.registry.sandboxes.put(copy)).await?;
        let info = door.node.find_sandbox(&made.id)?;
        entries.push(json!({"sandbox": list::made(door, &kept, &info)}));
    }
    Ok(entries)
}
