//! Durable publishing and admission, each beside the limit of this machine.
//!
//! `cargo bench -p rhizome-memory --bench publish [-- --quick]` prints:
//! - appends of the same size with one sync each, on the same disk: the limit of a lone publisher;
//! - durable publishes of one author, one after the other, and by 64 at a time;
//! - batch verification of ed25519 signatures: the limit of admission;
//! - admission of foreign fragments: decode, checks, signatures, one append and sync per batch.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports on stdout and has nobody to return an error to"
)]

#[path = "../tests/support/mesh.rs"]
mod mesh;

use std::{
    env,
    fs::OpenOptions,
    io::Write,
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mesh::Mesh;
use rhizome_identity::{Hash, NodeKey};
use rhizome_memory::{
    DocId, Draft, Fragment, Header, Hlc, Kind, PublishRequest, Replica, ReplicaConfig, Verdict,
    check_signatures,
};

const PUBLISHERS: usize = 64;
const BATCH: usize = 256;
const TEXT: &str = "the test suite fails in parse_duration when a week is given with a fraction";

fn main() {
    let quick = env::args().any(|argument| argument == "--quick") || cfg!(debug_assertions);
    let scale = if quick { 1 } else { 8 };
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    println!("profile {profile}; quick {quick}");
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::of(2);
    let replica = mesh.open(0, &dir.path().join("publisher"));

    let size = mesh.wires(&replica, &[mesh.publish(0, &replica, TEXT)])[0].len();
    let raw = raw_syncs(&dir.path().join("raw"), size, 200 * scale);
    println!("raw append and sync, {size} bytes     {raw}");
    let lone = sequential(&mesh, &replica, 200 * scale);
    println!(
        "publish, one after the other      {lone} = {:.0} % of raw",
        100.0 * lone.per_second() / raw.per_second()
    );
    let many = concurrent(&mesh, &replica, 20 * scale);
    println!(
        "publish, {PUBLISHERS} at a time            {many} = {:.1} per raw sync",
        many.per_second() / raw.per_second()
    );

    let wires = fragments(&mesh, &replica, BATCH * 4);
    let fragments: Vec<Fragment> = wires
        .iter()
        .map(|wire| Fragment::decode(wire).unwrap())
        .collect();
    let verify = verification(&fragments, scale);
    println!("batch verification of ed25519     {verify} per core");
    let admit = admission(&mesh, &wires, dir.path(), scale);
    println!(
        "admission of foreign fragments    {admit} = {:.0} % of verification",
        100.0 * admit.per_second() / verify.per_second()
    );
    opening(&mesh, dir.path(), 12_500 * scale);
}

/// Opens a store of many fragments, as an index finds it and as the segments alone give it.
fn opening(mesh: &Mesh, dir: &std::path::Path, count: usize) {
    let authority = mesh.authority();
    let node = &mesh.nodes[1];
    let mut header = Header {
        version: 1,
        mesh: authority.mesh().unwrap(),
        space: mesh.space,
        author: node.agent.id(),
        node: node.key.id(),
        seq: 0,
        prev: None,
        auth_heads: authority.heads().to_vec(),
        deps: Vec::new(),
        hlc: Hlc::from_ms(1_700_000_000_000),
        kind: Kind::Fact,
        doc: DocId::from_bytes([9; 32]),
        fingerprint: Hash::of(b"runtime"),
        epoch: 1,
        nonce: [3; 24],
        body_hash: Hash::of(b""),
        body_len: 0,
    };
    let key = || NodeKey::from_seed([98; 32]);
    let path = dir.join("large");
    let open = || Replica::open(&path, key(), ReplicaConfig::default()).unwrap();
    {
        let relay = open();
        relay.append_records(mesh.records.clone()).unwrap();
        let mut batch = Vec::new();
        for seq in 0..count as u64 {
            header.seq = seq;
            let fragment =
                Fragment::sign(&node.agent, header.clone(), Bytes::from_static(&[7; 200])).unwrap();
            header.prev = Some(fragment.id);
            batch.push(fragment.encode());
            if batch.len() == 1024 || seq + 1 == count as u64 {
                relay.admit(node.key.id(), std::mem::take(&mut batch));
            }
        }
        relay.close().unwrap();
    }
    let begun = Instant::now();
    assert_eq!(mesh.ids(&open()), count);
    let with_index = begun.elapsed();
    std::fs::remove_file(path.join("index.redb")).unwrap();
    let begun = Instant::now();
    assert_eq!(mesh.ids(&open()), count);
    let rebuilt = begun.elapsed();
    println!("open {count} fragments              {with_index:?}; without an index {rebuilt:?}");
}

struct Rate {
    count: usize,
    elapsed: Duration,
    each: Vec<Duration>,
}

impl Rate {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>9.0}/s", self.per_second())?;
        let mut each = self.each.clone();
        each.sort_unstable();
        if let Some(last) = each.len().checked_sub(1) {
            write!(
                f,
                " (p50 {:?}, p99 {:?})",
                each[last / 2],
                each[last * 99 / 100]
            )?;
        }
        Ok(())
    }
}

