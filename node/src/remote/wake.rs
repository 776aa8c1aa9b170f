//! Waking a sandbox that sleeps, on any node that has its space.
//!
//! The record says what it sleeps in and who holds that; it is in every reader's own view of the
//! memory, so the node it slept on need not be there any more. Exactly one node wakes it while the
//! nodes can talk to each other: before anything is fetched, the claim is put to one node that all
//! of them agree on, the one that ran it last, or else the first by rendezvous. Nodes that a
//! partition keeps apart may both wake it; their two records then stand side by side.
use std::{collections::BTreeMap, sync::Arc};

use axum::http::StatusCode;
use bytes::Bytes;
use rhizome_identity::{AgentId, NodeId, Role};
use rhizome_memory::now_ms;
use rhizome_sandbox::{
    GuestFile, Progress, ProgressEvent, ResumeOptions, SandboxId, SandboxInfo,
    chunks::{MAX_FILE_BYTES, ReadChunks},
    egress::Policy,
    life::Phase,
};

use super::{
    alarm::condition::Cause,
    ask::find_node,
    claims::Taken,
    hold::seed,
    notes::Lease,
    placement::{self, Need, Wish, rank, rendezvous},
    record::{Found, Record, Rest},
};
use crate::{
    api::types::{
        SCHEMA,
        remote::{ClaimBody, ResumeBody, Resumed},
    },
    daemon::{
        caller::Caller,
        context::WORK_LABEL,
        fail,
        names::Names,
        node::Node,
        sandbox::{AGENT_LABEL, Bound, SPACES_LABEL},
    },
    error::ApiError,
};

/// What a manifest is called in the chunk store.
pub(crate) const MANIFEST: &str = "snapshot";
/// Most nodes that are asked to decide, one after the other.
const MAX_ARBITERS: usize = 5;
/// Where a guest reads why it was woken.
const WAKE_FILE: &str = "/run/rhizome/wake.json";
/// Where it reads what was sent to its webhook.
const WAKE_BODY: &str = "/run/rhizome/wake.body";
/// For those who may read what its root is told.
const WAKE_MODE: u32 = 0o640;
/// Label of a sandbox whose agent is another one than where it came from: the one it had.
const FORMER_AGENT_LABEL: &str = "rhizome.agent.was";

/// How a sandbox is woken: what the wake-up goes over, and what holds here.
#[derive(Debug, Clone, Default)]
pub(crate) struct How {
    /// Others that run it or may, and what it did since it slept last.
    pub(crate) over_others: bool,
    /// What it relies on and is not here.
    pub(crate) over_contract: bool,
    /// What it may reach here, instead of what it might where it slept.
    pub(crate) wall: Option<Policy>,
    /// Whether it may use this node's secrets of the names that it used where it slept: if the
    /// node's owner asks for it.
    pub(crate) secrets: bool,
    /// Why, if nobody asks for it in person.
    pub(crate) cause: Option<Cause>,
    /// What was sent to its webhook.
    pub(crate) body: Option<Bytes>,
}

impl How {
    /// Everything, or nothing.
    fn all(force: bool) -> Self {
        Self {
            over_others: force,
            over_contract: force,
            secrets: true,
            ..Self::default()
        }
    }
}

