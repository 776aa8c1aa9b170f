//! Where something should run: a pure choice among what nodes say of themselves.
//!
//! The asker ranks, the target accepts or refuses by the very same test on fresher facts, and the
//! next one is asked. Nobody coordinates, so nothing has to be agreed on.
use std::cmp::Reverse;

use axum::http::StatusCode;
use rhizome_identity::{Hash, NodeId};

use crate::{
    api::types::{remote::Facts, sandbox::SandboxBody},
    error::ApiError,
};

/// Memory of a sandbox that does not say how much it wants, in MiB.
const DEFAULT_MEMORY_MIB: u64 = 256;
/// Memory that a node keeps for itself, in MiB.
const RESERVE_MEMORY_MIB: u64 = 256;
/// Room on the disk that a node keeps for itself, in MiB.
const RESERVE_DISK_MIB: u64 = 512;
/// Room on the disk that a sandbox is thought to take, in MiB.
const SANDBOX_DISK_MIB: u64 = 256;

/// Which nodes will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    /// All.
    Any,
    /// Those with a label of this name, and this value if there is one.
    Label(String, Option<String>),
}

impl Wish {
    /// Reads `any`, `label=<name>` or `label=<name>=<value>`; `None` for the name of a node.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, ApiError> {
        if text == "any" {
            return Ok(Some(Self::Any));
        }
        let Some(label) = text.strip_prefix("label=") else {
            return Ok(None);
        };
        let (name, value) = match label.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (label, None),
        };
        if name.is_empty() {
            return Err(
                ApiError::bad_request("the label that a node shall have has no name")
                    .hint("as in `--on label=gpu` or `--on label=zone=home`"),
            );
        }
        Ok(Some(Self::Label(name.to_owned(), value)))
    }

    fn fits(&self, facts: &Facts) -> bool {
        match self {
            Self::Any => true,
            Self::Label(name, value) => facts
                .labels
                .get(name)
                .is_some_and(|has| value.as_ref().is_none_or(|value| value == has)),
        }
    }
}

/// What is to be placed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Memory in MiB; 0 for what only takes room on the disk.
    pub(crate) memory_mib: u64,
    /// Room on the disk in MiB.
    pub(crate) disk_mib: u64,
    /// The image, by name or id; a node that has it is preferred.
    pub(crate) image: Option<String>,
    /// The snapshot; a node that holds it is preferred.
    pub(crate) snapshot: Option<String>,
}

impl Need {
    pub(crate) fn of_sandbox(body: &SandboxBody) -> Self {
        Self {
            memory_mib: body.memory_mib.map_or(DEFAULT_MEMORY_MIB, u64::from),
            disk_mib: SANDBOX_DISK_MIB,
            image: body.image.clone(),
            snapshot: None,
        }
    }
}

/// Why a node will not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unfit {
    /// It makes sandboxes for its owner alone.
    #[error("it makes no sandboxes for other nodes")]
    Closed,
    /// It runs no sandboxes.
    #[error("it runs no sandboxes")]
    NoDriver,
    /// It lacks memory.
    #[error("it has {free} MiB of memory free; {wanted} MiB are needed")]
    Memory { free: u64, wanted: u64 },
    /// It lacks room.
    #[error("it has {free} MiB of disk free; {wanted} MiB are needed")]
    Disk { free: u64, wanted: u64 },
    /// It lacks the label.
    #[error("it does not have the label")]
    Label,
}

/// Says whether a node with these facts can take what is needed, from another node or its owner.
pub(crate) fn fits(facts: &Facts, need: &Need, for_a_peer: bool) -> Result<(), Unfit> {
    if need.memory_mib > 0 {
        if for_a_peer && !facts.open {
            return Err(Unfit::Closed);
        }
        if facts.drivers.is_empty() {
            return Err(Unfit::NoDriver);
        }
        let wanted = need.memory_mib + RESERVE_MEMORY_MIB;
        if facts.memory_free_mib < wanted {
            let free = facts.memory_free_mib;
            return Err(Unfit::Memory { free, wanted });
        }
    }
    let wanted = need.disk_mib + RESERVE_DISK_MIB;
    if facts.disk_free_mib < wanted {
        let free = facts.disk_free_mib;
        return Err(Unfit::Disk { free, wanted });
    }
    Ok(())
}

