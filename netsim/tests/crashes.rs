//! A node that loses what it had not synced never signs two fragments for one position.

use std::time::Duration;

use rhizome_netsim::sim::{Netsim, seed_from_env_or};

#[test]
fn a_crash_between_write_and_sync_repeats_no_position() {
    let mut net = Netsim::seeded(seed_from_env_or(3))
        .peers(6)
        .loss_percent(5)
        .build();
    net.run_for(Duration::from_secs(5));
    for round in 0..60_u64 {
        let node = usize::try_from(round % 6).expect("below six");
        for _ in 0..4 {
            net.publish(node);
        }
        // Some writes are synced by then, some are not: the run asserts on every one that is.
        net.run_for(Duration::from_millis(round % 12));
        net.crash(node, Duration::from_millis(300));
        net.run_for(Duration::from_secs(1));
        net.check();
    }
    let took = net.run_until(Duration::from_secs(240), |net| net.distinct_states() == 1);
    assert!(
        net.all_acked_everywhere(),
        "after {took:?}; {}",
        net.replay()
    );
    assert_eq!(net.distinct_states(), 1, "{}", net.replay());
}
