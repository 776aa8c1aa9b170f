//! What to do about one file, by what both sides say now and said when they last agreed.

/// Which side may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Only the directory.
    Pull,
    /// Only memory.
    Push,
    /// Both.
    Sync,
}

/// What to do about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Both say the same, or nothing.
    Same,
    /// Only the side that may not be changed would be.
    Leave,
    /// The directory gets what memory says.
    Pull,
    /// Memory gets what the directory says.
    Push,
    /// Both have changed it: each gets what both add up to.
    Merge,
    /// It goes from the directory.
    DeleteHere,
    /// It goes from memory.
    DeleteThere,
}

/// Decides: what one side alone has changed goes to the other; a file that one side deleted and the
/// other changed stays.
pub(super) fn decide(
    mode: Mode,
    base: Option<&str>,
    here: Option<&str>,
    there: Option<&str>,
) -> Action {
    let action = match (here, there) {
        _ if here == there => return Action::Same,
        (_, Some(_)) if here == base => Action::Pull,
        (_, None) if here == base => Action::DeleteHere,
        (Some(_), _) if there == base => Action::Push,
        (None, _) if there == base => Action::DeleteThere,
        (Some(_), Some(_)) => Action::Merge,
        (Some(_), None) => Action::Push,
        (None, _) => Action::Pull,
    };
    let allowed = match action {
        Action::Pull | Action::DeleteHere => mode != Mode::Push,
        Action::Push | Action::DeleteThere => mode != Mode::Pull,
        _ => true,
    };
    if allowed { action } else { Action::Leave }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_changed_goes_to_the_other() {
        use Action::{DeleteHere, DeleteThere, Leave, Merge, Pull, Push, Same};
        let cases = [
            (None, None, None, Same, Same, Same),
            (None, Some("a"), None, Push, Leave, Push),
            (None, None, Some("a"), Pull, Pull, Leave),
            (None, Some("a"), Some("a"), Same, Same, Same),
            (None, Some("a"), Some("b"), Merge, Merge, Merge),
            (Some("a"), Some("a"), Some("a"), Same, Same, Same),
            (Some("a"), Some("b"), Some("a"), Push, Leave, Push),
            (Some("a"), Some("a"), Some("b"), Pull, Pull, Leave),
            (Some("a"), Some("b"), Some("c"), Merge, Merge, Merge),
            (Some("a"), Some("b"), Some("b"), Same, Same, Same),
            (Some("a"), None, Some("a"), DeleteThere, Leave, DeleteThere),
            (Some("a"), Some("a"), None, DeleteHere, DeleteHere, Leave),
            (Some("a"), None, None, Same, Same, Same),
            (Some("a"), None, Some("b"), Pull, Pull, Leave),
            (Some("a"), Some("b"), None, Push, Leave, Push),
        ];
        for (base, here, there, sync, pull, push) in cases {
            let found = |mode| decide(mode, base, here, there);
            let all = (found(Mode::Sync), found(Mode::Pull), found(Mode::Push));
            assert_eq!(all, (sync, pull, push), "{base:?} {here:?} {there:?}");
        }
    }
}