impl Node {
    /// Wakes a sandbox where the request says.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        caller: &Caller,
        body: ResumeBody,
        progress: Progress,
    ) -> Result<Resumed, ApiError> {
        let found = self.find_record(caller, &body.what).await?;
        if let Caller::Peer(peer) = caller {
            let what = "the sandbox";
            self.peer_may(peer, &found.record.spaces, Role::Writer, what)?;
            let facts = self.own_facts().await?;
            placement::fits(&facts, &need_of(&found.record), true)
                .map_err(|unfit| placement::nobody(&[ApiError::denied(unfit)]))?;
            // A hole in this node's wall is not for a writer to bring along.
            let admin = self.peer_may(peer, &found.record.spaces, Role::Admin, what);
            let how = How {
                wall: admin.is_err().then(Policy::none),
                // Nor are this node's secrets another's to hand out.
                secrets: false,
                ..How::all(body.force)
            };
            return self.wake_here(&found, how, &progress).await;
        }
        let Some(on) = &body.on else {
            return self
                .wake_here(&found, How::all(body.force), &progress)
                .await;
        };
        let targets = match Wish::parse(on)? {
            Some(wish) => self.places_for(&found.record, &wish).await?,
            None => vec![find_node(&*self.need_mesh()?, on)?],
        };
        let mut refusals = Vec::new();
        for target in targets {
            let woken = if target == self.id() {
                self.wake_here(&found, How::all(body.force), &progress)
                    .await
            } else {
                let there = ResumeBody {
                    what: found.record.sandbox.to_string(),
                    on: None,
                    force: body.force,
                };
                let told = |step: crate::api::types::Progress| {
                    progress(ProgressEvent {
                        step: &step.step,
                        detail: &step.detail,
                        done: step.done,
                        total: step.total,
                    });
                };
                self.command(target, "/v1/resume", &there, told).await
            };
            match woken {
                Ok(woken) => return Ok(woken),
                // Another node would say the same.
                Err(error) if matches!(error.code(), "runs_elsewhere" | "runner_gone") => {
                    return Err(error);
                }
                Err(error) => refusals.push(error),
            }
        }
        match refusals.len() {
            1 => Err(refusals.swap_remove(0)),
            _ => Err(placement::nobody(&refusals)),
        }
    }

    /// Returns the nodes that could run it, the best first.
    async fn places_for(&self, record: &Record, wish: &Wish) -> Result<Vec<NodeId>, ApiError> {
        let need = need_of(record);
        let candidates = self.candidates(wish, &need).await?;
        // Equal ones in the order that every asker sees for this sandbox.
        let (fit, _) = rank(wish, &need, &seed(&record.sandbox), candidates);
        Ok(fit.into_iter().map(|candidate| candidate.node).collect())
    }

    /// Wakes it on this node.
    pub(crate) async fn wake_here(
        &self,
        found: &Found,
        how: How,
        progress: &Progress,
    ) -> Result<Resumed, ApiError> {
        self.sandboxes()?;
        if !how.over_others {
            self.may_wake(&found.record)?;
            self.heeds_leases(found).await?;
        }
        let begun = self.claims.begin(found.record.sandbox);
        let _waking = begun.ok_or_else(|| runs_elsewhere(&self.name()))?;
        let arbiter = self.claim(found, how.over_others).await?;
        // Also for those who would ask another node: it reaches them on any way there is.
        self.say_lease(found, true).await;
        match self.wake_claimed(found, how, progress).await {
            Ok(woken) => Ok(woken),
            Err(error) => {
                self.return_claim(&claim_of(found), arbiter).await;
                self.say_lease(found, false).await;
                Err(error)
            }
        }
    }

    /// Refuses if another node said that it wakes it: one that is connected and so has not given
    /// up. Whoever was asked to decide need not be the one that decided then.
    async fn heeds_leases(&self, found: &Found) -> Result<(), ApiError> {
        let ledger = self.ledger_if_any().await?;
        let connected = self.connected();
        let leases = ledger.leases(found);
        let other = leases
            .iter()
            .map(|(_, node)| *node)
            .find(|node| *node != self.id() && connected.contains(node));
        let Some(other) = other else { return Ok(()) };
        // One that died in the middle and came back does not run it, and says so when it is asked.
        let claim = claim_of(found);
        match self.ask_claim(vec![other], &claim).await {
            Ok(granted) => {
                self.return_claim(&claim, granted).await;
                Ok(())
            }
            Err(Taken { why, .. }) => Err(runs_elsewhere(&why)),
        }
    }

    /// Publishes that this node wakes a sandbox, or gave it up.
    async fn say_lease(&self, found: &Found, stands: bool) {
        let record = &found.record;
        let lease = Lease {
            sandbox: record.sandbox,
            record: found.fragment,
            node: self.id(),
            stands,
        };
        let draft = lease.draft(&record.called(), &self.name());
        if let Err(error) = self.publish_draft(found.space, draft).await {
            // The claim stands; this is for those who are not asked.
            tracing::warn!(sandbox = %record.sandbox, %error, "a lease could not be published");
        }
    }

    /// Wakes a sandbox that sleeps here and of which the mesh has a record; `None` for another one.
    pub(crate) async fn wake_known(
        &self,
        info: &SandboxInfo,
        how: How,
        progress: &Progress,
    ) -> Result<Option<Resumed>, ApiError> {
        let bound = Bound::of(info);
        let Some(space) = bound.spaces.first() else {
            return Ok(None);
        };
        if info.state.phase() != Phase::Hibernated {
            return Ok(None);
        }
        match self.record_of(space, &info.id).await? {
            Some(found) => self.wake_here(&found, how, progress).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns what is known of a sandbox that slept here, wherever it was since.
    fn asleep_here(&self, sandbox: &SandboxId) -> Option<SandboxInfo> {
        let info = self.sandboxes().ok()?.get(&sandbox.to_string()).ok()?;
        let asleep = matches!(info.state.phase(), Phase::Hibernated | Phase::Lost);
        (info.id == *sandbox && asleep).then_some(info)
    }

    /// Says whether the record lets it be woken here without losing anything.
    fn may_wake(&self, record: &Record) -> Result<(), ApiError> {
        let authority = self.replica.authority();
        let runner = Names(&authority).node(&record.runner);
        match record.rest {
            Rest::Asleep => Ok(()),
            Rest::Ended => {
                Err(
                    ApiError::new(StatusCode::GONE, "sandbox_gone", "the sandbox was ended")
                        .hint("add `--force` to wake it as it was when it slept last"),
                )
            }
            Rest::Awake if record.runner == self.id() => Ok(()),
            Rest::Awake if self.connected().contains(&record.runner) => {
                Err(runs_elsewhere(&runner.to_string()))
            }
            Rest::Awake => {
                let message = format!(
                    "the sandbox ran on `{runner}`, which is gone; what it did since its last snapshot is lost"
                );
                Err(ApiError::new(StatusCode::CONFLICT, "runner_gone", message)
                    .hint("add `--force` to wake it as it was then"))
            }
        }
    }

    /// Asks the node that all agree on whether this one may wake it; returns which that was.
    pub(crate) async fn claim(
        &self,
        found: &Found,
        force: bool,
    ) -> Result<Option<NodeId>, ApiError> {
        let claim = claim_of(found);
        let asked = self.ask_claim(self.arbiters(found), &claim).await;
        match asked {
            Ok(arbiter) => Ok(arbiter),
            Err(Taken { by, .. }) if force => Ok(Some(by)),
            Err(Taken { why, .. }) => Err(runs_elsewhere(&why)),
        }
    }

    /// Returns the nodes that may decide, in the order in which everybody asks them.
    fn arbiters(&self, found: &Found) -> Vec<NodeId> {
        let authority = self.replica.authority();
        let mut nodes = self.connected();
        nodes.push(self.id());
        nodes.retain(|node| {
            let role = authority.role_in(node, &found.space);
            role.is_some_and(Role::can_write)
        });
        arbiters(nodes, &found.record)
    }

    /// Returns whether a sandbox runs here, or is about to.
    pub(crate) fn runs(&self, sandbox: &SandboxId) -> bool {
        let all = self.sandboxes();
        let info = all.ok().and_then(|all| all.get(&sandbox.to_string()).ok());
        info.is_some_and(|info| info.id == *sandbox && info.state.is_running())
    }

    async fn wake_claimed(
        &self,
        found: &Found,
        how: How,
        progress: &Progress,
    ) -> Result<Resumed, ApiError> {
        let record = &found.record;
        let key = self.store_key_of(&found.space, record.epoch)?;
        self.pin_for_wake(record).await?;
        let holders = self.holders_of(found).await?;
        let manifest = [record.snapshot.manifest];
        let bytes = self
            .bring(&manifest, &holders, MAX_FILE_BYTES, progress)
            .await?;
        let image = self
            .bring_image(&record.image_id, &holders, progress)
            .await?;
        let sandboxes = self.sandboxes()?;
        let was = sandboxes.remembered(&record.snapshot, &key).await;
        let was = was.map_err(|error| fail::sandbox(&error))?;
        // Memory first: what comes behind is asked for while the sandbox runs.
        let streamed = self
            .stream(&record.sandbox, &record.snapshot, &key, holders)
            .await?;
        let (mut labels, agent, mut notes) = match self.asleep_here(&record.sandbox) {
            // It comes back to where it was, and to the agent it had.
            Some(info) => {
                let authority = self.replica.authority();
                let agent = Bound::of(&info).agent;
                let agent = agent.map(|agent| (agent, Names(&authority).agent(&agent).name));
                (info.labels, agent, Vec::new())
            }
            None => self.labels_here(record).await?,
        };
        if let Some(work) = was.labels.get(WORK_LABEL) {
            let known = labels.entry(WORK_LABEL.to_owned());
            known.or_insert_with(|| work.clone());
        }
        let secrets = match how.secrets {
            true => was.secrets.clone(),
            false => Vec::new(),
        };
        let cause = how.cause.unwrap_or(Cause::Asked);
        let options = ResumeOptions {
            secrets,
            tell: self.woken_files(found, &cause, how.body),
            reliances: self.reliances(&labels).await?,
            labels: Some(labels),
            force: how.over_contract,
            network: how.wall,
            arriving: streamed
                .clone()
                .map(|streamed| streamed as Arc<dyn ReadChunks>),
            ..ResumeOptions::default()
        };
        let restored = sandboxes.restore(&record.snapshot, &key, options, Arc::clone(progress));
        let info: SandboxInfo = restored.await.map_err(|error| fail::sandbox(&error))?;
        if info.id != record.sandbox {
            // The manifest is another sandbox's: whoever wrote the record lied.
            let _ = sandboxes.kill(&info.id).await;
            let message = "the record names the snapshot of another sandbox";
            return Err(ApiError::new(StatusCode::CONFLICT, "bad_record", message));
        }
        self.announce_runtime(&info).await;
        notes.extend(self.reopen_volumes(&info.id).await);
        notes.extend(self.secrets_missed(&was.secrets, &info).await?);
        // From the one that it went to sleep in.
        let differences = was.fingerprint.differences(&info.fingerprint);
        let told = differences.iter();
        notes.extend(told.map(|one| format!("its runtime differs: {one}")));
        let woken_by = Some(cause).filter(|cause| *cause != Cause::Asked);
        let changed = self
            .record_change(found.space, record, Rest::Awake, agent, woken_by)
            .await;
        if let Err(error) = changed {
            notes.push(format!(
                "that it runs here could not be written down: {error}"
            ));
        }
        let came = streamed
            .as_ref()
            .map_or(0, |streamed| streamed.came_bytes());
        if let Some(streamed) = streamed {
            self.keep_streaming(found.clone(), streamed)?;
        }
        if !found.forks.is_empty() {
            notes.push(format!(
                "{} other versions of it were made without knowing of this one",
                found.forks.len()
            ));
        }
        Ok(Resumed {
            schema: SCHEMA,
            sandbox: self.sandbox_of(info),
            taken_ms: record.snapshot.taken_ms,
            fetched_bytes: bytes + image + came,
            notes,
        })
    }

    /// Returns who holds what a sandbox sleeps in, by all that is known now.
    async fn holders_of(&self, found: &Found) -> Result<Vec<NodeId>, ApiError> {
        let manifest = &found.record.snapshot.manifest;
        let newest = self.holders_now(&found.record.sandbox, manifest).await;
        Ok(newest.unwrap_or_else(|| found.holders.clone()))
    }

    /// Returns what tells the programs of a sandbox why it was woken: a file, replaced as a whole,
    /// that a program can watch for, and that is there before any of them goes on. What was sent to
    /// a webhook lies beside it.
    fn woken_files(&self, found: &Found, cause: &Cause, body: Option<Bytes>) -> Vec<GuestFile> {
        let file = |path: &str, bytes: Vec<u8>| GuestFile {
            path: path.to_owned(),
            mode: WAKE_MODE,
            bytes,
        };
        let mut said = serde_json::to_value(cause).unwrap_or_default();
        if let Some(fields) = said.as_object_mut() {
            fields.insert("schema".to_owned(), SCHEMA.into());
            fields.insert("node".to_owned(), self.name().into());
            fields.insert("woken_ms".to_owned(), now_ms().into());
            fields.insert("slept_ms".to_owned(), found.record.snapshot.taken_ms.into());
        }
        let body = body.map(|body| file(WAKE_BODY, body.to_vec()));
        let said = file(WAKE_FILE, format!("{said}\n").into_bytes());
        body.into_iter().chain([said]).collect()
    }

    /// Returns the labels it has here, and its agent.
    ///
    /// An agent speaks where its key lies. If that is another node, the sandbox works for one of
    /// this node from now on, made for the purpose and named after the other.
    async fn labels_here(
        &self,
        record: &Record,
    ) -> Result<
        (
            BTreeMap<String, String>,
            Option<(AgentId, String)>,
            Vec<String>,
        ),
        ApiError,
    > {
        let mut labels = record.labels.clone();
        let spaces: Vec<_> = record.spaces.iter().map(ToString::to_string).collect();
        labels.insert(SPACES_LABEL.to_owned(), spaces.join(","));
        let Some((was, name)) = &record.agent else {
            return Ok((labels, None, Vec::new()));
        };
        if self.local_agent(was).is_ok() {
            labels.insert(AGENT_LABEL.to_owned(), was.to_string());
            return Ok((labels, record.agent.clone(), Vec::new()));
        }
        let authority = self.need_mesh()?;
        let home = authority
            .agent(was)
            .map_or(record.runner, |agent| agent.node);
        let own = self
            .agent_for(&authority, &home, name, &record.spaces)
            .await?;
        let id = Names(&self.replica.authority()).find_agent(&self.id(), &own)?;
        labels.insert(AGENT_LABEL.to_owned(), id.to_string());
        labels.insert(FORMER_AGENT_LABEL.to_owned(), was.to_string());
        let note = format!(
            "it works for the agent {own} of this node: the key of {name} is on {}",
            Names(&authority).node(&home)
        );
        Ok((labels, Some((id, own)), vec![note]))
    }
}

pub(crate) fn need_of(record: &Record) -> Need {
    Need {
        memory_mib: u64::from(record.memory_mib),
        disk_mib: record.snapshot.bytes_read >> 20,
        image: Some(record.image_id.clone()),
        snapshot: Some(record.snapshot.manifest.to_string()),
    }
}

/// Orders those who may decide: who ran it last, then by rendezvous.
fn arbiters(mut nodes: Vec<NodeId>, record: &Record) -> Vec<NodeId> {
    let seed = seed(&record.sandbox);
    nodes.sort_by_cached_key(|node| {
        let last = *node == record.runner;
        std::cmp::Reverse((last, rendezvous(&seed, node)))
    });
    nodes.truncate(MAX_ARBITERS);
    nodes
}

pub(super) fn claim_of(found: &Found) -> ClaimBody {
    ClaimBody {
        space: found.space.to_string(),
        sandbox: found.record.sandbox.to_string(),
        record: found.fragment.to_string(),
        release: false,
    }
}

fn runs_elsewhere(node: &str) -> ApiError {
    let message = format!("the sandbox runs on `{node}`, or is being woken there");
    ApiError::new(StatusCode::CONFLICT, "runs_elsewhere", message)
        .hint(format!("use it there with `--on {node}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    #[test]
    fn every_node_asks_the_same_one_first() {
        let mut record = super::super::record::tests::record(1);
        record.runner = node(7);
        let nodes: Vec<_> = (1..=7).map(node).collect();
        let mut other = nodes.clone();
        other.reverse();
        let order = arbiters(nodes.clone(), &record);
        assert_eq!(order, arbiters(other, &record));
        assert_eq!(order[0], node(7), "who ran it last knows best");
        record.runner = node(99);
        let order = arbiters(nodes, &record);
        assert_eq!(order.len(), MAX_ARBITERS);
        assert_ne!(order[0], node(99), "who is gone decides nothing");
    }
}
