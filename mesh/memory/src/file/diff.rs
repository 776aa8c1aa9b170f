//! What has to be spliced to make one text of another, and what three texts add up to.
//!
//! Lines are compared by Myers' O(ND) algorithm ("An O(ND) Difference Algorithm and Its
//! Variations", 1986), bounded: texts that have too little in common are not aligned but replaced.

use std::collections::HashMap;

/// Most edits between two texts that are looked for.
const MAX_DISTANCE: usize = 1_000;
/// Most splices of one edit; more become one.
pub(crate) const MAX_SPLICES: usize = 512;

/// Characters removed and inserted at one place of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Splice {
    /// The place in the text as it was, in characters.
    pub(crate) at: usize,
    /// How many characters go.
    pub(crate) delete: usize,
    /// What comes.
    pub(crate) insert: String,
}

impl Splice {
    pub(crate) fn is_empty(&self) -> bool {
        self.delete == 0 && self.insert.is_empty()
    }

    /// How many operations it takes.
    pub(crate) fn operations(&self) -> u64 {
        (self.delete + self.insert.chars().count()) as u64
    }
}

/// Lines of one side that stand in the place of lines of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hunk {
    old: (usize, usize),
    new: (usize, usize),
}

/// Returns what makes `new` of `old`, in the order of the places.
pub(crate) fn splices(old: &str, new: &str) -> Vec<Splice> {
    let (old_lines, new_lines) = (lines(old), lines(new));
    let mut hunks = hunks(&old_lines, &new_lines);
    if hunks.len() > MAX_SPLICES
        && let (Some(first), Some(last)) = (hunks.first().copied(), hunks.last().copied())
    {
        hunks = vec![Hunk {
            old: (first.old.0, last.old.1),
            new: (first.new.0, last.new.1),
        }];
    }
    let mut splices = Vec::new();
    let (mut at, mut line) = (0, 0);
    for hunk in hunks {
        at += chars(&old_lines[line..hunk.old.0]);
        let gone = old_lines[hunk.old.0..hunk.old.1].concat();
        let come = new_lines[hunk.new.0..hunk.new.1].concat();
        splices.push(narrowed(at, &gone, &come));
        at += gone.chars().count();
        line = hunk.old.1;
    }
    splices.retain(|splice| !splice.is_empty());
    splices
}

/// Leaves out what both begin and end with.
fn narrowed(at: usize, old: &str, new: &str) -> Splice {
    let same = old.chars().zip(new.chars()).take_while(|(a, b)| a == b);
    let (mut prefix, mut bytes) = (0, 0);
    for (same, _) in same {
        prefix += 1;
        bytes += same.len_utf8();
    }
    let (old, new) = (&old[bytes..], &new[bytes..]);
    let same = old.chars().rev().zip(new.chars().rev());
    let suffix: usize = same
        .take_while(|(a, b)| a == b)
        .map(|(same, _)| same.len_utf8())
        .sum();
    Splice {
        at: at + prefix,
        delete: old[..old.len() - suffix].chars().count(),
        insert: new[..new.len() - suffix].to_owned(),
    }
}

/// Returns what two texts that were made of `base` add up to, line by line.
///
/// A line of the base stays if both kept it; whatever either put in is there, what both put in at
/// one place once. A line that both changed is there twice, `ours` first: none is lost.
pub(crate) fn merge(base: &str, ours: &str, theirs: &str) -> String {
    if ours == theirs || base == theirs {
        return ours.to_owned();
    }
    if base == ours {
        return theirs.to_owned();
    }
    let base = lines(base);
    let (ours, theirs) = (lines(ours), lines(theirs));
    let (ours, theirs) = (Changes::new(&base, &ours), Changes::new(&base, &theirs));
    let mut merged: Vec<String> = Vec::new();
    for place in 0..=base.len() {
        let both = (ours.at(place), theirs.at(place));
        merged.extend(union(both.0, both.1).into_iter().map(str::to_owned));
        if place < base.len() && ours.keeps[place] && theirs.keeps[place] {
            merged.push(base[place].to_owned());
        }
    }
    // Only the last line of a text may lack a newline.
    let last = merged.len().saturating_sub(1);
    for line in &mut merged[..last] {
        if !line.ends_with('\n') {
            line.push('\n');
        }
    }
    merged.concat()
}

/// What one side made of the base.
struct Changes<'a> {
    keeps: Vec<bool>,
    inserts: HashMap<usize, Vec<&'a str>>,
}

impl<'a> Changes<'a> {
    fn new(base: &[&'a str], side: &[&'a str]) -> Self {
        let mut changes = Self {
            keeps: vec![true; base.len()],
            inserts: HashMap::new(),
        };
        for hunk in hunks(base, side) {
            changes.keeps[hunk.old.0..hunk.old.1].fill(false);
            let inserted = changes.inserts.entry(hunk.old.0).or_default();
            inserted.extend(&side[hunk.new.0..hunk.new.1]);
        }
        changes
    }

