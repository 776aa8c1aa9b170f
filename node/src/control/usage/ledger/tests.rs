//! What is charged, whatever comes in between.
use rhizome_sandbox::{MonitorUsage, SandboxId, egress::EgressUsage};

use super::*;

const NOON: u64 = 20_000 * DAY_MS + 12 * HOUR_MS;

fn sandbox() -> SandboxId {
    SandboxId::from_bytes([7; 16])
}

fn account() -> Account {
    Account {
        agent: Some("mender".into()),
        spaces: vec!["findings".into()],
        sandbox: None,
        volume: None,
    }
}

fn monitor(pid: u32) -> MonitorId {
    MonitorId {
        pid,
        started: 7,
        boot: "one".into(),
    }
}

fn idle(sandbox: SandboxId, awake_ms: u64) -> Reading {
    Reading {
        account: account(),
        usage: Usage {
            sandbox,
            labels: BTreeMap::new(),
            at: HostTime {
                boot: "one".into(),
                awake_ms,
            },
            monitor: None,
            disk_bytes: 0,
            egress: EgressUsage::default(),
        },
    }
}

fn running(sandbox: SandboxId, pid: u32, awake_ms: u64, cpu_ms: u64, up_ms: u64) -> Reading {
    let mut reading = idle(sandbox, awake_ms);
    reading.usage.monitor = Some(MonitorUsage {
        monitor: monitor(pid),
        cpu_ms,
        up_ms,
        memory_mib: 256,
    });
    reading
}

fn observe(ledger: &mut Ledger, now_ms: u64, daemon: &str, readings: &[Reading]) {
    for reading in readings {
        if let Some(charge) = ledger.charge(now_ms, daemon, reading) {
            ledger.apply(&charge);
        }
    }
    ledger.hold(readings);
}

fn sum(ledger: &Ledger) -> Used {
    let mut sum = Used::default();
    for (_, used) in ledger.rows(0, u64::MAX) {
        sum.add(used);
    }
    let mut ever = Used::default();
    for used in ledger.ever().values() {
        ever.add(used);
    }
    assert_eq!(sum, ever, "rows and totals differ");
    sum
}

#[test]
fn the_first_reading_counts_from_the_monitors_start_and_later_ones_what_came_since() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[running(id, 1, 5_000, 900, 2_000)],
    );
    let used = sum(&ledger);
    assert_eq!((used.cpu_ms, used.run_ms), (900, 2_000));
    assert_eq!(used.ram_mib_ms, 256 * 2_000);
    observe(
        &mut ledger,
        NOON + 1_000,
        "d1",
        &[running(id, 1, 6_000, 1_400, 3_000)],
    );
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (1_400, 3_000));
}

#[test]
fn a_daemon_that_comes_back_goes_on_where_the_last_one_stopped() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[running(id, 1, 5_000, 900, 2_000)],
    );
    // What is on disk is all that is left; two hours later the monitor still runs.
    let written = serde_json::to_vec(&Written::from(&ledger)).unwrap();
    let mut ledger = Ledger::from(serde_json::from_slice::<Written>(&written).unwrap());
    let later = running(id, 1, 5_000 + 2 * HOUR_MS, 70_900, 2_000 + 2 * HOUR_MS);
    observe(&mut ledger, NOON + 2 * HOUR_MS, "d2", &[later]);
    let used = sum(&ledger);
    assert_eq!((used.cpu_ms, used.run_ms), (70_900, 2 * HOUR_MS + 2_000));
    // It is spread over the hours in which it ran.
    let at = |hour: u64| {
        let from = NOON + hour * HOUR_MS;
        ledger
            .rows(from, from + HOUR_MS)
            .map(|(_, used)| used.cpu_ms)
            .sum::<u64>()
    };
    assert_eq!((at(0), at(1)), (35_000, 35_000));
}

#[test]
fn a_charge_that_was_not_written_down_is_in_the_next_one() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    observe(&mut ledger, NOON, "d1", &[running(id, 1, 0, 100, 0)]);
    let lost = ledger.charge(NOON + 1, "d1", &running(id, 1, 15_000, 600, 15_000));
    assert_eq!(lost.unwrap().used.cpu_ms, 500);
    observe(
        &mut ledger,
        NOON + 2,
        "d1",
        &[running(id, 1, 30_000, 1_000, 30_000)],
    );
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (1_000, 30_000));
}

