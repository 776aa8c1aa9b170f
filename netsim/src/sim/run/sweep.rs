//! Many seeds of one scenario, several at a time.

use std::{
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use super::{Options, Report, run};
use crate::sim::scenario::Scenario;

/// What came of a sweep.
#[derive(Debug, Default)]
pub struct Swept {
    /// How many seeds were run.
    pub runs: u64,
    /// The reports of those in which something did not hold, by seed.
    pub failed: Vec<Report>,
}

/// Runs `count` seeds from `first` on, `jobs` at a time; `told` sees every report as it comes.
pub fn sweep(
    scenario: &Scenario,
    nodes: Option<usize>,
    first: u64,
    count: u64,
    jobs: usize,
    told: &mut dyn FnMut(&Report),
) -> Swept {
    let next = AtomicU64::new(0);
    let (reports_in, reports) = mpsc::channel();
    let mut swept = Swept::default();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (next, reports_in) = (&next, reports_in.clone());
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let options = Options {
                        nodes,
                        seed: first.wrapping_add(at),
                        ..Options::default()
                    };
                    // Nobody listens any more when the sweep was given up.
                    if reports_in
                        .send(run(scenario, options, &mut |_| {}))
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
        // The last worker to end closes the channel.
        drop(reports_in);
        for _ in 0..count {
            let Ok(report) = reports.recv() else {
                break;
            };
            told(&report);
            swept.runs += 1;
            if report.violation.is_some() {
                swept.failed.push(report);
            }
        }
    });
    swept.failed.sort_by_key(|report| report.seed);
    swept
}
