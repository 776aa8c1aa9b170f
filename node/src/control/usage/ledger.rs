//! What was used by whom, added up from readings: a pure function of what it was told.
//!
//! [`Ledger::charge`] compares a reading with the mark that the last one left and says what is to
//! be added; [`Ledger::apply`] adds it and moves the mark, both in one [`Charge`], which is one line
//! of the journal. A charge that was not written down is not applied, so the next reading covers
//! it; one that is read back twice moves a mark that is there already, and adds once.
//!
//! A processor's counter belongs to one process on one boot of the host, so its mark is kept under
//! that name: whoever reads it after the daemon came and went goes on where the last one stopped.

use std::collections::BTreeMap;

use rhizome_sandbox::{HostTime, MonitorId, Usage};
use serde::{Deserialize, Serialize};

/// An hour and a day, in milliseconds.
pub(crate) const HOUR_MS: u64 = 3_600_000;
pub(crate) const DAY_MS: u64 = 24 * HOUR_MS;
/// Age at which hours become days, at which days forget single sandboxes, and at which they go.
const HOURS_KEPT_MS: u64 = 3 * DAY_MS;
const SANDBOXES_KEPT_MS: u64 = 35 * DAY_MS;
const DAYS_KEPT_MS: u64 = 400 * DAY_MS;
/// Rows beyond which single sandboxes are forgotten sooner.
const MAX_ROWS: usize = 50_000;
/// Longest time that one charge is spread over; one that says more counts at its end.
const MAX_SPAN_MS: u64 = 31 * DAY_MS;
/// For how long the mark of a monitor is kept that is not read any more.
const MARKS_KEPT_MS: u64 = DAY_MS;
/// A sandbox at rest uses nothing but disk: how often that is written down.
const REST_MS: u64 = 10 * 60_000;

/// Amounts of everything that is metered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Used {
    /// Processor time, in milliseconds.
    pub(crate) cpu_ms: u64,
    /// Memory times time, in MiB times milliseconds.
    pub(crate) ram_mib_ms: u64,
    /// Disk times time, in MiB times milliseconds.
    pub(crate) disk_mib_ms: u64,
    /// Time for which a monitor ran, in milliseconds.
    pub(crate) run_ms: u64,
    /// Bytes that left.
    pub(crate) sent_bytes: u64,
    /// Bytes that came back.
    pub(crate) received_bytes: u64,
}

impl Used {
    const FIELDS: usize = 6;

    fn to_array(self) -> [u64; Self::FIELDS] {
        [
            self.cpu_ms,
            self.ram_mib_ms,
            self.disk_mib_ms,
            self.run_ms,
            self.sent_bytes,
            self.received_bytes,
        ]
    }

    fn from_array(
        [
            cpu_ms,
            ram_mib_ms,
            disk_mib_ms,
            run_ms,
            sent_bytes,
            received_bytes,
        ]: [u64; Self::FIELDS],
    ) -> Self {
        Self {
            cpu_ms,
            ram_mib_ms,
            disk_mib_ms,
            run_ms,
            sent_bytes,
            received_bytes,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let (mut sum, other) = (self.to_array(), other.to_array());
        for (sum, other) in sum.iter_mut().zip(other) {
            *sum = sum.saturating_add(other);
        }
        *self = Self::from_array(sum);
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Splits it into parts as long as `parts`, none of it lost and none made up.
    fn spread(&self, parts: &[u64]) -> Vec<Self> {
        let whole: u128 = parts.iter().map(|part| u128::from(*part)).sum();
        let upto = |amount: u64, done: u128| match whole {
            0 => amount,
            _ => u64::try_from(u128::from(amount) * done / whole).unwrap_or(u64::MAX),
        };
        let (mut done, mut before) = (0, [0; Self::FIELDS]);
        parts
            .iter()
            .map(|part| {
                done += u128::from(*part);
                let now = self.to_array().map(|amount| upto(amount, done));
                let mut share = now;
                for (share, before) in share.iter_mut().zip(before) {
                    *share -= before;
                }
                before = now;
                Self::from_array(share)
            })
            .collect()
    }
}

/// To whom something is charged: ids, since names change.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Account {
    /// The agent that the sandbox works for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<String>,
    /// The spaces it may use; each is charged the whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) spaces: Vec<String>,
    /// The sandbox; absent once single sandboxes are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    /// The volume, if it is one that is charged for its versions; it goes as the sandbox does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
}

impl Account {
    fn of_many(&self) -> Self {
        Self {
            sandbox: None,
            volume: None,
            ..self.clone()
        }
    }

