//! Real daemons that publish, are killed and come back, until someone says stop.
//!
//! What is checked at the end is the promise of the whole: every node holds the same fragments,
//! none that was acknowledged is missing anywhere, and none is kept out of its document.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Daemon, Host, Hosts, LabError};

/// How long the nodes may take to agree once everyone is up and nobody writes.
const AGREE: Duration = Duration::from_secs(60);
/// How many of the acknowledged fragments are looked up on every node.
const SAMPLE: usize = 40;
/// How to soak.
#[derive(Debug, Clone)]
pub struct Soak {
    /// The `rhizome` program.
    pub program: PathBuf,
    /// A directory for the nodes.
    pub scratch: PathBuf,
    /// How many nodes.
    pub nodes: u16,
    /// How long to publish and kill.
    pub length: Duration,
    /// Decides who is killed when.
    pub seed: u64,
}

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soaked {
    /// Publishes that were acknowledged.
    pub acknowledged: usize,
    /// Daemons that were killed.
    pub kills: usize,
    /// Fragments that every node holds.
    pub fragments: u64,
}

impl Soak {
    /// Soaks, and checks what is promised.
    ///
    /// # Errors
    /// [`LabError::NotSeen`] names the promise that was broken, and the seed.
    pub fn run(&self) -> Result<Soaked, LabError> {
        std::fs::create_dir_all(&self.scratch).map_err(|source| LabError::File {
            path: self.scratch.clone(),
            source,
        })?;
        let names: Vec<String> = (0..self.nodes)
            .map(|index| format!("node{index}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut hosts: Vec<Host> = Hosts::loopback(&names).iter().cloned().collect();
        let mut nodes = Vec::with_capacity(hosts.len());
        for host in &mut hosts {
            let daemon = self.start(host)?;
            // The system chose a port; a node that comes back keeps it, as nodes do.
            host.bind = listens_at(&daemon)?;
            nodes.push(Mutex::new(Some(daemon)));
        }
        found(&nodes)?;
        let acknowledged = Mutex::new(Vec::new());
        let stop = AtomicBool::new(false);
        let kills = thread::scope(|scope| {
            for index in 0..nodes.len() {
                let (nodes, stop, acknowledged) = (&nodes, &stop, &acknowledged);
                scope.spawn(move || write(index, nodes, stop, acknowledged));
            }
            let kills = self.kill(&hosts, &nodes);
            stop.store(true, Ordering::Relaxed);
            kills
        })?;
        let acknowledged = acknowledged
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<Daemon> = nodes
            .into_iter()
            .filter_map(|node| node.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let fragments = self.check(&nodes, &acknowledged)?;
        Ok(Soaked {
            acknowledged: acknowledged.len(),
            kills,
            fragments,
        })
    }

    fn start(&self, host: &Host) -> Result<Daemon, LabError> {
        let dir = self.scratch.join(&host.name);
        Daemon::start(host, &self.program, &dir, &["--no-sandboxes", "--no-mdns"])
    }

    /// Kills one node after the other and brings it back; every node is up at the end.
    fn kill(&self, hosts: &[Host], nodes: &[Mutex<Option<Daemon>>]) -> Result<usize, LabError> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let end = Instant::now() + self.length;
        let mut kills = 0;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(rng.random_range(500..2_500)));
            let index = rng.random_range(0..nodes.len());
            let node = || nodes[index].lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(mut daemon) = node().take() {
                daemon.kill();
                kills += 1;
            }
            thread::sleep(Duration::from_millis(rng.random_range(0..1_500)));
            let back = self.start(&hosts[index])?;
            *node() = Some(back);
        }
        Ok(kills)
    }

