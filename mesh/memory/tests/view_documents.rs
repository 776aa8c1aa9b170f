//! What fragments add up to, on one node and between nodes.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "view/support.rs"]
mod support;

use proptest::prelude::*;
use rhizome_identity::SpaceId;
use rhizome_memory::{
    Applied, Artifact, ComposeError, ContextPatch, ContextState, Decision, Draft, ErrorEntry,
    Explored, FragmentId, Hlc, Kind, ListPlace, ListQuery, MemoryItem, Opened, context_doc,
    keyed_doc,
};
use support::{Node, Writer, draft, keyed, space};

const S: u8 = 1;

fn open() -> (tempfile::TempDir, Node) {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::open(dir.path());
    (dir, node)
}

fn titles(items: &[MemoryItem]) -> Vec<&str> {
    items.iter().map(|item| item.title.as_str()).collect()
}

#[test]
fn a_memory_reads_as_it_was_published_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(1);
    let full = Draft {
        tags: vec!["net".into()],
        task: Some("t".into()),
        evidence: vec!["log line \u{1}".into()],
        fields: [("exit".to_owned(), "1".to_owned())].into(),
        ..Draft::new(
            Kind::Error,
            "connection timeout",
            "after 30 s\nand \"quotes\" 护城河",
        )
    };
    let opened = {
        let mut node = Node::open(dir.path());
        node.publish(&mut writer, space(S), 1_000, &full)
    };
    for _ in 0..2 {
        let node = Node::open(dir.path());
        assert_eq!(node.view.watermark(), 1);
        let item = node
            .view
            .memory(&space(S), &opened.header.doc)
            .unwrap()
            .unwrap();
        assert_eq!(
            (item.id, item.author, item.node),
            (opened.id, writer.id, writer.node)
        );
        assert_eq!(
            (item.kind, item.title, item.text),
            (full.kind, full.title.clone(), full.text.clone())
        );
        assert_eq!(
            (item.tags, item.evidence, item.fields),
            (
                full.tags.clone(),
                full.evidence.clone(),
                full.fields.clone()
            )
        );
        assert_eq!((item.task, item.at_ms), (full.task.clone(), 1_000));
        assert_eq!(node.view.state(&opened.id), Some(Applied::Applied));
    }
}

#[test]
fn the_same_key_on_two_nodes_is_one_memory_with_both_values_flagged_until_one_replaces_both() {
    let ((_a, mut a), (_b, mut b)) = (open(), open());
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let from_a = a.publish(
        &mut ada,
        space(S),
        1_000,
        &keyed("port", "the port is 8080"),
    );
    let from_b = b.publish(
        &mut bob,
        space(S),
        2_000,
        &keyed("port", "the port is 8081"),
    );
    assert_eq!(from_a.header.doc, from_b.header.doc);
    assert_eq!(a.verdict(from_b.clone()), Applied::Applied);
    assert_eq!(b.verdict(from_a.clone()), Applied::Applied);
    let doc = keyed_doc(&space(S), Kind::Fact, "port");
    let (at_a, at_b) = (
        a.view.memory(&space(S), &doc).unwrap(),
        b.view.memory(&space(S), &doc).unwrap(),
    );
    assert_eq!(at_a, at_b);
    let item = at_a.unwrap();
    assert_eq!(
        (item.title.as_str(), item.author),
        ("the port is 8081", bob.id)
    );
    assert_eq!(item.conflicts.len(), 1);
    assert_eq!(
        (item.conflicts[0].title.as_str(), item.conflicts[0].author),
        ("the port is 8080", ada.id)
    );

    let settled = a.publish(
        &mut ada,
        space(S),
        3_000,
        &keyed("port", "the port is 8080, 8081 is metrics"),
    );
    assert_eq!(settled.header.deps.len(), 2);
    b.verdict(settled);
    let item = b.view.memory(&space(S), &doc).unwrap().unwrap();
    assert_eq!(
        (item.title.as_str(), item.conflicts.len()),
        ("the port is 8080, 8081 is metrics", 0)
    );
    assert_eq!(b.view.list(&ListQuery::default()).unwrap().len(), 1);
}

