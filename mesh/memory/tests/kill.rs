//! SIGKILL during concurrent publishing: nothing acknowledged is lost, no position is reused.
//!
//! The child is this very test binary, run again with an environment variable that makes one of
//! its tests publish until it is killed. It says on its standard output what was acknowledged.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what a test prepares has to work; the child reports on stdout"
)]

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead, BufReader, Read, Seek, Write},
    path::Path,
    process::{Command, Stdio},
};

use mesh::Mesh;
use rhizome_identity::{AgentId, Hash};
use rhizome_memory::{Fragment, FragmentId, Replica, ReplicaConfig};

const CHILD: &str = "RHIZOME_KILL_TEST_DIR";
const ROUNDS: usize = 30;
const AUTHORS: usize = 3;
const THREADS_PER_AUTHOR: usize = 2;

/// The child: publishes until it is killed. Run as a test of its own it does nothing.
#[test]
fn child_publishes_until_it_is_killed() {
    let Ok(dir) = env::var(CHILD) else { return };
    // The same keys as in the parent; the space is the one it made.
    let mut mesh = one_node_mesh();
    let key = mesh.nodes[0].key.clone();
    let replica = &Replica::open(Path::new(&dir), key, ReplicaConfig::default()).unwrap();
    mesh.space = replica.authority().space_named("lab").unwrap().id;
    let mesh = &mesh;
    std::thread::scope(|scope| {
        for thread in 0..AUTHORS * THREADS_PER_AUTHOR {
            scope.spawn(move || {
                for n in 0.. {
                    let title = format!("thread {thread} finding {n}");
                    let published = mesh.publish(thread % AUTHORS, replica, &title);
                    let line = format!("acknowledged {} {}\n", published.seq, published.id);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    let mesh = one_node_mesh();
    let dir = tempfile::tempdir().unwrap();
    let key = || mesh.nodes[0].key.clone();
    {
        let replica = Replica::open(dir.path(), key(), ReplicaConfig::default()).unwrap();
        replica.append_records(mesh.records.clone()).unwrap();
    }
    let mut acknowledged: BTreeSet<FragmentId> = BTreeSet::new();
    let mut positions: BTreeMap<(AgentId, u64), FragmentId> = BTreeMap::new();
    for round in 0..ROUNDS {
        // After a few acknowledgements more or fewer, so that the kill hits every stage.
        acknowledged.extend(run_and_kill(dir.path(), 1 + round * 7 % 40));
        let replica = Replica::open(dir.path(), key(), ReplicaConfig::default()).unwrap();
        let report = replica.recovery();
        assert!(
            report.damage.is_empty() && report.lost.is_empty(),
            "{report:?}"
        );
        let missing = acknowledged.iter().find(|id| !replica.holds(id));
        assert_eq!(missing, None, "acknowledged and lost in round {round}");
        let ids: Vec<Hash> = replica
            .id_set(mesh.lane())
            .read()
            .unwrap()
            .iter()
            .copied()
            .collect();
        let wires = replica.wires(mesh.lane(), &ids, usize::MAX);
        assert_eq!(wires.len(), ids.len());
        let mut lengths: BTreeMap<AgentId, (u64, u64)> = BTreeMap::new();
        for wire in wires {
            let fragment = Fragment::decode(&wire).unwrap();
            let (author, seq) = (fragment.header.author, fragment.header.seq);
            let before = positions.insert((author, seq), fragment.id);
            assert!(
                before.is_none_or(|before| before == fragment.id),
                "a position was reused"
            );
            let (count, highest) = lengths.entry(author).or_default();
            *count += 1;
            *highest = seq.max(*highest);
        }
        assert!(
            lengths
                .values()
                .all(|(count, highest)| *count == highest + 1),
            "a gap"
        );
    }
    assert!(acknowledged.len() >= ROUNDS);
}

fn one_node_mesh() -> Mesh {
    Mesh::with_agents(AUTHORS)
}

/// Runs the child until it has acknowledged `count` fragments, kills it, and returns all it said.
fn run_and_kill(dir: &Path, count: usize) -> Vec<FragmentId> {
    let mut said = tempfile::tempfile().unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "child_publishes_until_it_is_killed",
            "--nocapture",
        ])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(said.try_clone().unwrap())
        .spawn()
        .unwrap();
    let mut ids = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, id)) = line.rsplit_once(' ')
            && line.contains("acknowledged")
            && let Ok(id) = id.parse()
        {
            ids.push(id);
        }
        if ids.len() == count {
            // On Unix this is SIGKILL. What is in the pipe by then was acknowledged as well.
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    let mut last_words = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut last_words).unwrap();
    assert!(
        ids.len() >= count,
        "the child ended by itself: {last_words}"
    );
    ids
}
