//! Snapshots kept by other nodes, and for other nodes.
//!
//! Whoever holds a snapshot for somebody has its packs, its manifest and its image, durably and
//! pinned; it need not be able to read them. A node holds for peers that may write in the space.
use axum::http::StatusCode;
use rhizome_identity::{Hash, NodeId, Role, SpaceId};
use rhizome_sandbox::{Progress, SandboxId, SnapshotRef, chunks::PackId};

use super::{
    placement::{self, Candidate, Need, Wish, rank},
    record::Record,
};
use crate::{
    api::types::{
        SCHEMA,
        remote::{Held, HoldBody, Unanswered},
    },
    daemon::{
        fail,
        names::Names,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// What the pin of a snapshot that is held for others begins with.
pub(crate) const PIN: &str = "hold-";
/// Copies on other nodes when nobody says how many.
const DEFAULT_REPLICAS: usize = 1;
/// Most copies that are made on request.
const MAX_REPLICAS: usize = 16;

/// How far a snapshot is kept elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// How many were wanted.
    pub(crate) wanted: usize,
    /// The nodes that hold one, this one not among them.
    pub(crate) holders: Vec<NodeId>,
    /// Those that were asked and do not.
    pub(crate) refused: Vec<Unanswered>,
}

/// What is to be kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping<'a> {
    pub(crate) sandbox: SandboxId,
    pub(crate) space: SpaceId,
    pub(crate) snapshot: &'a SnapshotRef,
    pub(crate) image_id: &'a str,
    /// Nodes that are not asked.
    pub(crate) except: &'a [NodeId],
}

impl Node {
    /// Has `wanted` other nodes keep a snapshot, or as many as are connected up to one.
    ///
    /// They are chosen by room and label; which of equal ones, by the rendezvous of the sandbox.
    /// `before` is called with each before it is asked.
    pub(crate) async fn replicate<F: Future<Output = ()>>(
        &self,
        keeping: Keeping<'_>,
        wanted: Option<usize>,
        wish: &Wish,
        before: impl Fn(&NodeId) -> F,
        progress: &Progress,
    ) -> Copies {
        let mut copies = Copies::default();
        let candidates = self.possible_holders(&keeping, wish, &mut copies).await;
        copies.wanted = match wanted {
            Some(wanted) => wanted.min(MAX_REPLICAS),
            None => DEFAULT_REPLICAS.min(candidates.len()),
        };
        let body = HoldBody {
            space: keeping.space.to_string(),
            sandbox: keeping.sandbox.to_string(),
            manifest: keeping.snapshot.manifest,
            packs: keeping.snapshot.packs.clone(),
            image_id: keeping.image_id.to_owned(),
            bytes: self.size_of(keeping.snapshot),
        };
        for candidate in candidates {
            if copies.holders.len() >= copies.wanted {
                break;
            }
            before(&candidate.node).await;
            let name = Names(&self.replica.authority()).node(&candidate.node);
            let told = |step: crate::api::types::Progress| {
                progress(rhizome_sandbox::ProgressEvent {
                    step: "replicate",
                    detail: &format!("{name}: {}", step.detail),
                    done: step.done,
                    total: step.total,
                });
            };
            let held: Result<Held, ApiError> = self
                .command(candidate.node, "/v1/remote/hold", &body, told)
                .await;
            match held {
                Ok(_) => copies.holders.push(candidate.node),
                Err(error) => copies.refused.push(Unanswered {
                    node: name.clone(),
                    problem: told_whole(&error),
                }),
            }
        }
        copies
    }

    /// Returns the connected readers of the space that have room, the best first.
    async fn possible_holders(
        &self,
        keeping: &Keeping<'_>,
        wish: &Wish,
        copies: &mut Copies,
    ) -> Vec<Candidate> {
        let authority = self.replica.authority();
        let readers = self.connected().into_iter().filter(|node| {
            let role = authority.role_in(node, &keeping.space);
            role.is_some_and(Role::can_read) && !keeping.except.contains(node)
        });
        let asking = readers.map(async |node| (node, self.facts_of(node).await));
        let mut candidates = Vec::new();
        for (node, facts) in futures::future::join_all(asking).await {
            match facts {
                Ok(facts) => candidates.push(Candidate {
                    node,
                    own: false,
                    facts,
                }),
                Err(error) => copies.refused.push(Unanswered {
                    node: Names(&authority).node(&node),
                    problem: told_whole(&error),
                }),
            }
        }
        let need = Need {
            disk_mib: self.size_of(keeping.snapshot) >> 20,
            image: Some(keeping.image_id.to_owned()),
            snapshot: Some(keeping.snapshot.manifest.to_string()),
            memory_mib: 0,
        };
        let (fit, unfit) = rank(wish, &need, &seed(&keeping.sandbox), candidates);
        copies
            .refused
            .extend(unfit.into_iter().map(|(node, why)| Unanswered {
                node: Names(&authority).node(&node),
                problem: why.to_string(),
            }));
        fit
    }