#[test]
fn contexts_begun_on_two_nodes_merge_and_each_entry_names_its_author() {
    let ((_a, mut a), (_b, mut b)) = (open(), open());
    let (mut ada, mut bob) = (Writer::new(1), Writer::new(2));
    let first = ContextPatch {
        goal: Some("tests pass".into()),
        explored: vec![Explored {
            what: "reinstall".into(),
            result: "no change".into(),
        }],
        errors: vec![ErrorEntry {
            error: "E1".into(),
            cause: Some("planted".into()),
            ..ErrorEntry::default()
        }],
        questions: vec!["why only on Mondays?".into()],
        next: Some(vec!["bisect".into(), "read the log".into()]),
        requires: Some(vec!["git".into(), "memory>=512".into()]),
        ..ContextPatch::default()
    };
    let second = ContextPatch {
        decisions: vec![Decision {
            what: "pin it".into(),
            why: "safe".into(),
        }],
        next: Some(vec!["read the log".into(), "ask upstream".into()]),
        requires: Some(vec!["python3>=3.11".into(), "git".into()]),
        artifacts: vec![Artifact {
            name: "patch".into(),
            reference: "changes.diff".into(),
        }],
        ..ContextPatch::default()
    };
    let from_a = a.checkpoint(&mut ada, space(S), 1_000, "mend", &first);
    let from_b = b.checkpoint(&mut bob, space(S), 2_000, "mend", &second);
    a.verdict(from_b.clone());
    b.verdict(from_a.clone());
    let state = a.view.context(&space(S), "mend").unwrap().unwrap();
    assert_eq!(
        Some(&state),
        b.view.context(&space(S), "mend").unwrap().as_ref()
    );
    assert_eq!(state.doc, context_doc(&space(S), "mend"));
    assert_eq!(
        (state.explored[0].by, state.explored[0].fragment),
        (ada.id, from_a.id)
    );
    assert_eq!(
        (state.decisions[0].by, state.decisions[0].node),
        (bob.id, bob.node)
    );
    let next: Vec<_> = state
        .next
        .iter()
        .map(|step| (step.value.text.as_str(), step.by))
        .collect();
    assert_eq!(
        next,
        [
            ("read the log", bob.id),
            ("ask upstream", bob.id),
            ("bisect", ada.id)
        ]
    );
    // What either relies on must hold for both.
    let requires = |state: &rhizome_memory::ContextState| -> Vec<String> {
        let lines = state.requires.iter();
        lines.map(|line| line.value.text.clone()).collect()
    };
    assert_eq!(requires(&state), ["python3>=3.11", "git", "memory>=512"]);
    assert_eq!(state.fragments, [from_a.id, from_b.id]);

    // A later patch has seen both lists, so it replaces both; the error gets its fix.
    let third = ContextPatch {
        status: Some("mended".into()),
        errors: vec![ErrorEntry {
            error: "E1".into(),
            fix: Some("revert".into()),
            status: Some("fixed".into()),
            ..ErrorEntry::default()
        }],
        resolved_questions: vec!["why only on Mondays?".into()],
        next: Some(vec!["write it up".into()]),
        requires: Some(Vec::new()),
        ..ContextPatch::default()
    };
    b.checkpoint(&mut bob, space(S), 3_000, "mend", &third);
    let state = b.view.context(&space(S), "mend").unwrap().unwrap();
    assert_eq!(state.next.len(), 1);
    assert_eq!(requires(&state), [""; 0]);
    assert_eq!(state.goal.unwrap().value.text, "tests pass");
    assert_eq!(state.errors.len(), 1);
    let error = &state.errors[0];
    assert_eq!(
        (
            error.value.cause.as_deref(),
            error.value.fix.as_deref(),
            error.by
        ),
        (Some("planted"), Some("revert"), bob.id)
    );
    assert!(state.questions[0].value.resolved);
    let summaries = b.view.contexts(Some(&space(S))).unwrap();
    assert_eq!(
        (
            summaries.len(),
            summaries[0].fragments,
            summaries[0].status.as_deref()
        ),
        (1, 3, Some("mended"))
    );
    assert_eq!(b.view.context(&space(2), "mend").unwrap(), None);
}