/// A node that might take it.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    /// Whether it is the asking node.
    pub(crate) own: bool,
    pub(crate) facts: Facts,
}

/// Returns those that fit, the best first, and the others with the reason.
///
/// Best is who holds the snapshot, then the image, is not on battery, has working KVM, and has the
/// most memory free, roughly; the rest is a rendezvous of node and `seed`, so that equal nodes
/// share the load and every asker sees the same order.
pub(crate) fn rank(
    wish: &Wish,
    need: &Need,
    seed: &Hash,
    candidates: Vec<Candidate>,
) -> (Vec<Candidate>, Vec<(NodeId, Unfit)>) {
    let mut fit = Vec::new();
    let mut unfit = Vec::new();
    for candidate in candidates {
        let verdict = if wish.fits(&candidate.facts) {
            fits(&candidate.facts, need, !candidate.own)
        } else {
            Err(Unfit::Label)
        };
        match verdict {
            Ok(()) => fit.push(candidate),
            Err(why) => unfit.push((candidate.node, why)),
        }
    }
    fit.sort_by_cached_key(|candidate| {
        let facts = &candidate.facts;
        let has_snapshot = need
            .snapshot
            .as_ref()
            .is_some_and(|wanted| facts.snapshots.contains(wanted));
        let has_image = need.image.as_ref().is_none_or(|wanted| {
            let named = |image: &crate::api::types::Named| {
                image.name == *wanted || image.id.starts_with(wanted.as_str())
            };
            facts.images.iter().any(named)
        });
        let kvm = facts
            .drivers
            .iter()
            .any(|driver| driver.accel.as_deref() == Some("kvm"));
        (
            Reverse(has_snapshot),
            Reverse(has_image),
            facts.on_battery,
            Reverse(kvm),
            Reverse(facts.memory_free_mib.checked_ilog2()),
            Reverse(rendezvous(seed, &candidate.node)),
        )
    });
    (fit, unfit)
}

/// Returns the weight of `node` for `seed`: the highest is the one that everybody expects.
pub(crate) fn rendezvous(seed: &Hash, node: &NodeId) -> Hash {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(seed.as_bytes());
    bytes[32..].copy_from_slice(node.as_bytes());
    Hash::keyed("rhizome rendezvous 1", &bytes)
}