    /// Says whether this node keeps a snapshot for `peer`.
    pub(crate) async fn accept_hold(
        &self,
        peer: &NodeId,
        body: &HoldBody,
    ) -> Result<(SpaceId, SandboxId), ApiError> {
        self.sandboxes()?;
        let malformed = |what: &str| ApiError::bad_request(format!("`{what}` is malformed"));
        let space: SpaceId = body.space.parse().map_err(|_| malformed("space"))?;
        let sandbox: SandboxId = body.sandbox.parse().map_err(|_| malformed("sandbox"))?;
        if body.packs.len() > super::record::MAX_PACKS {
            return Err(ApiError::bad_request("a snapshot of too many packs"));
        }
        self.peer_may(
            peer,
            &[space],
            Role::Writer,
            "keeping a snapshot of that space",
        )?;
        let need = Need {
            disk_mib: body.bytes >> 20,
            ..Need::default()
        };
        let facts = self.own_facts().await?;
        placement::fits(&facts, &need, true)
            .map_err(|unfit| ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_room", unfit))?;
        Ok((space, sandbox))
    }

    /// Fetches a snapshot from `peer` and keeps it; durable on return.
    pub(crate) async fn hold(
        &self,
        peer: NodeId,
        (space, sandbox): (SpaceId, SandboxId),
        body: HoldBody,
        progress: Progress,
    ) -> Result<Held, ApiError> {
        let store = self.sandboxes()?.chunks().clone();
        let pin = pin_of(&sandbox, &body.manifest);
        let mut objects = vec![body.manifest];
        objects.extend(body.packs);
        {
            let (store, pin, objects) = (store.clone(), pin.clone(), objects.clone());
            // Before they come, so that nothing removes the first while the last is on its way.
            blocking(move || store.pin_ahead(&pin, &objects))
                .await?
                .map_err(|error| fail::chunks(&error))?;
        }
        let brought = async {
            let packs = self.bring(&objects, &[peer], body.bytes, &progress).await?;
            let image = self.bring_image(&body.image_id, &[peer], &progress).await?;
            Ok::<_, ApiError>(packs + image)
        };
        match brought.await {
            Ok(bytes) => {
                self.let_go_of_older(space, sandbox, body.manifest).await;
                Ok(Held {
                    schema: SCHEMA,
                    bytes,
                })
            }
            Err(error) => {
                let _ = blocking(move || store.unpin(&pin)).await;
                Err(error)
            }
        }
    }

    /// Unpins snapshots of a sandbox that its record names no more; `newest` is not in it yet.
    async fn let_go_of_older(&self, space: SpaceId, sandbox: SandboxId, newest: PackId) {
        let Ok(Some(found)) = self.record_of(&space, &sandbox).await else {
            return;
        };
        let mut named: Vec<_> = found
            .forks
            .iter()
            .map(|fork| fork.snapshot.manifest)
            .collect();
        named.extend([found.record.snapshot.manifest, newest]);
        let Ok(sandboxes) = self.sandboxes() else {
            return;
        };
        let store = sandboxes.chunks().clone();
        let released = blocking(move || {
            let needed: Vec<_> = named.iter().map(|one| pin_of(&sandbox, one)).collect();
            let prefix = format!("{PIN}{sandbox}-");
            let pins = store.pins().into_iter();
            for pin in pins.filter(|pin| pin.starts_with(&prefix) && !needed.contains(pin)) {
                store.unpin(&pin)?;
            }
            Ok::<_, rhizome_sandbox::chunks::ChunkError>(())
        });
        if let Ok(Err(error)) = released.await {
            tracing::warn!(%sandbox, %error, "an older snapshot could not be let go of");
        }
    }

    /// Pins what a record names, as this node is about to wake it from there.
    pub(crate) async fn pin_for_wake(&self, record: &Record) -> Result<(), ApiError> {
        let store = self.sandboxes()?.chunks().clone();
        let pin = pin_of(&record.sandbox, &record.snapshot.manifest);
        let objects = record.snapshot.objects();
        blocking(move || store.pin_ahead(&pin, &objects))
            .await?
            .map_err(|error| fail::chunks(&error))
    }

    /// Returns how many bytes a snapshot takes that lies here.
    fn size_of(&self, snapshot: &SnapshotRef) -> u64 {
        let Ok(sandboxes) = self.sandboxes() else {
            return 0;
        };
        let store = sandboxes.chunks();
        let sizes = snapshot.objects().into_iter();
        sizes.filter_map(|object| store.size_of(&object)).sum()
    }

    /// Returns the manifests of the snapshots that lie here.
    pub(crate) fn held_snapshots(&self) -> Vec<String> {
        let Ok(sandboxes) = self.sandboxes() else {
            return Vec::new();
        };
        let own = sandboxes.snapshots();
        let store = sandboxes.chunks();
        // What is still on its way is no copy.
        let is_here = |objects: &[PackId]| store.missing(objects).is_empty();
        let own = own
            .into_iter()
            .filter(|info| is_here(&info.snapshot.objects()));
        let own = own.map(|info| info.snapshot.manifest);
        let held = store.pins().into_iter().filter(|pin| pin.starts_with(PIN));
        // What is pinned is in no order; the pin's name says which of it is the manifest.
        let held = held.filter_map(|pin| {
            let (_, digits) = pin.rsplit_once('-')?;
            let pinned = store.pinned(&pin).filter(|objects| is_here(objects))?;
            let mut pinned = pinned.into_iter();
            pinned.find(|object| object.to_string().starts_with(digits))
        });
        let mut manifests: Vec<_> = own.chain(held).map(|one| one.to_string()).collect();
        manifests.sort_unstable();
        manifests.dedup();
        manifests
    }
}

/// Returns where nodes meet for a sandbox.
pub(crate) fn seed(sandbox: &SandboxId) -> Hash {
    Hash::keyed("rhizome sandbox rendezvous 1", sandbox.as_bytes())
}

pub(crate) fn pin_of(sandbox: &SandboxId, manifest: &PackId) -> String {
    let manifest = manifest.to_string();
    format!("{PIN}{sandbox}-{}", &manifest[..16])
}

fn told_whole(error: &ApiError) -> String {
    let causes = error.info().causes.iter().map(String::as_str);
    let whole = std::iter::once(error.info().message.as_str()).chain(causes);
    whole.collect::<Vec<_>>().join(": ")
}