#[test]
fn changes_composed_in_a_row_build_on_each_other_before_any_is_durable() {
    let (_dir, mut node) = open();
    let mut ada = Writer::new(1);
    let mut opened = Vec::new();
    for n in 0..5_u64 {
        let now = Hlc::from_ms(n + 1);
        let composed = node
            .view
            .compose(ada.ctx(space(S), now), &keyed("k", &format!("value {n}")))
            .unwrap();
        let again = node
            .view
            .compose(ada.ctx(space(S), now), &keyed("k", "too early"));
        assert!(matches!(again, Err(ComposeError::Busy)));
        let fragment = ada.sign(space(S), now, &composed);
        node.view.reserve(&space(S), &composed, fragment.id);
        opened.push(fragment);
    }
    assert!(
        node.take(opened)
            .iter()
            .all(|(_, verdict)| *verdict == Applied::Applied)
    );
    let items = node.view.list(&ListQuery::default()).unwrap();
    assert_eq!(
        (titles(&items), items[0].conflicts.len()),
        (vec!["value 4"], 0)
    );
}

#[test]
fn a_composed_change_that_never_became_durable_is_forgotten() {
    let (_dir, mut node) = open();
    let mut ada = Writer::new(1);
    let lost = node
        .view
        .compose(ada.ctx(space(S), Hlc::from_ms(1)), &keyed("k", "lost"))
        .unwrap();
    node.view.release(&space(S), &lost);
    node.publish(&mut ada, space(S), 2, &keyed("k", "kept"));
    let items = node.view.list(&ListQuery::default()).unwrap();
    assert_eq!(titles(&items), ["kept"]);
}

#[test]
fn what_waits_names_what_it_waits_for_survives_a_restart_and_goes_on() {
    let (_a, mut a) = open();
    let mut ada = Writer::new(1);
    let one = a.publish(&mut ada, space(S), 1, &keyed("k", "one"));
    let two = a.publish(&mut ada, space(S), 2, &keyed("k", "two"));
    let other = a.publish(&mut ada, space(S), 3, &draft("other"));
    let dir = tempfile::tempdir().unwrap();
    {
        let mut b = Node::open(dir.path());
        assert_eq!(b.verdict(two.clone()), Applied::Waiting(vec![one.id]));
        assert_eq!(b.verdict(other), Applied::Applied);
        assert_eq!(b.view.counts(&space(S)), (1, 0));
    }
    let mut b = Node::open(dir.path());
    assert_eq!(b.view.state(&two.id), Some(Applied::Waiting(vec![one.id])));
    let verdicts = b.take([one.clone()]);
    assert_eq!(
        verdicts,
        [(one.id, Applied::Applied), (two.id, Applied::Applied)]
    );
    assert_eq!(b.view.counts(&space(S)), (0, 0));
    assert_eq!(
        titles(
            &b.view
                .list(&ListQuery {
                    kind: Some(Kind::Fact),
                    ..ListQuery::default()
                })
                .unwrap()
        ),
        ["other", "two"]
    );
}

