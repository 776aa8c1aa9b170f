//! What bad fragments do to a view: nothing, but to be listed.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "view/support.rs"]
mod support;

use rhizome_memory::{
    Applied, ContextPatch, Explored, FragmentId, Hlc, Kind, ListQuery, MAX_WAITING_PER_AUTHOR,
    Opened, Reason,
};
use support::{Node, Writer, draft, keyed, space};

/// A small seeded generator (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap() % limit.max(1)
    }
}

#[test]
fn a_space_goes_on_among_thousands_of_broken_fragments() {
    let (dir, evil_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut random = Random(0x5eed_0003);
    let (mut ada, mut eve) = (Writer::new(1), Writer::new(2));
    let mut evil = Node::open(evil_dir.path());
    let mut good: Vec<FragmentId> = Vec::new();
    let mut refused = 0;
    {
        let mut node = Node::open(dir.path());
        for round in 1..=40_u64 {
            let published = node.publish(
                &mut ada,
                space(1),
                2 * round,
                &keyed("shared", &format!("value {round}")),
            );
            let patch = ContextPatch {
                explored: vec![Explored {
                    what: format!("path {round}"),
                    result: String::new(),
                }],
                ..ContextPatch::default()
            };
            let checkpoint = node.checkpoint(&mut ada, space(1), 2 * round + 1, "task", &patch);
            good.extend([published.id, checkpoint.id]);
            evil.take([published, checkpoint]);

            let now = Hlc::from_ms(1_000 + round);
            let valid = if round % 2 == 0 {
                evil.view
                    .compose(eve.ctx(space(1), now), &keyed("shared", "evil"))
                    .unwrap()
            } else {
                evil.view
                    .compose_context(eve.ctx(space(1), now), "task", &patch)
                    .unwrap()
            };
            evil.view.release(&space(1), &valid);
            let mut batch = Vec::new();
            for _ in 0..75 {
                let mut change = valid.change.clone();
                for _ in 0..=random.below(3) {
                    let at = random.below(change.len());
                    match random.below(3) {
                        0 => change[at] ^= 1 << random.below(8),
                        1 => change.insert(at, u8::try_from(random.below(256)).unwrap()),
                        _ => drop(change.remove(at)),
                    }
                }
                if change != valid.change {
                    batch.push(eve.sign_change(space(1), now, &valid, change));
                }
            }
            for (_, verdict) in node.take(batch) {
                assert!(matches!(verdict, Applied::Quarantined(_)), "{verdict:?}");
                refused += 1;
            }
        }
        assert!(refused > 2_900, "{refused}");
    }
    let node = Node::open(dir.path());
    assert_eq!(node.view.counts(&space(1)), (0, refused));
    assert_eq!(node.view.quarantine(Some(&space(1)), 50).unwrap().len(), 50);
    assert_eq!(node.view.quarantine(Some(&space(2)), 50).unwrap().len(), 0);
    assert!(
        good.iter()
            .all(|id| node.view.state(id) == Some(Applied::Applied))
    );
    assert_eq!(
        node.view.list(&ListQuery::default()).unwrap()[0].title,
        "value 40"
    );
    assert_eq!(
        node.view
            .context(&space(1), "task")
            .unwrap()
            .unwrap()
            .explored
            .len(),
        40
    );
}

#[test]
fn a_header_that_says_other_than_its_change_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut home, mut node) = (Node::open(one.path()), Node::open(two.path()));
    let (mut ada, mut eve) = (Writer::new(1), Writer::new(2));
    let valid = home.publish(&mut ada, space(1), 5, &keyed("k", "v"));
    let refused = |node: &mut Node, change: &dyn Fn(&mut Opened)| {
        let mut bad = valid.clone();
        change(&mut bad);
        bad.id = FragmentId::from(rhizome_identity::Hash::of(&bad.header.to_bytes()));
        match node.verdict(bad) {
            Applied::Quarantined(reason) => reason,
            verdict => panic!("{verdict:?}"),
        }
    };
    let eve_id = eve.id;
    assert_eq!(
        refused(&mut node, &|bad| bad.header.author = eve_id),
        Reason::WrongActor
    );
    assert!(matches!(
        refused(&mut node, &|bad| bad.header.hlc = Hlc::from_ms(6)),
        Reason::Schema { .. }
    ));
    assert!(matches!(
        refused(&mut node, &|bad| bad.header.kind = Kind::Rule),
        Reason::Schema { .. }
    ));
    // A memory's change under a context's kind is measured against a context's document.
    assert_eq!(
        refused(&mut node, &|bad| bad.header.kind = Kind::Context),
        Reason::DepsDisagree
    );
    assert!(matches!(
        refused(&mut node, &|bad| bad.header.space = space(2)),
        Reason::Schema { .. }
    ));
    assert_eq!(node.verdict(valid.clone()), Applied::Applied);

    // Building on what was refused, or on another document, is refused too.
    let now = Hlc::from_ms(7);
    let mut composed = home
        .view
        .compose(eve.ctx(space(1), now), &keyed("k", "w"))
        .unwrap();
    home.view.release(&space(1), &composed);
    let broken = eve.sign_change(space(1), now, &composed, b"broken".to_vec());
    assert!(matches!(
        node.verdict(broken.clone()),
        Applied::Quarantined(Reason::Malformed { .. })
    ));
    composed.deps = vec![broken.id];
    let upon = eve.sign(space(1), now, &composed);
    assert_eq!(
        node.verdict(upon),
        Applied::Quarantined(Reason::DependsOnRefused { on: broken.id })
    );
    let other = node.publish(&mut ada, space(1), 8, &draft("another"));
    composed.deps = vec![other.id];
    let upon = eve.sign(space(1), now, &composed);
    assert_eq!(
        node.verdict(upon),
        Applied::Quarantined(Reason::OtherDocument { on: other.id })
    );
}

#[test]
fn fragments_that_wait_are_bounded_per_author_and_the_rest_comes_with_the_replay() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut home = Node::open(one.path());
    let mut ada = Writer::new(1);
    let count = MAX_WAITING_PER_AUTHOR as u64 + 20;
    let all: Vec<Opened> = (1..=count)
        .map(|n| home.publish(&mut ada, space(1), n, &keyed("k", &format!("v{n}"))))
        .collect();
    {
        let mut node = Node::open(two.path());
        let mut crowded = 0;
        for opened in &all[1..] {
            match node.verdict(opened.clone()) {
                Applied::Waiting(_) => {}
                Applied::Quarantined(Reason::Crowded) => crowded += 1,
                verdict => panic!("{verdict:?}"),
            }
        }
        assert_eq!(crowded, 19);
        assert_eq!(node.view.counts(&space(1)), (MAX_WAITING_PER_AUTHOR, 0));
        assert_eq!(node.view.state(&all.last().unwrap().id), None);
    }
    // The watermark went back to before the first that was left out: its replay brings them.
    let mut node = Node::open(two.path());
    let left = usize::try_from(node.view.watermark()).unwrap();
    assert_eq!(left, MAX_WAITING_PER_AUTHOR);
    node.take([all[0].clone()]);
    node.take(all[1 + left..].to_vec());
    assert_eq!(node.view.counts(&space(1)), (0, 0));
    assert_eq!(
        node.view.list(&ListQuery::default()).unwrap()[0].title,
        format!("v{count}")
    );
}