#[test]
fn a_last_reading_that_is_told_again_counts_once_also_after_a_later_one() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    let last = running(id, 1, 9_000, 800, 9_000);
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[last.clone(), running(id, 2, 10_000, 50, 500)],
    );
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[last.clone(), running(id, 2, 11_000, 60, 1_500)],
    );
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (860, 10_500));
    // The tick read it as running a moment after its last reading was taken.
    let (mut ledger, id) = (Ledger::default(), sandbox());
    let last = running(id, 1, 9_000, 800, 9_000);
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[running(id, 1, 9_500, 900, 9_500)],
    );
    observe(&mut ledger, NOON, "d1", &[last]);
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[running(id, 1, 9_500, 900, 9_500)],
    );
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (900, 9_500));
}

#[test]
fn a_monitor_that_was_not_read_once_is_not_charged_anew() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    let first = [running(id, 1, 5_000, 900, 5_000)];
    observe(&mut ledger, NOON, "d1", &first);
    // It ended between the two looks, or the kernel had no file left to read it with.
    observe(&mut ledger, NOON, "d1", &[idle(id, 6_000)]);
    let last = [running(id, 1, 6_000, 1_000, 6_000)];
    observe(&mut ledger, NOON, "d1", &last);
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (1_000, 6_000));
    observe(&mut ledger, NOON, "d1", &[idle(id, 6_000 + MARKS_KEPT_MS)]);
    assert!(ledger.monitors.is_empty(), "marks are not kept for ever");
}

#[test]
fn another_process_with_the_same_number_is_another_monitor() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    observe(
        &mut ledger,
        NOON,
        "d1",
        &[running(id, 1, 100_000, 5_000, 6_000)],
    );
    let mut other = running(id, 1, 50, 40, 50);
    other.usage.at.boot = "two".into();
    other.usage.monitor.as_mut().unwrap().monitor.boot = "two".into();
    observe(&mut ledger, NOON, "d2", &[other]);
    assert_eq!((sum(&ledger).cpu_ms, sum(&ledger).run_ms), (5_040, 6_050));
    assert_eq!(
        ledger.monitors.len(),
        1,
        "marks of what is gone are forgotten"
    );
}

#[test]
fn the_network_counts_on_in_the_same_daemon_and_anew_in_the_next() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    let sent = |sent_bytes: u64, awake_ms: u64| {
        let mut reading = idle(id, awake_ms);
        reading.usage.egress.sent_bytes = sent_bytes;
        reading.usage.egress.received_bytes = 2 * sent_bytes;
        reading
    };
    observe(&mut ledger, NOON, "d1", &[sent(100, 0)]);
    observe(&mut ledger, NOON, "d1", &[sent(150, 1)]);
    observe(&mut ledger, NOON, "d2", &[sent(30, 2)]);
    let used = sum(&ledger);
    assert_eq!((used.sent_bytes, used.received_bytes), (180, 360));
}

#[test]
fn what_rests_is_charged_its_disk_now_and_then() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    let resting = |awake_ms: u64, boot: &str| {
        let mut reading = idle(id, awake_ms);
        reading.usage.disk_bytes = 3 << 20;
        reading.usage.at.boot = boot.to_owned();
        reading
    };
    observe(&mut ledger, NOON, "d1", &[resting(0, "one")]);
    assert_eq!(
        ledger.charge(NOON, "d1", &resting(REST_MS - 1, "one")),
        None
    );
    observe(&mut ledger, NOON, "d1", &[resting(REST_MS, "one")]);
    assert_eq!(sum(&ledger).disk_mib_ms, 3 * REST_MS);
    // Nobody knows for how long the host was down.
    observe(&mut ledger, NOON, "d1", &[resting(50, "two")]);
    assert_eq!(sum(&ledger).disk_mib_ms, 3 * REST_MS);
    assert_eq!(ledger.held()[&id.to_string()].disk_bytes, 3 << 20);
    assert_eq!(ledger.charge(NOON, "d1", &idle(id, 99)), None);
}

