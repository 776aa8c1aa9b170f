//! What this node is, and what others say they are: asked when needed, and kept for a moment.
//!
//! Nothing is sent while nobody asks, so an idle mesh pays nothing for it.
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::join_all;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::now_ms;
use rhizome_mesh::net::PeerState as MeshState;

use super::placement::{Candidate, Need, Wish, nobody, rank};
use crate::{
    api::types::{
        Named, SCHEMA,
        mesh::PeerState,
        remote::{Driver, Facts, NodeFacts, Nodes},
    },
    daemon::{
        names::Names,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// How long an answer may take.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long an answer is good.
const FRESH: Duration = Duration::from_secs(5);
/// Most images and snapshots that a node names.
pub(super) const MAX_LISTED: usize = 512;

/// What other nodes said lately; at most one entry per member.
#[derive(Debug, Default)]
pub(crate) struct FactsCache(Mutex<BTreeMap<NodeId, (Instant, Facts)>>);

impl FactsCache {
    fn get(&self, node: &NodeId) -> Option<Facts> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, (at, _)| at.elapsed() < FRESH);
        held.get(node).map(|(_, facts)| facts.clone())
    }

    fn put(&self, node: NodeId, facts: Facts) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(node, (Instant::now(), facts));
    }
}

impl Node {
    /// Says what this node is and has room for.
    pub(crate) async fn own_facts(&self) -> Result<Facts, ApiError> {
        let sandboxes = self.sandboxes().ok().cloned();
        let disk_free = self.data.free_bytes().unwrap_or_default();
        let (labels, open) = (self.config.labels.clone(), self.config.remote);
        let snapshots = self.held_snapshots();
        blocking(move || {
            let list = sandboxes.as_ref().map(rhizome_sandbox::Sandboxes::list);
            let list = list.unwrap_or_default();
            let living = list.iter().filter(|info| !info.state.has_ended()).count();
            let accel = list.first().map(|info| info.accel.to_string());
            let driver = sandboxes.as_ref().map(|all| all.driver_name().to_owned());
            let images = sandboxes.as_ref().and_then(|all| all.images().list().ok());
            let images = images.unwrap_or_default().into_iter().map(|image| Named {
                id: image.id,
                name: image.name,
            });
            let memory = Memory::read();
            Facts {
                schema: SCHEMA,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                drivers: driver
                    .map(|name| Driver { name, accel })
                    .into_iter()
                    .collect(),
                cores: std::thread::available_parallelism()
                    .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
                memory_mib: memory.total_mib,
                memory_free_mib: memory.available_mib,
                disk_free_mib: disk_free >> 20,
                on_battery: on_battery(Path::new("/sys/class/power_supply")),
                open: open && sandboxes.is_some(),
                labels,
                images: images.take(MAX_LISTED).collect(),
                snapshots: snapshots.into_iter().take(MAX_LISTED).collect(),
                sandboxes: living,
                at_ms: now_ms(),
            }
        })
        .await
    }

    /// Returns what `peer` says of itself, at most a few seconds old.
    pub(crate) async fn facts_of(&self, peer: NodeId) -> Result<Facts, ApiError> {
        if let Some(facts) = self.facts.get(&peer) {
            return Ok(facts);
        }
        let facts: Facts = self.ask(peer, "/v1/remote/facts", ASK_TIMEOUT).await?;
        self.facts.put(peer, facts.clone());
        Ok(facts)
    }

