//! The life of sandboxes after their first boot: what the API asks of [`rhizome_sandbox`], and the
//! task that ends what nobody keeps.
use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use rhizome_memory::now_ms;
use rhizome_sandbox::{
    ForkOptions, OnShutdown, Progress as SandboxProgress, Relying, ResumeOptions, SandboxError,
    SandboxId, SandboxInfo, SnapshotInfo, SnapshotOptions, SnapshotRef,
    chunks::StoreKey,
    life::{Lease, LeaseEnd, LeaseOwner},
    silent,
};
use tracing::{info, warn};

use super::{fail, names::Names, node::Node, sandbox::Bound};
use crate::{
    api::types::{
        self, SCHEMA,
        lifecycle::{
            ForkBody, Forked, Health, LeaseBody, Mended, RestoreBody, ResumeBody, Snapshot,
            SnapshotBody, SnapshotTaken, Snapshots,
        },
        sandbox::SandboxCreated,
    },
    control::audit::Note,
    error::ApiError,
    remote::{self, alarm::Asked, placement::Wish, record::Rest, records::Kept, wake::How},
};

/// Copies of one request when it does not say how many.
const DEFAULT_COPIES: usize = 1;
/// How long an action waits for what a sandbox changed in volumes to be stored.
const KEEP_CHANGES: Duration = Duration::from_secs(600);

/// What may be asked of a sandbox that takes no more than a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Hold its processors.
    Pause,
    /// Let them go on.
    Unpause,
    /// Shut its guest down and keep the disk.
    Stop,
}

/// What becomes of the sandboxes when the daemon stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OnDown {
    /// They run on.
    #[default]
    Keep,
    /// They are put to sleep.
    Hibernate,
    /// They are ended.
    Kill,
}

impl OnDown {
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, ApiError> {
        match text {
            None | Some("keep") => Ok(Self::Keep),
            Some("hibernate") => Ok(Self::Hibernate),
            Some("kill") => Ok(Self::Kill),
            Some(other) => Err(ApiError::bad_request(format!(
                "`{}` is none of `keep`, `hibernate`, `kill`",
                super::memory::clip(other)
            ))),
        }
    }

    /// What is left to do about them when the daemon has stopped answering.
    pub(crate) fn on_shutdown(self) -> OnShutdown {
        match self {
            Self::Keep | Self::Hibernate => OnShutdown::Keep,
            Self::Kill => OnShutdown::Kill,
        }
    }
}

