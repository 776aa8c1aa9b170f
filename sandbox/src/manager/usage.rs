//! What sandboxes use of their host: read here, added up and limited elsewhere.
//!
//! A monitor's processor time is a counter of the kernel that goes on over the end of a daemon, so
//! whoever reads it says of which process it is. The last reading before a monitor is ended waits
//! until somebody says that it is written down.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, fs,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::warn;

use super::{Inner, Sandboxes, entry::Entry};
use crate::{
    SandboxError, SandboxId, driver::process_cpu_ms, egress::EgressUsage, life::Phase,
    probe::boot_id,
};

/// How deep a sandbox's own directory goes.
const MAX_DEPTH: u32 = 3;
/// Last readings that wait to be written down; the oldest is lost beyond it.
const MAX_LAST: usize = 1024;

/// The process of a monitor, named so that no other can be taken for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MonitorId {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the host's boot.
    pub started: u64,
    /// Which boot of the host.
    pub boot: String,
}

/// A moment on the host's clock that stands still while the host sleeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTime {
    /// Which boot of the host.
    pub boot: String,
    /// Milliseconds since then in which the host was awake.
    pub awake_ms: u64,
}

impl HostTime {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Self {
        Self {
            boot: boot_id(),
            awake_ms: clock_ms(rustix::time::ClockId::Monotonic),
        }
    }
}

/// What a monitor has used since it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorUsage {
    /// Which process.
    pub monitor: MonitorId,
    /// Processor time, its guest's and its own, in milliseconds; the kernel counts it in tens.
    pub cpu_ms: u64,
    /// For how long it runs, in milliseconds.
    pub up_ms: u64,
    /// Memory of its guest, in MiB.
    pub memory_mib: u32,
}

/// What a sandbox uses of its host at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// When that was.
    pub at: HostTime,
    /// Its monitor, while it has one.
    pub monitor: Option<MonitorUsage>,
    /// Bytes that its files take on the disk, and those that its snapshots added to the store.
    pub disk_bytes: u64,
    /// What went through its network since the daemon started.
    pub egress: EgressUsage,
}

/// Readings, and how many of them were the last of their monitors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readings {
    /// The readings; those of monitors that ended come first.
    pub usage: Vec<Usage>,
    /// For [`Sandboxes::forget_last_readings`].
    pub upto: u64,
}

/// Decides whether a sandbox may begin to run: the node's quotas.
pub trait Gate: fmt::Debug + Send + Sync {
    /// Says why a sandbox with these labels may not, if so. Must not wait.
    ///
    /// # Errors
    /// [`OverQuota`].
    fn may_run(&self, labels: &BTreeMap<String, String>) -> Result<(), OverQuota>;
}

/// A quota that is used up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct OverQuota {
    /// Whose, how much was used, and what the limit is.
    pub what: String,
    /// How to go on.
    pub hint: String,
}

/// Last readings of monitors, in the order in which those ended.
#[derive(Debug, Default)]
pub(super) struct LastReadings {
    waiting: Mutex<(u64, VecDeque<Usage>)>,
    changed: Notify,
    pub(super) began: Notify,
}

impl LastReadings {
    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Usage>)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, usage: Usage) {
        let mut waiting = self.lock();
        if waiting.1.len() == MAX_LAST {
            waiting.1.pop_front();
            waiting.0 += 1;
            warn!("nobody writes down what sandboxes used; a last reading is lost");
        }
        waiting.1.push_back(usage);
        drop(waiting);
        self.changed.notify_one();
    }

    fn list(&self) -> (Vec<Usage>, u64) {
        let waiting = self.lock();
        let upto = waiting.0 + waiting.1.len() as u64;
        (waiting.1.iter().cloned().collect(), upto)
    }

    fn forget(&self, upto: u64) {
        let mut waiting = self.lock();
        while waiting.0 < upto && waiting.1.pop_front().is_some() {
            waiting.0 += 1;
        }
    }
}

impl Sandboxes {
    /// Returns what a sandbox uses now. Looks at its files: blocks for a moment.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`].
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, SandboxError> {
        let stored = self.stored_by(Some(id));
        let entry = self.inner.entry(id)?;
        let stored = stored.get(id).map_or(0, |(_, bytes)| *bytes);
        Ok(self.inner.usage_of(&entry, &HostTime::now(), stored))
    }

    /// Returns what every sandbox uses that uses anything, those whose monitors ended meanwhile
    /// included. Looks at their files: blocks for a moment.
    #[must_use]
    pub fn readings(&self) -> Readings {
        let now = HostTime::now();
        let mut stored = self.stored_by(None);
        let entries: Vec<_> = self.inner.entries().values().cloned().collect();
        let mut present = Vec::new();
        for entry in entries {
            let stored = stored.remove(&entry.id).map_or(0, |(_, bytes)| bytes);
            let read = self.inner.usage_of(&entry, &now, stored);
            let nothing = read.monitor.is_none()
                && read.disk_bytes == 0
                && read.egress == EgressUsage::default();
            if !nothing {
                present.push(read);
            }
        }
        // After the others: a monitor that ends in between is in both, and in neither it cannot be.
        let (mut usage, upto) = self.inner.last_readings.list();
        usage.extend(present);
        // Snapshots outlive the sandboxes that they were taken of.
        usage.extend(
            stored
                .into_iter()
                .map(|(sandbox, (labels, disk_bytes))| Usage {
                    sandbox,
                    labels,
                    at: now.clone(),
                    monitor: None,
                    disk_bytes,
                    egress: EgressUsage::default(),
                }),
        );
        Readings { usage, upto }
    }

