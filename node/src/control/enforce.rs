//! The task that reads what sandboxes use, and puts those to sleep whose quota is used up.
//!
//! Sleep takes nothing from anyone: memory, processes and files are there when there is quota
//! again. Nobody is put to sleep silently: the audit log says it, and a memory in the sandbox's
//! first space tells its agent, wherever that looks.

use std::{sync::Arc, time::Duration};

use rhizome_memory::now_ms;
use rhizome_sandbox::{OverQuota, SandboxInfo, SandboxState, silent};
use tracing::{debug, info, warn};

use super::{audit::Note, quota::Key};
use crate::{
    api::types::{lifecycle::SnapshotBody, memory::PublishBody},
    daemon::{
        caller::Caller,
        node::{Node, blocking},
        sandbox::Bound,
    },
    error::ApiError,
};

/// How often what runs is read. What a crash of the host can lose is no more than this.
pub(crate) const TICK: Duration = Duration::from_secs(15);
/// How often what rests is.
const REST: Duration = Duration::from_secs(10 * 60);

/// What was said about a sandbox that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// About which quota.
    key: Key,
    /// How the last try to put it to sleep went; `None` while it is under way.
    outcome: Option<String>,
}

/// Reads and enforces until the node stops.
pub(crate) async fn keep(node: Arc<Node>) {
    let Ok(sandboxes) = node.sandboxes().cloned() else {
        return;
    };
    loop {
        if let Err(error) = node.measure().await {
            warn!(%error, "what sandboxes use was not written down; it is tried again");
        }
        node.enforce();
        let runs = sandboxes.list().iter().any(|info| info.state.is_running());
        let pause = if runs { TICK } else { REST };
        tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = sandboxes.last_reading() => {}
            // What begins to run is read soon, however long the pause was.
            () = sandboxes.began() => {}
        }
    }
}

impl Node {
    /// Reads what every sandbox uses and every volume takes, and writes it down.
    pub(crate) async fn measure(&self) -> Result<(), ApiError> {
        let Ok(sandboxes) = self.sandboxes().cloned() else {
            return Ok(());
        };
        let limits = Arc::clone(&self.limits);
        let volumes = self.volume_holdings().await?;
        let observed = blocking(move || {
            let readings = sandboxes.readings();
            let upto = readings.upto;
            limits.meter.observe(readings, &volumes)?;
            sandboxes.forget_last_readings(upto);
            Ok::<_, super::usage::UsageError>(())
        });
        observed
            .await?
            .map_err(|error| super::answers::unwritten(&error))
    }

    /// Puts every sandbox to sleep whose quota is used up; the work goes on in tasks.
    pub(crate) fn enforce(self: &Arc<Self>) {
        let Ok(sandboxes) = self.sandboxes() else {
            return;
        };
        let list = sandboxes.list();
        let rests =
            |info: &SandboxInfo| matches!(info.state, SandboxState::Ready | SandboxState::Paused);
        self.told().retain(|id, _| {
            list.iter()
                .any(|info| info.id == *id && info.state.is_running())
        });
        for info in list.into_iter().filter(rests) {
            let Some(over) = self.limits.over(&info.labels) else {
                self.told().remove(&info.id);
                continue;
            };
            let before = self.told().get(&info.id).cloned();
            if before.as_ref().is_some_and(|told| told.outcome.is_none()) {
                continue; // It is under way.
            }
            let first = before.as_ref().is_none_or(|told| told.key != over.key);
            let told = Told {
                key: over.key.clone(),
                outcome: None,
            };
            self.told().insert(info.id, told);
            let why = self.limits.explain(now_ms(), &over);
            let last = before.and_then(|told| told.outcome);
            let node = Arc::clone(self);
            self.tasks.spawn(async move {
                node.put_to_sleep(&info, &over.key, &why, first, last).await;
            });
        }
    }

    async fn put_to_sleep(
        self: &Arc<Self>,
        info: &SandboxInfo,
        key: &Key,
        why: &OverQuota,
        first: bool,
        last: Option<String>,
    ) {
        info!(sandbox = %info.id, quota = %key.resource, "a quota is used up; the sandbox is put to sleep");
        let wanted = info.id.to_string();
        if first {
            // Before it sleeps, so that what runs in it can read it too.
            self.tell_agent(info, why).await;
        }
        let slept = self
            .hibernate_sandbox(&wanted, SnapshotBody::default(), silent())
            .await;
        let outcome = match &slept {
            Ok(_) => "ok",
            Err(error) => error.code(),
        };
        // One that cannot sleep is tried at every tick, and noted when that goes otherwise.
        if last.as_deref() != Some(outcome) {
            let note = Note::of_daemon("quota.hibernate", Some(wanted), outcome);
            self.audit.note(note.detail(why.to_string())).await;
        }
        if let Err(error) = &slept {
            warn!(sandbox = %info.id, %error, "a sandbox over its quota cannot be put to sleep yet");
        }
        if let Some(told) = self.told().get_mut(&info.id) {
            told.outcome = Some(outcome.to_owned());
        }
    }

    /// Leaves a memory for the agent of a sandbox.
    async fn tell_agent(&self, info: &SandboxInfo, why: &OverQuota) {
        let bound = Bound::of(info);
        let Some(space) = bound.spaces.first() else {
            return; // Nobody works in it but the owner, who has the audit log.
        };
        let name = info.name.clone().unwrap_or_else(|| info.id.to_string());
        let body = PublishBody {
            agent: bound.agent.map(|agent| agent.to_string()),
            space: Some(space.to_string()),
            kind: "observation".to_owned(),
            title: format!("the sandbox {name} was put to sleep: a quota is used up"),
            text: format!(
                "{}.\nThe sandbox {} sleeps, with its memory, processes and files; it can be resumed once there is quota again.\nTo go on: {}.",
                why, info.id, why.hint
            ),
            tags: vec!["quota".to_owned()],
            evidence: vec![format!("sandbox {}", info.id)],
            ..PublishBody::default()
        };
        if let Err(error) = self.publish(&Caller::Owner, body).await {
            debug!(%error, sandbox = %info.id, "the agent could not be told of its quota");
        }
    }

    fn told(
        &self,
    ) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<rhizome_sandbox::SandboxId, Told>>
    {
        let told = self.limits.told.lock();
        told.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