    /// Names what is charged among all that is; `None` for what is not told apart any more.
    fn key(&self) -> Option<String> {
        let agent = self.agent.as_deref().unwrap_or_default();
        let volume = self.volume.as_ref();
        let volume = volume.map(|volume| format!("volume {volume} {agent}"));
        volume.or_else(|| self.sandbox.clone())
    }
}

/// A reading, with whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) account: Account,
    pub(crate) usage: Usage,
}

impl Reading {
    /// Returns the account of this one sandbox, or volume.
    fn single(&self) -> Account {
        let mut account = self.account.clone();
        if account.volume.is_none() {
            account.sandbox = Some(self.usage.sandbox.to_string());
        }
        account
    }
}

/// How far a monitor is charged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MonitorMark {
    pub(crate) cpu_ms: u64,
    pub(crate) awake_ms: u64,
}

/// How far a sandbox's network is charged. The counters begin anew with the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkMark {
    pub(crate) daemon: String,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// What is to be added, and the marks that say that it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Charge {
    /// The end of the time it is for, in Unix milliseconds.
    pub(crate) at_ms: u64,
    /// How long that time is.
    pub(crate) over_ms: u64,
    pub(crate) account: Account,
    pub(crate) used: Used,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) monitor: Option<(MonitorId, MonitorMark)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkMark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<HostTime>,
}

/// A stretch of time that amounts are added up over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// Its beginning, in Unix milliseconds: a whole hour or day of UTC.
    pub(crate) from_ms: u64,
    pub(crate) is_day: bool,
}

/// What a sandbox or a volume holds at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) account: Account,
    pub(crate) disk_bytes: u64,
    pub(crate) runs: bool,
}

/// The sums and the marks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    rows: BTreeMap<(Slot, Account), Used>,
    /// Everything since the beginning, without single sandboxes.
    ever: BTreeMap<Account, Used>,
    monitors: BTreeMap<MonitorId, MonitorMark>,
    networks: BTreeMap<String, NetworkMark>,
    disks: BTreeMap<String, HostTime>,
    /// What was read last; not kept over the end of the daemon.
    held: BTreeMap<String, Held>,
}

/// A [`Ledger`] as it is written down.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    pub(crate) rows: Vec<(Slot, Account, Used)>,
    pub(crate) ever: Vec<(Account, Used)>,
    pub(crate) monitors: Vec<(MonitorId, MonitorMark)>,
    pub(crate) networks: Vec<(String, NetworkMark)>,
    pub(crate) disks: Vec<(String, HostTime)>,
}

impl From<Written> for Ledger {
    fn from(written: Written) -> Self {
        Self {
            rows: written
                .rows
                .into_iter()
                .map(|(slot, account, used)| ((slot, account), used))
                .collect(),
            ever: written.ever.into_iter().collect(),
            monitors: written.monitors.into_iter().collect(),
            networks: written.networks.into_iter().collect(),
            disks: written.disks.into_iter().collect(),
            held: BTreeMap::new(),
        }
    }
}

impl From<&Ledger> for Written {
    fn from(ledger: &Ledger) -> Self {
        let rows = ledger.rows.iter();
        Self {
            rows: rows
                .map(|((slot, account), used)| (*slot, account.clone(), *used))
                .collect(),
            ever: clone_pairs(&ledger.ever),
            monitors: clone_pairs(&ledger.monitors),
            networks: clone_pairs(&ledger.networks),
            disks: clone_pairs(&ledger.disks),
        }
    }
}

