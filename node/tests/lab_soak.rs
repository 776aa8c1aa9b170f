//! Real daemons that publish and are killed: nothing acknowledged is lost, and all agree.

use std::time::Duration;

use rhizome_netsim::lab::soak::soak;

#[test]
fn nodes_that_are_killed_lose_nothing_and_agree() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_rhizome").as_ref();
    let soaked = soak(program, dir.path(), 3, Duration::from_secs(12)).unwrap();
    assert!(soaked.kills >= 2, "{soaked:?}");
    assert!(soaked.acknowledged >= 20, "{soaked:?}");
    // A publish can be durable though its node died before it could say so; never the reverse.
    assert!(soaked.fragments >= soaked.acknowledged as u64, "{soaked:?}");
}