    fn at(&self, place: usize) -> &[&'a str] {
        self.inserts.get(&place).map_or(&[], Vec::as_slice)
    }
}

fn union<'a>(ours: &[&'a str], theirs: &[&'a str]) -> Vec<&'a str> {
    let mut union = Vec::new();
    let mut line = 0;
    for hunk in hunks(ours, theirs) {
        union.extend(&ours[line..hunk.old.1]);
        union.extend(&theirs[hunk.new.0..hunk.new.1]);
        line = hunk.old.1;
    }
    union.extend(&ours[line..]);
    union
}

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn chars(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.chars().count()).sum()
}

/// Aligns two lists of lines.
fn hunks<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Hunk> {
    let prefix = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (&old[prefix..], &new[prefix..]);
    let both = old_rest.iter().rev().zip(new_rest.iter().rev());
    let suffix = both.take_while(|(a, b)| a == b).count();
    let old_rest = &old_rest[..old_rest.len() - suffix];
    let new_rest = &new_rest[..new_rest.len() - suffix];
    if old_rest.is_empty() && new_rest.is_empty() {
        return Vec::new();
    }
    let middle = Hunk {
        old: (prefix, prefix + old_rest.len()),
        new: (prefix, prefix + new_rest.len()),
    };
    if old_rest.is_empty() || new_rest.is_empty() {
        return vec![middle];
    }
    // A line that both have has the same number in both.
    let mut numbers = HashMap::new();
    let a = numbered(old_rest, &mut numbers);
    let b = numbered(new_rest, &mut numbers);
    let Some(kept) = alignment(&a, &b) else {
        return vec![middle];
    };
    let mut found = Vec::new();
    let (mut x, mut y) = (0, 0);
    for (kept_x, kept_y) in kept.into_iter().chain([(a.len(), b.len())]) {
        if (x, y) != (kept_x, kept_y) {
            found.push(Hunk {
                old: (prefix + x, prefix + kept_x),
                new: (prefix + y, prefix + kept_y),
            });
        }
        (x, y) = (kept_x + 1, kept_y + 1);
    }
    found
}

fn numbered<'a>(lines: &[&'a str], numbers: &mut HashMap<&'a str, u32>) -> Vec<u32> {
    let number = |line: &&'a str| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(*line).or_insert(next)
    };
    lines.iter().map(number).collect()
}

/// Returns the places that stay, in order; `None` if the two are too different.
fn alignment(a: &[u32], b: &[u32]) -> Option<Vec<(usize, usize)>> {
    let (n, m) = (
        isize::try_from(a.len()).ok()?,
        isize::try_from(b.len()).ok()?,
    );
    let limit = MAX_DISTANCE.min(a.len() + b.len());
    let middle = isize::try_from(limit).ok()? + 1;
    let place = |k: isize| usize::try_from(k + middle).expect("a diagonal within the limit");
    let mut reach = vec![0_isize; 2 * limit + 3];
    let mut trace: Vec<Vec<isize>> = Vec::new();
    let equal = |x: isize, y: isize| {
        let at =
            |of: &[u32], at: isize| usize::try_from(at).ok().and_then(|at| of.get(at).copied());
        matches!((at(a, x), at(b, y)), (Some(a), Some(b)) if a == b)
    };
    let mut found = None;
    'search: for d in 0..=isize::try_from(limit).ok()? {
        // Only the diagonals that this round reads are kept.
        trace.push(reach[place(-d - 1)..=place(d + 1)].to_vec());
        for k in (-d..=d).step_by(2) {
            let down = k == -d || (k != d && reach[place(k - 1)] < reach[place(k + 1)]);
            let mut x = if down {
                reach[place(k + 1)]
            } else {
                reach[place(k - 1)] + 1
            };
            while equal(x, x - k) {
                x += 1;
            }
            reach[place(k)] = x;
            if x >= n && x - k >= m {
                found = Some(d);
                break 'search;
            }
        }
    }
    let mut kept = Vec::new();
    let (mut x, mut y) = (n, m);
    for d in (0..=found?).rev() {
        let before = &trace[usize::try_from(d).ok()?];
        let at = |k: isize| before[usize::try_from(k + d + 1).expect("a diagonal of this round")];
        let k = x - y;
        let down = k == -d || (k != d && at(k - 1) < at(k + 1));
        let from = if down { k + 1 } else { k - 1 };
        let (start_x, start_y) = if d == 0 {
            (0, 0)
        } else {
            (at(from), at(from) - from)
        };
        let (after_x, after_y) = match (d, down) {
            (0, _) => (0, 0),
            (_, true) => (start_x, start_y + 1),
            (_, false) => (start_x + 1, start_y),
        };
        while x > after_x && y > after_y {
            (x, y) = (x - 1, y - 1);
            kept.push((usize::try_from(x).ok()?, usize::try_from(y).ok()?));
        }
        (x, y) = (start_x, start_y);
    }
    kept.reverse();
    Some(kept)
}