    /// Lists the nodes of the mesh with what they say of themselves, this one first.
    pub(crate) async fn nodes(&self) -> Result<Nodes, ApiError> {
        let authority = self.need_mesh()?;
        let this = NodeFacts {
            node: self.named(),
            state: PeerState::This,
            facts: Some(self.own_facts().await?),
            problem: None,
        };
        let asking = self.mesh.peers().into_iter().map(async |peer| {
            let (facts, problem) = match peer.state {
                MeshState::Connected => match self.facts_of(peer.node).await {
                    Ok(facts) => (Some(facts), None),
                    Err(error) => (None, Some(error.to_string())),
                },
                _ => (None, None),
            };
            NodeFacts {
                node: Names(&authority).node(&peer.node),
                state: match peer.state {
                    MeshState::Connected => PeerState::Connected,
                    MeshState::Gone => PeerState::Gone,
                    _ => PeerState::Never,
                },
                facts,
                problem,
            }
        });
        let mut others = join_all(asking).await;
        others.sort_by(|a, b| (&a.node.name, &a.node.id).cmp(&(&b.node.name, &b.node.id)));
        Ok(Nodes {
            schema: SCHEMA,
            nodes: std::iter::once(this).chain(others).collect(),
        })
    }

    /// Returns the nodes that could take what is needed, the best first.
    pub(crate) async fn candidates(
        &self,
        wish: &Wish,
        need: &Need,
    ) -> Result<Vec<Candidate>, ApiError> {
        let own = Candidate {
            node: self.id(),
            own: true,
            facts: self.own_facts().await?,
        };
        let mut refusals = Vec::new();
        let asked = self.connected().into_iter().map(async |node| {
            let facts = self.facts_of(node).await?;
            Ok::<_, ApiError>(Candidate {
                node,
                own: false,
                facts,
            })
        });
        let mut candidates = vec![own];
        for answer in join_all(asked).await {
            match answer {
                Ok(candidate) => candidates.push(candidate),
                Err(error) => refusals.push(error),
            }
        }
        // Another seed each time: equal nodes share what is made.
        let seed = Hash::of(&now_ms().to_be_bytes());
        let (fit, unfit) = rank(wish, need, &seed, candidates);
        if fit.is_empty() {
            let authority = self.replica.authority();
            refusals.extend(unfit.into_iter().map(|(node, why)| {
                let name = Names(&authority).node(&node);
                ApiError::denied(format!("node `{name}`: {why}"))
            }));
            return Err(nobody(&refusals));
        }
        Ok(fit)
    }
}

struct Memory {
    total_mib: u64,
    available_mib: u64,
}

impl Memory {
    fn read() -> Self {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            total_mib: field(&text, "MemTotal:"),
            available_mib: field(&text, "MemAvailable:"),
        }
    }
}

/// Returns a field of `/proc/meminfo` in MiB; 0 where it is missing.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Says whether no mains supply is on line and a battery is there.
fn on_battery(dir: &Path) -> bool {
    let read = |path: &Path, name: &str| {
        let text = fs::read_to_string(path.join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let Ok(entries) = fs::read_dir(dir) else {
        return false;
    };
    let supplies: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let mains = supplies.iter().any(|supply| {
        matches!(&read(supply, "type")[..], "Mains" | "USB") && read(supply, "online") == "1"
    });
    let battery = supplies.iter().any(|supply| {
        // A mouse has a battery too; its scope is `Device`.
        read(supply, "type") == "Battery" && read(supply, "scope") != "Device"
    });
    battery && !mains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_mebibytes() {
        let text = "MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:    2048000 kB\n";
        assert_eq!(field(text, "MemTotal:"), 16_000);
        assert_eq!(field(text, "MemAvailable:"), 2_000);
        assert_eq!(field(text, "Nothing:"), 0);
    }

    #[test]
    fn a_laptop_off_its_plug_is_on_battery() {
        let temp = tempfile::tempdir().unwrap();
        let supply = |name: &str, fields: &[(&str, &str)]| {
            let dir = temp.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            for (field, value) in fields {
                fs::write(dir.join(field), format!("{value}\n")).unwrap();
            }
        };
        assert!(!on_battery(temp.path()));
        supply(
            "hidpp_battery_0",
            &[("type", "Battery"), ("scope", "Device")],
        );
        assert!(!on_battery(temp.path()), "a mouse is no laptop");
        supply("BAT0", &[("type", "Battery")]);
        assert!(on_battery(temp.path()));
        supply("AC", &[("type", "Mains"), ("online", "1")]);
        assert!(!on_battery(temp.path()));
    }
}
