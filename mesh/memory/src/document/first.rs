//! The first change of a memory, which has one form.
//!
//! It puts one statement on top of the genesis and has nothing to choose but who says what. So it is
//! written without a document, and one that comes from elsewhere in exactly this form needs none
//! either: what it amounts to is its statement, and what is saved of it is the change itself.

use std::sync::LazyLock;

use automerge::{
    ActorId, Automerge, Change, ExpandedChange, ROOT, ScalarValue, legacy::OpType,
    transaction::Transactable,
};

use super::{
    Shape,
    genesis::{STATEMENT, genesis},
    write::write,
};

/// A first change of some actor, as automerge writes it.
static MODEL: LazyLock<ExpandedChange> = LazyLock::new(|| {
    let genesis = genesis(Shape::Memory);
    let mut document = genesis.document.clone();
    let actor = ActorId::from(&[0; 16][..]);
    let change = write(&mut document, actor, &[genesis.hash], |write, _| {
        Ok(write.put(ROOT, STATEMENT, "")?)
    });
    let change = change.expect("the genesis takes a statement");
    let change = Change::from_bytes(change).expect("automerge reads what it wrote");
    change.decode()
});

/// Returns the first change of `actor` on a memory, which states `text`.
pub(crate) fn first_statement(actor: ActorId, text: &str) -> Change {
    let mut change = MODEL.clone();
    change.actor_id = actor;
    change.hash = None;
    for operation in &mut change.operations {
        operation.action = OpType::Put(ScalarValue::Str(text.into()));
    }
    Change::from(change)
}

/// Returns whether a change that passed the fence as the first of a memory has the form of
/// [`first_statement`].
///
/// The fence leaves it nothing else to say but these fields; and it refuses a second spelling.
pub(crate) fn is_first_statement(change: &Change) -> bool {
    change.timestamp() == MODEL.time
        && change.message() == MODEL.message.as_deref()
        && change.extra_bytes() == MODEL.extra_bytes
        && change.deps() == MODEL.deps
        && change.seq() == MODEL.seq
        && change.start_op() == MODEL.start_op
        && change.author().is_none()
}

/// Builds the document that a first change alone makes.
pub(crate) fn document_of_first(change: &Change) -> Result<Automerge, String> {
    let mut document = genesis(Shape::Memory).document.clone();
    document
        .apply_changes([change.clone()])
        .map_err(|error| error.to_string())?;
    if document.get_heads() == [change.hash()] {
        Ok(document)
    } else {
        Err("the change does not follow the genesis".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Draft, Hlc, Kind,
        document::{Statement, to_canonical, write_memory},
        fence,
    };

    proptest! {
        #[test]
        fn it_is_what_automerge_writes_and_what_it_saves_and_loads(
            title in "\\PC{1,80}",
            text in "(?s).{0,400}",
            actor: [u8; 16],
            at: u32,
        ) {
            let draft = Draft::new(Kind::Fact, title, text);
            let (actor, at) = (ActorId::from(&actor[..]), Hlc::from_ms(at.into()));
            let genesis = genesis(Shape::Memory);
            let mut document = genesis.document.clone();
            let written =
                write_memory(&mut document, actor.clone(), &[genesis.hash], at, &draft).unwrap();
            let first = first_statement(actor, &to_canonical(&Statement { at, draft }));
            prop_assert_eq!(first.raw_bytes(), &written[..]);
            prop_assert!(is_first_statement(&first));
            prop_assert!(is_first_statement(&Change::from_bytes(written).unwrap()));

            let built = document_of_first(&first).unwrap();
            let (reloaded, _, ()) =
                fence::apply(&genesis.document, std::slice::from_ref(&first), &[first.hash()], |_| ()).unwrap();
            prop_assert_eq!(built.get_heads(), reloaded.get_heads());
            prop_assert_eq!(built.save(), reloaded.save());
        }
    }

    #[test]
    fn a_long_statement_is_no_exception() {
        let draft = Draft::new(Kind::Fact, "long", "ü".repeat(100_000));
        let (actor, at) = (ActorId::from(&[7; 16][..]), Hlc::from_ms(1));
        let genesis = genesis(Shape::Memory);
        let mut document = genesis.document.clone();
        let written = write_memory(&mut document, actor.clone(), &[genesis.hash], at, &draft);
        let first = first_statement(actor, &to_canonical(&Statement { at, draft }));
        assert_eq!(first.raw_bytes(), written.unwrap());
    }

    #[test]
    fn a_change_that_says_more_is_not_of_this_form() {
        let first = first_statement(ActorId::from(&[7; 16][..]), "text");
        let with = |change: fn(&mut ExpandedChange)| {
            let mut expanded = first.decode();
            change(&mut expanded);
            is_first_statement(&Change::from(expanded))
        };
        assert!(with(|_| ()));
        assert!(!with(|change| change.time = 5));
        assert!(!with(|change| change.message = Some("psst".into())));
        assert!(!with(|change| change.extra_bytes = vec![1]));
        assert!(!with(|change| change.seq = 2));
        assert!(!with(|change| change.deps.clear()));
    }
}