fn clone_pairs<K: Clone, V: Clone>(map: &BTreeMap<K, V>) -> Vec<(K, V)> {
    map.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

impl Ledger {
    /// Says what a reading adds, if anything; `daemon` names the daemon whose counters it has.
    pub(crate) fn charge(&self, now_ms: u64, daemon: &str, reading: &Reading) -> Option<Charge> {
        let usage = &reading.usage;
        let account = reading.single();
        let single = account.key().unwrap_or_default();
        let mut used = Used::default();
        let mut over_ms = 0;

        let monitor = usage.monitor.as_ref().map(|read| {
            let mark = self.monitors.get(&read.monitor);
            let elapsed = match mark {
                Some(mark) => usage.at.awake_ms.saturating_sub(mark.awake_ms),
                None => read.up_ms,
            };
            let before = mark.map_or(0, |mark| mark.cpu_ms);
            used.cpu_ms = read.cpu_ms.saturating_sub(before);
            used.run_ms = elapsed;
            used.ram_mib_ms = elapsed.saturating_mul(u64::from(read.memory_mib));
            over_ms = elapsed;
            let mark = MonitorMark {
                // A reading that waited comes after a later one: marks never go back.
                cpu_ms: read.cpu_ms.max(before),
                awake_ms: usage.at.awake_ms.max(mark.map_or(0, |mark| mark.awake_ms)),
            };
            (read.monitor.clone(), mark)
        });

        let known = self.networks.get(&single);
        let same = known.filter(|mark| mark.daemon == daemon);
        let (sent, received) = same.map_or((0, 0), |mark| (mark.sent, mark.received));
        used.sent_bytes = usage.egress.sent_bytes.saturating_sub(sent);
        used.received_bytes = usage.egress.received_bytes.saturating_sub(received);
        let network = (used.sent_bytes > 0 || used.received_bytes > 0).then(|| NetworkMark {
            daemon: daemon.to_owned(),
            sent: usage.egress.sent_bytes.max(sent),
            received: usage.egress.received_bytes.max(received),
        });

        let since = self
            .disks
            .get(&single)
            .filter(|mark| mark.boot == usage.at.boot);
        let rested = since.map(|mark| usage.at.awake_ms.saturating_sub(mark.awake_ms));
        let rests = monitor.is_none() && network.is_none();
        if rests && (usage.disk_bytes == 0 || rested.is_some_and(|rested| rested < REST_MS)) {
            return None;
        }
        // A last reading says nothing of the disk: its files are read with the others.
        let disk = (usage.disk_bytes > 0).then(|| {
            let elapsed = rested.unwrap_or(0);
            let amount = (u128::from(usage.disk_bytes) * u128::from(elapsed)) >> 20;
            used.disk_mib_ms = u64::try_from(amount).unwrap_or(u64::MAX);
            over_ms = over_ms.max(elapsed);
            usage.at.clone()
        });
        // Without a mark the next reading counts from the monitor's start, which comes to the same.
        if used.is_nothing() && disk.is_none() {
            return None;
        }
        Some(Charge {
            at_ms: now_ms,
            over_ms,
            account,
            used,
            monitor,
            network,
            disk,
        })
    }

    /// Adds what a charge says, and moves its marks.
    pub(crate) fn apply(&mut self, charge: &Charge) {
        if !charge.used.is_nothing() {
            let slots = slots(charge.at_ms, charge.over_ms);
            let parts: Vec<_> = slots.iter().map(|(_, part)| *part).collect();
            for ((slot, _), share) in slots.iter().zip(charge.used.spread(&parts)) {
                if !share.is_nothing() {
                    let key = (*slot, charge.account.clone());
                    self.rows.entry(key).or_default().add(&share);
                }
            }
            let whose = charge.account.of_many();
            self.ever.entry(whose).or_default().add(&charge.used);
        }
        if let Some((monitor, mark)) = &charge.monitor {
            self.monitors.insert(monitor.clone(), *mark);
        }
        let Some(single) = charge.account.key() else {
            return;
        };
        if let Some(mark) = &charge.network {
            self.networks.insert(single.clone(), mark.clone());
        }
        if let Some(mark) = &charge.disk {
            self.disks.insert(single, mark.clone());
        }
    }

    /// Returns the marks without the sums: what charges are made on.
    pub(crate) fn clone_marks(&self) -> Self {
        Self {
            monitors: self.monitors.clone(),
            networks: self.networks.clone(),
            disks: self.disks.clone(),
            ..Self::default()
        }
    }

    /// Notes who holds what now, and forgets the marks of what is long gone.
    pub(crate) fn hold(&mut self, readings: &[Reading]) {
        self.held.clear();
        for reading in readings {
            let usage = &reading.usage;
            let account = reading.single();
            let single = account.key().unwrap_or_default();
            let held = self.held.entry(single).or_insert_with(|| Held {
                account,
                disk_bytes: 0,
                runs: false,
            });
            // The last reading of an ended monitor comes before that of what the sandbox is now.
            held.disk_bytes = usage.disk_bytes;
            held.runs = usage.monitor.is_some();
        }
        // A monitor that could not be read once may be read again: without its mark all of it would
        // be charged anew. One of another boot is gone for good.
        if let Some(now) = readings.last().map(|reading| &reading.usage.at) {
            self.monitors.retain(|monitor, mark| {
                let unread = now.awake_ms.saturating_sub(mark.awake_ms);
                monitor.boot == now.boot && unread < MARKS_KEPT_MS
            });
        }
        let held = &self.held;
        self.networks
            .retain(|sandbox, _| held.contains_key(sandbox));
        self.disks.retain(|sandbox, _| held.contains_key(sandbox));
    }

    /// Returns who holds what, by sandbox and volume.
    pub(crate) fn held(&self) -> &BTreeMap<String, Held> {
        &self.held
    }

    /// Returns everything since the beginning.
    pub(crate) fn ever(&self) -> &BTreeMap<Account, Used> {
        &self.ever
    }

    /// Returns the rows of a time: those that begin in it.
    pub(crate) fn rows(
        &self,
        from_ms: u64,
        until_ms: u64,
    ) -> impl Iterator<Item = (&Account, &Used)> {
        self.rows
            .iter()
            .skip_while(move |((slot, _), _)| slot.from_ms < from_ms)
            .take_while(move |((slot, _), _)| slot.from_ms < until_ms)
            .map(|((_, account), used)| (account, used))
    }

    /// Makes old rows coarser, and lets go of the oldest.
    pub(crate) fn roll_up(&mut self, now_ms: u64) {
        self.coarsen(now_ms, SANDBOXES_KEPT_MS);
        if self.rows.len() > MAX_ROWS {
            self.coarsen(now_ms, HOUR_MS);
        }
    }

    fn coarsen(&mut self, now_ms: u64, sandboxes_kept_ms: u64) {
        let rows = std::mem::take(&mut self.rows);
        for ((mut slot, mut account), used) in rows {
            let age_ms = now_ms.saturating_sub(slot.from_ms);
            if age_ms > DAYS_KEPT_MS {
                continue;
            }
            if age_ms > HOURS_KEPT_MS && !slot.is_day {
                slot = Slot {
                    from_ms: slot.from_ms / DAY_MS * DAY_MS,
                    is_day: true,
                };
            }
            if age_ms > sandboxes_kept_ms {
                account = account.of_many();
            }
            self.rows.entry((slot, account)).or_default().add(&used);
        }
    }
}

/// Returns the hours that a time of this length lies in, and how much of it in each.
fn slots(at_ms: u64, over_ms: u64) -> Vec<(Slot, u64)> {
    let hour = |at_ms: u64| Slot {
        from_ms: at_ms / HOUR_MS * HOUR_MS,
        is_day: false,
    };
    if over_ms == 0 || over_ms > MAX_SPAN_MS.min(at_ms) {
        return vec![(hour(at_ms), over_ms)];
    }
    let mut from_ms = at_ms - over_ms;
    let mut slots = Vec::new();
    while from_ms < at_ms {
        let slot = hour(from_ms);
        let until_ms = (slot.from_ms + HOUR_MS).min(at_ms);
        slots.push((slot, until_ms - from_ms));
        from_ms = until_ms;
    }
    slots
}

#[cfg(test)]
mod tests;
