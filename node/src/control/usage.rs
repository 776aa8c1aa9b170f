//! What agents and spaces use of this node, written down so that it survives the daemon.
//!
//! [`ledger`] adds up, [`journal`] keeps. A reading is applied once it is durable, so a daemon that
//! is killed at any moment leaves what it wrote; what a running monitor used since is in its next
//! reading. What can be lost is said in docs/usage.md.

pub(in crate::control) mod journal;
pub(in crate::control) mod ledger;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rhizome_memory::now_ms;
use rhizome_sandbox::{HostTime, Readings, SandboxId, Usage, egress::EgressUsage};
use tracing::warn;

pub(crate) use self::journal::UsageError;
use self::{
    journal::Journal,
    ledger::{Account, Charge, Ledger, Reading},
};
use crate::daemon::sandbox::Bound;

/// The one writer of what was used.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Held from the reading to the applying, so that what is read twice at once counts once.
    journal: Mutex<Journal>,
    ledger: Mutex<Ledger>,
    /// Names this daemon, whose network counters began with it.
    daemon: String,
}

impl Meter {
    /// Opens what was written down in `dir`.
    ///
    /// # Errors
    /// [`UsageError`] if the directory cannot be used.
    pub(crate) fn open(dir: &Path) -> Result<Self, UsageError> {
        let (journal, ledger, found) = Journal::open(dir)?;
        if found.damaged > 0 {
            warn!(
                lines = found.damaged,
                "a part of what was used could not be read"
            );
        }
        if let Some(path) = &found.set_aside {
            warn!(path = %path.display(), "what was used could not be read; it was set aside");
        }
        let HostTime { boot, awake_ms } = HostTime::now();
        Ok(Self {
            journal: Mutex::new(journal),
            ledger: Mutex::new(ledger),
            daemon: format!("{boot}-{awake_ms}-{}", std::process::id()),
        })
    }

    /// Adds what readings say; durable when this returns. Waits for the disk.
    ///
    /// # Errors
    /// [`UsageError`]; nothing of it counts then, and the next readings say it again.
    pub(crate) fn observe(
        &self,
        readings: Readings,
        volumes: &[Holding],
    ) -> Result<(), UsageError> {
        let mut journal = lock(&self.journal);
        let mut readings: Vec<_> = readings.usage.into_iter().map(reading).collect();
        let now = HostTime::now();
        readings.extend(volumes.iter().map(|holding| holding.reading(&now)));
        // One after the other, each on what the one before leaves: a sandbox may have two.
        let mut next = self.ledger().clone_marks();
        let mut charges: Vec<Charge> = Vec::new();
        for reading in &readings {
            if let Some(charge) = next.charge(now_ms(), &self.daemon, reading) {
                next.apply(&charge);
                charges.push(charge);
            }
        }
        if !charges.is_empty() {
            journal.append(&charges)?;
        }
        let mut ledger = self.ledger();
        for charge in &charges {
            ledger.apply(charge);
        }
        ledger.hold(&readings);
        if journal.is_long() {
            ledger.roll_up(now_ms());
            let folded = ledger.clone();
            drop(ledger);
            // The journal is whole all the same, only long.
            if let Err(error) = journal.fold(&folded) {
                warn!(%error, "what was used cannot be folded");
            }
        }
        Ok(())
    }

    /// Returns the sums; hold it for a moment only.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

/// Returns to whom a sandbox with these labels is charged.
pub(crate) fn account_of(labels: &BTreeMap<String, String>) -> Account {
    let bound = Bound::of_labels(labels);
    let mut spaces: Vec<_> = bound.spaces.iter().map(ToString::to_string).collect();
    spaces.sort_unstable();
    spaces.dedup();
    Account {
        agent: bound.agent.map(|agent| agent.to_string()),
        spaces,
        ..Account::default()
    }
}

/// What the versions of a volume that were made for one agent take of this node's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The volume's id.
    pub(crate) volume: String,
    pub(crate) space: String,
    pub(crate) agent: Option<String>,
    pub(crate) bytes: u64,
}

impl Holding {
    fn reading(&self, at: &HostTime) -> Reading {
        Reading {
            account: Account {
                agent: self.agent.clone(),
                spaces: vec![self.space.clone()],
                sandbox: None,
                volume: Some(self.volume.clone()),
            },
            usage: Usage {
                // Not looked at: the account says what it is.
                sandbox: SandboxId::from_bytes([0; 16]),
                labels: BTreeMap::new(),
                at: at.clone(),
                monitor: None,
                disk_bytes: self.bytes,
                egress: EgressUsage::default(),
            },
        }
    }
}

fn reading(usage: Usage) -> Reading {
    Reading {
        account: account_of(&usage.labels),
        usage,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each section leaves the state whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rhizome_sandbox::{MonitorId, MonitorUsage};

    use super::*;

    fn running(sandbox: SandboxId, cpu_ms: u64, awake_ms: u64) -> Usage {
        Usage {
            sandbox,
            labels: [].into(),
            at: HostTime {
                boot: "one".into(),
                awake_ms,
            },
            monitor: Some(MonitorUsage {
                monitor: MonitorId {
                    pid: 1,
                    started: 2,
                    boot: "one".into(),
                },
                cpu_ms,
                up_ms: awake_ms,
                memory_mib: 128,
            }),
            disk_bytes: 0,
            egress: EgressUsage {
                sent_bytes: 10,
                ..EgressUsage::default()
            },
        }
    }

    fn of(usage: Vec<Usage>) -> Readings {
        Readings { usage, upto: 0 }
    }

    fn total(meter: &Meter) -> (u64, u64) {
        let ledger = meter.ledger();
        let used = ledger.ever().values().next().copied().unwrap_or_default();
        (used.cpu_ms, used.sent_bytes)
    }

    #[test]
    fn what_was_used_survives_the_daemon_and_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxId::from_bytes([7; 16]);
        let meter = Meter::open(dir.path()).unwrap();
        meter
            .observe(of(vec![running(sandbox, 100, 1_000)]), &[])
            .unwrap();
        // Two readings of one monitor at once, as when it ended between two ticks.
        let twice = vec![running(sandbox, 300, 2_000), running(sandbox, 300, 2_000)];
        meter.observe(of(twice), &[]).unwrap();
        assert_eq!(total(&meter), (300, 10));
        drop(meter); // As SIGKILL does: nothing is written at the end.
        let mut meter = Meter::open(dir.path()).unwrap();
        assert_eq!(total(&meter), (300, 10));
        meter.daemon.push('2');
        meter
            .observe(of(vec![running(sandbox, 450, 9_000)]), &[])
            .unwrap();
        assert_eq!(total(&meter), (450, 20));
        drop(meter);
        assert_eq!(total(&Meter::open(dir.path()).unwrap()), (450, 20));
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_nothing_once_it_does_again() {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxId::from_bytes([7; 16]);
        let meter = Meter::open(&dir.path().join("usage")).unwrap();
        meter
            .observe(of(vec![running(sandbox, 100, 1_000)]), &[])
            .unwrap();
        // A journal that cannot be written: its descriptor only reads.
        let path = dir.path().join("usage/journal-0");
        lock(&meter.journal).break_for_test(&path);
        assert!(
            meter
                .observe(of(vec![running(sandbox, 200, 2_000)]), &[])
                .is_err()
        );
        assert_eq!(total(&meter), (100, 10));
        let again = Meter::open(&dir.path().join("usage")).unwrap();
        again
            .observe(of(vec![running(sandbox, 300, 3_000)]), &[])
            .unwrap();
        assert_eq!(total(&again).0, 300);
    }
}
