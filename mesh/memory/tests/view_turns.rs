//! Writers on several nodes that change the same documents, each upon what it has seen of the
//! others: nothing anyone published may be kept out of any view.

#[path = "view/support.rs"]
mod support;

use proptest::prelude::*;
use rhizome_memory::{Applied, ContextPatch, Explored, Opened};
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
