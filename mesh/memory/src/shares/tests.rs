use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};

use super::*;
use crate::{DocId, FRAGMENT_VERSION, Hlc, Kind};

const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = MINUTE_MS;

/// A share of 60 fragments a minute and 60 KB a day; refused at twice as many.
fn shares() -> Shares {
    let limit = Limit {
        bytes_a_day: 1 << 40,
        fragments_a_minute: 60,
    };
    let far = Limit {
        bytes_a_day: 1 << 50,
        fragments_a_minute: 1 << 40,
    };
    Shares::new(ShareLimits {
        author: limit,
        node: far,
        space: far,
        refuse_at: 2,
    })
}

fn header(author: u8, at_ms: u64) -> Header {
    Header {
        version: FRAGMENT_VERSION,
        mesh: MeshId::from_bytes([1; 32]),
        space: SpaceId::from_bytes([2; 32]),
        author: AgentId::from_bytes([author; 32]),
        node: NodeId::from_bytes([author; 32]),
        seq: 0,
        prev: None,
        auth_heads: Vec::new(),
        deps: Vec::new(),
        hlc: Hlc::from_ms(at_ms),
        kind: Kind::Fact,
        doc: DocId::from_bytes([3; 32]),
        fingerprint: Hash::of(b""),
        epoch: 1,
        nonce: [0; 24],
        body_hash: Hash::of(b""),
        body_len: 100,
    }
}

fn author(n: u8) -> Sharer {
    Sharer::Author(AgentId::from_bytes([n; 32]))
}

#[test]
fn a_burst_is_taken_then_put_off_then_refused_and_room_comes_back() {
    let mut shares = shares();
    let mut take = |at| shares.take(&header(1, at), at);
    for n in 0..60 {
        assert_eq!(take(NOW), Share::Within, "{n}");
    }
    for n in 60..120 {
        assert_eq!(take(NOW), Share::Over(author(1)), "{n}");
    }
    let Share::Spent(spent) = take(NOW) else {
        panic!("twice the share is all there is");
    };
    assert_eq!((spent.whose, spent.retry_ms), (author(1), 1000));
    assert!(matches!(take(NOW + spent.retry_ms - 1), Share::Spent(_)));
    assert_eq!(take(NOW + spent.retry_ms), Share::Over(author(1)));
    assert_eq!(take(NOW + spent.retry_ms + 2 * MINUTE), Share::Within);
    let told = shares
        .report()
        .into_iter()
        .find(|told| told.whose == author(1));
    let told = told.unwrap();
    assert_eq!((told.fragments, told.over, told.refused), (122, 61, 2));
    assert_eq!(told.bytes, 122 * (512 + 100));
}

#[test]
fn one_that_is_refused_takes_nothing_and_others_are_not_put_off() {
    let mut shares = shares();
    for _ in 0..500 {
        shares.take(&header(1, NOW), NOW);
    }
    assert_eq!(shares.take(&header(2, NOW), NOW), Share::Within);
    let space = shares.report();
    let space = space.iter().find(|told| told.whose.kind() == "space");
    assert_eq!(space.unwrap().fragments, 121);
}

#[test]
fn years_of_work_that_arrive_at_once_put_nobody_off() {
    let mut shares = shares();
    let year = 365 * 24 * 60;
    // Author after author, as a newcomer gets them, each from the beginning.
    for author in 1..4 {
        for n in 0..2_000_u64 {
            let claimed = NOW - year * MINUTE + n * MINUTE;
            for _ in 0..30 {
                let share = shares.take(&header(author, claimed), NOW);
                assert_eq!(share, Share::Within);
            }
        }
    }
}

#[test]
fn a_clock_that_runs_ahead_or_stands_still_gains_nothing_and_loses_nothing() {
    let mut shares = shares();
    let mut within = |claimed: u64, now| shares.take(&header(1, claimed), now) == Share::Within;
    let ahead = (0..200).filter(|n| within(NOW + n * MINUTE, NOW)).count();
    assert_eq!(ahead, 60);
    // Real time gives room to whoever claims to write long ago.
    let behind = (0..200)
        .filter(|n| within(NOW - 10 * MINUTE, NOW + 2 * MINUTE + n))
        .count();
    assert_eq!(behind, 60);
}

#[test]
fn what_is_larger_than_the_share_has_its_turn_when_nothing_else_is_used() {
    let mut shares = shares();
    let huge = Header {
        body_len: u32::MAX,
        ..header(1, NOW)
    };
    shares.limits.author.bytes_a_day = 1000;
    assert_eq!(shares.take(&huge, NOW), Share::Within);
    assert!(matches!(shares.take(&huge, NOW), Share::Spent(_)));
}

#[test]
fn no_more_are_counted_than_there_is_room_for() {
    let mut shares = shares();
    for n in 0..2 * MAX_COUNTED {
        let mut header = header(1, NOW);
        let mut id = [7; 32];
        id[..8].copy_from_slice(&(n as u64).to_be_bytes());
        header.author = AgentId::from_bytes(id);
        assert_eq!(shares.take(&header, NOW), Share::Within);
    }
    // And one node and one space.
    let counted = shares.report().len() - 2;
    assert!(
        counted <= MAX_COUNTED && counted > MAX_COUNTED / 2,
        "{counted}"
    );
}
