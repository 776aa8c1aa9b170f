//! A replica that what is measured may fill as fast as it can.

use rhizome_memory::{Limit, ReplicaConfig};

/// Returns the settings of a replica in which nobody's share is ever used up.
pub(crate) fn unbounded() -> ReplicaConfig {
    let limit = Limit {
        bytes_a_day: 1 << 50,
        fragments_a_minute: 1 << 40,
    };
    let mut config = ReplicaConfig::default();
    config.shares.author = limit;
    config.shares.node = limit;
    config.shares.space = limit;
    config
}
