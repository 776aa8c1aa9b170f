//! Cases that other systems met in the field, with the right outcome.
//!
//! Those that a scenario file says in full are run from it; `docs/simulator.md` lists them all.

use std::{path::PathBuf, time::Duration};

use rhizome_netsim::sim::{
    Hostility, Netsim,
    run::{Options, Report, run},
    scenario::Scenario,
    seed_from_env_or,
};

const PERIOD: Duration = Duration::from_secs(30);

fn held(name: &str) -> Report {
    let scenario = Scenario::load(name).expect("it is built in");
    let options = Options {
        seed: seed_from_env_or(1),
        ..Options::default()
    };
    let report = run(&scenario, options, &mut |_| {});
    let violation = report.violation.as_ref().map(ToString::to_string);
    assert_eq!(violation, None, "{}", report.replay_command(name));
    report
}

/// A directory of its own, gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let own = format!("rhizome-netsim-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(own))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sixty_nodes_cut_in_half_are_one_component_within_two_periods() {
    // The file also says that no node lost three neighbours over it.
    let report = held("halved");
    assert!(report.converged[1] <= 2 * PERIOD, "{:?}", report.converged);
}

#[test]
fn a_newcomer_reaches_the_others_when_its_inviter_is_gone_for_good() {
    held("newcomer");
    let mut net = Netsim::seeded(seed_from_env_or(2))
        .peers(8)
        .newcomers(1)
        .build();
    net.run_for(Duration::from_secs(10));
    net.kill(0).join(8);
    let took = net.run_until(6 * PERIOD, |net| net.is_member(8));
    assert!(
        net.is_member(8),
        "no member after {took:?}; {}",
        net.replay()
    );
    net.publish(8);
    net.publish(3);
    let all = |net: &Netsim| net.acked() >= 1 && net.all_acked_everywhere();
    net.run_until(4 * PERIOD, all);
    net.check();
    assert!(all(&net), "{}", net.replay());
}

#[test]
fn a_node_completes_when_its_first_peer_has_names_and_nothing_else() {
    let mut net = Netsim::seeded(seed_from_env_or(4))
        .peers(5)
        .hostile(3, Hostility::Hollow)
        .build();
    net.run_for(Duration::from_secs(5));
    net.crash(4, Duration::from_secs(25));
    let published: Vec<_> = (0..50).filter_map(|_| net.publish(1)).collect();
    net.run_for(Duration::from_secs(20));
    // It comes back to the one that names everything and hands out nothing.
    net.partition(&[0..3, 3..5]);
    net.run_for(2 * PERIOD);
    assert!(
        published.iter().all(|id| net.holds(3, *id)),
        "{}",
        net.replay()
    );
    assert!(
        published.iter().all(|id| !net.holds(4, *id)),
        "{}",
        net.replay()
    );
    net.heal();
    net.run_for(Duration::from_millis(700));
    net.crash(4, Duration::from_secs(1));
    let has_all = |net: &Netsim| published.iter().all(|id| net.holds(4, *id));
    let took = net.run_until(4 * PERIOD, has_all);
    net.check();
    assert!(has_all(&net), "not after {took:?}; {}", net.replay());
    assert!(net.all_acked_everywhere(), "{}", net.replay());
}

#[test]
fn clocks_that_are_off_lose_nothing() {
    let report = held("clocks");
    assert_eq!(report.acked, 200);
}

#[test]
fn equal_sets_have_equal_summaries_whatever_came_first_and_whatever_is_missing_elsewhere() {
    let mut net = Netsim::seeded(seed_from_env_or(8))
        .peers(8)
        .loss_percent(10)
        // Everybody keeps fragments that wait for one that nobody gets.
        .hostile(5, Hostility::WithheldPredecessor)
        .build();
    net.run_for(Duration::from_secs(5));
    for round in 0..60 {
        net.publish(round % 8);
        net.run_for(Duration::from_millis(50));
    }
    net.run_until(6 * PERIOD, |net| net.distinct_states() == 1);
    net.check();
    assert_eq!(net.distinct_states(), 1, "{}", net.replay());
    let first = net.summary(0).expect("it is up");
    for node in [1, 2, 3, 4, 6, 7] {
        assert_eq!(
            net.summary(node),
            Some(first),
            "node {node}; {}",
            net.replay()
        );
    }
    // Nor does a restart change what a node says of itself.
    net.crash(2, Duration::from_secs(1));
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.summary(2), Some(first), "{}", net.replay());
}

#[test]
fn equal_sets_have_equal_views_and_poison_is_in_none() {
    let mut net = Netsim::seeded(seed_from_env_or(9))
        .peers(5)
        .loss_percent(10)
        .with_documents()
        .hostile(4, Hostility::Poison)
        .build();
    net.run_for(Duration::from_secs(5));
    net.partition(&[0..2, 2..5]);
    for round in 0..40 {
        net.publish(round % 5);
        net.run_for(Duration::from_millis(200));
    }
    net.heal();
    net.run_until(6 * PERIOD, |net| net.distinct_states() == 1);
    net.check();
    assert_eq!(net.distinct_states(), 1, "{}", net.replay());
    let scratch = Scratch::new("views");
    let seen = |node: usize| {
        let seen = net.view(node, &scratch.0.join(node.to_string()));
        seen.expect("the view can be written")
    };
    let first = seen(0);
    assert_eq!(first.memories.len(), 32, "{}", net.replay());
    assert!(
        first.refused.len() >= 8,
        "{} were refused",
        first.refused.len()
    );
    for node in 1..4 {
        assert_eq!(seen(node), first, "node {node}; {}", net.replay());
    }
}

#[test]
fn a_partition_of_two_days_heals_with_no_human_act() {
    let report = held("two-days");
    assert!(report.ran > Duration::from_secs(48 * 3600));
    assert!(report.converged[0] <= 2 * PERIOD, "{:?}", report.converged);
}

/// Returns how long it takes until node 7 holds what node 0 published, and the longest queue.
fn spread(slow: Option<u64>) -> (Duration, usize) {
    let mut builder = Netsim::seeded(seed_from_env_or(13)).peers(10);
    if let Some(rate) = slow {
        builder = builder.slow_reader(5, rate);
    }
    let mut net = builder.build();
    net.run_for(Duration::from_secs(20));
    let mut took = Duration::ZERO;
    for _ in 0..20 {
        let published: Vec<_> = (0..40).filter_map(|_| net.publish(0)).collect();
        let others = [1, 2, 3, 4, 6, 7, 8, 9];
        took += net.run_until(PERIOD, |net| {
            others
                .iter()
                .all(|node| published.iter().all(|id| net.holds(*node, *id)))
        });
        net.check();
    }
    (took, net.longest_queue())
}

#[test]
fn a_peer_that_reads_a_kilobyte_a_second_has_a_capped_queue_and_others_do_not_notice() {
    let (usual, _) = spread(None);
    let (beside_a_slow_one, queue) = spread(Some(1000));
    assert!((20..=128).contains(&queue), "{queue} frames");
    let more = beside_a_slow_one.saturating_sub(usual);
    assert!(more <= usual / 2, "{usual:?} became {beside_a_slow_one:?}");
}
