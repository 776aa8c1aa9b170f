//! What survives what: torn tails, damage, full disks, failed syncs, lost power.

mod index;
mod strip;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use rhizome_identity::{AgentId, NodeKey, SpaceId};

use super::{
    RecoveryReport, StoreError,
    log::{Log, LogError, NewRecord, Place, name},
    record::{HEAD, RecordKind, SEGMENT_HEAD, StoreKey, Tip},
};
use crate::{
    FragmentId,
    disk::{Disk, sim::SimDisk},
};

type Records = BTreeMap<u64, Bytes>;

fn key() -> StoreKey {
    StoreKey::new(&NodeKey::from_seed([7; 32]))
}

fn open(disk: &SimDisk, segment_bytes: u64) -> (Log, Records, RecoveryReport) {
    let (log, records, _, report) = open_with_tips(disk, segment_bytes);
    (log, records, report)
}

fn open_with_tips(disk: &SimDisk, segment_bytes: u64) -> (Log, Records, Vec<Tip>, RecoveryReport) {
    let mut report = RecoveryReport::default();
    let mut records = Records::new();
    let mut tips = Vec::new();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let place = Place::default();
    let log = Log::open(
        disk,
        key(),
        segment_bytes,
        place,
        &mut report,
        |found, payload| {
            if found.head.kind == RecordKind::Commit {
                tips.extend(Tip::read_all(payload));
            } else if found.head.arrival > 0 {
                let before = records.insert(found.head.arrival, Bytes::copy_from_slice(payload));
                assert_eq!(before, None, "no arrival is there twice");
            }
        },
    );
    (log.unwrap(), records, tips, report)
}

fn records(payloads: &[&[u8]]) -> Vec<NewRecord> {
    let record = |payload: &&[u8]| NewRecord {
        kind: RecordKind::Fragment,
        payload: Bytes::copy_from_slice(payload),
    };
    payloads.iter().map(record).collect()
}

fn append(log: &Log, payloads: &[&[u8]]) -> Result<Vec<u64>, LogError> {
    let places = log.append(&records(payloads), Vec::new())?;
    Ok(places.into_iter().map(|(arrival, _)| arrival).collect())
}

fn file(disk: &SimDisk) -> Vec<u8> {
    disk.read(&name(1)).unwrap()
}

/// Returns a disk whose first segment has this content.
fn disk_with(bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::default();
    disk.open(&name(1)).unwrap().write_at(0, bytes).unwrap();
    disk
}

#[test]
fn a_tail_torn_at_any_byte_costs_only_what_was_not_acknowledged() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    append(&log, &[b"first", b"second"]).unwrap();
    append(&log, &[b"third"]).unwrap();
    // The last batch begins with the commit record of the one before it.
    let whole = file(&disk);
    let last = whole.len() - HEAD - b"third".len();
    for end in last..whole.len() {
        let torn = disk_with(&whole[..end]);
        let (log, found, report) = open(&torn, u64::MAX);
        assert_eq!(found.len(), 2, "cut at {end}");
        assert_eq!(report.torn_bytes, (end - last) as u64);
        assert!(report.damage.is_empty());
        // The place is given out again, and only the new content is ever seen there.
        assert_eq!(append(&log, &[b"another"]).unwrap(), [3]);
        drop(log);
        let (_, found, report) = open(&torn, u64::MAX);
        assert_eq!(found[&3], "another");
        assert!(report.is_clean());
    }
}

#[test]
fn a_flipped_bit_anywhere_costs_one_record_and_is_reported() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    for payload in [b"first", b"other", b"third"] {
        append(&log, &[payload]).unwrap();
    }
    log.settle();
    let whole = file(&disk);
    let (_, intact, _) = open(&disk_with(&whole), u64::MAX);
    assert_eq!(intact.len(), 3);
    for byte in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[byte] ^= 1 << (byte % 8);
        let disk = disk_with(&bytes);
        let (log, found, report) = open(&disk, u64::MAX);
        assert!(found.len() >= 2, "byte {byte}: {found:?}");
        assert!(
            found
                .iter()
                .all(|(arrival, payload)| intact[arrival] == payload)
        );
        assert!(!report.is_clean(), "byte {byte} is damage: {report:?}");
        // What is lost stays lost; new records take new places.
        let next = append(&log, &[b"later"]).unwrap()[0];
        assert!(next > *found.keys().last().unwrap());
        let (_, again, _) = open(&disk, u64::MAX);
        assert_eq!(again.len(), found.len() + 1);
    }
}

#[test]
fn a_damaged_last_fragment_leaves_its_position_taken() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    let tip = Tip {
        space: SpaceId::from_bytes([1; 32]),
        author: AgentId::from_bytes([2; 32]),
        seq: 4,
        id: FragmentId::from_bytes([3; 32]),
        prev: Some(FragmentId::from_bytes([4; 32])),
    };
    let places = log.append(&records(&[b"the fragment"]), vec![tip]).unwrap();
    log.settle();
    let (_, loc) = places[0];
    disk.flip(&name(1), usize::try_from(loc.offset).unwrap() + HEAD + 2, 3);
    let (_, found, tips, report) = open_with_tips(&disk, u64::MAX);
    assert!(found.is_empty());
    assert_eq!((tips, report.damage.len()), (vec![tip], 1));
}