impl Node {
    /// Does what takes no more than a word.
    pub(crate) async fn do_to_sandbox(
        &self,
        wanted: &str,
        verb: Verb,
    ) -> Result<SandboxCreated, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let sandboxes = self.sandboxes()?;
        if verb == Verb::Stop {
            // What is not a version yet stays on its disk, which is here alone.
            self.keep_changes(&id, "before it was stopped", &silent())
                .await;
        }
        let done = match verb {
            Verb::Pause => sandboxes.pause(&id).await,
            Verb::Unpause => sandboxes.unpause(&id).await,
            Verb::Stop => sandboxes.stop(&id).await,
        };
        if verb == Verb::Unpause && done.is_ok() {
            self.reopen_volumes(&id).await;
        }
        self.shown(done)
    }

    /// Boots a stopped sandbox again.
    pub(crate) async fn start_sandbox(
        &self,
        wanted: &str,
        progress: SandboxProgress,
    ) -> Result<SandboxCreated, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let started = self.sandboxes()?.start(&id, progress).await;
        if started.is_ok() {
            self.reopen_volumes(&id).await;
        }
        self.shown(started)
    }

    /// Writes a sandbox down; it goes on.
    pub(crate) async fn snapshot_sandbox(
        &self,
        wanted: &str,
        body: SnapshotBody,
        progress: SandboxProgress,
    ) -> Result<SnapshotTaken, ApiError> {
        if !body.wake_on.is_empty() {
            return Err(ApiError::bad_request("only what sleeps can be woken")
                .hint("`rhizome sandbox hibernate --wake-on …` puts it to sleep"));
        }
        let info = self.find_sandbox(wanted)?;
        let options = self.snapshot_options(&info, &body.hook, body.deadline_ms)?;
        let taken = self
            .sandboxes()?
            .snapshot(&info.id, options, Arc::clone(&progress))
            .await
            .map_err(|error| fail::sandbox(&error))?;
        self.snapshot_taken(&info, &taken, false, &body, Asked::default(), &progress)
            .await
    }

    /// Puts a sandbox to sleep.
    pub(crate) async fn hibernate_sandbox(
        &self,
        wanted: &str,
        body: SnapshotBody,
        progress: SandboxProgress,
    ) -> Result<SnapshotTaken, ApiError> {
        let info = self.find_sandbox(wanted)?;
        let asked = Asked::parse(&body.wake_on)?;
        if !asked.conditions.is_empty() && Bound::of(&info).spaces.is_empty() {
            let message = "the sandbox belongs to no space, so there is no record to wake it by";
            return Err(ApiError::new(StatusCode::CONFLICT, "no_space", message)
                .hint("create sandboxes with `--space`"));
        }
        let options = self.snapshot_options(&info, &body.hook, body.deadline_ms)?;
        self.keep_changes(&info.id, "before it slept", &progress)
            .await;
        let taken = self
            .sandboxes()?
            .hibernate(&info.id, options, Arc::clone(&progress))
            .await
            .map_err(|error| fail::sandbox(&error))?;
        self.snapshot_taken(&info, &taken, true, &body, asked, &progress)
            .await
    }

    /// Makes versions of what a sandbox changed in volumes, before it sleeps or ends. What cannot
    /// be one (the sandbox may be paused) is lost no more than the rest of the sandbox.
    async fn keep_changes(&self, sandbox: &SandboxId, why: &str, progress: &SandboxProgress) {
        let kept = self.checkpoint_volumes(sandbox, why, progress);
        match tokio::time::timeout(KEEP_CHANGES, kept).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(%sandbox, %error, "its volumes have no new version");
            }
            Err(_) => warn!(%sandbox, "its volumes have no new version in time"),
        }
    }

    /// The one place that every snapshot comes through once it is durable here: other nodes keep it
    /// too, and learn of it.
    async fn snapshot_taken(
        &self,
        info: &SandboxInfo,
        taken: &SnapshotRef,
        asleep: bool,
        body: &SnapshotBody,
        asked: Asked,
        progress: &SandboxProgress,
    ) -> Result<SnapshotTaken, ApiError> {
        let wish = match body
            .held_by
            .as_deref()
            .map(Wish::parse)
            .transpose()?
            .flatten()
        {
            Some(wish) => wish,
            None if body.held_by.is_none() => Wish::Any,
            None => {
                return Err(ApiError::bad_request("who holds copies is chosen by label")
                    .hint("as in `--held-by label=zone=home`"));
            }
        };
        let rest = if asleep { Rest::Asleep } else { Rest::Awake };
        let wake_on = asked.conditions.iter().map(remote::asleep::shown).collect();
        let how = Kept {
            replicas: body.replicas.map(usize::from),
            wish,
            held_by: body.held_by.clone(),
            wake_on: asked.conditions,
        };
        let kept = self.keep_snapshot(info, taken, rest, how, progress).await?;
        let snapshot = SnapshotInfo {
            snapshot: taken.clone(),
            sandbox: info.id,
            name: info.name.clone(),
            image: info.image.clone(),
            image_id: info.image_id.clone(),
            memory_mib: info.memory_mib,
            labels: info.labels.clone(),
            asleep,
        };
        Ok(SnapshotTaken {
            schema: SCHEMA,
            snapshot: self.snapshot_of(snapshot),
            // What nobody could write down wakes nothing.
            wake_on: if kept.record.is_some() {
                wake_on
            } else {
                Vec::new()
            },
            webhook: asked.webhook.filter(|_| kept.record.is_some()),
            kept: Some(kept),
        })
    }

    /// Wakes a sandbox that sleeps here, or lets a paused one go on.
    pub(crate) async fn resume_sandbox(
        &self,
        wanted: &str,
        body: ResumeBody,
        progress: SandboxProgress,
    ) -> Result<SandboxCreated, ApiError> {
        let info = self.find_sandbox(wanted)?;
        let how = How {
            over_contract: body.force,
            ..How::default()
        };
        if let Some(woken) = self.wake_known(&info, how, &progress).await? {
            return Ok(SandboxCreated {
                schema: SCHEMA,
                sandbox: woken.sandbox,
            });
        }
        let sandboxes = self.sandboxes()?;
        let relying = Relying {
            force: body.force,
            reliances: self.reliances(&info.labels).await?,
        };
        let mut last = None;
        for key in self.keys_of(&info)? {
            let (relying, progress) = (relying.clone(), Arc::clone(&progress));
            let done = sandboxes.resume_relying(&info.id, &key, relying, progress);
            match done.await {
                Err(error) if is_of_another_key(&error) => last = Some(error),
                done => return self.announced(done).await,
            }
        }
        let error = last.expect("there is always one key to try");
        Err(fail::sandbox(&error))
    }

    /// Makes a sandbox from a snapshot that this node keeps.
    pub(crate) async fn restore_snapshot(
        &self,
        wanted: &str,
        body: RestoreBody,
        progress: SandboxProgress,
    ) -> Result<SandboxCreated, ApiError> {
        let sandboxes = self.sandboxes()?;
        let found = sandboxes.find_snapshot(wanted);
        let found = found.map_err(|error| fail::sandbox(&error))?;
        let lease = body.lease.map(|lease| self.lease_of(lease)).transpose()?;
        let options = ResumeOptions {
            as_new: body.as_new,
            name: body.name,
            lease: lease.flatten(),
            force: body.force,
            // What is done in a copy is other work.
            reliances: match body.as_new {
                true => Vec::new(),
                false => self.reliances(&found.labels).await?,
            },
            ..ResumeOptions::default()
        };
        let bound = Bound::of_labels(&found.labels);
        let mut last = None;
        for key in self.snapshot_keys(&bound) {
            let restored = sandboxes
                .restore(
                    &found.snapshot,
                    &key,
                    options.clone(),
                    Arc::clone(&progress),
                )
                .await;
            match restored {
                Err(error) if is_of_another_key(&error) => last = Some(error),
                done => {
                    if let (Ok(copy), true) = (&done, body.as_new) {
                        self.copy_volumes(&found.sandbox, copy).await;
                    }
                    return self.announced(done).await;
                }
            }
        }
        let error = last.expect("there is always one key to try");
        Err(fail::sandbox(&error))
    }

    /// Makes copies of a sandbox.
    pub(crate) async fn fork_sandbox(
        &self,
        wanted: &str,
        body: ForkBody,
        progress: SandboxProgress,
    ) -> Result<Forked, ApiError> {
        let info = self.find_sandbox(wanted)?;
        let options = self.snapshot_options(&info, &body.hook, body.deadline_ms)?;
        let lease = body.lease.map(|lease| self.lease_of(lease)).transpose()?;
        let copies = ForkOptions {
            count: body.count.unwrap_or(DEFAULT_COPIES),
            name: body.name,
            lease: lease.flatten(),
        };
        let made = self
            .sandboxes()?
            .fork(&info.id, copies, options, progress)
            .await
            .map_err(|error| fail::sandbox(&error))?;
        self.fork_volumes(&info.id, &made).await;
        Ok(Forked {
            schema: SCHEMA,
            sandboxes: made.into_iter().map(|info| self.sandbox_of(info)).collect(),
        })
    }

    /// Sets, renews or takes away a sandbox's lease.
    pub(crate) fn lease_sandbox(
        &self,
        wanted: &str,
        body: LeaseBody,
    ) -> Result<SandboxCreated, ApiError> {
        let info = self.find_sandbox(wanted)?;
        let sandboxes = self.sandboxes()?;
        if body.renew {
            let until_ms = now_ms().saturating_add(needed(body.for_ms)?);
            return self.shown(sandboxes.renew_lease(&info.id, until_ms));
        }
        let lease = self.lease_of(body)?;
        self.shown(sandboxes.set_lease(&info.id, lease))
    }

    /// Reads a lease that somebody asks for.
    pub(crate) fn lease_of(&self, body: LeaseBody) -> Result<Option<Lease>, ApiError> {
        if body.none {
            return Ok(None);
        }
        let id = body.id.unwrap_or_else(|| self.name());
        let owner = match body.owner.as_deref() {
            None | Some("client") => LeaseOwner::Client(id),
            Some("agent") => LeaseOwner::Agent(id),
            Some("context") => LeaseOwner::Context(id),
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "`{}` is none of `client`, `agent`, `context`",
                    super::memory::clip(other)
                )));
            }
        };
        let then = body.then.as_deref().unwrap_or("hibernate");
        let then: LeaseEnd = then.parse().map_err(ApiError::bad_request)?;
        Ok(Some(Lease {
            owner,
            until_ms: now_ms().saturating_add(needed(body.for_ms)?),
            then,
        }))
    }

    /// Lists the snapshots that this node keeps.
    pub(crate) async fn snapshots(&self) -> Result<Snapshots, ApiError> {
        let sandboxes = self.sandboxes()?.clone();
        let found = super::node::blocking(move || sandboxes.snapshots()).await?;
        Ok(Snapshots {
            schema: SCHEMA,
            snapshots: found
                .into_iter()
                .map(|info| self.snapshot_of(info))
                .collect(),
        })
    }

    /// Shows one of them.
    pub(crate) fn show_snapshot(&self, wanted: &str) -> Result<SnapshotTaken, ApiError> {
        let found = self.sandboxes()?.find_snapshot(wanted);
        let found = found.map_err(|error| fail::sandbox(&error))?;
        Ok(SnapshotTaken {
            schema: SCHEMA,
            snapshot: self.snapshot_of(found),
            kept: None,
            wake_on: Vec::new(),
            webhook: None,
        })
    }

    /// Forgets one of them.
    pub(crate) async fn remove_snapshot(&self, wanted: &str) -> Result<(), ApiError> {
        let sandboxes = self.sandboxes()?;
        let found = sandboxes.find_snapshot(wanted);
        let found = found.map_err(|error| fail::sandbox(&error))?;
        let removed = sandboxes.remove_snapshot(&found.snapshot.manifest).await;
        removed.map_err(|error| fail::sandbox(&error))
    }

    /// Asks a sandbox's guest whether it answers.
    pub(crate) async fn sandbox_health(&self, wanted: &str) -> Result<Health, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let health = self.sandboxes()?.health(&id).await;
        let health = health.map_err(|error| fail::sandbox(&error))?;
        Ok(Health {
            schema: SCHEMA,
            answers: health.answers,
            ping_us: health.ping_us,
            problem: health.problem,
        })
    }

    /// Finishes what an interrupted operation left, and removes what belongs to nothing.
    pub(crate) async fn mend(&self) -> Result<Mended, ApiError> {
        // Before the store is collected.
        let volumes = self.mend_volumes().await?;
        let mended = self.sandboxes()?.mend().await;
        let mended = mended.map_err(|error| fail::sandbox(&error))?;
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let done = [
            ("actions", count(mended.actions)),
            ("monitors", count(mended.monitors)),
            ("directories", count(mended.directories)),
            ("pins", count(mended.pins) + volumes),
            ("bytes", mended.bytes),
        ];
        Ok(Mended {
            schema: SCHEMA,
            done: done.map(|(what, count)| (what.to_owned(), count)).into(),
            left: mended.left,
        })
    }

    /// Does to the sandboxes what was asked for the daemon's end.
    ///
    /// # Errors
    /// When one cannot be put to sleep; the daemon then goes on.
    pub(crate) async fn before_down(&self, what: OnDown) -> Result<(), ApiError> {
        if what != OnDown::Hibernate {
            return Ok(());
        }
        let Ok(sandboxes) = self.sandboxes() else {
            return Ok(());
        };
        let running = sandboxes.list();
        for info in running.iter().filter(|info| info.state.is_running()) {
            let id = info.id.to_string();
            self.hibernate_sandbox(&id, SnapshotBody::default(), silent())
                .await?;
        }
        Ok(())
    }

    /// Publishes what a sandbox that goes on is made of, and shows it.
    async fn announced(
        &self,
        done: Result<SandboxInfo, SandboxError>,
    ) -> Result<SandboxCreated, ApiError> {
        if let Ok(info) = &done {
            self.announce_runtime(info).await;
            self.reopen_volumes(&info.id).await;
        }
        self.shown(done)
    }

    fn shown(&self, done: Result<SandboxInfo, SandboxError>) -> Result<SandboxCreated, ApiError> {
        let info = done.map_err(|error| fail::sandbox(&error))?;
        Ok(SandboxCreated {
            schema: SCHEMA,
            sandbox: self.sandbox_of(info),
        })
    }

    fn snapshot_options(
        &self,
        info: &SandboxInfo,
        hook: &[String],
        deadline_ms: Option<u64>,
    ) -> Result<SnapshotOptions, ApiError> {
        let key = self.snapshot_key(&Bound::of(info))?;
        let mut options = SnapshotOptions::new(key);
        if !hook.is_empty() {
            options.hook = Some(hook.to_vec());
        }
        if let Some(ms) = deadline_ms {
            options.deadline = Duration::from_millis(ms);
        }
        Ok(options)
    }

    /// Returns the keys that may open what a sandbox sleeps in.
    fn keys_of(&self, info: &SandboxInfo) -> Result<Vec<StoreKey>, ApiError> {
        let keys = self.snapshot_keys(&Bound::of(info));
        if keys.is_empty() {
            return Err(ApiError::internal(
                "there is no key to open a snapshot with",
            ));
        }
        Ok(keys)
    }

    pub(crate) fn snapshot_of(&self, info: SnapshotInfo) -> Snapshot {
        let authority = self.replica.authority();
        let names = Names(&authority);
        let bound = Bound::of_labels(&info.labels);
        Snapshot {
            id: info.snapshot.manifest.to_string(),
            sandbox: info.sandbox.to_string(),
            name: info.name,
            image: info.image,
            image_id: info.image_id,
            memory_mib: info.memory_mib,
            taken_ms: info.snapshot.taken_ms,
            pause_ms: info.snapshot.pause_ms,
            bytes_read: info.snapshot.bytes_read,
            bytes_new: info.snapshot.bytes_new,
            bytes_stored: info.snapshot.bytes_stored,
            packs: info
                .snapshot
                .packs
                .iter()
                .map(ToString::to_string)
                .collect(),
            asleep: info.asleep,
            spaces: names.spaces(&bound.spaces),
        }
    }
}

