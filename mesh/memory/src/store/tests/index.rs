//! The index: remembered, doubted, built anew.

use std::fs;

use rhizome_identity::{AgentId, Hash, SpaceId};

use crate::{
    FragmentId, Hlc,
    store::{Index, Loc, Reach, Row, RowKind, log::Place},
};

fn row(arrival: u64) -> Row {
    let id = Hash::of(&arrival.to_be_bytes());
    let kind = RowKind::Fragment {
        space: SpaceId::from_bytes([1; 32]),
        author: AgentId::from_bytes([2; 32]),
        seq: arrival - 1,
        prev: (arrival > 1).then(|| FragmentId::from_bytes([3; 32])),
        blob: arrival.is_multiple_of(7).then(|| Hash::of(b"blob")),
        own: arrival.is_multiple_of(2),
        redacts: false,
    };
    Row {
        arrival,
        loc: Loc {
            segment: 1,
            offset: arrival * 100,
            len: 60,
        },
        id,
        kind,
    }
}

fn reach(arrival: u64) -> Reach {
    let place = Place {
        segment: 1,
        offset: arrival * 100 + 100,
        batch: arrival,
        arrival,
    };
    Reach {
        place,
        hlc: Hlc::from_ms(arrival),
    }
}

fn open(path: &std::path::Path) -> (Index, Option<Reach>, Vec<Row>) {
    let mut rows = Vec::new();
    let (index, reach) = Index::open(path, |row| rows.push(row.clone()));
    (index, reach, rows)
}

#[test]
fn rows_are_found_before_and_after_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.redb");
    let (index, none, _) = open(&path);
    assert_eq!(none, None);
    index.reset();
    for arrival in 1..=20 {
        index.insert(row(arrival));
    }
    index.flush(reach(15));
    for arrival in 1..=20 {
        assert_eq!(index.find(&row(arrival).id), Some(row(arrival)));
    }
    assert_eq!(index.after(13, 4), (14..=17).map(row).collect::<Vec<_>>());
    drop(index);
    let (index, found, rows) = open(&path);
    assert_eq!(found, Some(reach(15)));
    assert_eq!(rows, (1..=15).map(row).collect::<Vec<_>>());
    assert_eq!(index.find(&row(16).id), None);
}

#[test]
fn a_damaged_index_is_never_believed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.redb");
    let (index, ..) = open(&path);
    index.reset();
    for arrival in 1..=50 {
        index.insert(row(arrival));
    }
    index.flush(reach(50));
    drop(index);
    let whole = fs::read(&path).unwrap();
    let expected: Vec<Row> = (1..=50).map(row).collect();
    // A bit in every page, and every few bytes of the pages in use.
    let used = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte != 0)
        .map(|(at, _)| at);
    for at in used.step_by(whole.len() / 8192) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        let (_, found, rows) = open(&path);
        // Either it is refused, or the flip changed nothing that is read.
        assert!(
            found.is_none() || (found == Some(reach(50)) && rows == expected),
            "byte {at}"
        );
    }
    for garbage in [&b""[..], b"garbage", &[0; 65536], &whole[..whole.len() / 2]] {
        fs::write(&path, garbage).unwrap();
        let (index, found, _) = open(&path);
        assert_eq!(found, None);
        index.reset();
        index.insert(row(1));
        index.flush(reach(1));
        assert_eq!(index.find(&row(1).id), Some(row(1)));
    }
}
