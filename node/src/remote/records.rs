//! Records of sandboxes in this node's own view of the memory: found, and written.
use std::collections::BTreeMap;

use axum::http::StatusCode;
use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};
use rhizome_memory::{Draft, FragmentId, Kind, ListQuery, PublishRequest, keyed_doc, now_ms};
use rhizome_sandbox::{Progress, SandboxId, SandboxInfo, SnapshotRef};

use super::{
    alarm::condition::{Cause, Condition},
    hold::Keeping,
    notes::Ledger,
    placement::Wish,
    record::{Found, Record, Rest},
};
use crate::{
    api::types::remote::Replicated,
    daemon::{
        caller::Caller,
        fail,
        names::Names,
        node::{Node, blocking},
        sandbox::{Bound, OWN_LABELS},
    },
    error::ApiError,
};

/// Most records of one space that are looked through.
const MAX_RECORDS: usize = 10_000;
/// Fewest digits of an id that are looked up as a prefix.
const MIN_PREFIX: usize = 4;

/// How a snapshot is to be kept.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Copies on other nodes; one, if one is connected, where nobody says how many.
    pub(crate) replicas: Option<usize>,
    pub(crate) wish: Wish,
    /// The wish as it was written.
    pub(crate) held_by: Option<String>,
    pub(crate) wake_on: Vec<Condition>,
}

impl Node {
    /// Returns the record of a sandbox.
    pub(crate) async fn record_of(
        &self,
        space: &SpaceId,
        sandbox: &SandboxId,
    ) -> Result<Option<Found>, ApiError> {
        let (replica, space) = (self.replica.clone(), *space);
        let doc = keyed_doc(&space, Kind::Snapshot, &Record::key(sandbox));
        let item = blocking(move || replica.memory(&space, &doc)).await?;
        Ok(item.map_err(fail::replica)?.as_ref().and_then(Found::of))
    }