#[test]
fn spreading_loses_nothing_and_makes_nothing_up() {
    let used = Used {
        cpu_ms: 1_000_003,
        ram_mib_ms: u64::MAX,
        disk_mib_ms: 1,
        run_ms: 7,
        sent_bytes: 0,
        received_bytes: 11,
    };
    for parts in [
        vec![1, 1, 1],
        vec![3, 0, 9_999, 1],
        vec![5],
        vec![u64::MAX, 1],
        vec![0],
    ] {
        let mut sum = Used::default();
        for share in used.spread(&parts) {
            sum.add(&share);
        }
        assert_eq!(sum, used, "{parts:?}");
    }
}

#[test]
fn a_clock_that_lies_is_no_reason_to_count_for_ever() {
    assert_eq!(slots(NOON, u64::MAX).len(), 1);
    assert_eq!(slots(5, 10).len(), 1);
    assert_eq!(slots(NOON + 1, 0).len(), 1);
    let month = slots(NOON, MAX_SPAN_MS);
    assert!(month.len() <= 31 * 24 + 1);
    assert_eq!(month.iter().map(|(_, part)| part).sum::<u64>(), MAX_SPAN_MS);
}

#[test]
fn old_rows_grow_coarser_and_the_totals_stay() {
    let (mut ledger, id) = (Ledger::default(), sandbox());
    for hour in 0..6 {
        let awake = hour * HOUR_MS;
        let at = NOON + hour * HOUR_MS;
        observe(
            &mut ledger,
            at,
            "d1",
            &[running(id, 1, awake, hour * 100, 0)],
        );
    }
    let before = sum(&ledger);
    let (hours, total) = (ledger.rows.len(), ledger.ever.clone());
    ledger.roll_up(NOON + 4 * DAY_MS);
    assert!(ledger.rows.len() < hours);
    assert_eq!(sum(&ledger), before);
    assert!(
        ledger
            .rows
            .keys()
            .all(|(slot, account)| slot.is_day && account.sandbox.is_some())
    );
    ledger.roll_up(NOON + 40 * DAY_MS);
    assert!(
        ledger
            .rows
            .keys()
            .all(|(_, account)| account.sandbox.is_none())
    );
    assert_eq!(sum(&ledger), before);
    ledger.roll_up(NOON + 500 * DAY_MS);
    assert_eq!((ledger.rows.len(), &ledger.ever), (0, &total));
}

#[test]
fn many_sandboxes_are_forgotten_singly_before_there_are_too_many_rows() {
    let mut ledger = Ledger::default();
    for number in 0..=MAX_ROWS {
        let account = Account {
            sandbox: Some(number.to_string()),
            ..account()
        };
        let slot = Slot {
            from_ms: NOON,
            is_day: false,
        };
        let used = Used {
            cpu_ms: 1,
            ..Used::default()
        };
        ledger.rows.insert((slot, account), used);
    }
    ledger.roll_up(NOON + 2 * HOUR_MS);
    assert_eq!(ledger.rows.len(), 1);
    assert_eq!(
        ledger.rows.values().next().unwrap().cpu_ms,
        MAX_ROWS as u64 + 1
    );
}

#[test]
fn a_volume_is_charged_for_what_it_holds_over_time() {
    let mut ledger = Ledger::default();
    let volume = |bytes: u64, awake_ms: u64| {
        let mut reading = idle(sandbox(), awake_ms);
        reading.account.volume = Some("07".repeat(16));
        reading.usage.disk_bytes = bytes;
        reading
    };
    // A sandbox of the same number beside it is another.
    let mut beside = idle(sandbox(), 0);
    beside.usage.disk_bytes = 1 << 20;
    observe(&mut ledger, NOON, "d", &[volume(64 << 20, 0), beside]);
    assert_eq!(ledger.held().len(), 2);
    let held: u64 = ledger.held().values().map(|held| held.disk_bytes).sum();
    assert_eq!(held, 65 << 20);
    let later = NOON + 20 * 60_000;
    observe(&mut ledger, later, "d", &[volume(64 << 20, 20 * 60_000)]);
    assert_eq!(sum(&ledger).disk_mib_ms, 64 * 20 * 60_000);
    let rows: Vec<_> = ledger.rows(0, u64::MAX).collect();
    assert!(
        rows.iter()
            .all(|(of, _)| of.volume.is_some() && of.sandbox.is_none())
    );
    // When it is gone, nothing is held and its mark goes.
    observe(&mut ledger, later, "d", &[]);
    assert!(ledger.held().is_empty());
    assert_eq!(sum(&ledger).disk_mib_ms, 64 * 20 * 60_000);
}