#[test]
fn a_record_hidden_in_a_payload_is_never_read_as_one() {
    // A peer sends what a record would look like, under the key of another node.
    let theirs = StoreKey::new(&NodeKey::from_seed([8; 32]));
    let head = super::record::Head {
        kind: RecordKind::Fragment,
        len: 4,
        index: 0,
        last: true,
        batch: 9,
        arrival: 9,
    };
    let mut hidden = Vec::new();
    theirs.write(&mut hidden, head, b"evil");
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    append(&log, &[&hidden]).unwrap();
    append(&log, &[b"next"]).unwrap();
    disk.flip(&name(1), SEGMENT_HEAD + 9, 0);
    let (_, found, report) = open(&disk, u64::MAX);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(report.damage.len(), 1);
}

#[test]
fn a_full_disk_refuses_the_batch_and_later_takes_the_next() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    append(&log, &[b"before"]).unwrap();
    for room in 0..100 {
        disk.set_room(Some(room));
        let error = append(&log, &[b"does not fit", &[0; 100]]).unwrap_err();
        assert!(error.hint().unwrap().contains("space"), "{error:?}");
        // Whenever the power goes now, nothing of the refused batch is there.
        let after = disk_with(&file(&disk));
        let (_, found, _) = open(&after, u64::MAX);
        assert_eq!(found.len(), 1);
    }
    disk.set_room(None);
    assert_eq!(append(&log, &[b"after"]).unwrap(), [2]);
    let (_, found, report) = open(&disk, u64::MAX);
    assert_eq!(found.values().collect::<Vec<_>>(), ["before", "after"]);
    assert!(report.is_clean());
}

#[test]
fn a_new_segment_that_does_not_fit_is_tried_again() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, 100);
    append(&log, &[&[1; 100]]).unwrap();
    disk.set_room(Some(10));
    assert!(matches!(
        append(&log, &[b"no room"]),
        Err(LogError::Write(_))
    ));
    disk.set_room(None);
    append(&log, &[b"room"]).unwrap();
    let (_, found, report) = open(&disk, 100);
    assert_eq!((found.len(), report.segments), (2, 2));
    assert!(report.is_clean());
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_the_store_is_opened_again() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    append(&log, &[b"safe"]).unwrap();
    disk.fail_sync_after(Some(0));
    assert!(matches!(
        append(&log, &[b"unknown"]),
        Err(LogError::Sync(_))
    ));
    disk.fail_sync_after(None);
    assert!(matches!(append(&log, &[b"other"]), Err(LogError::ReadOnly)));
    drop(log);
    // The process sees the write; opening makes it certain, so a power loss takes nothing back.
    let (log, found, _) = open(&disk, u64::MAX);
    assert_eq!(found.len(), 2);
    disk.power_loss(|| false);
    assert_eq!(open(&disk, u64::MAX).1, found);
    drop(log);
}

#[test]
fn a_later_format_and_another_node_are_named() {
    let disk = SimDisk::default();
    let (log, ..) = open(&disk, u64::MAX);
    append(&log, &[b"mine"]).unwrap();
    let open_as = |disk: &SimDisk, seed| {
        let key = StoreKey::new(&NodeKey::from_seed([seed; 32]));
        let mut report = RecoveryReport::default();
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        Log::open(
            disk,
            key,
            u64::MAX,
            Place::default(),
            &mut report,
            |_, _| (),
        )
        .map(|_| ())
    };
    assert!(matches!(
        open_as(&disk, 8),
        Err(StoreError::OtherNode { .. })
    ));
    disk.open(&name(1))
        .unwrap()
        .write_at(0, &key().segment_head(1, 3))
        .unwrap();
    assert!(matches!(
        open_as(&disk, 7),
        Err(StoreError::Format { version: 3, .. })
    ));
}

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<Vec<u8>>),
    Settle,
    Full(usize),
    FailSync,
    PowerLoss(u64),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let payload = prop::collection::vec(any::<u8>(), 0..700);
    prop_oneof![
        6 => prop::collection::vec(payload, 1..5).prop_map(Op::Append),
        2 => Just(Op::Settle),
        1 => (0_usize..2000).prop_map(Op::Full),
        1 => Just(Op::FailSync),
        3 => any::<u64>().prop_map(Op::PowerLoss),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_stays_and_no_place_changes_its_content(
        ops in prop::collection::vec(op(), 1..40)
    ) {
        const SEGMENT: u64 = 4096;
        let disk = SimDisk::default();
        let (mut log, ..) = open(&disk, SEGMENT);
        let mut acknowledged = Records::new();
        // Everything that was ever acknowledged or seen, by its place.
        let mut seen = Records::new();
        for op in ops {
            let mut reopen = false;
            match op {
                Op::Append(payloads) => {
                    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
                    if let Ok(arrivals) = append(&log, &payloads) {
                        for (arrival, payload) in arrivals.into_iter().zip(payloads) {
                            let payload = Bytes::copy_from_slice(payload);
                            prop_assert_eq!(seen.insert(arrival, payload.clone()), None);
                            acknowledged.insert(arrival, payload);
                        }
                    }
                    disk.set_room(None);
                    disk.fail_sync_after(None);
                }
                Op::Settle => log.settle(),
                Op::Full(room) => disk.set_room(Some(room)),
                Op::FailSync => disk.fail_sync_after(Some(0)),
                Op::PowerLoss(seed) => {
                    disk.random_power_loss(seed);
                    reopen = true;
                }
                Op::Restart => reopen = true,
            }
            if reopen {
                disk.set_room(None);
                disk.fail_sync_after(None);
                let (opened, found, report) = open(&disk, SEGMENT);
                log = opened;
                prop_assert!(report.damage.is_empty(), "{:?}", report);
                for (arrival, payload) in &acknowledged {
                    prop_assert_eq!(found.get(arrival), Some(payload));
                }
                for (arrival, payload) in found {
                    let before = seen.insert(arrival, payload.clone());
                    prop_assert!(before.is_none_or(|before| before == payload));
                }
            }
        }
    }
}
