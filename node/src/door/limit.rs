//! How much of the node one sandbox may use at once.
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of one sandbox at once; the guest's HTTP client rarely needs more than two.
pub(crate) const MAX_CONNECTIONS: usize = 32;
/// Streams (`watch` that follows) of one sandbox at once.
pub(crate) const MAX_STREAMS: usize = 8;
/// Requests of one sandbox that are worked on at once.
pub(crate) const MAX_IN_FLIGHT: usize = 8;
/// Requests a second that one sandbox may make for long.
pub(crate) const REQUESTS_PER_SECOND: u32 = 100;
/// Requests that it may make at once after a pause.
pub(crate) const REQUEST_BURST: u32 = 400;

/// The limits of one sandbox; shared by all its connections.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) in_flight: Arc<Semaphore>,
    bucket: Mutex<Bucket>,
}

impl Limits {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            bucket: Mutex::new(Bucket {
                tokens: f64::from(REQUEST_BURST),
                at: now,
            }),
        }
    }

    /// Takes one request out of the budget.
    ///
    /// # Errors
    /// How long to wait before the next try.
    pub(crate) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut bucket = self
            .bucket
            .lock()
            .expect("no code panics while it holds this lock");
        let rate = f64::from(REQUESTS_PER_SECOND);
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * rate;
        bucket.tokens = (bucket.tokens + earned).min(f64::from(REQUEST_BURST));
        bucket.at = bucket.at.max(now);
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / rate));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    /// Takes the right to one more connection, if there is one left.
    pub(crate) fn connect(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_slowed_to_the_rate_and_forgiven_later() {
        let start = Instant::now();
        let limits = Limits::new(start);
        for _ in 0..REQUEST_BURST {
            limits.take(start).unwrap();
        }
        let wait = limits.take(start).unwrap_err();
        assert!(wait <= Duration::from_millis(10), "{wait:?}");
        limits
            .take(start + wait + Duration::from_micros(1))
            .unwrap();
        // A clock that seems to go back earns nothing and breaks nothing.
        limits.take(start).unwrap_err();
        let later = start + Duration::from_secs(60);
        for _ in 0..REQUEST_BURST {
            limits.take(later).unwrap();
        }
        limits.take(later).unwrap_err();
    }

    #[test]
    fn connections_are_counted() {
        let limits = Limits::new(Instant::now());
        let held: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| limits.connect().unwrap())
            .collect();
        assert!(limits.connect().is_none());
        drop(held);
        assert!(limits.connect().is_some());
    }
}
