//! How gossipsub judges its peers here; which attack each number answers is in
//! `docs/adr/0044-gossip-scores-against-published-attacks.md`.
//!
//! The library's default topic parameters never punish: one point per millisecond in the mesh
//! adds up to 1,800, which no number of forgeries outweighs. With these, a peer that sends bad
//! signatures scores -5, -35 and -85, and is graylisted from the third on.

use std::time::Duration;

use libp2p::gossipsub::{PeerScoreParams, PeerScoreThresholds, TopicScoreParams};

/// Returns the parameters of every topic.
pub(super) fn topic() -> TopicScoreParams {
    TopicScoreParams {
        topic_weight: 0.5,
        // Being there is worth ten points at most, so that it never buys forgeries.
        time_in_mesh_weight: 1.0,
        time_in_mesh_quantum: Duration::from_secs(1),
        time_in_mesh_cap: 10.0,
        first_message_deliveries_weight: 1.0,
        first_message_deliveries_decay: 0.5,
        first_message_deliveries_cap: 20.0,
        // Most topics are silent most of the time; a peer that delivers nothing is no suspect.
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        // The square of the number of invalid messages counts.
        invalid_message_deliveries_weight: -20.0,
        invalid_message_deliveries_decay: 0.95,
        ..TopicScoreParams::default()
    }
}

/// Returns the parameters that concern a peer as a whole.
pub(super) fn peer() -> PeerScoreParams {
    PeerScoreParams {
        topic_score_cap: 40.0,
        // Members are known by key; several behind one address are a family, not a Sybil attack.
        ip_colocation_factor_weight: 0.0,
        // Grafts within a backoff and promises that were not kept; honest peers make a few when
        // both sides of a connection change their minds at once.
        behaviour_penalty_weight: -10.0,
        behaviour_penalty_threshold: 6.0,
        behaviour_penalty_decay: 0.2,
        // Longer than a peer stays graylisted: who comes back soon is judged as before.
        retain_score: Duration::from_secs(3600),
        ..PeerScoreParams::default()
    }
}

/// Returns the scores below which gossip, publishing and all traffic of a peer end.
pub(super) fn thresholds() -> PeerScoreThresholds {
    PeerScoreThresholds {
        gossip_threshold: -10.0,
        publish_threshold: -50.0,
        graylist_threshold: -80.0,
        accept_px_threshold: 10.0,
        opportunistic_graft_threshold: 5.0,
    }
}
