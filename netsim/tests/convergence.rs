//! Every acknowledged fragment reaches every node, whatever the network does.

use std::time::Duration;

use rhizome_netsim::sim::{Netsim, seed_from_env_or};

const PERIOD: Duration = Duration::from_secs(30);

/// A hundred nodes, bad links, a partition with publishers on both sides, crashes.
fn hundred_nodes(seed: u64) -> Netsim {
    let mut net = Netsim::seeded(seed)
        .peers(100)
        .neighbours(4)
        .loss_percent(5)
        .build();
    net.run_for(Duration::from_secs(10));
    for round in 0..4 {
        for node in (round..100).step_by(9) {
            net.publish(node);
        }
        net.run_for(Duration::from_secs(1));
    }
    net.partition(&[0..40, 40..100]);
    for round in 0..8 {
        for node in (round..100).step_by(11) {
            net.publish(node);
        }
        net.run_for(Duration::from_millis(700));
        // In the middle of their writes, on both sides of the cut.
        if round % 2 == 1 {
            for node in [3 + round, 60 + round] {
                net.publish(node);
                net.crash(node, Duration::from_secs(8));
            }
        }
        net.check();
    }
    net.run_for(Duration::from_secs(20));
    net.heal();
    net
}

#[test]
fn a_healed_partition_of_a_hundred_nodes_converges() {
    let seed = seed_from_env_or(7);
    let mut net = hundred_nodes(seed);
    let acked = net.acked();
    assert!(
        acked > 100,
        "{acked} fragments were acknowledged; {}",
        net.replay()
    );
    let took = net.run_until(6 * PERIOD, |net| net.distinct_states() == 1);
    net.check();
    assert!(
        net.all_acked_everywhere(),
        "not everywhere after {took:?}; {}",
        net.replay()
    );
    assert_eq!(net.distinct_states(), 1, "{}", net.replay());
    assert!(took <= 4 * PERIOD, "it took {took:?}; {}", net.replay());

    let again = {
        let mut net = hundred_nodes(seed);
        net.run_for(took);
        net.trace_hash()
    };
    assert_eq!(
        net.trace_hash(),
        again,
        "the same seed gave another run; {}",
        net.replay()
    );
}

#[test]
fn another_seed_is_another_run() {
    let run = |seed| {
        let mut net = Netsim::seeded(seed).peers(5).build();
        net.run_for(Duration::from_secs(5));
        net.trace_hash()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn reconciliation_alone_converges() {
    let mut net = Netsim::seeded(seed_from_env_or(11))
        .peers(12)
        .loss_percent(10)
        .without_push()
        .build();
    net.run_for(Duration::from_secs(10));
    for node in 0..12 {
        for _ in 0..20 {
            net.publish(node);
        }
    }
    let took = net.run_until(10 * PERIOD, |net| {
        net.acked() == 240 && net.distinct_states() == 1
    });
    assert_eq!(net.distinct_states(), 1, "after {took:?}; {}", net.replay());
    assert!(
        net.replica_reports() >= 240 && net.in_sync_reports() > 0,
        "{}",
        net.replay()
    );
}

#[test]
fn a_newcomer_catches_up_with_a_long_chain() {
    let mut net = Netsim::seeded(seed_from_env_or(5))
        .peers(3)
        .without_push()
        .build();
    net.run_for(Duration::from_secs(3));
    net.crash(2, Duration::from_secs(20));
    for _ in 0..1500 {
        net.publish(0);
    }
    net.run_for(Duration::from_secs(19));
    let took = net.run_until(2 * PERIOD, |net| net.distinct_states() == 1);
    assert!(
        net.all_acked_everywhere(),
        "after {took:?}; {}",
        net.replay()
    );
}
