//! Real daemons on hosts with addresses of their own: nodes that moved find each other again.

use std::time::Duration;

use rhizome_netsim::lab::{Daemon, Host, Hosts};

#[test]
fn nodes_that_both_moved_meet_again_through_the_local_network() {
    let hosts = match Hosts::namespaces(&["one", "two"]) {
        Ok(hosts) => hosts,
        Err(error) => {
            eprintln!(
                "skipped: nodes_that_both_moved_meet_again_through_the_local_network: {error}"
            );
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();

    let start = |host: &Host| {
        let program = env!("CARGO_BIN_EXE_rhizome").as_ref();
        Daemon::start(
            host,
            program,
            &dir.path().join(&host.name),
            &["--no-sandboxes"],
        )
        .unwrap()
    };
    let [one, two] = [0, 1].map(|index| hosts.iter().nth(index).unwrap().clone());
    let (first, second) = (start(&one), start(&two));
    first
        .output(&["init", "--name", "lab", "--space", "findings"])
        .unwrap();
    let invite = first.output(&["invite", "create"]).unwrap();
    second.output(&["join", invite.trim()]).unwrap();
    drop((first, second));

    // Neither knows where the other is now: what the address books say is of yesterday.
    let moved = |mut host: Host| {
        host.bind.set_port(host.bind.port() + 100);
        host
    };
    let (first, _second) = (start(&moved(one)), start(&moved(two)));
    let there = |daemon: &Daemon| {
        let peers = daemon.json(&["peers"]).ok()?;
        let peer = peers.iter().find(|peer| peer["name"] == "two")?;
        (peer["state"] == "connected").then(|| peer["path"]["addr"].to_string())
    };
    let path = first
        .wait("the nodes have met", Duration::from_secs(60), there)
        .unwrap();
    assert!(path.contains(":4670"), "{path}");
}