#[test]
fn a_context_that_forty_authors_begin_at_once_is_drawn_together_again() {
    let (_dir, mut home) = open();
    let patch = |n: u8| ContextPatch {
        questions: vec![format!("from {n}")],
        ..ContextPatch::default()
    };
    // A node that takes nothing in: each author begins the context anew.
    let (_away, away) = open();
    for n in 1..=40 {
        let (mut writer, now) = (Writer::new(n), Hlc::from_ms(u64::from(n)));
        let composed = away
            .view
            .compose_context(writer.ctx(space(S), now), "task", &patch(n))
            .unwrap();
        away.view.release(&space(S), &composed);
        let begun = writer.sign(space(S), now, &composed);
        assert_eq!(home.verdict(begun), Applied::Applied);
    }
    // A header names 32 dependencies at most: the first change draws 32 heads together, the next the rest.
    let mut zoe = Writer::new(50);
    let first = home.checkpoint(&mut zoe, space(S), 100, "task", &patch(50));
    let second = home.checkpoint(&mut zoe, space(S), 101, "task", &patch(51));
    let third = home.checkpoint(&mut zoe, space(S), 102, "task", &patch(52));
    assert_eq!(
        (first.header.deps.len(), second.header.deps.len()),
        (31, 10)
    );
    assert_eq!(third.header.deps, [second.id]);
    let state = home.view.context(&space(S), "task").unwrap().unwrap();
    assert_eq!((state.questions.len(), state.fragments.len()), (43, 43));
}

#[test]
fn a_list_filters_by_space_kind_and_task_and_begins_with_the_newest() {
    let (_dir, mut node) = open();
    let mut ada = Writer::new(1);
    for n in 0..6_u64 {
        let kind = if n % 2 == 0 { Kind::Fact } else { Kind::Rule };
        let draft = Draft {
            task: Some(format!("t{}", n % 3)),
            ..Draft::new(kind, format!("m{n}"), "")
        };
        node.publish(
            &mut ada,
            space(u8::try_from(n / 3).unwrap() + 1),
            n + 1,
            &draft,
        );
    }
    let list = |query: ListQuery| -> Vec<String> {
        node.view
            .list(&query)
            .unwrap()
            .into_iter()
            .map(|item| item.title)
            .collect()
    };
    assert_eq!(
        list(ListQuery::default()),
        ["m5", "m4", "m3", "m2", "m1", "m0"]
    );
    assert_eq!(
        list(ListQuery {
            spaces: Some(vec![space(1)]),
            ..ListQuery::default()
        }),
        ["m2", "m1", "m0"]
    );
    assert_eq!(
        list(ListQuery {
            kind: Some(Kind::Rule),
            limit: 2,
            ..ListQuery::default()
        }),
        ["m5", "m3"]
    );
    assert_eq!(
        list(ListQuery {
            task: Some("t0".into()),
            ..ListQuery::default()
        }),
        ["m3", "m0"]
    );
}

#[test]
fn a_page_far_along_costs_no_more_than_the_first() {
    const PAGE: usize = 10;
    let (_dir, mut node) = open();
    let mut ada = Writer::new(1);
    let mut at = 0;
    let mut publish = |node: &mut Node, space_number: u8, key: Option<String>| {
        at += 1;
        let draft = Draft {
            key,
            ..draft(&format!("m{at}"))
        };
        node.publish(&mut ada, space(space_number), at, &draft);
    };
    for n in 0..100 {
        publish(&mut node, n % 3 + 1, Some(format!("key/{n:03}")));
        publish(&mut node, n % 3 + 1, None);
    }
    let some = Some(vec![space(1), space(3)]);
    let keys = |keys: &[&str]| Some(keys.iter().map(|key| (*key).to_owned()).collect());
    for (spaces, key_prefixes, all) in [
        (None, None, 200),
        (some.clone(), None, 134),
        (some, keys(&["key/"]), 67),
        (None, keys(&["key/04", "key/01"]), 20),
    ] {
        let query = ListQuery {
            spaces,
            key_prefixes,
            limit: 1_000,
            ..ListQuery::default()
        };
        let whole = node.view.page(&query).unwrap();
        assert_eq!((whole.items.len(), whole.rows_read), (all, all));
        assert_eq!(whole.next, None);
        let (mut told, mut after) = (Vec::new(), None);
        loop {
            let page = node
                .view
                .page(&ListQuery {
                    after,
                    limit: PAGE,
                    ..query.clone()
                })
                .unwrap();
            // One more, to know that there is more.
            assert!(page.rows_read <= PAGE + 1, "{}", page.rows_read);
            told.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(ListPlace::from_bytes(&next.to_bytes()).unwrap());
            // What comes meanwhile is newer, or elsewhere.
            publish(&mut node, 2, Some(format!("new/{}", told.len())));
            if query.key_prefixes.is_none() && query.spaces.is_some() {
                publish(&mut node, 1, None);
            }
        }
        assert_eq!(told, whole.items);
        if query.key_prefixes.is_some() {
            assert!(told.is_sorted_by_key(|item| item.key.clone()));
        } else {
            assert!(told.is_sorted_by_key(|item| std::cmp::Reverse(item.hlc)));
        }
    }
    let twice = ListQuery {
        key_prefixes: keys(&["key/", "key/00"]),
        limit: 1_000,
        ..ListQuery::default()
    };
    assert_eq!(node.view.list(&twice).unwrap().len(), 100);
    let nowhere = ListQuery {
        spaces: Some(Vec::new()),
        ..ListQuery::default()
    };
    assert!(node.view.list(&nowhere).unwrap().is_empty());
    for bad in [&[][..], &[7; 63], &[7; 4_096]] {
        assert_eq!(ListPlace::from_bytes(bad), None);
    }
}

