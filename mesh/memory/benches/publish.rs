//! Durable publishing and admission, each beside the limit of this machine.
//!
//! `cargo bench -p rhizome-memory --bench publish [-- --quick]` prints:
//! - appends of the same size with one sync each, on the same disk: the limit of a lone publisher;
//! - durable publishes of one author, one after the other, and by 64 at a time;
//! - batch verification of ed25519 signatures: the limit of admission;
//! - admission of foreign fragments: decode, checks, signatures, one append and sync per batch.
//!
//! `-- lone <count>` or `-- many <count>` only publishes, for a profiler to look at: one after the
//! other, or so many by each of the 64.
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
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey};
use mesh::Mesh;
use rhizome_identity::{Hash, NodeKey};
use rhizome_memory::{
    AdmitOutcome, DocId, Draft, Fragment, Header, Hlc, Kind, PublishRequest, Replica,
    ReplicaConfig, Verdict, check_signatures,
};

const PUBLISHERS: usize = 64;
const BATCH: usize = 256;
/// The disk is measured in turns with us, so that a busy minute of the machine falls on both.
const TURNS: usize = 5;
const TEXT: &str = "the test suite fails in parse_duration when a week is given with a fraction";

fn main() {
    let quick = env::args().any(|argument| argument == "--quick") || cfg!(debug_assertions);
    let scale = if quick { 1 } else { 4 };
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::of(2);
    let replica = mesh.open(0, &dir.path().join("publisher"));
    let size = mesh.wires(&replica, &[mesh.publish(0, &replica, TEXT)])[0].len();
    if let Some(part) = part() {
        println!("{}", part(&mesh, &replica));
        return;
    }
    println!("durable publishing and admission; fragments of {size} bytes; profile {profile}");
    println!("{:<34} {:<44} limit", "", "measured");

    let (mut raw, mut lone, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        raw.push(raw_syncs(&dir.path().join("raw"), size, 60 * scale));
        lone.push(sequential(&mesh, &replica, 50 * scale));
        many.push(concurrent(&mesh, &replica, 8 * scale));
    }
    let (raw, lone, many) = (median(raw), median(lone), median(many));
    let limit = format!("{raw} appends, one sync each");
    let share = 100.0 * lone.per_second() / raw.per_second();
    row(
        "one author, one at a time",
        &lone,
        &limit,
        &format!("{share:.0} %"),
    );
    let share = many.per_second() / raw.per_second();
    let what = format!("one author, {PUBLISHERS} at a time");
    row(&what, &many, "the same", &format!("{share:.1} a sync"));

    let wires = fragments(&mesh, &replica, BATCH * 4);
    let fragments: Vec<Fragment> = wires
        .iter()
        .map(|wire| Fragment::decode(wire).unwrap())
        .collect();
    let (mut plain, mut ours, mut admit) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        plain.push(plain_verification(&fragments));
        ours.push(verification(&fragments));
        admit.push(admission(
            &mesh,
            &wires,
            &dir.path().join(format!("relay {turn}")),
        ));
    }
    let (plain, ours, admit) = (median(plain), median(ours), median(admit));
    let limit = format!("{plain} ed25519-dalek, batches of {BATCH}");
    let share = |rate: &Rate| format!("{:.0} %", 100.0 * rate.per_second() / plain.per_second());
    row("signatures checked, per core", &ours, &limit, &share(&ours));
    row(
        "foreign fragments admitted, per core",
        &admit,
        "the same",
        &share(&admit),
    );
    opening(&mesh, dir.path(), 12_500 * scale);
}

/// Returns the one part that was asked for, if one was.
fn part() -> Option<impl FnOnce(&Mesh, &Replica) -> Rate> {
    let arguments: Vec<String> = env::args().collect();
    let is_part = |argument: &String| ["lone", "many"].contains(&argument.as_str());
    let at = arguments.iter().position(is_part)?;
    let count = arguments.get(at + 1)?.parse().ok()?;
    let lone = arguments[at] == "lone";
    Some(move |mesh: &Mesh, replica: &Replica| match lone {
        true => sequential(mesh, replica, count),
        false => concurrent(mesh, replica, count),
    })
}

