//! A hostile member stops nobody but itself.

use std::time::Duration;

use rhizome_netsim::sim::{Hostility, Netsim, seed_from_env_or};

fn others_converge(hostility: Hostility) -> Netsim {
    let mut net = Netsim::seeded(seed_from_env_or(13))
        .peers(10)
        .loss_percent(3)
        .hostile(4, hostility)
        .build();
    net.run_for(Duration::from_secs(5));
    for round in 0..20 {
        for node in 0..10 {
            if (node + round) % 3 == 0 {
                net.publish(node);
            }
        }
        net.run_for(Duration::from_secs(1));
        net.check();
    }
    let took = net.run_until(Duration::from_secs(180), Netsim::all_acked_everywhere);
    net.check();
    assert!(
        net.all_acked_everywhere(),
        "{hostility:?}: after {took:?}; {}",
        net.replay()
    );
    net
}

#[test]
fn garbage_frames() {
    let net = others_converge(Hostility::Garbage);
    assert!(
        !net.sent_away().is_empty(),
        "nobody noticed; {}",
        net.replay()
    );
}

#[test]
fn broken_signatures() {
    let net = others_converge(Hostility::BrokenSignatures);
    assert!(net.rejected() > 0, "nothing was rejected; {}", net.replay());
}

#[test]
fn a_withheld_predecessor() {
    others_converge(Hostility::WithheldPredecessor);
}

#[test]
fn a_flood_of_repeated_frames() {
    others_converge(Hostility::Flood);
}
