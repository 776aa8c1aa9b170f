//! Writers on several nodes that change the same documents, each upon what it has seen of the
//! others: nothing anyone published may be kept out of any view.

#[path = "view/support.rs"]
mod support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use rhizome_memory::{Applied, ContextPatch, Explored, ListQuery, Opened};
use support::{Node, Writer, keyed, space};

#[test]
fn an_author_goes_on_where_another_built_upon_it() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [mut here, mut there] = dirs.each_ref().map(|dir| Node::open(dir.path()));
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let first = here.publish(&mut ada, space(1), 1, &keyed("port", "8080"));
    assert_eq!(there.verdict(first), Applied::Applied);
    let second = there.publish(&mut bob, space(1), 2, &keyed("port", "8081"));
    assert_eq!(here.verdict(second), Applied::Applied);
    // Ada's last change is no head any more, yet automerge builds on it as well.
    let third = here.publish(&mut ada, space(1), 3, &keyed("port", "8082"));
    assert_eq!(there.verdict(third), Applied::Applied);
}

#[test]
fn two_who_feed_one_document_agree_though_each_is_closed_and_opened_at_every_step() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut writers = [1, 2].map(Writer::new);
    let mut all: Vec<Opened> = Vec::new();
    let mut seen = [0_usize; 2];
    for step in 1..=24_u64 {
        let who = usize::from(step % 2 == 0);
        let mut node = Node::open(dirs[who].path());
        // Every third step knows nothing of the other's last one: both stand beside each other.
        if step % 3 != 0 {
            let unseen: Vec<Opened> = all[seen[who]..].to_vec();
            let unseen = unseen
                .into_iter()
                .filter(|opened| opened.header.author != writers[who].id);
            for (_, verdict) in node.take(unseen) {
                assert_eq!(verdict, Applied::Applied, "step {step}");
            }
            seen[who] = all.len();
            node.view.flush().unwrap();
            drop(node);
            node = Node::open(dirs[who].path());
        }
        all.push(node.publish(
            &mut writers[who],
            space(1),
            step,
            &keyed("port", &format!("step {step}")),
        ));
        node.view.flush().unwrap();
    }
    let places: BTreeSet<_> = all
        .iter()
        .map(|of| (of.header.author, of.header.seq))
        .collect();
    assert_eq!(places.len(), all.len(), "a place was used twice");
    let shown = dirs.map(|dir| {
        let mut node = Node::open(dir.path());
        for (id, verdict) in node.take(all.clone()) {
            assert_eq!(verdict, Applied::Applied, "{id}");
        }
        format!("{:?}", node.view.list(&ListQuery::default()).unwrap())
    });
    assert_eq!(shown[0], shown[1]);
    assert!(shown[0].contains("step 24"), "{}", shown[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_the_turns_nothing_is_kept_out(
        turns in proptest::collection::vec((0..3_usize, any::<bool>(), any::<bool>(), 0..4_usize), 1..40)
    ) {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut nodes = dirs.each_ref().map(|dir| Node::open(dir.path()));
        let mut writers = [1, 2, 3].map(Writer::new);
        let mut all: Vec<Opened> = Vec::new();
        // How much of `all` each node has.
        let mut seen = [0_usize; 3];
        for (turn, (who, is_context, catches_up, behind)) in (1_u64..).zip(turns) {
            if catches_up {
                let until = all.len().saturating_sub(behind).max(seen[who]);
                let batch: Vec<Opened> = all[seen[who]..until].to_vec();
                nodes[who].take(batch);
                seen[who] = until;
            }
            let node = &mut nodes[who];
            let opened = if is_context {
                let explored = vec![Explored { what: format!("turn {turn}"), result: String::new() }];
                let patch = ContextPatch { explored, ..ContextPatch::default() };
                node.checkpoint(&mut writers[who], space(1), turn, "task", &patch)
            } else {
                node.publish(&mut writers[who], space(1), turn, &keyed("key", &format!("turn {turn}")))
            };
            all.push(opened);
        }
        for node in &mut nodes {
            for (id, verdict) in node.take(all.clone()) {
                prop_assert_eq!(verdict, Applied::Applied, "{:?}", id);
            }
        }
    }
}
