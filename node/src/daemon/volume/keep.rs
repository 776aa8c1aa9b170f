//! Versions kept by other nodes, and for other nodes.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use rhizome_identity::{Hash, NodeId, Role};
use rhizome_sandbox::{
    Progress, ProgressEvent,
    chunks::{MAX_FILE_BYTES, PackId},
    silent,
};

use super::{Caller, Known, MAX_HOLDERS, Node, Record, VersionRecord, blocking, commit::pin_of};
use crate::{
    api::types::{Done, volume::VolumeHoldBody},
    daemon::{fail, names::Names},
    error::ApiError,
    remote::placement::{self, Need, rendezvous},
};

/// Copies on other nodes when nobody says how many.
const DEFAULT_REPLICAS: usize = 1;
/// How often it is looked whether a newest version has lost its copies.
const SPREAD: Duration = Duration::from_secs(30);
/// Most copies that are made on request.
const MAX_REPLICAS: usize = 16;
/// Most packs of a version that is held for others.
const MAX_PACKS: usize = 16_384;

/// What this node is to hold for another, parsed and bounded.
#[derive(Debug)]
pub(crate) struct Held {
    version: PackId,
    objects: Vec<PackId>,
    holders: Vec<NodeId>,
    limit: u64,
}

/// How far a version is kept elsewhere.
#[derive(Debug, Default)]
pub(super) struct Copies {
    wanted: usize,
    /// Whether somebody said how many.
    demanded: bool,
    pub(super) holders: Vec<NodeId>,
    refused: Vec<String>,
}

impl Copies {
    /// Fails if somebody asked for more copies than there are.
    pub(super) fn enough(&self) -> Result<(), ApiError> {
        if !self.demanded || self.holders.len() >= self.wanted {
            return Ok(());
        }
        let message = format!(
            "{} of {} other nodes hold the version",
            self.holders.len(),
            self.wanted
        );
        let status = StatusCode::GATEWAY_TIMEOUT;
        Err(ApiError::new(status, "replicas_missing", message)
            .with_causes(self.refused.clone())
            .hint("the version is durable here; try again with more nodes connected"))
    }
}

impl Node {
    /// Has other members of the space hold a version, as many as `wanted`, or one if there is one.
    pub(super) async fn replicate_version(
        &self,
        known: &Known,
        record: &VersionRecord,
        packs: &[PackId],
        wanted: Option<usize>,
        progress: &Progress,
    ) -> Copies {
        let authority = self.replica.authority();
        // Whoever writes in the space may hold what others wrote there.
        let may = |node: &NodeId| {
            let role = authority.role_in(node, &known.space);
            role.is_some_and(|role| role >= Role::Writer)
        };
        let mut candidates: Vec<NodeId> = self.connected().into_iter().filter(may).collect();
        // Those that hold some of it already are sent only what is new; among the others, the same
        // one for every version.
        let had = known.holders_of(record);
        let seed = Hash::keyed("rhizome volume rendezvous 1", &known.volume.volume.0);
        candidates.sort_by_cached_key(|node| {
            (
                !had.contains(node),
                std::cmp::Reverse(rendezvous(&seed, node)),
            )
        });
        candidates.retain(|node| !record.holders.contains(node));
        let mut copies = Copies {
            wanted: wanted
                .unwrap_or(DEFAULT_REPLICAS.min(candidates.len()))
                .min(MAX_REPLICAS),
            demanded: wanted.is_some(),
            ..Copies::default()
        };
        let sizes = self
            .volume_store()
            .map(|store| packs.iter().filter_map(|pack| store.size_of(pack)).sum());
        let body = VolumeHoldBody {
            space: known.space.to_string(),
            volume: known.volume.volume.to_string(),
            version: record.version.to_string(),
            packs: packs.iter().map(ToString::to_string).collect(),
            holders: had.iter().map(ToString::to_string).collect(),
            bytes: sizes.unwrap_or(0),
        };
        for peer in candidates {
            if copies.holders.len() >= copies.wanted {
                break;
            }
            let name = Names(&authority).node(&peer);
            progress(ProgressEvent {
                step: "copy",
                detail: &format!("to {name}"),
                done: copies.holders.len() as u64,
                total: copies.wanted as u64,
            });
            let told = |step: crate::api::types::Progress| {
                progress(ProgressEvent {
                    step: "copy",
                    detail: &format!("{name}: {}", step.detail),
                    done: step.done,
                    total: step.total,
                });
            };
            let held: Result<Done, ApiError> =
                self.command(peer, "/v1/remote/volume", &body, told).await;
            match held {
                Ok(_) => copies.holders.push(peer),
                Err(error) => copies.refused.push(format!("node `{name}`: {error}")),
            }
        }
        copies
    }

