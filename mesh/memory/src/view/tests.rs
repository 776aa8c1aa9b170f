//! What a view does about changes that only automerge itself finds fault with.

use std::collections::BTreeMap;

use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};

use super::*;
use crate::fence::trip;

const SPACE: SpaceId = SpaceId::from_bytes([1; 32]);

fn opened(ctx: &ComposeContext, seq: u64, composed: &Composed) -> Opened {
    let header = Header {
        version: 1,
        mesh: MeshId::from_bytes([0; 32]),
        space: SPACE,
        author: ctx.author,
        node: ctx.node,
        seq,
        prev: (seq > 0).then_some(FragmentId::from_bytes([7; 32])),
        auth_heads: Vec::new(),
        deps: composed.deps.clone(),
        hlc: ctx.now,
        kind: composed.kind,
        doc: composed.doc,
        fingerprint: Hash::of(b""),
        epoch: 0,
        nonce: [0; 24],
        body_hash: Hash::of(&composed.change),
        body_len: 0,
    };
    let id = FragmentId::from(Hash::of(&header.to_bytes()));
    Opened {
        id,
        header,
        change: Bytes::from(composed.change.clone()),
    }
}

fn ctx(author: u8, now: u64) -> ComposeContext {
    let (author, node) = (
        AgentId::from_bytes([author; 32]),
        NodeId::from_bytes([author; 32]),
    );
    ComposeContext {
        author,
        node,
        now: Hlc::from_ms(now),
        space: SPACE,
    }
}

#[test]
fn a_batch_is_halved_until_the_culprit_stands_alone_and_the_rest_goes_on() {
    let (home, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let home = View::open(home.path()).unwrap();
    // Eight authors begin one context on their own; one of them goes on for three more changes.
    let mut batch = Vec::new();
    for author in 1..=8 {
        let elsewhere = tempfile::tempdir().unwrap();
        let elsewhere = View::open(elsewhere.path()).unwrap();
        let patch = ContextPatch {
            questions: vec![format!("from {author}")],
            ..ContextPatch::default()
        };
        for seq in 0..if author == 5 { 4 } else { 1 } {
            let ctx = ctx(author, 10 * seq + u64::from(author));
            let composed = elsewhere.compose_context(ctx, "task", &patch).unwrap();
            let fragment = opened(&ctx, seq, &composed);
            elsewhere.reserve(&SPACE, &composed, fragment.id);
            batch.push(fragment.clone());
            assert_eq!(
                elsewhere.apply(seq + 1, vec![fragment.clone()]),
                [(fragment.id, Applied::Applied)]
            );
        }
    }
    let of_five: Vec<FragmentId> = batch
        .iter()
        .filter(|opened| opened.header.author == AgentId::from_bytes([5; 32]))
        .map(|opened| opened.id)
        .collect();
    let culprit = batch
        .iter()
        .find(|opened| opened.id == of_five[1])
        .unwrap()
        .clone();
    trip::lay(&culprit.change);

    let verdicts: BTreeMap<FragmentId, Applied> =
        home.apply(11, batch.clone()).into_iter().collect();
    assert_eq!(verdicts.len(), 11);
    for opened in &batch {
        let expected = match of_five.iter().position(|id| *id == opened.id) {
            Some(1) => Applied::Quarantined(Reason::Panicked {
                what: "a trip wire".into(),
            }),
            Some(2) => Applied::Quarantined(Reason::DependsOnRefused { on: of_five[1] }),
            Some(3) => Applied::Quarantined(Reason::DependsOnRefused { on: of_five[2] }),
            _ => Applied::Applied,
        };
        assert_eq!(verdicts[&opened.id], expected);
        assert_eq!(home.state(&opened.id), Some(expected));
    }
    assert_eq!(home.counts(&SPACE), (0, 3));
    assert_eq!(home.quarantine(Some(&SPACE), 10).unwrap().len(), 3);
    let state = home.context(&SPACE, "task").unwrap().unwrap();
    assert_eq!((state.fragments.len(), state.questions.len()), (8, 8));

    // The document goes on, and what was refused stays refused when it is offered again.
    let next = ctx(9, 900);
    let composed = home.compose_context(
        next,
        "task",
        &ContextPatch {
            status: Some("on".into()),
            ..ContextPatch::default()
        },
    );
    let fragment = opened(&next, 0, &composed.unwrap());
    assert_eq!(
        home.apply(12, vec![fragment.clone()]),
        [(fragment.id, Applied::Applied)]
    );
    let again = home.apply(13, vec![culprit.clone()]);
    assert!(
        matches!(again[..], [(id, Applied::Quarantined(Reason::Panicked { .. }))] if id == culprit.id)
    );

    // One at a time, and the wire not met by the others, the view comes out the same.
    let away = View::open(away.path()).unwrap();
    for (arrival, opened) in (1..).zip(batch.iter().rev()) {
        away.apply(arrival, vec![opened.clone()]);
    }
    away.apply(12, vec![fragment]);
    assert_eq!(
        away.context(&SPACE, "task").unwrap(),
        home.context(&SPACE, "task").unwrap()
    );
}

#[test]
fn what_waits_on_many_goes_on_once_when_they_all_arrive() {
    const LAYERS: u64 = 40;
    let homes: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let authors: Vec<View> = homes
        .iter()
        .map(|dir| View::open(dir.path()).unwrap())
        .collect();
    // Three authors change one memory at once, see each other's changes, and change it again: each
    // change rests on three. Woken once for each of them, the last layer would go on 3^40 times.
    let mut fragments: Vec<Opened> = Vec::new();
    for layer in 0..LAYERS {
        let before = fragments.len();
        for (author, view) in (1..).zip(&authors) {
            let ctx = ctx(author, 10 * layer + u64::from(author));
            let mut draft = Draft::new(Kind::Fact, format!("{author} in {layer}"), "");
            draft.key = Some("shared".into());
            let composed = view.compose(ctx, &draft).unwrap();
            let fragment = opened(&ctx, layer, &composed);
            view.reserve(&SPACE, &composed, fragment.id);
            fragments.push(fragment);
        }
        for view in &authors {
            view.apply(layer + 1, fragments[before..].to_vec());
        }
    }
    assert!(
        fragments[3..]
            .iter()
            .all(|opened| opened.header.deps.len() == 3)
    );

    let late = tempfile::tempdir().unwrap();
    let late = View::open(late.path()).unwrap();
    for fragment in fragments[3..].iter().rev() {
        late.apply(1, vec![fragment.clone()]);
    }
    assert_eq!(late.counts(&SPACE), (fragments.len() - 3, 0));
    let verdicts = late.apply(2, fragments[..3].to_vec());
    assert_eq!(verdicts.len(), fragments.len());
    assert!(
        verdicts
            .iter()
            .all(|(_, verdict)| *verdict == Applied::Applied)
    );
    assert_eq!(late.counts(&SPACE), (0, 0));
    let doc = fragments[0].header.doc;
    assert_eq!(
        late.memory(&SPACE, &doc).unwrap(),
        authors[0].memory(&SPACE, &doc).unwrap()
    );
}