    /// Returns the record that `wanted` names: a sandbox by id, name or prefix, or the snapshot it
    /// sleeps in by a prefix of its manifest.
    pub(crate) async fn find_record(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Found, ApiError> {
        choose(self.records(caller).await?, wanted)
    }

    /// Returns every record in the spaces that the caller may use.
    pub(crate) async fn records(&self, caller: &Caller) -> Result<Vec<Found>, ApiError> {
        Ok(self.ledger(caller).await?.found)
    }

    /// Returns every record in the spaces that the caller may use, and what nodes said beside them.
    pub(crate) async fn ledger(&self, caller: &Caller) -> Result<Ledger, ApiError> {
        let authority = self.replica.authority();
        let spaces = caller.spaces(self, &authority)?;
        let replica = self.replica.clone();
        let read = blocking(move || {
            let mut ledger = Ledger::default();
            for space in spaces {
                let query = ListQuery {
                    spaces: Some(vec![space]),
                    kind: Some(Kind::Snapshot),
                    task: None,
                    limit: MAX_RECORDS,
                    ..ListQuery::default()
                };
                ledger.read(&replica.list(&query).map_err(fail::replica)?);
            }
            ledger.settle();
            Ok::<_, ApiError>(ledger)
        });
        read.await?
    }

    /// Keeps a snapshot that was taken of a sandbox, which now sleeps or goes on: copies on other
    /// nodes, and the record by which they find it.
    ///
    /// The snapshot is durable here already, so nothing that fails here loses it.
    ///
    /// # Errors
    /// `replicas_missing` if fewer nodes than were asked for hold it, `publish_failed` and its kin
    /// if the record could not be written.
    pub(crate) async fn keep_snapshot(
        &self,
        info: &SandboxInfo,
        snapshot: &SnapshotRef,
        rest: Rest,
        how: Kept,
        progress: &Progress,
    ) -> Result<Replicated, ApiError> {
        let bound = Bound::of(info);
        let replicas = how.replicas;
        let Some(space) = bound.spaces.first().copied() else {
            if replicas.is_some_and(|wanted| wanted > 0) {
                let message = "the sandbox belongs to no space, so no other node can keep it";
                return Err(ApiError::new(StatusCode::CONFLICT, "no_space", message)
                    .hint("its snapshot is durable here; create sandboxes with `--space`"));
            }
            return Ok(Replicated::default());
        };
        let keeping = Keeping {
            sandbox: info.id,
            space,
            snapshot,
            image_id: &info.image_id,
            except: &[],
        };
        let told = |_: &NodeId| std::future::ready(());
        let copies = self
            .replicate(keeping, replicas, &how.wish, told, progress)
            .await;
        let mut holders = vec![self.id()];
        holders.extend(&copies.holders);
        let recorded = async {
            let epoch = self.epoch_of(&space, snapshot).await?;
            let mut record = self.describe(info, snapshot, epoch, rest, holders);
            // What was asked for is kept up later, and so is what was there without being asked for.
            let lasting = replicas.unwrap_or(copies.holders.len());
            record.replicas = u8::try_from(lasting).unwrap_or(u8::MAX);
            record.held_by = how.held_by;
            record.wake_on = how.wake_on;
            self.publish_record(space, &record).await
        };
        // The sandbox sleeps by now: that others do not know of it is no reason to call it failed.
        let (record, problem) = match recorded.await {
            Ok(fragment) => (Some(fragment.to_string()), None),
            Err(error) if replicas.is_some_and(|wanted| wanted > 0) => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        let authority = self.replica.authority();
        let kept = Replicated {
            wanted: copies.wanted,
            holders: copies
                .holders
                .iter()
                .map(|node| Names(&authority).node(node))
                .collect(),
            refused: copies.refused,
            record,
            problem,
        };
        if replicas.is_some() && kept.holders.len() < kept.wanted {
            return Err(too_few(&kept));
        }
        Ok(kept)
    }

    /// Writes down that a sandbox runs here now, or was ended.
    pub(crate) async fn record_change(
        &self,
        space: SpaceId,
        was: &Record,
        rest: Rest,
        agent: Option<(AgentId, String)>,
        cause: Option<Cause>,
    ) -> Result<FragmentId, ApiError> {
        let mut record = was.clone();
        // What it waited for has come, or is of no more use.
        record.wake_on = Vec::new();
        record.woken_by = cause;
        record.rest = rest;
        record.runner = self.id();
        record.since_ms = now_ms();
        record.agent = agent;
        if !record.holders.contains(&self.id()) && self.has_all(&record.snapshot) {
            // What was fetched to wake it lies here, pinned.
            record.holders.push(self.id());
        }
        self.publish_record(space, &record).await
    }

    /// Writes down that a sandbox was ended, if the mesh knows of it at all.
    pub(crate) async fn record_end(&self, info: &SandboxInfo) {
        let bound = Bound::of(info);
        let Some(space) = bound.spaces.first() else {
            return;
        };
        let Ok(Some(found)) = self.record_of(space, &info.id).await else {
            return;
        };
        let elsewhere = found.record.runner != self.id();
        if elsewhere || found.record.rest == Rest::Ended {
            // It went on elsewhere: what ended here is a body it left.
            return;
        }
        let agent = found.record.agent.clone();
        let ended = self.record_change(*space, &found.record, Rest::Ended, agent, None);
        if let Err(error) = ended.await {
            tracing::warn!(sandbox = %info.id, %error, "its end could not be written down");
        }
    }

    pub(crate) async fn publish_record(
        &self,
        space: SpaceId,
        record: &Record,
    ) -> Result<FragmentId, ApiError> {
        let authority = self.replica.authority();
        let draft = record.draft(|node| Names(&authority).node(node).to_string());
        self.publish_draft(space, draft).await
    }

    /// Publishes what this node itself says.
    pub(crate) async fn publish_draft(
        &self,
        space: SpaceId,
        draft: Draft,
    ) -> Result<FragmentId, ApiError> {
        let agent = self.default_agent().await?;
        let request = PublishRequest {
            space,
            draft,
            fingerprint: self.host_fingerprint,
        };
        let replica = self.replica.clone();
        let published = blocking(move || replica.publish(&agent.key, request)).await?;
        Ok(published.map_err(fail::publish)?.id)
    }

    /// Returns the epoch whose key opens a snapshot that lies here.
    async fn epoch_of(&self, space: &SpaceId, snapshot: &SnapshotRef) -> Result<u32, ApiError> {
        let (_, newest) = self.store_key(space)?;
        let store = self.sandboxes()?.chunks().clone();
        let manifest = snapshot.manifest;
        let epochs = (0..=newest).rev();
        let keys: Vec<_> = epochs
            .filter_map(|epoch| Some((epoch, self.store_key_of(space, epoch).ok()?)))
            .collect();
        blocking(move || {
            let opens = |key| {
                store
                    .get_object(key, super::wake::MANIFEST, &manifest)
                    .is_ok()
            };
            let found = keys.iter().find(|(_, key)| opens(key));
            found.map(|(epoch, _)| *epoch)
        })
        .await?
        .ok_or_else(|| {
            ApiError::internal("a snapshot is sealed with none of the keys of its space")
        })
    }

    fn describe(
        &self,
        info: &SandboxInfo,
        snapshot: &SnapshotRef,
        epoch: u32,
        rest: Rest,
        holders: Vec<NodeId>,
    ) -> Record {
        let authority = self.replica.authority();
        let bound = Bound::of(info);
        let labels = info.labels.iter();
        let labels = labels.filter(|(name, _)| !name.starts_with(OWN_LABELS));
        Record {
            sandbox: info.id,
            name: info.name.clone(),
            rest,
            runner: self.id(),
            since_ms: now_ms(),
            snapshot: snapshot.clone(),
            epoch,
            holders,
            image: info.image.clone(),
            image_id: info.image_id.clone(),
            driver: info.driver.clone(),
            accel: info.accel.to_string(),
            memory_mib: info.memory_mib,
            fingerprint: Hash::from_bytes(info.fingerprint.hash()),
            agent: bound
                .agent
                .map(|agent| (agent, Names(&authority).agent(&agent).name)),
            spaces: bound.spaces,
            labels: labels
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect::<BTreeMap<_, _>>(),
            replicas: 0,
            held_by: None,
            wake_on: Vec::new(),
            woken_by: None,
        }
    }
}

/// Picks the one record that `wanted` names.
fn choose(mut found: Vec<Found>, wanted: &str) -> Result<Found, ApiError> {
    // One that was ended is meant only if nothing else can be.
    found.sort_by_key(|found| found.record.rest == Rest::Ended);
    let shown: String = wanted.chars().take(80).collect();
    let matches: [&dyn Fn(&Record) -> bool; 3] = [
        &|record| record.sandbox.to_string() == wanted,
        &|record| record.name.as_deref() == Some(wanted),
        &|record| {
            wanted.len() >= MIN_PREFIX
                && (record.sandbox.to_string().starts_with(wanted)
                    || record.snapshot.manifest.to_string().starts_with(wanted))
        },
    ];
    for named in matches {
        let mut some: Vec<_> = found.iter().filter(|found| named(&found.record)).collect();
        if some.iter().any(|found| found.record.rest != Rest::Ended) {
            some.retain(|found| found.record.rest != Rest::Ended);
        }
        match some[..] {
            [] => {}
            [one] => return Ok(one.clone()),
            _ => {
                let ids: Vec<_> = some
                    .iter()
                    .map(|one| one.record.sandbox.to_string())
                    .collect();
                return Err(ApiError::new(
                    StatusCode::BAD_REQUEST,
                    "ambiguous_sandbox",
                    format!("`{shown}` could be any of {} sandboxes", ids.len()),
                )
                .hint(format!("name it by its id, one of: {}", ids.join(", "))));
            }
        }
    }
    Err(ApiError::new(
        StatusCode::NOT_FOUND,
        "unknown_sandbox",
        format!("no sandbox that sleeps in the mesh is called `{shown}`"),
    )
    .hint("`rhizome memory list --kind snapshot` shows what this node knows of"))
}

fn too_few(kept: &Replicated) -> ApiError {
    let message = format!(
        "{} of {} other nodes hold the snapshot",
        kept.holders.len(),
        kept.wanted
    );
    let causes = kept
        .refused
        .iter()
        .map(|refused| format!("node `{}`: {}", refused.node, refused.problem));
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "replicas_missing", message)
        .with_causes(causes.collect())
        .hint("the sandbox sleeps and its snapshot is durable here; try again with more nodes connected")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(n: u8, name: &str, rest: Rest) -> Found {
        let record = super::super::record::tests::record(1);
        Found {
            record: Record {
                sandbox: SandboxId::from_bytes([n; 16]),
                name: Some(name.into()),
                rest,
                ..record
            },
            space: SpaceId::from_bytes([4; 32]),
            fragment: FragmentId::from_bytes([n; 32]),
            hlc: rhizome_memory::Hlc::default(),
            holders: Vec::new(),
            forks: Vec::new(),
        }
    }

    #[test]
    fn a_sandbox_is_found_by_id_name_prefix_and_snapshot() {
        let all = vec![
            found(1, "bench", Rest::Asleep),
            found(2, "bench", Rest::Ended),
            found(3, "other", Rest::Awake),
        ];
        let id = |wanted: &str| choose(all.clone(), wanted).map(|found| found.record.sandbox);
        let first = SandboxId::from_bytes([1; 16]);
        assert_eq!(id("bench").unwrap(), first, "one that ended is not meant");
        assert_eq!(id(&first.to_string()).unwrap(), first);
        assert_eq!(id(&first.to_string()[..8]).unwrap(), first);
        let manifest = all[0].record.snapshot.manifest.to_string();
        assert_eq!(id(&manifest[..8]).unwrap_err().code(), "ambiguous_sandbox");
        assert_eq!(id("nothing").unwrap_err().code(), "unknown_sandbox");
        assert_eq!(id("be").unwrap_err().code(), "unknown_sandbox");
        let ended = SandboxId::from_bytes([2; 16]).to_string();
        assert_eq!(id(&ended).unwrap().to_string(), ended);
    }
}