    /// Says that last readings are written down, so that nobody needs to be told them again.
    pub fn forget_last_readings(&self, upto: u64) {
        self.inner.last_readings.forget(upto);
    }

    /// Waits until a monitor has ended whose last reading waits.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn last_reading(&self) {
        self.inner.last_readings.changed.notified().await;
    }

    /// Waits until a monitor has started.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn began(&self) {
        self.inner.last_readings.began.notified().await;
    }

    /// Returns the bytes that the snapshots of each sandbox added to the store.
    fn stored_by(
        &self,
        only: Option<&SandboxId>,
    ) -> BTreeMap<SandboxId, (BTreeMap<String, String>, u64)> {
        let mut stored: BTreeMap<_, (_, u64)> = BTreeMap::new();
        for info in self.snapshots() {
            if only.is_none_or(|id| *id == info.sandbox) {
                let (_, bytes) = stored.entry(info.sandbox).or_insert((info.labels, 0));
                *bytes = bytes.saturating_add(info.snapshot.bytes_stored);
            }
        }
        stored
    }
}

impl Inner {
    /// Keeps what a monitor has used before it is ended.
    pub(super) fn read_last(&self, entry: &Entry) {
        // Its files go too, or stay and are read with the others.
        let usage = self.usage_of(entry, &HostTime::now(), 0);
        if usage.monitor.is_some() {
            self.last_readings.push(Usage {
                disk_bytes: 0,
                ..usage
            });
        }
    }

    /// Refuses a sandbox for which there is no more quota.
    pub(super) fn pass_gate(&self, labels: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        match &self.config.gate {
            Some(gate) => Ok(gate.may_run(labels)?),
            None => Ok(()),
        }
    }

    fn usage_of(&self, entry: &Entry, at: &HostTime, stored: u64) -> Usage {
        let record = entry.record();
        let memory_mib = record.info.memory_mib;
        let monitor = record.run.monitor.and_then(|monitor| {
            let cpu_ms = process_cpu_ms(monitor.pid, monitor.started)?;
            // Ticks are hundredths of a second since the boot, on every architecture.
            let since_boot = clock_ms(rustix::time::ClockId::Boottime);
            (monitor.boot_id == at.boot).then(|| MonitorUsage {
                cpu_ms,
                up_ms: since_boot.saturating_sub(monitor.started.saturating_mul(10)),
                memory_mib,
                monitor: MonitorId {
                    pid: monitor.pid,
                    started: monitor.started,
                    boot: monitor.boot_id,
                },
            })
        });
        let phase = record.info.state.phase();
        // What is left of the others is a few files that say what they were.
        let files = match phase.has_ended() || phase == Phase::Hibernated {
            true => 0,
            false => disk_bytes(&entry.dir, MAX_DEPTH),
        };
        Usage {
            sandbox: entry.id,
            labels: record.info.labels,
            at: at.clone(),
            monitor,
            disk_bytes: files.saturating_add(stored),
            egress: self.egress.usage(&entry.id),
        }
    }
}

fn clock_ms(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Adds up what the files below a directory take on the disk.
fn disk_bytes(dir: &Path, depth: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth > 0 => disk_bytes(&entry.path(), depth - 1),
            // What is linked is an image's, not the sandbox's.
            Ok(meta) if meta.is_file() && meta.nlink() == 1 => meta.blocks() * 512,
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Usage {
        Usage {
            sandbox: SandboxId::random().unwrap(),
            labels: BTreeMap::new(),
            at: HostTime::now(),
            monitor: None,
            disk_bytes: 0,
            egress: EgressUsage::default(),
        }
    }

    #[test]
    fn last_readings_wait_until_they_are_written_down() {
        let last = LastReadings::default();
        last.push(usage());
        let (told, upto) = last.list();
        assert_eq!((told.len(), upto), (1, 1));
        last.push(usage());
        last.forget(upto);
        last.forget(upto);
        let (left, upto) = last.list();
        assert_eq!((left.len(), upto), (1, 2));
        assert_ne!(left, told);
    }

    #[test]
    fn last_readings_are_bounded() {
        let last = LastReadings::default();
        for _ in 0..MAX_LAST + 5 {
            last.push(usage());
        }
        let (told, upto) = last.list();
        assert_eq!((told.len(), upto), (MAX_LAST, MAX_LAST as u64 + 5));
        last.forget(upto);
        assert!(last.list().0.is_empty());
    }

    #[test]
    fn the_clock_stands_still_while_the_host_sleeps_and_goes_on_otherwise() {
        let before = HostTime::now();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let after = HostTime::now();
        assert_eq!(before.boot, after.boot);
        assert!(after.awake_ms >= before.awake_ms + 5);
        assert!(after.awake_ms <= clock_ms(rustix::time::ClockId::Boottime));
    }
}
