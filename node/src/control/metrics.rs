//! What an operator watches, as Prometheus reads it: `GET /metrics` on the node's own socket.
//!
//! The number of samples is bounded: labels are words of ours, and ids of at most
//! [`MAX_NAMED`] agents and as many spaces, those that used most; how many were left out is a sample
//! too. No label is a sandbox's id or anything that a guest chose.

mod exposition;

use std::{fs, path::Path, sync::Arc};

use rhizome_mesh::net::PeerState;
use rhizome_sandbox::{
    DURATION_BOUNDS_MS, Tally,
    chunks::StoreStats,
    egress::EgressUsage,
    life::{Action, Phase},
};

use self::exposition::{
    Exposition, Spread,
    Type::{Counter, Gauge, Histogram},
};
use super::usage::ledger::{Account, Ledger, Used};
use crate::{
    api::types::node::ShareUse,
    daemon::node::{Node, blocking},
    error::ApiError,
};

/// What the text says it is.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Agents, and spaces, with samples of their own.
const MAX_NAMED: usize = 100;
/// How deep the memory's store goes.
const MAX_DEPTH: u32 = 4;

/// One agent's or space's usage.
#[derive(Debug)]
struct Named {
    id: String,
    name: String,
    used: Used,
}

impl Node {
    /// Writes down how the node is, for a collector.
    pub(crate) async fn metrics(&self) -> Result<String, ApiError> {
        // What cannot be written down is what an operator needs to see the rest of.
        if let Err(error) = self.measure().await {
            tracing::debug!(%error, "usage in the metrics is older than it might be");
        }
        let mut text = Exposition::default();
        self.node_metrics(&mut text).await?;
        self.mesh_metrics(&mut text);
        self.sandbox_metrics(&mut text).await?;
        self.usage_metrics(&mut text).await?;
        Ok(text.into_text())
    }

    async fn node_metrics(&self, text: &mut Exposition) -> Result<(), ApiError> {
        let (audit, store) = (self.audit.clone(), self.data.join("store"));
        let (entries, store_bytes) = blocking(move || {
            (
                audit.next().unwrap_or_default(),
                bytes_below(&store, MAX_DEPTH),
            )
        })
        .await?;
        text.family(
            "rhizome_build_info",
            Gauge,
            "The version that runs; always 1.",
        )
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        text.family(
            "rhizome_start_time_seconds",
            Gauge,
            "When the daemon started, in Unix seconds.",
        )
        .seconds(&[], self.started_ms);
        let resident = blocking(crate::daemon::resident_bytes).await?;
        text.single(
            "rhizome_resident_bytes",
            Gauge,
            "Memory of the daemon that is in RAM.",
            resident,
        );
        let free = self.data.free_bytes().unwrap_or_default();
        text.single(
            "rhizome_disk_free_bytes",
            Gauge,
            "Room on the data directory's disk.",
            free,
        );
        text.single(
            "rhizome_audit_entries_total",
            Counter,
            "Entries of the audit log since it began.",
            entries,
        );
        text.single(
            "rhizome_memory_store_bytes",
            Gauge,
            "Bytes of the files that hold memory.",
            store_bytes,
        );
        Ok(())
    }

    fn mesh_metrics(&self, text: &mut Exposition) {
        let peers = self.mesh.peers();
        let count =
            |state: PeerState| peers.iter().filter(|peer| peer.state == state).count() as u64;
        text.family(
            "rhizome_peers",
            Gauge,
            "Other members of the mesh, by whether there is a session.",
        )
        .sample(&[("state", "connected")], count(PeerState::Connected))
        .sample(&[("state", "gone")], count(PeerState::Gone))
        .sample(&[("state", "never")], count(PeerState::Never));
        let spaces = self.space_list(|space| space.role.is_some());
        let sum = |of: fn(&crate::api::types::mesh::Space) -> u64| spaces.iter().map(of).sum();
        let mut fragments = text.family(
            "rhizome_fragments",
            Gauge,
            "Fragments of memory that are held here, by space.",
        );
        for space in spaces.iter().take(MAX_NAMED) {
            fragments.sample(
                &[("space", &space.id), ("name", &space.name)],
                space.fragments,
            );
        }
        text.single(
            "rhizome_fragments_held",
            Gauge,
            "Fragments of memory that are held here, of all spaces.",
            sum(|space| space.fragments),
        );
        text.single(
            "rhizome_fragments_waiting",
            Gauge,
            "Fragments that wait for another.",
            sum(|space| space.waiting),
        );
        text.single(
            "rhizome_fragments_quarantined",
            Gauge,
            "Fragments that are kept out of their documents.",
            sum(|space| space.quarantined),
        );
        let forks = self.replica.forks().len() as u64;
        text.single(
            "rhizome_forks",
            Gauge,
            "Places of a chain that an author signed twice.",
            forks,
        );
        self.share_metrics(text);
    }

