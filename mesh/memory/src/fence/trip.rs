//! For tests: changes on which the last fence panics, as if automerge had.
//!
//! No change is known that passes every check and still makes automerge 0.12 panic.

use std::{cell::RefCell, collections::BTreeSet};

use automerge::Change;

thread_local! {
    static WIRES: RefCell<BTreeSet<[u8; 32]>> = const { RefCell::new(BTreeSet::new()) };
}

/// Has the last fence of this thread panic on the change with these bytes.
pub(crate) fn lay(change: &[u8]) {
    let change = Change::from_bytes(change.to_vec()).expect("a test composes valid changes");
    WIRES.with_borrow_mut(|wires| wires.insert(change.hash().0));
}

pub(super) fn trip(changes: &[Change]) {
    let tripped = WIRES.with_borrow(|wires| {
        changes
            .iter()
            .any(|change| wires.contains(&change.hash().0))
    });
    assert!(!tripped, "a trip wire");
}