    fn check(&self, nodes: &[Daemon], acknowledged: &[String]) -> Result<u64, LabError> {
        let broken = |what: String| LabError::NotSeen(format!("{what} (seed {})", self.seed));
        let spaces = |_: &Daemon| -> Option<Vec<serde_json::Value>> {
            let spaces: Option<Vec<_>> = nodes
                .iter()
                .map(|node| node.json(&["space", "list"]).ok()?.into_iter().next())
                .collect();
            let spaces = spaces?;
            let same = spaces
                .iter()
                .all(|space| space["heads"] == spaces[0]["heads"]);
            same.then_some(spaces)
        };
        let agreed = nodes[0].wait("all nodes hold the same fragments", AGREE, spaces);
        let agreed = agreed.map_err(|error| broken(error.to_string()))?;
        for (node, space) in nodes.iter().zip(&agreed) {
            for count in ["waiting", "quarantined"] {
                if space[count] != 0 {
                    let (name, found) = (node.name(), &space[count]);
                    return Err(broken(format!("{name} has {found} fragments {count}")));
                }
            }
        }
        let step = acknowledged.len().div_ceil(SAMPLE).max(1);
        for id in acknowledged.iter().step_by(step) {
            for node in nodes {
                let why = node.json(&["memory", "why", id])?;
                if why.first().is_none_or(|why| why["state"] != "applied") {
                    let name = node.name();
                    return Err(broken(format!("{name} does not show {id}: {why:?}")));
                }
            }
        }
        Ok(agreed[0]["fragments"].as_u64().unwrap_or_default())
    }
}

/// Returns the UDP address of a node on loopback.
fn listens_at(daemon: &Daemon) -> Result<SocketAddr, LabError> {
    let status = daemon.json(&["status"])?;
    let addr = status
        .first()
        .and_then(|status| status["addrs"][0].as_str()?.parse().ok());
    addr.ok_or_else(|| LabError::Output {
        command: "status --json".to_owned(),
        found: format!("{status:?}"),
    })
}

/// Founds a mesh on the first node and lets the others join.
fn found(nodes: &[Mutex<Option<Daemon>>]) -> Result<(), LabError> {
    let run = |index: usize, args: &[&str]| {
        let node = nodes[index].lock().unwrap_or_else(PoisonError::into_inner);
        node.as_ref().expect("every node was started").output(args)
    };
    run(0, &["init", "--name", "soak", "--space", "findings"])?;
    let invite = run(0, &["invite", "create", "--uses", "100"])?;
    for index in 1..nodes.len() {
        run(index, &["join", invite.trim()])?;
    }
    Ok(())
}

/// Publishes on one node for as long as it is up: memories of its own, and one that all change.
fn write(
    index: usize,
    nodes: &[Mutex<Option<Daemon>>],
    stop: &AtomicBool,
    acknowledged: &Mutex<Vec<String>>,
) {
    let mut count = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let title = format!("node {index} says {count}");
        let mut args = vec![
            "memory", "publish", "--json", "--kind", "fact", "--title", &title,
        ];
        if count.is_multiple_of(3) {
            args.extend(["--key", "shared"]);
        }
        let command = {
            let node = nodes[index].lock().unwrap_or_else(PoisonError::into_inner);
            node.as_ref().map(|daemon| daemon.command(&args))
        };
        let Some(mut command) = command else {
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        count += 1;
        // A node that is killed meanwhile has not acknowledged.
        let Ok(said) = super::daemon::run(&mut command) else {
            continue;
        };
        let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        if let Some(id) = said["id"].as_str() {
            let mut acknowledged = acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
            acknowledged.push(id.to_owned());
        }
    }
}

/// Soaks in a directory below `scratch` with the seed of the environment, `SEED`, or else 1.
///
/// # Errors
/// As [`Soak::run`].
pub fn soak(
    program: &Path,
    scratch: &Path,
    nodes: u16,
    length: Duration,
) -> Result<Soaked, LabError> {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let soak = Soak {
        program: program.to_owned(),
        scratch: scratch.to_owned(),
        nodes,
        length,
        seed,
    };
    soak.run()
}
