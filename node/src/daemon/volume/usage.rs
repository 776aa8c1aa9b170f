//! What volumes take of this node's disk, and for whom.
//!
//! What counts is what lies here, whoever made it: every pack once for its volume, for the agent of
//! the oldest version that needs it. What is repacked or collected counts as what is left.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use rhizome_identity::{AgentId, SpaceId};
use rhizome_sandbox::{SandboxId, chunks::PackId};

use super::{Known, Node, commit::pin_of};
use crate::{
    control::usage::Holding,
    daemon::{caller::Caller, fail, sandbox::Bound},
    error::ApiError,
};

/// What the pins of versions begin with.
const PIN: &str = "volume-";

impl Node {
    /// Returns what every volume takes here.
    pub(crate) async fn volume_holdings(&self) -> Result<Vec<Holding>, ApiError> {
        let Ok(store) = self.volume_store() else {
            return Ok(Vec::new());
        };
        if self.need_mesh().is_err() || !store.pins().iter().any(|pin| pin.starts_with(PIN)) {
            return Ok(Vec::new());
        }
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        let mut all = Vec::new();
        for known in self.known_volumes(spaces).await? {
            let packs = |pin: &str| store.pinned(pin).unwrap_or_default();
            let size = |pack: &PackId| store.size_of(pack).unwrap_or(0);
            for (agent, bytes) in shares(&known, packs, size) {
                all.push(Holding {
                    volume: known.volume.volume.to_string(),
                    space: known.space.to_string(),
                    agent: agent.map(|agent| agent.to_string()),
                    bytes,
                });
            }
        }
        Ok(all)
    }

    /// Fails with `quota_exceeded` if nothing more is to be stored for this space and agent.
    pub(super) async fn may_store(
        &self,
        space: &SpaceId,
        agent: Option<AgentId>,
    ) -> Result<(), ApiError> {
        self.measure().await?;
        let agent = agent.map(|agent| agent.to_string());
        let may = self.limits.may_store(agent, space.to_string());
        may.map_err(|over| fail::sandbox(&over.into()))
    }

    /// Returns the agent that works in a sandbox of this node.
    pub(super) fn agent_in(&self, sandbox: &SandboxId) -> Option<AgentId> {
        let info = self.find_sandbox(&sandbox.to_string()).ok()?;
        Bound::of(&info).agent
    }
}

/// Returns what a volume takes, by the agents whose versions need it.
fn shares(
    known: &Known,
    packs: impl Fn(&str) -> Vec<PackId>,
    size: impl Fn(&PackId) -> u64,
) -> BTreeMap<Option<AgentId>, u64> {
    // One that was forgotten takes its room until it is let go of.
    let mut versions: Vec<_> = known
        .versions
        .values()
        .chain(known.forgotten.values())
        .collect();
    versions.sort_by_key(|version| (version.at_ms, Reverse(version.version)));
    let mut counted = BTreeSet::new();
    let mut shares: BTreeMap<Option<AgentId>, u64> = BTreeMap::new();
    for version in versions {
        for pack in packs(&pin_of(&version.version)) {
            if counted.insert(pack) {
                *shares.entry(version.agent).or_default() += size(&pack);
            }
        }
    }
    shares.retain(|_, bytes| *bytes > 0);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::volume::record::{VersionRecord, VolumeId, VolumeRecord};

    #[test]
    fn every_pack_counts_once_and_for_who_needed_it_first() {
        let volume = VolumeId([1; 16]);
        let id = |byte: u8| PackId::from_bytes([byte; 32]);
        let mender = AgentId::from_bytes([9; 32]);
        let mut known = Known::new(
            SpaceId::from_bytes([1; 32]),
            VolumeRecord {
                volume,
                name: "work".to_owned(),
                created_ms: 0,
                removed: false,
            },
        );
        for (n, agent) in [(1, None), (2, Some(mender)), (3, None)] {
            let version = VersionRecord {
                volume,
                version: id(n),
                parents: Vec::new(),
                tree: String::new(),
                epoch: 0,
                holders: Vec::new(),
                bytes_stored: 0,
                author: String::new(),
                at_ms: n.into(),
                message: String::new(),
                forgotten: false,
                agent,
            };
            known.versions.insert(id(n), version);
        }
        let pins = BTreeMap::from([
            (pin_of(&id(1)), vec![id(11)]),
            (pin_of(&id(2)), vec![id(11), id(12)]),
            (pin_of(&id(3)), vec![id(12), id(13)]),
        ]);
        let packs = |pin: &str| pins.get(pin).cloned().unwrap_or_default();
        let size = |pack: &PackId| u64::from(pack.as_bytes()[0]);
        let all = shares(&known, packs, size);
        assert_eq!(all, BTreeMap::from([(None, 24), (Some(mender), 12)]));
        // What lies elsewhere takes nothing here.
        assert!(shares(&known, |_| Vec::new(), size).is_empty());
    }
}