fn needed(for_ms: Option<u64>) -> Result<u64, ApiError> {
    for_ms.ok_or_else(|| ApiError::bad_request("a lease needs `for_ms`, or `none`"))
}

/// Whether a snapshot is there and this key does not open it.
fn is_of_another_key(error: &SandboxError) -> bool {
    matches!(error, SandboxError::Chunks(error) if error.is_of_another_key())
}

/// Returns a lease as the API shows it.
pub(crate) fn lease_shown(lease: &Lease) -> types::lifecycle::Lease {
    let (owner, id) = match &lease.owner {
        LeaseOwner::Client(id) => ("client", id),
        LeaseOwner::Agent(id) => ("agent", id),
        LeaseOwner::Context(id) => ("context", id),
    };
    types::lifecycle::Lease {
        owner: owner.to_owned(),
        id: id.clone(),
        until_ms: lease.until_ms,
        then: lease.then.to_string(),
    }
}

/// Ends the sandboxes whose leases end, until the node stops.
pub(crate) async fn end_leases(node: Arc<Node>) {
    loop {
        let Ok(sandboxes) = node.sandboxes() else {
            return;
        };
        let (id, then) = tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            ended = sandboxes.lease_ended() => ended,
        };
        info!(sandbox = %id, %then, "a lease ended");
        let node = Arc::clone(&node);
        let tasks = node.tasks.clone();
        // One that takes long to write down holds up no other.
        tasks.spawn(async move {
            let wanted = id.to_string();
            let ended = match then {
                LeaseEnd::Kill => {
                    // Nobody is there to say that what it made is not worth keeping.
                    node.keep_changes(&id, "before its lease ended", &silent())
                        .await;
                    node.kill_sandbox(&wanted).await
                }
                LeaseEnd::Hibernate => node
                    .hibernate_sandbox(&wanted, SnapshotBody::default(), silent())
                    .await
                    .map(drop),
            };
            let outcome = match &ended {
                Ok(()) => "ok",
                Err(error) => error.code(),
            };
            let note = Note::of_daemon("lease.ended", Some(wanted), outcome);
            node.audit.note(note.detail(then.to_string())).await;
            if let Err(error) = ended {
                warn!(sandbox = %id, %then, %error, "the end of a lease is tried again");
            }
        });
    }
}