    fn share_metrics(&self, text: &mut Exposition) {
        let shares = self.shares(&self.replica.authority(), MAX_NAMED);
        type Count = fn(&ShareUse) -> u64;
        let families: [(_, _, _, Count); 4] = [
            (
                "rhizome_share_used_percent",
                Gauge,
                "How much of its share an author, a node or a space has used.",
                |share| share.used_percent,
            ),
            (
                "rhizome_share_bytes_total",
                Counter,
                "Bytes of fragments taken in.",
                |share| share.bytes,
            ),
            (
                "rhizome_share_over_total",
                Counter,
                "Fragments that were over a share and waited behind others.",
                |share| share.over,
            ),
            (
                "rhizome_share_refused_total",
                Counter,
                "Fragments refused because a share was used up several times over.",
                |share| share.refused,
            ),
        ];
        for (name, kind, help, value) in families {
            let mut family = text.family(name, kind, help);
            for share in &shares {
                let labels = [
                    ("kind", &*share.kind),
                    ("id", &*share.of.id),
                    ("name", &*share.of.name),
                ];
                family.sample(&labels, value(share));
            }
        }
    }

    async fn sandbox_metrics(&self, text: &mut Exposition) -> Result<(), ApiError> {
        let Ok(sandboxes) = self.sandboxes().cloned() else {
            text.single(
                "rhizome_sandboxes_available",
                Gauge,
                "Whether this node runs sandboxes.",
                0,
            );
            return Ok(());
        };
        text.single(
            "rhizome_sandboxes_available",
            Gauge,
            "Whether this node runs sandboxes.",
            1,
        );
        let list = sandboxes.list();
        let mut states = text.family(
            "rhizome_sandboxes",
            Gauge,
            "Sandboxes that are listed, by state.",
        );
        for phase in Phase::ALL {
            let count = list
                .iter()
                .filter(|info| info.state.phase() == phase)
                .count();
            states.sample(&[("state", phase.as_str())], count as u64);
        }
        let running = list.iter().filter(|info| info.state.is_running());
        let memory: u64 = running.map(|info| u64::from(info.memory_mib) << 20).sum();
        text.single(
            "rhizome_sandbox_memory_bytes",
            Gauge,
            "Memory of the guests that run.",
            memory,
        );
        let chunks = sandboxes.chunks().clone();
        let stats = blocking(move || chunks.stats()).await?;
        chunk_metrics(text, &stats);
        action_metrics(text, &sandboxes.tally());
        egress_metrics(text, &sandboxes.egress().totals());
        Ok(())
    }

    async fn usage_metrics(&self, text: &mut Exposition) -> Result<(), ApiError> {
        let limits = Arc::clone(&self.limits);
        let (agents, spaces) = blocking(move || {
            let ledger = limits.meter.ledger();
            let of_agent = |account: &Account| account.agent.clone().into_iter().collect();
            let of_spaces = |account: &Account| account.spaces.clone();
            (added(&ledger, of_agent), added(&ledger, of_spaces))
        })
        .await?;
        let authority = self.replica.authority();
        let names = crate::daemon::names::Names(&authority);
        let agents = agents.into_iter().map(|(id, used)| Named {
            name: id
                .parse()
                .map(|id| names.agent(&id).name)
                .unwrap_or_default(),
            id,
            used,
        });
        let spaces = spaces.into_iter().map(|(id, used)| Named {
            name: id
                .parse()
                .map(|id| names.space(&id).name)
                .unwrap_or_default(),
            id,
            used,
        });
        usage_of(
            text,
            &agents.collect::<Vec<_>>(),
            &spaces.collect::<Vec<_>>(),
        );
        let list = self.quotas().await?.quotas;
        let over = list.iter().filter(|quota| quota.over).count();
        let standing = list.iter().filter(|quota| quota.used.is_some()).count();
        text.single(
            "rhizome_quotas",
            Gauge,
            "Quotas as they stand for single agents and spaces.",
            standing as u64,
        );
        text.single(
            "rhizome_quotas_over",
            Gauge,
            "Those of them that are used up.",
            over as u64,
        );
        Ok(())
    }
}

