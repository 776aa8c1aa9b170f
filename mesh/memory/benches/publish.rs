//! Durable publishing and admission, each beside the limit of this machine.
//!
//! `cargo bench -p rhizome-memory --bench publish [-- --quick]` prints:
//! - appends of the same size with one sync each, on the same disk: the limit of a lone publisher;
//! - durable publishes of one author, one after the other, and by 64 at a time;
//! - batch verification of ed25519 signatures: the limit of admission;
//! - admission of foreign fragments: decode, checks, signatures, one append and sync per batch;
//! - the same of an agent with as many certificates between it and its node as there may be, with
//!   the bodies decrypted, and until a node that reads the space has all of it in its view.
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
#[path = "support/rate.rs"]
mod rate;

use std::{env, fs::OpenOptions, io::Write, path::Path, time::Instant};

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey};
use mesh::Mesh;
use rate::{Rate, median, per_core, row, timed};
use rhizome_identity::{Hash, MAX_CERT_DEPTH, NodeKey, open_body};
use rhizome_memory::{
    AdmitOutcome, Draft, Fragment, Kind, PublishRequest, Replica, ReplicaConfig, Verdict,
    check_signatures,
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
    drop(replica);
    through_chains(dir.path(), &plain, BATCH * 4);
}

/// Admits and decrypts what an agent at the end of the longest chain of certificates has written.
fn through_chains(dir: &Path, plain: &Rate, count: usize) {
    let mut mesh = Mesh::of(2);
    for n in 1..MAX_CERT_DEPTH {
        mesh.delegate(0, 200 + u8::try_from(n).unwrap());
    }
    let author = mesh.nodes[0].agent.id();
    let depth = mesh.authority().agent(&author).unwrap().chain.len();
    assert_eq!(depth, MAX_CERT_DEPTH);
    let wires = fragments(&mesh, &mesh.open(0, &dir.join("deep")), count);
    let (mut admit, mut decrypt, mut view) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let plain_relay = dir.join(format!("deep relay without a key {turn}"));
        admit.push(admission(&mesh, &wires, &plain_relay));
        decrypt.push(admission_and_decryption(
            &mesh,
            &wires,
            &dir.join(format!("deep relay {turn}")),
        ));
        view.push(into_view(
            &mesh,
            &wires,
            &dir.join(format!("deep reader {turn}")),
        ));
    }
    let (admit, decrypt, view) = (median(admit), median(decrypt), median(view));
    let share = |rate: &Rate| format!("{:.0} %", 100.0 * rate.per_second() / plain.per_second());
    let what = format!("  of an agent {depth} certificates deep");
    row(&what, &admit, "the same", &share(&admit));
    row("  and decrypted", &decrypt, "the same", &share(&decrypt));
    row("  and in the view, on all cores", &view, "", "");
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
    let relay = relay(mesh, dir);
    per_core(wires.len(), || admit(mesh, &relay, wires))
}

/// Admits as a relay and decrypts what that took in, in one thread.
fn admission_and_decryption(mesh: &Mesh, wires: &[Bytes], dir: &Path) -> Rate {
    let relay = relay(mesh, dir);
    let decoded = wires.iter().map(|wire| Fragment::decode(wire).unwrap());
    let decoded: Vec<Fragment> = decoded.collect();
    per_core(wires.len(), || {
        admit(mesh, &relay, wires);
        for Fragment { header, body, .. } in &decoded {
            let body = body.as_ref().expect("a short body travels with its header");
            let plain = open_body(&mesh.space_key, &header.nonce, &header.aad(), body);
            assert!(!plain.unwrap().is_empty());
        }
    })
}

/// Admits as a reader, until everything that is said in the fragments can be recalled.
fn into_view(mesh: &Mesh, wires: &[Bytes], dir: &Path) -> Rate {
    let reader = mesh.open(1, dir);
    let begun = Instant::now();
    admit(mesh, &reader, wires);
    reader.flush().unwrap();
    Rate {
        count: wires.len(),
        elapsed: begun.elapsed(),
        each: Vec::new(),
    }
}

/// Opens a replica that holds no space key: admission alone, without the view.
fn relay(mesh: &Mesh, dir: &Path) -> Replica {
    let key = NodeKey::from_seed([99; 32]);
    let relay = Replica::open(dir, key, ReplicaConfig::default()).unwrap();
    relay.append_records(mesh.records.clone()).unwrap();
    relay
}

fn admit(mesh: &Mesh, replica: &Replica, wires: &[Bytes]) {
    let is_admitted = |outcome: &AdmitOutcome| outcome.verdict == Verdict::Admit;
    for batch in wires.chunks(BATCH) {
        let outcomes = replica.admit(mesh.nodes[0].key.id(), batch.to_vec());
        assert!(outcomes.iter().all(is_admitted));
    }
}