#[test]
fn a_damaged_database_is_thrown_away_and_everything_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let mut ada = Writer::new(1);
    let fragments: Vec<Opened> = {
        let mut node = Node::open(dir.path());
        (1..20)
            .map(|n| node.publish(&mut ada, space(S), n, &draft(&format!("m{n}"))))
            .collect()
    };
    std::fs::write(dir.path().join("view.redb"), b"not a database at all").unwrap();
    let mut node = Node::open(dir.path());
    assert_eq!(node.view.watermark(), 0);
    assert!(
        node.take(fragments)
            .iter()
            .all(|(_, verdict)| *verdict == Applied::Applied)
    );
    assert_eq!(node.view.list(&ListQuery::default()).unwrap().len(), 19);
}

#[test]
fn flipped_bits_in_the_database_never_panic_and_a_replay_mends_what_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut ada = Writer::new(1);
    let fragments: Vec<Opened> = {
        let mut node = Node::open(dir.path());
        (1..40)
            .map(|n| {
                node.publish(
                    &mut ada,
                    space(S),
                    n,
                    &keyed(&format!("k{}", n % 9), &format!("m{n}")),
                )
            })
            .collect()
    };
    let path = dir.path().join("view.redb");
    let intact = std::fs::read(&path).unwrap();
    let mut thrown_away = 0;
    for round in 0..60_usize {
        let mut bytes = intact.clone();
        // Spread over the file, the headers at its beginning included.
        let at = if round < 10 {
            round * 37
        } else {
            (round * 104_729 + 11) % bytes.len()
        };
        bytes[at] ^= 1 << (round % 8);
        std::fs::write(&path, &bytes).unwrap();
        let (mut seen, mut replayed) = (0, false);
        for _ in 0..3 {
            let mut node = Node::open(dir.path());
            replayed |= node.view.watermark() == 0;
            let left = usize::try_from(node.view.watermark()).unwrap();
            let verdicts = node.take(fragments[left..].to_vec());
            let deferred = verdicts
                .iter()
                .any(|(_, verdict)| *verdict == Applied::Deferred);
            let _ = node.view.list(&ListQuery::default());
            let _ = node.view.context(&space(S), "none");
            seen = node
                .view
                .list(&ListQuery::default())
                .map_or(0, |items| items.len());
            if !deferred && seen == 9 {
                break;
            }
        }
        thrown_away += usize::from(replayed);
        assert_eq!(seen, 9, "round {round}, byte {at}");
    }
    assert!(thrown_away > 0, "no flip met a page in use");
}

/// What can happen on one of the nodes of a history.
#[derive(Debug, Clone)]
enum Step {
    Publish { node: usize, key: u8 },
    Checkpoint { node: usize, task: u8 },
    Learn { node: usize, from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_usize, 0..2_u8).prop_map(|(node, key)| Step::Publish { node, key }),
        (0..3_usize, 0..2_u8).prop_map(|(node, task)| Step::Checkpoint { node, task }),
        (0..3_usize, 0..3_usize).prop_map(|(node, from)| Step::Learn { node, from }),
    ]
}

