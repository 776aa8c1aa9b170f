//! What members that sign two histories cost the mesh.

use std::time::Duration;

use rhizome_memory::FORK_TURN;
use rhizome_netsim::sim::{Hostility, Netsim, seed_from_env_or};

/// Lets `forkers` of `peers` nodes fork, each several times; returns the mesh once all know of it.
fn forked(peers: usize, forkers: usize) -> Netsim {
    let mut builder = Netsim::seeded(seed_from_env_or(31)).peers(peers);
    for forker in 0..forkers {
        builder = builder.hostile(5 + forker * 7, Hostility::Fork);
    }
    let mut net = builder.build();
    net.run_for(Duration::from_secs(5));
    for _ in 0..4 {
        for forker in 0..forkers {
            net.publish(5 + forker * 7);
        }
        net.run_for(Duration::from_secs(2));
        net.check();
    }
    let turns = peers.next_power_of_two().trailing_zeros() + 1;
    net.run_for(FORK_TURN * turns);
    // The records; what each node holds of the frozen chains is not compared here.
    let is_settled = |net: &Netsim| {
        let frozen = net.frozen_chains(0);
        (1..5).all(|node| net.frozen_chains(node) == frozen)
    };
    net.run_until(Duration::from_secs(120), is_settled);
    net.check();
    net
}

#[test]
fn proofs_are_as_many_as_forkers_and_not_as_nodes() {
    let mut found_out = 0;
    for (peers, forkers) in [(20, 2), (200, 1), (60, 6), (200, 12)] {
        let net = forked(peers, forkers);
        let (proofs, frozen) = (net.fork_proofs(), net.frozen_chains(0));
        // A forker may have shown one of its histories to nobody.
        assert!(frozen <= forkers);
        assert!(
            (frozen..=3 * frozen).contains(&proofs),
            "{proofs} proofs of {frozen} forks among {peers}; {}",
            net.replay()
        );
        for node in 0..4 {
            assert_eq!(net.frozen_chains(node), frozen, "{}", net.replay());
        }
        found_out += frozen;
    }
    assert!(found_out >= 10, "only {found_out} forks were found out");
}
