//! Taking bodies out of records, with the power going at every step.

use super::*;
use crate::store::record::Loc;

const SECRET: &[u8] = b"sk-live-5f1e";

/// A log of several segments, some of whose records hold a secret.
fn written(disk: &SimDisk) -> (Log, Vec<(Loc, Vec<u8>)>) {
    let (log, ..) = open(disk, 400);
    let mut doomed = Vec::new();
    for n in 0..6_u8 {
        let payload = if n.is_multiple_of(2) {
            [&[n; 20][..], SECRET, &[n; 40][..]].concat()
        } else {
            vec![n; 80]
        };
        let places = log.append(&records(&[&payload[..]]), Vec::new()).unwrap();
        if n.is_multiple_of(2) {
            let mut stripped = vec![n; 20];
            stripped.resize(payload.len(), 0);
            doomed.push((places[0].1, stripped));
        }
    }
    (log, doomed)
}

fn holds_secret(disk: &SimDisk) -> bool {
    let names = disk.list(super::super::log::DIR).unwrap();
    names.iter().any(|file| {
        let bytes = disk
            .read(&format!("{}/{file}", super::super::log::DIR))
            .unwrap();
        bytes.windows(SECRET.len()).any(|window| window == SECRET)
    })
}

#[test]
fn stripped_records_are_read_back_and_nothing_of_the_rest_is_left() {
    let disk = SimDisk::default();
    let (log, doomed) = written(&disk);
    assert!(holds_secret(&disk));
    log.strip(&doomed).unwrap();
    assert!(!holds_secret(&disk));
    for (loc, payload) in &doomed {
        let (head, read) = log.read(*loc).unwrap();
        assert_eq!(head.kind, RecordKind::Stripped);
        assert_eq!(&read[..], &payload[..]);
    }
    // The log goes on behind them, and all is found by whoever opens it.
    append(&log, &[b"after"]).unwrap();
    let (log, records, report) = open(&disk, 400);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(records.len(), 7);
    // Once more changes nothing.
    log.strip(&doomed).unwrap();
    assert!(!holds_secret(&disk));
}

#[test]
fn killed_at_any_step_every_record_is_whole_old_or_new_and_the_next_try_ends_it() {
    let mut finished = false;
    for step in 0.. {
        for seed in 0..8 {
            let disk = SimDisk::default();
            let (log, doomed) = written(&disk);
            drop(log);
            let (log, before, _) = open(&disk, 400);
            disk.kill_after(step);
            finished = log.strip(&doomed).is_ok();
            drop(log);
            // A kill alone loses nothing that was written; the power may lose what was not synced.
            match seed {
                0 => disk.power_loss(|| true),
                seed => disk.random_power_loss(seed * 1_000 + step as u64),
            }
            let (log, after, report) = open(&disk, 400);
            assert!(report.is_clean(), "step {step}, seed {seed}: {report:?}");
            assert_eq!(after.len(), before.len());
            for (arrival, payload) in &after {
                let is_old = before[arrival] == *payload;
                let is_new = doomed
                    .iter()
                    .any(|(_, stripped)| stripped[..] == payload[..]);
                assert!(
                    is_old || is_new,
                    "step {step}, seed {seed}: record {arrival}"
                );
            }
            let stripped = doomed
                .iter()
                .filter(|(loc, _)| log.read(*loc).unwrap().0.kind == RecordKind::Stripped)
                .count();
            assert!(
                stripped == 0 || stripped == doomed.len(),
                "step {step}, seed {seed}: all of a list or nothing"
            );
            log.strip(&doomed).unwrap();
            assert!(!holds_secret(&disk), "step {step}, seed {seed}");
        }
        if finished {
            assert!(step > 8, "the steps were counted");
            return;
        }
    }
}