fn timed(count: usize, mut act: impl FnMut(usize)) -> Rate {
    let begun = Instant::now();
    let each = (0..count)
        .map(|n| {
            let begun = Instant::now();
            act(n);
            begun.elapsed()
        })
        .collect();
    Rate {
        count,
        elapsed: begun.elapsed(),
        each,
    }
}

fn raw_syncs(path: &std::path::Path, size: usize, count: usize) -> Rate {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let bytes = vec![7; size];
    timed(count, |_| {
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
    })
}

fn sequential(mesh: &Mesh, replica: &Replica, count: usize) -> Rate {
    timed(count, |n| {
        mesh.publish(0, replica, &format!("{n} {TEXT}"));
    })
}

fn concurrent(mesh: &Mesh, replica: &Replica, each: usize) -> Rate {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            scope.spawn(move || {
                for n in 0..each {
                    let draft = Draft::new(Kind::Fact, format!("{publisher} {n} {TEXT}"), "");
                    let request = PublishRequest {
                        space: mesh.space,
                        draft,
                        fingerprint: Hash::of(b"runtime"),
                    };
                    replica.publish(&mesh.nodes[0].agent, request).unwrap();
                }
            });
        }
    });
    Rate {
        count: PUBLISHERS * each,
        elapsed: begun.elapsed(),
        each: Vec::new(),
    }
}

/// Returns fragments of one author, in the order of their chain.
fn fragments(mesh: &Mesh, replica: &Replica, count: usize) -> Vec<Bytes> {
    while mesh.ids(replica) < count {
        concurrent(mesh, replica, 4);
    }
    let mut chain = Vec::new();
    let ids: Vec<Hash> = replica
        .id_set(mesh.lane())
        .read()
        .unwrap()
        .iter()
        .copied()
        .collect();
    for wire in replica.wires(mesh.lane(), &ids, usize::MAX) {
        chain.push((Fragment::decode(&wire).unwrap().header.seq, wire));
    }
    chain.sort_by_key(|(seq, _)| *seq);
    chain
        .into_iter()
        .take(count)
        .map(|(_, wire)| wire)
        .collect()
}

/// Returns how long this thread has been on a core: what "per core" means on a busy machine.
fn on_core() -> Duration {
    let read = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = read.and_then(|text| text.split(' ').next()?.parse().ok());
    // Without it, wall time stands in.
    nanos.map_or_else(|| STARTED.elapsed(), Duration::from_nanos)
}

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

fn verification(fragments: &[Fragment], scale: usize) -> Rate {
    let begun = on_core();
    for _ in 0..scale {
        for batch in fragments.chunks(BATCH) {
            assert!(check_signatures(batch).into_iter().all(|valid| valid));
        }
    }
    Rate {
        count: fragments.len() * scale,
        elapsed: on_core() - begun,
        each: Vec::new(),
    }
}

fn admission(mesh: &Mesh, wires: &[Bytes], dir: &std::path::Path, scale: usize) -> Rate {
    let mut elapsed = Duration::ZERO;
    for round in 0..scale {
        // A relay: it holds no space key, so this is admission alone, without the view.
        let key = NodeKey::from_seed([99; 32]);
        let relay = Replica::open(
            &dir.join(format!("relay {round}")),
            key,
            ReplicaConfig::default(),
        );
        let relay = relay.unwrap();
        relay.append_records(mesh.records.clone()).unwrap();
        let begun = on_core();
        for batch in wires.chunks(BATCH) {
            let outcomes = relay.admit(mesh.nodes[0].key.id(), batch.to_vec());
            assert!(
                outcomes
                    .iter()
                    .all(|outcome| outcome.verdict == Verdict::Admit)
            );
        }
        elapsed += on_core() - begun;
    }
    Rate {
        count: wires.len() * scale,
        elapsed,
        each: Vec::new(),
    }
}