type Snapshot = (Vec<MemoryItem>, Vec<Option<ContextState>>);

fn snapshot(node: &Node, space: &SpaceId) -> Snapshot {
    let contexts = ["t0", "t1"].map(|task| node.view.context(space, task).unwrap());
    (
        node.view.list(&ListQuery::default()).unwrap(),
        contexts.to_vec(),
    )
}

fn history(steps: &[Step]) -> Vec<Opened> {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut nodes: Vec<Node> = dirs.iter().map(|dir| Node::open(dir.path())).collect();
    let mut writers: Vec<Writer> = (1..4).map(Writer::new).collect();
    let mut held: Vec<Vec<Opened>> = vec![Vec::new(); 3];
    for (at, step) in (1..).zip(steps) {
        match *step {
            Step::Publish { node, key } => {
                let draft = keyed(&format!("k{key}"), &format!("value {at}"));
                let opened = nodes[node].publish(&mut writers[node], space(S), at / 2 + 1, &draft);
                held[node].push(opened);
            }
            Step::Checkpoint { node, task } => {
                let patch = ContextPatch {
                    status: Some(format!("step {at}")),
                    errors: vec![ErrorEntry {
                        error: format!("E{}", at % 2),
                        fix: Some(format!("{at}")),
                        ..ErrorEntry::default()
                    }],
                    next: Some(vec![format!("after {at}"), "rest".into()]),
                    questions: vec!["why?".into()],
                    ..ContextPatch::default()
                };
                let opened = nodes[node].checkpoint(
                    &mut writers[node],
                    space(S),
                    at / 2 + 1,
                    &format!("t{task}"),
                    &patch,
                );
                held[node].push(opened);
            }
            Step::Learn { node, from } => {
                let known: Vec<FragmentId> = held[node].iter().map(|opened| opened.id).collect();
                let new: Vec<Opened> = held[from]
                    .iter()
                    .filter(|opened| !known.contains(&opened.id))
                    .cloned()
                    .collect();
                nodes[node].take(new.clone());
                held[node].extend(new);
            }
        }
    }
    let mut all: Vec<Opened> = held.into_iter().flatten().collect();
    all.sort_by_key(|opened| opened.id);
    all.dedup_by_key(|opened| opened.id);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_sets_of_fragments_give_equal_views_in_any_order(
        steps in prop::collection::vec(step(), 4..24),
        order in prop::collection::vec(any::<u32>(), 24),
        cut in 1..6_usize,
    ) {
        let all = history(&steps);
        // Any interleaving that keeps each author's chain in order.
        let mut by_place: Vec<(u32, Opened)> = order.iter().copied().cycle().zip(all.clone()).collect();
        by_place.sort_by_key(|(place, _)| *place);
        let mut order: Vec<Opened> = by_place.into_iter().map(|(_, opened)| opened).collect();
        for author in (1..4).map(|n| Writer::new(n).id) {
            let places: Vec<usize> = (0..order.len()).filter(|at| order[*at].header.author == author).collect();
            let mut chain: Vec<Opened> = places.iter().map(|at| order[*at].clone()).collect();
            chain.sort_by_key(|opened| opened.header.seq);
            for (at, opened) in places.into_iter().zip(chain) {
                order[at] = opened;
            }
        }
        let ((_a, mut a), (_b, mut b)) = (open(), open());
        for batch in order.chunks(cut) {
            a.take(batch.to_vec());
        }
        let mut topological = all.clone();
        topological.sort_by_key(|opened| (opened.header.seq, opened.id));
        b.take(topological);
        prop_assert_eq!(a.view.counts(&space(S)), (0, 0));
        prop_assert_eq!(snapshot(&a, &space(S)), snapshot(&b, &space(S)));
        for opened in &all {
            prop_assert_eq!(a.view.state(&opened.id), Some(Applied::Applied));
        }
    }
}