fn chunk_metrics(text: &mut Exposition, stats: &StoreStats) {
    text.single(
        "rhizome_chunk_store_bytes",
        Gauge,
        "Bytes of the files that hold snapshots and volumes.",
        stats.bytes,
    );
    text.single(
        "rhizome_chunk_store_packs",
        Gauge,
        "Those files.",
        stats.packs,
    );
    text.single(
        "rhizome_chunk_store_chunks",
        Gauge,
        "Different chunks in them.",
        stats.chunks,
    );
    text.single(
        "rhizome_chunk_store_damaged",
        Gauge,
        "Files of the chunk store that were found damaged.",
        stats.damaged,
    );
}

fn action_metrics(text: &mut Exposition, tally: &Tally) {
    let mut words: Vec<_> = Action::ALL.map(Action::as_str).to_vec();
    words.dedup();
    // An exec is none that is done step by step, and leases end in another action.
    words.retain(|word| *word != "exec" && *word != "lease end");
    let of = |word: &str| tally.actions.get(word).cloned().unwrap_or_default();
    let mut actions = text.family(
        "rhizome_sandbox_actions_total",
        Counter,
        "Actions on sandboxes since the daemon started, by what came of them.",
    );
    for word in &words {
        let (label, tally) = (word.replace(' ', "_"), of(word));
        actions.sample(&[("action", &label), ("outcome", "done")], tally.done);
        actions.sample(&[("action", &label), ("outcome", "failed")], tally.failed);
    }
    let mut durations = text.family(
        "rhizome_sandbox_action_duration_seconds",
        Histogram,
        "How long actions on sandboxes took that were done.",
    );
    for word in &words {
        let (label, tally) = (word.replace(' ', "_"), of(word));
        let within: Vec<_> = DURATION_BOUNDS_MS.into_iter().zip(tally.within).collect();
        let spread = Spread {
            within: &within,
            count: tally.done,
            sum_ms: tally.took_ms,
        };
        durations.histogram(&[("action", &label)], spread);
    }
    let boots = of("create").done + of("start").done;
    text.single(
        "rhizome_sandbox_boots_total",
        Counter,
        "Guests that were booted from their kernel.",
        boots,
    );
    text.family(
        "rhizome_execs_total",
        Counter,
        "Commands that sandboxes were asked to run.",
    )
    .sample(&[("outcome", "started")], tally.execs)
    .sample(&[("outcome", "failed")], tally.execs_failed);
    text.single(
        "rhizome_snapshots_total",
        Counter,
        "Snapshots that were taken, to sleep in or on request.",
        tally.snapshots,
    );
    text.family(
        "rhizome_snapshot_bytes_total",
        Counter,
        "Bytes of those snapshots: read, new to the store, and as stored.",
    )
    .sample(&[("kind", "read")], tally.snapshot_bytes_read)
    .sample(&[("kind", "new")], tally.snapshot_bytes_new)
    .sample(&[("kind", "stored")], tally.snapshot_bytes_stored);
}

fn egress_metrics(text: &mut Exposition, egress: &EgressUsage) {
    text.family(
        "rhizome_egress_bytes_total",
        Counter,
        "Bytes that sandboxes sent and received.",
    )
    .sample(&[("direction", "sent")], egress.sent_bytes)
    .sample(&[("direction", "received")], egress.received_bytes);
    text.single(
        "rhizome_egress_connections_total",
        Counter,
        "Connections that sandboxes made outside.",
        egress.connections,
    );
    text.single(
        "rhizome_egress_denials_total",
        Counter,
        "Attempts of sandboxes that were denied.",
        egress.denied,
    );
}

