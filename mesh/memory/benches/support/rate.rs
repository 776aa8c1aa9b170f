//! How often something was done in how long, and how that is printed.
#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each benchmark uses its share, and reports on stdout"
)]

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

pub(crate) struct Rate {
    pub(crate) count: usize,
    pub(crate) elapsed: Duration,
    /// How long each took, if that was measured.
    pub(crate) each: Vec<Duration>,
}

impl Rate {
    /// Returns what was done, given how long each took.
    pub(crate) fn of(each: Vec<Duration>) -> Self {
        Self {
            count: each.len(),
            elapsed: each.iter().sum(),
            each,
        }
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns how long one took, in microseconds: half of them took longer.
    pub(crate) fn p50_micros(&self) -> f64 {
        let mut each = self.each.clone();
        each.sort_unstable();
        micros(each.get(each.len() / 2).copied().unwrap_or_default())
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>7.0}/s", self.per_second())?;
        let mut each = self.each.clone();
        each.sort_unstable();
        if let Some(last) = each.len().checked_sub(1) {
            let (p50, p99) = (each[last / 2], each[last * 99 / 100]);
            let (p50, p99) = (micros(p50) / 1e3, micros(p99) / 1e3);
            write!(f, " (p50 {p50:.3} ms, p99 {p99:.3} ms)")?;
        }
        Ok(())
    }
}

/// Returns a time in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Does something so many times, and measures each.
pub(crate) fn timed(count: usize, mut act: impl FnMut(usize)) -> Rate {
    let begun = Instant::now();
    let each = (0..count)
        .map(|n| {
            let begun = Instant::now();
            act(n);
            begun.elapsed()
        })
        .collect();
    Rate {
        count,
        elapsed: begun.elapsed(),
        each,
    }
}

/// Prints what was measured, with its limit and how it stands to that beside it.
pub(crate) fn row(what: &str, measured: &Rate, limit: &str, share: &str) {
    println!(
        "{what:<34} {:<44} {limit:<46} {share:>10}",
        measured.to_string()
    );
}

/// Returns the run whose rate is in the middle.
pub(crate) fn median(mut runs: Vec<Rate>) -> Rate {
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let middle = runs.len() / 2;
    runs.swap_remove(middle)
}

/// Returns how long this thread has been on a core: what "per core" means on a busy machine.
pub(crate) fn on_core() -> Duration {
    let read = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = read.and_then(|text| text.split(' ').next()?.parse().ok());
    // Without it, wall time stands in.
    nanos.map_or_else(since_start, Duration::from_nanos)
}

/// Returns the time since this was first asked.
pub(crate) fn since_start() -> Duration {
    STARTED.elapsed()
}

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Does something that counts as `count`, and measures the time on a core of this thread alone.
pub(crate) fn per_core(count: usize, act: impl FnOnce()) -> Rate {
    let begun = on_core();
    act();
    Rate {
        count,
        elapsed: on_core() - begun,
        each: Vec::new(),
    }
}
