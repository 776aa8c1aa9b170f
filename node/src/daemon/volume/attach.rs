//! Volumes in the sandboxes of this node.
//!
//! That a volume is attached is written in the memory of its space, with a lease; whichever node
//! runs the sandbox serves it. After a restart of the daemon, or when the sandbox wakes on another
//! node, the keeper finds the record and the guest goes on where it was.

mod checkpoint;
mod live;
mod tend;

use std::{
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use rhizome_identity::{Hash, NodeId, Role};
use rhizome_memory::FragmentId;
use rhizome_sandbox::{
    Progress, SandboxId, SandboxInfo,
    channel::GuestChannel,
    chunks::ReadChunks,
    volume::{
        Content,
        attach::{AttachError, Attachment, Mount},
    },
};

use self::live::{Live, State, lock};
pub(crate) use self::{live::Volumes, tend::keep_volumes};
use super::{AttachedRecord, Known, Node, Record, VolumeId, fail, now_ms};
use crate::{
    api::types::{
        SCHEMA,
        remote::ClaimBody,
        volume::{VolumeAttachBody, VolumeDetachBody, VolumeShown},
    },
    daemon::{caller::Caller, sandbox::Bound},
    error::ApiError,
    remote::{
        arriving::{Arriving, Wanted},
        placement::rendezvous,
    },
};

/// For how long a writer is alone without saying so again.
const LEASE_MS: u64 = 30 * 60 * 1_000;
/// How long until everybody who is connected has heard who writes, and no claim is needed.
const CLAIM_FOR: Duration = Duration::from_secs(20);
/// Most nodes that are asked to decide, one after the other.
const MAX_ARBITERS: usize = 5;
/// Shortest time between checkpoints.
const MIN_EVERY_SECS: u64 = 5;

impl Node {
    /// Attaches a volume to a sandbox of this node.
    pub(crate) async fn attach_volume(
        self: Arc<Self>,
        wanted: String,
        body: VolumeAttachBody,
        progress: Progress,
    ) -> Result<VolumeShown, ApiError> {
        let _one_at_a_time = self.volumes.changing.lock().await;
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        let info = self.find_sandbox(&body.sandbox)?;
        self.belongs(&known, &info)?;
        if body.every_secs != 0 && body.every_secs < MIN_EVERY_SECS {
            let message = format!("checkpoints are at least {MIN_EVERY_SECS} s apart");
            return Err(ApiError::bad_request(message));
        }
        if !body.read_only && !body.force {
            self.free_to_write(&known, &info)?;
        }
        if !body.read_only {
            // What is changed becomes versions, also where nobody can be told of it.
            self.may_store(&known.space, Bound::of(&info).agent).await?;
        }
        let version = known.choose(body.version.as_deref(), body.newest)?;
        let record = AttachedRecord {
            volume: known.volume.volume,
            sandbox: info.id,
            node: self.id(),
            path: body.path,
            writable: !body.read_only,
            base: version.version,
            last: None,
            every_secs: body.every_secs,
            until_ms: now_ms() + LEASE_MS,
            attached: true,
        };
        if self.volumes.serves(&info.id, &record.volume) {
            let message = format!(
                "the volume `{}` is attached there already",
                known.volume.name
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "attached", message));
        }
        let claim = match record.writable && !body.force {
            true => self.claim_to_write(&known).await?,
            false => None,
        };
        let served = self.serve_volume(&known, record, &progress).await;
        let record = match served {
            Ok(record) => record,
            Err(error) => {
                self.return_claim(&claim_of(&known), claim).await;
                return Err(error);
            }
        };
        let mut known = known;
        known.attached.retain(|old| old.sandbox != record.sandbox);
        known.attached.push(record.clone());
        let published = self
            .publish_volume(known.space, &Record::Attached(record.clone()))
            .await;
        if let Some(live) = self.volumes.live().get(&(record.sandbox, record.volume)) {
            *lock(&live.claim) = claim;
        }
        if let Err(error) = published {
            // Nobody would serve it after a restart: rather not at all.
            let gone = self.volumes.live().remove(&(record.sandbox, record.volume));
            let channel = self.guest_of(&record.sandbox).await;
            if let (Some(live), Ok(channel)) = (gone, channel) {
                let _ = live.attachment.close(&channel, true).await;
            }
            self.return_claim(&claim_of(&known), claim).await;
            return Err(error);
        }
        if claim.is_some() {
            let (node, of) = (Arc::clone(&self), known.clone());
            self.tasks.spawn(async move {
                tokio::select! {
                    () = node.stop.cancelled() => {}
                    () = tokio::time::sleep(CLAIM_FOR) => node.return_claim(&claim_of(&of), claim).await,
                }
            });
        }
        Ok(VolumeShown {
            schema: SCHEMA,
            volume: self.volume_shown(&known),
        })
    }

    /// A guest gets no volume of a space that its sandbox has nothing to do with.
    fn belongs(&self, known: &Known, info: &SandboxInfo) -> Result<(), ApiError> {
        let bound = Bound::of(info);
        if bound.spaces.is_empty() || bound.spaces.contains(&known.space) {
            return Ok(());
        }
        let authority = self.replica.authority();
        let space = super::Names(&authority).space(&known.space);
        Err(ApiError::denied(format!(
            "the sandbox may not use the space `{space}`, in which the volume is"
        ))
        .hint("create the sandbox with `--space`"))
    }

    fn free_to_write(&self, known: &Known, info: &SandboxInfo) -> Result<(), ApiError> {
        let now = now_ms();
        let writer = known.attached.iter().find(|other| {
            other.attached && other.writable && other.until_ms > now && other.sandbox != info.id
        });
        let Some(writer) = writer else { return Ok(()) };
        let authority = self.replica.authority();
        let node = super::Names(&authority).node(&writer.node);
        Err(busy(format!(
            "the sandbox {} on `{node}` may write the volume `{}` until its lease ends",
            writer.sandbox, known.volume.name
        )))
    }

    /// Mounts a volume in its sandbox, or goes on serving it, and remembers it.
    async fn serve_volume(
        &self,
        known: &Known,
        record: AttachedRecord,
        progress: &Progress,
    ) -> Result<AttachedRecord, ApiError> {
        let last = record.last;
        let record = self.serve_base(known, record, progress).await?;
        let last = last.filter(|last| record.last.is_none() && known.versions.contains_key(last));
        let Some(last) = last else { return Ok(record) };
        // The guest knows nothing of what it changed. If it was booted anew, and so has no changes,
        // it goes on from what became of them; if it has some, or uses the volume, it woke from a
        // sleep before that, and goes its own way.
        let key = (record.sandbox, record.volume);
        let live = self.volumes.live().get(&key).cloned();
        let channel = self.guest_of(&record.sandbox).await?;
        if let Some(live) = live
            && record.writable
            && live
                .attachment
                .is_unchanged(&channel)
                .await
                .unwrap_or(false)
            && live.attachment.close(&channel, false).await.is_ok()
        {
            self.volumes.live().remove(&key);
            let record = AttachedRecord {
                base: last,
                ..record
            };
            return self.serve_base(known, record, progress).await;
        }
        Ok(record)
    }

    /// Returns this node, for what outlives the request.
    pub(crate) fn shared(&self) -> Result<Arc<Self>, ApiError> {
        let node = self.volumes.node.get().and_then(Weak::upgrade);
        node.ok_or_else(|| ApiError::internal("the node is starting or stopping"))
    }

    async fn serve_base(
        &self,
        known: &Known,
        record: AttachedRecord,
        progress: &Progress,
    ) -> Result<AttachedRecord, ApiError> {
        let base = known.versions.get(&record.base).cloned();
        let base = base
            .ok_or_else(|| ApiError::not_found("the version that is attached is not known here"))?;
        let tree = self.open_version(known, &base, progress).await?;
        let key = self.store_key_of(&known.space, base.epoch)?;
        let node = self.shared()?;
        let holders = known.holders_of(&base);
        let wanted = Wanted {
            packs: tree.packs.clone(),
            holders,
            ..Wanted::default()
        };
        let (chunks, fetching) = Arriving::open(&node, key, wanted).await?;
        let mount = Mount {
            volume: record.volume.0,
            path: record.path.clone(),
            writable: record.writable,
        };
        let channel = self.guest_of(&record.sandbox).await?;
        let reading: Arc<dyn ReadChunks> = Arc::<Arriving>::clone(&chunks);
        let attachment = Attachment::open(&channel, mount, tree.root.clone(), reading).await;
        let attachment = attachment.map_err(|error| attach(&error))?;
        // Of what version its changes are is the guest's to know: one that was woken from an
        // earlier sleep has not what was written down since, and must not seem to come after it.
        let mut record = record;
        record.last = match attachment.mount().writable {
            true => {
                let mark = attachment.find_mark(&channel).await;
                let mark = mark.map_err(|error| attach(&error))?;
                mark.filter(|mark| known.versions.contains_key(mark))
            }
            false => None,
        };
        let root = match record.last.and_then(|last| known.versions.get(&last)) {
            // What the last checkpoint stored; if it cannot be had, the next one is a version.
            Some(last) => match self.open_version(known, last, progress).await {
                Ok(last) => last.root,
                Err(_) => Content::default(),
            },
            None => tree.root,
        };
        let every = Duration::from_secs(record.every_secs);
        let live = Live {
            space: known.space,
            attachment,
            epoch: base.epoch,
            base_packs: Mutex::new(tree.packs),
            arriving: chunks,
            _fetching: fetching,
            due: Mutex::new(Instant::now() + every),
            claim: Mutex::default(),
            state: tokio::sync::Mutex::new(State {
                record: record.clone(),
                root,
            }),
        };
        let key = (record.sandbox, record.volume);
        self.volumes.live().insert(key, Arc::new(live));
        Ok(record)
    }

    /// Has the node that all of them agree on say that nobody else is about to write: two who ask
    /// at once have not heard of each other yet. Returns that node, or `None` if nobody answers.
    async fn claim_to_write(&self, known: &Known) -> Result<Option<NodeId>, ApiError> {
        let claim = claim_of(known);
        let asked = self.ask_claim(self.arbiters_of(known), &claim).await;
        asked.map_err(|taken| {
            busy(format!(
                "`{}` has just attached the volume `{}` to write",
                taken.why, known.volume.name
            ))
        })
    }

    /// Returns the nodes that may decide, in the order in which everybody asks them.
    fn arbiters_of(&self, known: &Known) -> Vec<NodeId> {
        let authority = self.replica.authority();
        let mut nodes = self.connected();
        nodes.push(self.id());
        nodes.retain(|node| {
            let role = authority.role_in(node, &known.space);
            role.is_some_and(Role::can_write)
        });
        let seed = Hash::keyed("rhizome volume rendezvous 1", &known.volume.volume.0);
        nodes.sort_by_cached_key(|node| std::cmp::Reverse(rendezvous(&seed, node)));
        nodes.truncate(MAX_ARBITERS);
        nodes
    }

    async fn guest_of(&self, sandbox: &SandboxId) -> Result<GuestChannel, ApiError> {
        let channel = self.sandboxes()?.channel(sandbox).await;
        channel.map_err(|error| fail::sandbox(&error))
    }

    /// Detaches a volume from a sandbox, after a checkpoint unless that is not wanted.
    pub(crate) async fn detach_volume(
        self: Arc<Self>,
        wanted: String,
        body: VolumeDetachBody,
        progress: Progress,
    ) -> Result<VolumeShown, ApiError> {
        let _one_at_a_time = self.volumes.changing.lock().await;
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        let live = match self.live_of(&known, body.sandbox.as_deref()) {
            Ok(live) => live,
            // A sandbox that is gone has nothing attached, whatever was written down.
            Err(error) => return self.write_off(known, body, error).await,
        };
        if live.attachment.mount().writable && !body.discard {
            self.take_checkpoint(&live, "detached", None, &progress)
                .await?;
        }
        let mut state = live.state.lock().await;
        let channel = self.guest_of(&state.record.sandbox).await?;
        let closed = live.attachment.close(&channel, body.force).await;
        closed.map_err(|error| attach(&error))?;
        let key = (state.record.sandbox, state.record.volume);
        self.volumes.live().remove(&key);
        state.record.attached = false;
        let claim = lock(&live.claim).take();
        self.return_claim(&claim_of(&known), claim).await;
        self.publish_volume(known.space, &Record::Attached(state.record.clone()))
            .await?;
        drop(state);
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        Ok(VolumeShown {
            schema: SCHEMA,
            volume: self.volume_shown(&known),
        })
    }

    /// Ends what is written down of a sandbox that is gone, or of one that the owner names.
    async fn write_off(
        &self,
        mut known: Known,
        body: VolumeDetachBody,
        error: ApiError,
    ) -> Result<VolumeShown, ApiError> {
        let wanted = body.sandbox.unwrap_or_default();
        let runs = |sandbox: &SandboxId| {
            let found = self
                .sandboxes()
                .ok()
                .and_then(|all| all.get(&sandbox.to_string()).ok());
            found.is_some_and(|info| !info.state.has_ended())
        };
        let connected = self.connected();
        // What another node serves is detached there.
        let elsewhere = |attached: &AttachedRecord| {
            attached.node != self.id() && connected.contains(&attached.node)
        };
        let lost = known.attached.iter_mut().find(|attached| {
            let named = wanted.len() >= super::MIN_PREFIX
                && attached.sandbox.to_string().starts_with(&wanted);
            attached.attached
                && !runs(&attached.sandbox)
                && !elsewhere(attached)
                && (named || wanted.is_empty())
        });
        let Some(lost) = lost else { return Err(error) };
        lost.attached = false;
        let record = Record::Attached(lost.clone());
        self.publish_volume(known.space, &record).await?;
        Ok(VolumeShown {
            schema: SCHEMA,
            volume: self.volume_shown(&known),
        })
    }

    /// Returns the attachment of a volume to the sandbox named, or to the only one.
    pub(super) fn live_of(
        &self,
        known: &Known,
        sandbox: Option<&str>,
    ) -> Result<Arc<Live>, ApiError> {
        let sandbox = match sandbox {
            Some(wanted) => Some(self.find_sandbox(wanted)?.id),
            None => None,
        };
        let live = self.volumes.live();
        let mut found = live.iter().filter(|((of, volume), _)| {
            *volume == known.volume.volume && sandbox.is_none_or(|sandbox| sandbox == *of)
        });
        match (found.next(), found.next()) {
            (Some((_, one)), None) => Ok(Arc::clone(one)),
            (None, _) => Err(ApiError::new(
                StatusCode::CONFLICT,
                "not_attached",
                format!("the volume `{}` is not attached here", known.volume.name),
            )
            .hint("`rhizome volume list` shows where it is")),
            (Some(_), Some(_)) => Err(ApiError::bad_request("it is attached to several sandboxes")
                .hint("name one with `--sandbox`")),
        }
    }
}

