//! How files and directories look to a model.

use std::{collections::BTreeMap, fmt::Write};

use rhizome_memory::{FileSummary, TreePath};

/// Most lines of a file that is shown.
pub(super) const MAX_LINES: usize = 999_999;
/// Digits of a line's number.
const NUMBER_WIDTH: usize = 6;
/// Lines shown above and below a change.
const AROUND: usize = 2;
/// Levels of a directory that are shown.
const LEVELS: usize = 2;

/// Returns the lines of a text as the tool counts them: a last newline begins an empty one.
pub(super) fn lines(text: &str) -> Vec<&str> {
    text.split('\n').collect()
}

/// Numbers lines, the first of which is number `first`.
pub(super) fn numbered(lines: &[&str], first: usize) -> String {
    let mut text = String::new();
    for (place, line) in lines.iter().enumerate() {
        if place > 0 {
            text.push('\n');
        }
        let _ = write!(text, "{:>NUMBER_WIDTH$}\t{line}", first + place);
    }
    text
}

/// Numbers the part of a text that a range names: from its first line to its last, -1 the end.
pub(super) fn ranged(lines: &[&str], range: Option<&[i64]>) -> String {
    let Some([first, last]) = range else {
        return numbered(lines, 1);
    };
    let count = i64::try_from(lines.len()).unwrap_or(i64::MAX);
    let start = (*first).max(1) - 1;
    let end = match *last {
        -1 => count,
        last if last < 0 => count.saturating_add(last),
        last => last,
    };
    let place = |at: i64| usize::try_from(at.clamp(0, count)).unwrap_or_default();
    let (from, to) = (place(start), place(end));
    let shown = lines.get(from..to).unwrap_or_default();
    numbered(shown, usize::try_from(start).unwrap_or_default() + 1)
}

/// Shows what is around byte `at` of a text.
pub(super) fn snippet(text: &str, at: usize) -> String {
    let lines = lines(text);
    let changed = text[..at].matches('\n').count();
    let from = changed.saturating_sub(AROUND);
    let to = (changed + AROUND + 1).min(lines.len());
    numbered(&lines[from..to], from + 1)
}

/// Says how large something is.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "K", "M", "G"];
    if bytes == 0 {
        return "0B".to_owned();
    }
    let unit = usize::try_from(bytes.ilog2() / 10)
        .unwrap_or_default()
        .min(UNITS.len() - 1);
    let whole = 1_u64 << (10 * unit);
    if bytes.is_multiple_of(whole) {
        return format!("{}{}", bytes / whole, UNITS[unit]);
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let size = bytes as f64 / whole as f64;
    format!("{size:.1}{}", UNITS[unit])
}

/// Returns whether a name is left out of the view of a directory.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "node_modules"
}

#[derive(Default)]
struct Directory {
    bytes: u64,
    files: BTreeMap<String, u64>,
    directories: BTreeMap<String, Directory>,
}

/// Shows a directory by the files below it.
pub(super) fn directory(path: &TreePath, files: &[FileSummary]) -> String {
    let mut root = Directory::default();
    for file in files {
        let Some(rest) = path.rest(&file.path) else {
            continue;
        };
        let mut names: Vec<&str> = rest.split('/').collect();
        if names.iter().any(|name| is_hidden(name)) {
            continue;
        }
        let name = names.pop().unwrap_or_default();
        let mut place = &mut root;
        place.bytes += file.bytes;
        for directory in names {
            place = place.directories.entry(directory.to_owned()).or_default();
            place.bytes += file.bytes;
        }
        place.files.insert(name.to_owned(), file.bytes);
    }
    let mut text = format!(
        "Here're the files and directories up to {LEVELS} levels deep in {path}, excluding hidden \
         items and node_modules:\n{}\t{path}",
        size(root.bytes)
    );
    write_level(&mut text, path.as_str(), &root, 1);
    text
}

fn write_level(text: &mut String, path: &str, directory: &Directory, level: usize) {
    let mut names: Vec<&String> = directory.files.keys().collect();
    names.extend(directory.directories.keys());
    names.sort();
    names.dedup();
    for name in names {
        if let Some(bytes) = directory.files.get(name) {
            let _ = write!(text, "\n{}\t{path}/{name}", size(*bytes));
        }
        if let Some(below) = directory.directories.get(name) {
            let _ = write!(text, "\n{}\t{path}/{name}/", size(below.bytes));
            if level < LEVELS {
                write_level(text, &format!("{path}/{name}"), below, level + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_the_reference_writes_them() {
        let cases = [
            (0, "0B"),
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1K"),
            (1536, "1.5K"),
            (1025, "1.0K"),
            (1_048_575, "1024.0K"),
            (1_048_576, "1M"),
            (5_000_000_000, "4.7G"),
            (1 << 41, "2048G"),
        ];
        for (bytes, wanted) in cases {
            assert_eq!(size(bytes), wanted, "{bytes}");
        }
    }

    #[test]
    fn a_range_counts_from_one_to_the_end() {
        let text = "a\nb\nc\nd\n";
        let lines = lines(text);
        let shown = |range: [i64; 2]| ranged(&lines, Some(&range));
        assert_eq!(
            ranged(&lines, None),
            "     1\ta\n     2\tb\n     3\tc\n     4\td\n     5\t"
        );
        assert_eq!(shown([2, 3]), "     2\tb\n     3\tc");
        assert_eq!(shown([4, -1]), "     4\td\n     5\t");
        assert_eq!(shown([0, 1]), "     1\ta");
        assert_eq!(shown([-7, 1]), "     1\ta");
        assert_eq!(shown([4, 99]), "     4\td\n     5\t");
        assert_eq!(shown([9, 10]), "");
        assert_eq!(shown([3, 2]), "");
        assert_eq!(shown([i64::MAX, i64::MIN]), "");
    }

    #[test]
    fn a_snippet_shows_two_lines_on_each_side() {
        let text = "1\n2\n3\n4\n5\n6\n";
        assert_eq!(snippet(text, 0), "     1\t1\n     2\t2\n     3\t3");
        assert_eq!(
            snippet(text, 6),
            "     2\t2\n     3\t3\n     4\t4\n     5\t5\n     6\t6"
        );
        assert_eq!(snippet("", 0), "     1\t");
    }
}
