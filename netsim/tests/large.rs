//! A thousand nodes, in the time that a test may take.

use rhizome_netsim::sim::{
    run::{Options, run},
    scenario::Scenario,
    seed_from_env_or,
};

#[test]
fn a_thousand_nodes_survive_loss_churn_a_partition_and_hostile_members() {
    let scenario = Scenario::load("thousand").expect("it is built in");
    let options = Options {
        seed: seed_from_env_or(1),
        ..Options::default()
    };
    let report = run(&scenario, options, &mut |_| {});
    eprintln!("{}", report.to_json("thousand"));
    let violation = report.violation.as_ref().map(ToString::to_string);
    assert_eq!(violation, None, "{}", report.replay_command("thousand"));
    assert_eq!(report.nodes, 1000);
    assert!(report.acked >= 50, "{} were acknowledged", report.acked);
}
