//! What a channel allows its guest.

use std::time::Duration;

/// What a channel allows its guest, and for how long it waits for it.
///
/// The defaults are patient: a guest under software emulation on a busy host can take seconds
/// to answer.
#[derive(Debug, Clone)]
pub struct ChannelLimits {
    /// How long the guest may take from the start of the connection until it is ready.
    pub hello_deadline: Duration,
    /// How often the guest is pinged.
    pub ping_interval: Duration,
    /// How long a ping, or a write, may go unanswered before the guest counts as hung.
    pub ping_deadline: Duration,
    /// Requests of the host that may be open at once: execs, transfers, questions.
    pub max_requests: usize,
    /// Connections to ports of the guest that may be open at once.
    pub max_connects: usize,
    /// Connections to the door that the guest may have open at once.
    pub max_door_streams: usize,
    /// Entries that a directory may have to be listed.
    pub max_entries: usize,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        Self {
            hello_deadline: Duration::from_secs(60),
            ping_interval: Duration::from_secs(5),
            ping_deadline: Duration::from_secs(30),
            max_requests: 128,
            max_connects: 128,
            max_door_streams: 64,
            max_entries: 100_000,
        }
    }
}
