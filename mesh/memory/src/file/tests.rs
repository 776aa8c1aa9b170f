use proptest::prelude::*;

use super::{
    diff::{Splice, merge, splices},
    *,
};

fn apply(text: &str, splices: &[Splice]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for splice in splices.iter().rev() {
        chars.splice(splice.at..splice.at + splice.delete, splice.insert.chars());
    }
    chars.into_iter().collect()
}

fn after(edit: &FileEdit, text: &str) -> Result<String, FileError> {
    let plan = plan(edit, text, true)?;
    let after = plan.text.after.unwrap();
    assert_eq!(apply(text, &plan.splices), after, "{edit:?} on {text:?}");
    Ok(after)
}

fn insert(line: i64, text: &str) -> FileEdit {
    FileEdit::Insert {
        line,
        text: text.into(),
    }
}

fn replace(old: &str, new: &str) -> FileEdit {
    FileEdit::Replace {
        old: old.into(),
        new: new.into(),
    }
}

#[test]
fn lines_are_inserted_as_lines() {
    assert_eq!(after(&insert(0, "x"), "a\nb\n").unwrap(), "x\na\nb\n");
    assert_eq!(after(&insert(1, "x\n"), "a\nb\n").unwrap(), "a\nx\nb\n");
    assert_eq!(after(&insert(2, "x\ny"), "a\nb").unwrap(), "a\nb\nx\ny\n");
    assert_eq!(after(&insert(1, "x"), "a\nb").unwrap(), "a\nx\nb\n");
    assert_eq!(after(&insert(0, "x"), "").unwrap(), "x\n");
    assert_eq!(after(&insert(0, ""), "a").unwrap(), "\na\n");
    assert_eq!(
        after(&insert(3, "x"), "a\nb\n"),
        Err(FileError::NoLine { line: 3, last: 2 })
    );
    assert_eq!(
        after(&insert(-1, "x"), "a\n"),
        Err(FileError::NoLine { line: -1, last: 1 })
    );
}

#[test]
fn what_is_replaced_has_to_be_there_once() {
    assert_eq!(after(&replace("b", "é"), "a\nb\nc").unwrap(), "a\né\nc");
    assert_eq!(after(&replace("x", "y"), "a"), Err(FileError::NoMatch));
    assert_eq!(
        after(&replace("b", "y"), "b\na\na b b"),
        Err(FileError::Ambiguous {
            lines: vec![1, 3, 3]
        })
    );
    let plan = plan(
        &replace("- [ ] tidy", "- [x] tidy"),
        "é\n- [ ] tidy\n",
        true,
    )
    .unwrap();
    let narrow = Splice {
        at: 5,
        delete: 1,
        insert: "x".into(),
    };
    assert_eq!(plan.splices, [narrow], "only what differs is touched");
    let all = "b\n".repeat(5_000);
    let Err(FileError::Ambiguous { lines }) = after(&replace("b", ""), &all) else {
        panic!("it is there many times");
    };
    assert_eq!(lines.len(), 1_000);
}

#[test]
fn a_file_is_created_once_and_holds_so_much() {
    let create = |size: usize| FileEdit::Create {
        text: "x".repeat(size),
        from: None,
    };
    assert_eq!(plan(&create(1), "", true), Err(FileError::Exists));
    assert!(plan(&create(MAX_FILE), "", false).is_ok());
    assert_eq!(
        plan(&create(MAX_FILE + 1), "", false),
        Err(FileError::TooLarge {
            size: MAX_FILE + 1,
            limit: MAX_FILE
        })
    );
    let again = plan(&create(1), "what was there", false).unwrap();
    assert_eq!(apply("what was there", &again.splices), "x");
    let delete = FileEdit::Delete {
        only_if: Some("a".into()),
    };
    assert_eq!(plan(&delete, "b", true), Err(FileError::Changed));
    assert_eq!(plan(&delete, "a", false), Err(FileError::NotFound));
    assert!(plan(&delete, "a", true).unwrap().deleted);
}

#[test]
fn three_texts_become_one() {
    let merged = |base, ours, theirs| merge(base, ours, theirs);
    assert_eq!(
        merged("a\nb\nc\n", "x\na\nb\nc\n", "a\nb\nc\ny\n"),
        "x\na\nb\nc\ny\n"
    );
    assert_eq!(merged("a\nb\n", "x\na\nb\n", "y\na\nb\n"), "x\ny\na\nb\n");
    assert_eq!(merged("a\nb\n", "a\nB\n", "a\nß\n"), "a\nB\nß\n");
    assert_eq!(merged("a\nb\n", "a\n", "a\nb\nc\n"), "a\nc\n");
    assert_eq!(merged("a\nb\n", "a\nx\nb\n", "a\nx\nb\n"), "a\nx\nb\n");
    assert_eq!(merged("a", "a\nb", "a\nc"), "a\nb\nc");
    assert_eq!(merged("", "a\n", "b\n"), "a\nb\n");
    assert_eq!(merged("a\n", "", "a\n"), "");
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec("[abcé]{0,2}\n?", 0..24).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn splices_make_one_of_the_other(old in text(), new in text()) {
        let splices = splices(&old, &new);
        prop_assert_eq!(apply(&old, &splices), new.clone());
        let mut end = 0;
        for splice in &splices {
            prop_assert!(splice.at >= end && !splice.is_empty());
            end = splice.at + splice.delete;
        }
        prop_assert_eq!(splices.is_empty(), old == new);
    }

    #[test]
    fn no_line_that_either_put_in_is_lost(base in text(), ours in text(), theirs in text()) {
        let merged = merge(&base, &ours, &theirs);
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
        let kept = lines(&merged);
        for side in [&ours, &theirs] {
            for line in lines(side).difference(&lines(&base)) {
                prop_assert!(kept.contains(line), "{line:?} of {side:?} is not in {merged:?}");
            }
        }
        prop_assert_eq!(merge(&base, &base, &theirs), theirs.clone());
        prop_assert_eq!(merge(&base, &ours, &base), ours.clone());
    }

    #[test]
    fn an_insert_adds_its_lines_and_nothing_else(text in text(), line in 0_i64..30, new in "[xyz\n]{0,6}") {
        if let Ok(after) = after(&insert(line, &new), &text) {
            prop_assert!(after.ends_with('\n'));
            prop_assert!(after.contains(new.trim_end_matches('\n')));
        }
    }
}

#[test]
fn texts_with_nothing_in_common_are_told_apart_in_bounded_time() {
    let old: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    let new: String = (0..20_000).map(|n| format!("x{n}\n")).collect();
    let splices = splices(&old, &new);
    assert_eq!(splices.len(), 1);
    assert_eq!(apply(&old, &splices), new);
}