    /// Has another node hold every newest version that lies here and with nobody else who is there:
    /// nobody was when it was made, or who was is gone.
    async fn spread_heads(&self) -> Result<(), ApiError> {
        let connected = self.connected();
        if connected.is_empty() {
            return Ok(());
        }
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        for known in self.known_volumes(spaces).await? {
            let heads = known.heads().into_iter();
            for record in heads.filter_map(|head| known.versions.get(&head)) {
                let is_there = |node: &NodeId| *node != self.id() && connected.contains(node);
                if !record.holders.contains(&self.id()) || record.holders.iter().any(is_there) {
                    continue;
                }
                let version = self.open_version(&known, record, &silent()).await?;
                let (store, mut objects) = (self.volume_store()?, version.packs);
                if !store.missing(&objects).is_empty() {
                    continue;
                }
                let packed = known.packed.get(&record.version);
                objects.extend(packed.filter(|object| store.has(object)));
                let quiet = silent();
                let copies = self.replicate_version(&known, record, &objects, None, &quiet);
                let copies = copies.await;
                if !copies.holders.is_empty() {
                    let mut record = record.clone();
                    record.holders.extend(&copies.holders);
                    self.publish_volume(known.space, &Record::Version(record))
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Says whether this node holds a version for a peer, which may write in its space.
    pub(crate) async fn accept_volume(
        &self,
        peer: &NodeId,
        body: &VolumeHoldBody,
    ) -> Result<Held, ApiError> {
        self.sandboxes()?;
        let malformed = |what: &str| ApiError::bad_request(format!("`{what}` is malformed"));
        let space = body.space.parse().map_err(|_| malformed("space"))?;
        self.peer_may(peer, &[space], Role::Writer, "holding a volume's version")?;
        self.may_store(&space, None).await?;
        if body.packs.len() > MAX_PACKS || body.holders.len() > MAX_HOLDERS {
            return Err(ApiError::bad_request(
                "the version has too many packs or holders",
            ));
        }
        let version = body.version.parse().map_err(|_| malformed("version"))?;
        let packs = body.packs.iter().map(|pack| pack.parse::<PackId>());
        let mut objects: Vec<PackId> = packs
            .collect::<Result<_, _>>()
            .map_err(|_| malformed("packs"))?;
        objects.push(version);
        // Whoever asks has most of it; what it has not fetched itself yet, others do.
        let mut holders = vec![*peer];
        for holder in &body.holders {
            holders.push(holder.parse().map_err(|_| malformed("holders"))?);
        }
        holders.dedup();
        let need = Need {
            disk_mib: body.bytes >> 20,
            ..Need::default()
        };
        let facts = self.own_facts().await?;
        placement::fits(&facts, &need, true)
            .map_err(|unfit| ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_room", unfit))?;
        Ok(Held {
            version,
            objects,
            holders,
            limit: body.bytes.saturating_add(MAX_FILE_BYTES),
        })
    }

    /// Fetches a version and keeps it; answers when all is durable here. Nothing of it need be
    /// readable here.
    pub(crate) async fn hold_volume(
        &self,
        held: Held,
        progress: Progress,
    ) -> Result<Done, ApiError> {
        let Held {
            version,
            objects,
            holders,
            limit,
        } = held;
        let store = self.volume_store()?;
        let pin = pin_of(&version);
        let (pinning, name, all) = (store.clone(), pin.clone(), objects.clone());
        // What is pinned already keeps its pin if fetching fails.
        let had = store.pinned(&pin);
        // Before they come, so that nothing removes the first while the last is on its way.
        let pinned = blocking(move || pinning.pin_ahead(&name, &all)).await?;
        pinned.map_err(|error| fail::chunks(&error))?;
        let brought = self.bring(&objects, &holders, limit, &progress).await;
        if let Err(error) = brought {
            let undone = blocking(move || match had {
                Some(before) => store.pin_ahead(&pin, &before),
                None => store.unpin(&pin).map(drop),
            });
            if let Ok(Err(error)) = undone.await {
                tracing::warn!(%version, %error, "a pin could not be undone");
            }
            return Err(error);
        }
        Ok(Done::default())
    }
}

/// Keeps copies of the newest versions on nodes that are there, until the node stops.
pub(crate) async fn spread_volumes(node: Arc<Node>) {
    loop {
        tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(SPREAD) => {}
        }
        if let Err(error) = node.spread_heads().await {
            tracing::debug!(%error, "versions of volumes are not copied");
        }
    }
}
