//! A replica of very many headers: what it takes in memory, and how soon it is open.
//!
//! `cargo bench -p rhizome-memory --bench headers`; `HEADERS` sets how many, 1,000,000 by default.
//! Each opening is measured in a process of its own, which holds nothing else. Building the store
//! signs and verifies every fragment and takes about as long as that.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports on stdout and has nobody to return an error to"
)]

#[path = "../tests/support/mesh.rs"]
mod mesh;
#[path = "support/rate.rs"]
mod rate;
#[path = "support/shares.rs"]
mod shares;

use std::{
    env, fs,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use mesh::Mesh;
use rate::micros;
use rhizome_identity::{Hash, NodeKey};
use rhizome_memory::{
    Admission, AdmitOutcome, DocId, Fragment, FragmentId, Header, Hlc, IdSet, Kind, Lane, Replica,
    Verdict,
};

const HEADERS: usize = 1_000_000;
/// As many when `cargo test` only looks whether the benchmark works.
const FEW: usize = 2_000;
const AUTHORS: usize = 8;
/// How many are admitted, and synced, at a time.
const BATCH: usize = 8192;
const MOST_MEMORY: f64 = 300.0;
const LONGEST_START: Duration = Duration::from_secs(3);

fn main() {
    let arguments: Vec<String> = env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["open", dir] => return open(Path::new(dir)),
        ["parts", count] => return parts(count.parse().unwrap()),
        _ => {}
    }
    let is_test = !arguments.iter().any(|argument| argument == "--bench");
    let asked = env::var("HEADERS").ok();
    let asked = asked.and_then(|count| count.parse().ok());
    let count = asked.unwrap_or(if is_test { FEW } else { HEADERS });

    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("large");
    let begun = Instant::now();
    build(&dir, count);
    println!(
        "a replica of {count} headers of {AUTHORS} authors, built in {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    println!(
        "{:<34} {:>9} {:>22} {:>11}",
        "", "opened in", "memory", "at most"
    );
    let with_index = child(&["open", dir.to_str().unwrap()]);
    println!("{:<34} {with_index}", "with its index");
    let limit = format!("{:.0} ms", micros(LONGEST_START) / 1e3);
    println!(
        "{:<34} {limit:>9} {MOST_MEMORY:>18.1} MiB",
        "limit for a million"
    );
    fs::remove_file(dir.join("index.redb")).unwrap();
    let rebuilt = child(&["open", dir.to_str().unwrap()]);
    println!("{:<34} {rebuilt}", "without, from its segments");
    print!("{}", child(&["parts", &count.to_string()]));
}

/// Has this program do one thing in a process of its own; returns what it printed.
fn child(arguments: &[&str]) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Opens the replica, and prints what that took.
fn open(dir: &Path) {
    let before = memory("VmRSS");
    let begun = Instant::now();
    let replica = replica(dir);
    let took = begun.elapsed();
    let authority = replica.authority();
    let space = authority.spaces().next().unwrap().id;
    let held = replica.id_set(Lane::Space(space)).read().unwrap().len();
    let (now, most) = (memory("VmRSS"), memory("VmHWM"));
    let each = (now - before) * 1024.0 * 1024.0 / held as f64;
    print!(
        "{:>6.0} ms {now:>7.1} MiB, {each:>4.0} each {most:>7.1} MiB",
        micros(took) / 1e3
    );
}

/// Prints what the structures take by themselves that hold something of every header.
fn parts(count: usize) {
    let ids: Vec<Hash> = (0..count as u64)
        .map(|n| Hash::of(&n.to_le_bytes()))
        .collect();
    let print = |what: &str, before: f64| {
        let each = (memory("VmRSS") - before) * 1024.0 * 1024.0 / count as f64;
        println!("{what:<34} {each:>31.0} bytes a header");
    };
    let before = memory("VmRSS");
    let set: IdSet = ids.iter().copied().collect();
    print("  of which: the set of ids", before);
    let mesh = Mesh::with_agents(AUTHORS);
    let before = memory("VmRSS");
    let mut admission = Admission::new();
    for (n, id) in ids.iter().enumerate() {
        let author = mesh.nodes[n % AUTHORS].agent.id();
        let prev = n.checked_sub(AUTHORS).map(|prev| ids[prev].into());
        let seq = (n / AUTHORS) as u64;
        admission.restore(author, mesh.space, seq, FragmentId::from(*id), prev);
    }
    print("  of which: the authors' chains", before);
    assert_eq!(set.len(), count);
    assert_eq!(admission.heads(&mesh.space).count(), AUTHORS.min(count));
}

/// Returns a line of this process's status, in MiB.
fn memory(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

/// Opens a relay's replica: it holds the headers and reads none of the bodies.
fn replica(dir: &Path) -> Replica {
    let config = shares::unbounded();
    Replica::open(dir, NodeKey::from_seed([98; 32]), config).unwrap()
}

/// Fills a store: one thread signs, this one admits.
fn build(dir: &Path, count: usize) {
    let mesh = Mesh::with_agents(AUTHORS);
    let relay = replica(dir);
    relay.append_records(mesh.records.clone()).unwrap();
    let is_admitted = |outcome: &AdmitOutcome| outcome.verdict == Verdict::Admit;
    thread::scope(|scope| {
        let (send, batches) = mpsc::sync_channel(2);
        let mesh = &mesh;
        scope.spawn(move || {
            let mut headers = first_headers(mesh);
            let mut batch = Vec::with_capacity(BATCH);
            for n in 0..count {
                let author = n % AUTHORS;
                let header = &mut headers[author];
                header.hlc = Hlc::from_ms(1_700_000_000_000 + n as u64);
                let body = Bytes::from_static(&[7; 200]);
                let key = &mesh.nodes[author].agent;
                let fragment = Fragment::sign(key, header.clone(), body).unwrap();
                header.seq += 1;
                header.prev = Some(fragment.id);
                batch.push(fragment.encode());
                if batch.len() == BATCH || n + 1 == count {
                    send.send(std::mem::take(&mut batch)).unwrap();
                }
            }
        });
        for batch in batches {
            let outcomes = relay.admit(mesh.nodes[0].key.id(), batch);
            assert!(outcomes.iter().all(is_admitted));
        }
    });
    relay.close().unwrap();
}

/// Returns how the chain of each author begins.
fn first_headers(mesh: &Mesh) -> Vec<Header> {
    let authority = mesh.authority();
    let first = |node: &mesh::Node| Header {
        version: 1,
        mesh: authority.mesh().unwrap(),
        space: mesh.space,
        author: node.agent.id(),
        node: node.key.id(),
        seq: 0,
        prev: None,
        auth_heads: authority.heads().to_vec(),
        deps: Vec::new(),
        hlc: Hlc::default(),
        kind: Kind::Fact,
        doc: DocId::from_bytes([9; 32]),
        fingerprint: Hash::of(b"runtime"),
        epoch: 1,
        nonce: [3; 24],
        body_hash: Hash::of(b""),
        body_len: 0,
    };
    mesh.nodes.iter().map(first).collect()
}