fn row(what: &str, measured: &Rate, limit: &str, share: &str) {
    println!(
        "{what:<34} {:<44} {limit:<46} {share:>10}",
        measured.to_string()
    );
}

/// Returns the run whose rate is in the middle.
fn median(mut runs: Vec<Rate>) -> Rate {
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let middle = runs.len() / 2;
    runs.swap_remove(middle)
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
    let each = |time: Duration| format!("{:.1} us each", micros(time) / count as f64);
    println!(
        "{:<34} {:<44} {:<46}",
        format!("open {count} fragments"),
        format!("{:.0} ms, {}", micros(with_index) / 1e3, each(with_index)),
        format!(
            "without an index {:.0} ms, {}",
            micros(rebuilt) / 1e3,
            each(rebuilt)
        ),
    );
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
        write!(f, "{:>7.0}/s", self.per_second())?;
        let mut each = self.each.clone();
        each.sort_unstable();
        if let Some(last) = each.len().checked_sub(1) {
            let (p50, p99) = (each[last / 2], each[last * 99 / 100]);
            let (p50, p99) = (micros(p50) / 1e3, micros(p99) / 1e3);
            write!(f, " (p50 {p50:.3} ms, p99 {p99:.3} ms)")?;
        }
        Ok(())
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
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

fn concurrent(mesh: &Mesh, replica: &Replica, count: usize) -> Rate {
    let begun = Instant::now();
    let each = std::thread::scope(|scope| {
        let publisher = |publisher| {
            scope.spawn(move || {
                let publish = |n| {
                    let draft = Draft::new(Kind::Fact, format!("{publisher} {n} {TEXT}"), "");
                    let request = PublishRequest {
                        space: mesh.space,
                        draft,
                        fingerprint: Hash::of(b"runtime"),
                    };
                    replica.publish(&mesh.nodes[0].agent, request).unwrap();
                };
                timed(count, publish).each
            })
        };
        let publishers: Vec<_> = (0..PUBLISHERS).map(publisher).collect();
        let joined = publishers
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        joined.collect()
    });
    Rate {
        count: PUBLISHERS * count,
        elapsed: begun.elapsed(),
        each,
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

fn verification(fragments: &[Fragment]) -> Rate {
    per_core(fragments.len(), || {
        for batch in fragments.chunks(BATCH) {
            assert!(check_signatures(batch).into_iter().all(|valid| valid));
        }
    })
}

/// Verifies as many signatures over messages of the same size with nothing around them.
fn plain_verification(fragments: &[Fragment]) -> Rate {
    let key = SigningKey::from_bytes(&[5; 32]);
    let messages: Vec<&[u8]> = fragments
        .iter()
        .map(|fragment| &fragment.envelope[..])
        .collect();
    let signatures: Vec<_> = messages.iter().map(|message| key.sign(message)).collect();
    let keys = [key.verifying_key(); BATCH];
    per_core(messages.len(), || {
        for (messages, signatures) in messages.chunks(BATCH).zip(signatures.chunks(BATCH)) {
            let keys = &keys[..messages.len()];
            ed25519_dalek::verify_batch(messages, signatures, keys).unwrap();
        }
    })
}

fn admission(mesh: &Mesh, wires: &[Bytes], dir: &Path) -> Rate {
    // A relay: it holds no space key, so this is admission alone, without the view.
    let key = NodeKey::from_seed([99; 32]);
    let relay = Replica::open(dir, key, ReplicaConfig::default()).unwrap();
    relay.append_records(mesh.records.clone()).unwrap();
    let is_admitted = |outcome: &AdmitOutcome| outcome.verdict == Verdict::Admit;
    per_core(wires.len(), || {
        for batch in wires.chunks(BATCH) {
            let outcomes = relay.admit(mesh.nodes[0].key.id(), batch.to_vec());
            assert!(outcomes.iter().all(is_admitted));
        }
    })
}

fn per_core(count: usize, act: impl FnOnce()) -> Rate {
    let begun = on_core();
    act();
    Rate {
        count,
        elapsed: on_core() - begun,
        each: Vec::new(),
    }
}