fn busy(message: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "volume_busy", message).hint(
        "detach it there, attach it with `--read-only`, or with `--force`: two versions will come \
         of it, which `rhizome volume merge` brings together",
    )
}

/// What a claim to write is put under, beside those to wake sandboxes.
fn claim_of(known: &Known) -> ClaimBody {
    let what = Hash::keyed("rhizome volume claim 1", &known.volume.volume.0);
    let what = what.as_bytes();
    let short = *what.first_chunk().expect("16 of 32 bytes");
    ClaimBody {
        space: known.space.to_string(),
        sandbox: SandboxId::from_bytes(short).to_string(),
        record: FragmentId::from_bytes(*what).to_string(),
        release: false,
    }
}

/// The error of a volume in a sandbox.
fn attach(error: &AttachError) -> ApiError {
    let (status, code) = match error {
        AttachError::Guest(rhizome_sandbox::channel::FileError::SandboxGone { .. }) => {
            (StatusCode::GONE, "sandbox_gone")
        }
        AttachError::Guest(rhizome_sandbox::channel::FileError::InvalidPath { .. }) => {
            (StatusCode::BAD_REQUEST, "bad_request")
        }
        AttachError::Volume(error) => return super::volume(error),
        AttachError::ReadOnly => (StatusCode::CONFLICT, "read_only"),
        AttachError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        _ => (StatusCode::BAD_GATEWAY, "guest_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}