/// Adds up the totals by the ids that `of` names.
fn added(ledger: &Ledger, of: impl Fn(&Account) -> Vec<String>) -> Vec<(String, Used)> {
    let mut sums: std::collections::BTreeMap<String, Used> = std::collections::BTreeMap::new();
    for (account, used) in ledger.ever() {
        for id in of(account) {
            sums.entry(id).or_default().add(used);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, one), (b, other)| other.cpu_ms.cmp(&one.cpu_ms).then_with(|| a.cmp(b)));
    sums
}

fn usage_of(text: &mut Exposition, agents: &[Named], spaces: &[Named]) {
    // Each with the unit of its numbers in milliseconds, or bytes.
    type Of = fn(&Used) -> u64;
    let timed: [(&'static str, &str, Of); 4] = [
        (
            "rhizome_usage_cpu_seconds_total",
            "Processor time of sandboxes, by whom they work for.",
            |used| used.cpu_ms,
        ),
        (
            "rhizome_usage_sandbox_seconds_total",
            "Time for which sandboxes ran, by whom they work for.",
            |used| used.run_ms,
        ),
        (
            "rhizome_usage_ram_mib_seconds_total",
            "Memory of sandboxes times time, by whom they work for.",
            |used| used.ram_mib_ms,
        ),
        (
            "rhizome_usage_disk_mib_seconds_total",
            "Disk of sandboxes times time, by whom they work for.",
            |used| used.disk_mib_ms,
        ),
    ];
    let counted: [(&'static str, &str, Of); 2] = [
        (
            "rhizome_usage_sent_bytes_total",
            "Bytes that sandboxes sent, by whom they work for.",
            |used| used.sent_bytes,
        ),
        (
            "rhizome_usage_received_bytes_total",
            "Bytes that sandboxes received, by whom they work for.",
            |used| used.received_bytes,
        ),
    ];
    let named: Vec<_> = agents
        .iter()
        .take(MAX_NAMED)
        .map(|one| ("agent", one))
        .chain(spaces.iter().take(MAX_NAMED).map(|one| ("space", one)))
        .collect();
    let labels = |kind: &'static str, one: &Named| {
        [
            ("kind", kind.to_owned()),
            ("id", one.id.clone()),
            ("name", one.name.clone()),
        ]
    };
    for (name, help, of) in timed {
        let mut family = text.family(name, Counter, help);
        for (kind, one) in &named {
            let labels = labels(kind, one);
            family.seconds(
                &labels.each_ref().map(|(label, of)| (*label, &of[..])),
                of(&one.used),
            );
        }
    }
    for (name, help, of) in counted {
        let mut family = text.family(name, Counter, help);
        for (kind, one) in &named {
            let labels = labels(kind, one);
            family.sample(
                &labels.each_ref().map(|(label, of)| (*label, &of[..])),
                of(&one.used),
            );
        }
    }
    let omitted = |all: &[Named]| all.len().saturating_sub(MAX_NAMED) as u64;
    text.family(
        "rhizome_usage_omitted",
        Gauge,
        "Agents and spaces without samples of their own, because others used more.",
    )
    .sample(&[("kind", "agent")], omitted(agents))
    .sample(&[("kind", "space")], omitted(spaces));
}

/// Adds up the sizes of the files below a directory.
fn bytes_below(dir: &Path, depth: u32) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_samples_is_bounded_and_says_what_is_left_out() {
        let many: Vec<_> = (0..1_000)
            .map(|number| Named {
                id: format!("{number:064x}"),
                name: "a \"name\"\nof two lines".to_owned(),
                used: Used {
                    cpu_ms: number,
                    ..Used::default()
                },
            })
            .collect();
        let mut text = Exposition::default();
        usage_of(&mut text, &many, &many[..3]);
        let text = text.into_text();
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 6 * (MAX_NAMED + 3) + 2);
        assert!(text.contains("rhizome_usage_omitted{kind=\"agent\"} 900\n"));
        assert!(text.contains(r#"name="a \"name\"\nof two lines""#));
    }

    #[test]
    fn every_action_has_one_sample_from_the_start() {
        let mut text = Exposition::default();
        action_metrics(&mut text, &Tally::default());
        let text = text.into_text();
        let line = r#"rhizome_sandbox_actions_total{action="hibernate",outcome="done"} 0"#;
        assert_eq!(text.lines().filter(|found| *found == line).count(), 1);
        assert!(text.contains(r#"_bucket{action="monitor_end",le="+Inf"} 0"#));
    }
}
