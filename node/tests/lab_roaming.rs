//! Real daemons on hosts with addresses of their own: one gets another address while it works.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use rhizome_netsim::lab::{Daemon, Host, Hosts};

/// Longest time in which an acknowledgement by both nodes may come after the move.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_node_that_gets_another_address_is_not_lost() {
    let hosts = match Hosts::namespaces(&["still", "roams"]) {
        Ok(hosts) => hosts,
        Err(error) => {
            eprintln!("skipped: a_node_that_gets_another_address_is_not_lost: {error}");
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let start = |host: &Host| {
        // At whatever addresses the host has, now and later.
        let mut host = host.clone();
        host.bind.set_ip(Ipv4Addr::UNSPECIFIED.into());
        let program = env!("CARGO_BIN_EXE_rhizome").as_ref();
        let data = dir.path().join(&host.name);
        Daemon::start(&host, program, &data, &["--no-sandboxes", "--no-mdns"]).unwrap()
    };
    let [still, roams] = [0, 1].map(|index| hosts.iter().nth(index).unwrap().clone());
    let (first, second) = (start(&still), start(&roams));
    first
        .output(&["init", "--name", "lab", "--space", "findings"])
        .unwrap();
    let invite = first
        .output(&["invite", "create", "--space", "findings"])
        .unwrap();
    second.output(&["join", invite.trim()]).unwrap();
    let publish = |daemon: &Daemon, title: &str| {
        let asked = ["memory", "publish", "--kind", "fact", "--title", title];
        daemon.output(&[&asked[..], &["--replicas", "1"]].concat())
    };
    publish(&first, "before").unwrap();

    let IpAddr::V4(old) = roams.bind.ip() else {
        panic!("labs have addresses of the fourth version");
    };
    let [a, b, c, _] = old.octets();
    let new = Ipv4Addr::new(a, b, c, 102);
    let begun = Instant::now();
    roams.roam(old.into(), new.into()).unwrap();
    // Both directions, and no word from either that the other is gone for good.
    for (daemon, title) in [
        (&second, "from where it is now"),
        (&first, "to where it is now"),
    ] {
        while let Err(error) = publish(daemon, title) {
            assert!(begun.elapsed() < LIMIT, "{title}: {error}");
        }
    }
    eprintln!("both ways again after {:?}", begun.elapsed());
    // The old path is given up once it has been silent for long enough.
    let moved = |daemon: &Daemon| {
        let peers = daemon.json(&["peers"]).ok()?;
        let peer = peers.iter().find(|peer| peer["name"] == "roams")?;
        let is_there = peer["state"] == "connected"
            && peer["path"]["addr"].to_string().contains(&new.to_string());
        is_there.then_some(())
    };
    first
        .wait("the peer is seen where it is now", 2 * LIMIT, moved)
        .unwrap();
}