/// Says that no node took it, and what each said.
pub(crate) fn nobody(refusals: &[ApiError]) -> ApiError {
    let causes = refusals.iter().map(ToString::to_string).collect();
    ApiError::new(
        StatusCode::CONFLICT,
        "no_node_fits",
        "no node takes what was asked for",
    )
    .with_causes(causes)
    .hint("`rhizome nodes` shows what each has room for")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::types::{Named, remote::Driver};

    pub(in crate::remote) fn facts() -> Facts {
        Facts {
            schema: 1,
            version: "1".into(),
            drivers: vec![Driver {
                name: "qemu-microvm".into(),
                accel: Some("tcg".into()),
            }],
            cores: 2,
            memory_mib: 8_192,
            memory_free_mib: 4_096,
            disk_free_mib: 10_000,
            on_battery: false,
            open: true,
            labels: [("gpu".to_owned(), "yes".to_owned())].into(),
            images: vec![Named {
                id: "abcdef".into(),
                name: "debian".into(),
            }],
            snapshots: Vec::new(),
            sandboxes: 0,
            at_ms: 0,
        }
    }

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn candidate(n: u8, change: impl FnOnce(&mut Facts)) -> Candidate {
        let mut facts = facts();
        change(&mut facts);
        Candidate {
            node: node(n),
            own: false,
            facts,
        }
    }

    fn need() -> Need {
        Need {
            memory_mib: 512,
            disk_mib: 256,
            image: Some("debian".into()),
            snapshot: Some("snap".into()),
        }
    }

    fn order(candidates: Vec<Candidate>) -> Vec<u8> {
        let (fit, _) = rank(&Wish::Any, &need(), &Hash::of(b"seed"), candidates);
        fit.iter().map(|c| c.node.as_bytes()[0]).collect()
    }

    #[test]
    fn wishes_are_told_from_names() {
        assert_eq!(Wish::parse("any").unwrap(), Some(Wish::Any));
        assert_eq!(Wish::parse("cloud").unwrap(), None);
        let gpu = Wish::Label("gpu".into(), None);
        assert_eq!(Wish::parse("label=gpu").unwrap(), Some(gpu));
        let zone = Wish::Label("zone".into(), Some("a=b".into()));
        assert_eq!(Wish::parse("label=zone=a=b").unwrap(), Some(zone));
        assert!(Wish::parse("label=").is_err());
    }

    #[test]
    fn who_holds_what_is_needed_comes_first() {
        let seen = order(vec![
            candidate(1, |f| f.on_battery = true),
            candidate(2, |f| f.images.clear()),
            candidate(3, |f| f.snapshots.push("snap".into())),
            candidate(4, |f| f.drivers[0].accel = Some("kvm".into())),
            candidate(5, |f| f.memory_free_mib = 1_000),
            candidate(6, |_| {}),
        ]);
        assert_eq!(seen, [3, 4, 6, 5, 1, 2]);
    }

    #[test]
    fn every_asker_sees_the_same_order_and_seeds_share_the_load() {
        let all = |seed: &[u8]| {
            let candidates = (1..=8).map(|n| candidate(n, |_| {})).collect();
            let (fit, _) = rank(&Wish::Any, &Need::default(), &Hash::of(seed), candidates);
            fit.iter().map(|c| c.node).collect::<Vec<_>>()
        };
        assert_eq!(all(b"a"), all(b"a"));
        let firsts: std::collections::BTreeSet<_> =
            (0..32_u8).map(|seed| all(&[seed])[0]).collect();
        assert!(firsts.len() > 3, "{firsts:?}");
    }

    #[test]
    fn a_node_that_will_not_do_is_named_with_its_reason() {
        let wish = Wish::Label("gpu".into(), Some("yes".into()));
        let candidates = vec![
            candidate(1, |f| f.labels.clear()),
            candidate(2, |f| f.open = false),
            candidate(3, |f| f.drivers.clear()),
            candidate(4, |f| f.memory_free_mib = 700),
            candidate(5, |f| f.disk_free_mib = 10),
            candidate(6, |_| {}),
        ];
        let (fit, unfit) = rank(&wish, &need(), &Hash::of(b""), candidates);
        assert_eq!(fit.len(), 1);
        assert_eq!(fit[0].node, node(6));
        let whys: Vec<_> = unfit.into_iter().map(|(_, why)| why).collect();
        assert_eq!(
            whys,
            [
                Unfit::Label,
                Unfit::Closed,
                Unfit::NoDriver,
                Unfit::Memory {
                    free: 700,
                    wanted: 768
                },
                Unfit::Disk {
                    free: 10,
                    wanted: 768
                },
            ]
        );
        // Its owner may use a node that is closed to others; what only lies there needs no driver.
        let mut closed = facts();
        closed.open = false;
        assert_eq!(fits(&closed, &need(), false), Ok(()));
        closed.drivers.clear();
        let held = Need {
            disk_mib: 100,
            ..Need::default()
        };
        assert_eq!(fits(&closed, &held, true), Ok(()));
    }
}
