//! Range-based set reconciliation: what two sets of ids differ in.
//!
//! Both sides hold an [`IdSet`]. A message is a list of [`Part`]s, each about one range of ids:
//! a digest of what the sender holds there, a short list of it, or the short ids that the sender
//! wants. [`open`] makes the first message; [`answer`] turns a message into the next one and
//! into the ids to send. It needs the set, the session's key and the message, nothing else, so
//! lost, repeated and reordered messages cost a round, never correctness.
//!
//! Bytes are saved in three ways (measured by `benches/reconcile.rs`, explained in
//! `docs/sync.md`): digests and ids are cut to 8 bytes, which is safe because both are keyed
//! with the session's fresh salt, so nobody can aim at a collision and a chance one is gone in
//! the next session; a range that differs is cut until its lists are about a dozen ids long; and
//! where nearly every range differs, lists come a level earlier.

mod codec;
mod error;

use std::collections::BTreeSet;

use rhizome_identity::Hash;
use rhizome_memory::{Fingerprint, IdSet};

pub use self::{
    codec::{decode, encode, pack},
    error::ReconcileError,
};

/// Into how many parts a range that differs is cut at most.
const BRANCHES: usize = 32;
/// A range with at most this many ids is listed rather than cut.
const LIST_IDS: usize = 16;
/// How many ids a part should hold that is about to be listed next.
const AIM_IDS: usize = 12;
/// Takes the place of [`LIST_IDS`] where nearly every range differs.
const DENSE_LIST_IDS: usize = 128;
/// Most parts in one answer; what is beyond is summed up in one digest.
const MAX_PARTS: usize = 16 * 1024;
/// Most short ids in one answer.
const MAX_SHORT_IDS: usize = 192 * 1024;
/// Most ids to send that one answer names; the next session finds the rest.
const MAX_SEND: usize = 128 * 1024;

const LOWEST: Hash = Hash::from_bytes([0; 32]);

/// A session's salt, drawn by whoever opens it.
pub type Salt = [u8; 16];

/// The first 8 bytes of an id's hash under the session's key.
pub type ShortId = u64;

/// Binds digests and short ids to one session.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// Derives the key of the session with `salt`.
    pub fn new(salt: &Salt) -> Self {
        Self(blake3::derive_key(
            "rhizome 2026-11 reconciliation session",
            salt,
        ))
    }

    /// Returns `id` in short.
    pub fn short(&self, id: &Hash) -> ShortId {
        first_eight(blake3::keyed_hash(&self.0, id.as_bytes()).as_bytes())
    }

    /// Returns what the two sides compare for a range.
    pub fn digest(&self, fingerprint: &Fingerprint) -> u64 {
        first_eight(&fingerprint.digest(&self.0))
    }
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionKey").finish_non_exhaustive()
    }
}

fn first_eight(hash: &[u8; 32]) -> u64 {
    u64::from_le_bytes(hash[..8].try_into().expect("eight bytes of thirty-two"))
}

/// What a message says about the ids from `lo` up to, not including, `hi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first id of the range.
    pub lo: Hash,
    /// The first id behind the range; `None` is the end of all ids.
    pub hi: Option<Hash>,
    /// What is said.
    pub body: Body,
}

/// What is said about a range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// What the sender's ids there add up to. Asks for an answer where it differs.
    Digest(u64),
    /// All ids the sender holds there. Asks for the others.
    Ids(Vec<ShortId>),
    /// Ids that the sender asks for.
    Want(Vec<ShortId>),
}

impl Part {
    /// Says whether the part asks for an answer.
    pub fn is_question(&self) -> bool {
        !matches!(self.body, Body::Want(_))
    }
}

/// What follows from a message.
#[derive(Debug, Default)]
pub struct Answer {
    /// The next message; empty when there is nothing to say.
    pub parts: Vec<Part>,
    /// Ids the other side lacks or asked for, in ascending order.
    pub send: Vec<Hash>,
    /// How many ids the next message asks for.
    pub wanted: usize,
    /// Whether a bound cut the answer short, so that another session is needed.
    pub truncated: bool,
}

impl Answer {
    /// Says whether the message showed no difference at all.
    pub fn is_equal(&self) -> bool {
        self.parts.is_empty() && self.send.is_empty() && !self.truncated
    }
}

/// Returns the first message of a session.
pub fn open(set: &IdSet, key: &SessionKey) -> Vec<Part> {
    let whole = Range {
        lo: LOWEST,
        hi: None,
        from: 0,
        to: set.len(),
    };
    let mut parts = Vec::new();
    if set.len() <= 2 * LIST_IDS {
        parts.push(whole.part(set, key));
    } else {
        cut(set, key, &whole, BRANCHES, &mut parts);
    }
    parts
}

/// Returns what follows from the other side's message; `parts` are in ascending order, disjoint.
///
/// The work is bounded by the number of parts (a few microseconds each), by the number of ids we
/// hold in the ranges that are listed, and by the bounds on an answer.
pub fn answer(set: &IdSet, key: &SessionKey, parts: &[Part]) -> Answer {
    let mut answer = Answer::default();
    let mut differing = Vec::with_capacity(parts.len());
    let mut digests = 0_usize;
    let mut unequal = 0_usize;
    for part in parts {
        let range = Range::of(set, part);
        if let Body::Digest(theirs) = part.body {
            digests += 1;
            if key.digest(&range.fingerprint(set)) == theirs {
                continue;
            }
            unequal += 1;
        }
        differing.push((part, range));
    }
    // Where nearly all of many ranges differ, cutting once more would find hardly any equal.
    let dense = digests >= BRANCHES && unequal * 10 > digests * 9;
    let list_ids = if dense { DENSE_LIST_IDS } else { LIST_IDS };
    let mut short_ids = 0;
    for (index, (part, range)) in differing.iter().enumerate() {
        if answer.parts.len() >= MAX_PARTS
            || short_ids >= MAX_SHORT_IDS
            || answer.send.len() >= MAX_SEND
        {
            answer.truncated = true;
            sum_up(set, key, &differing[index..], &mut answer.parts);
            break;
        }
        match &part.body {
            Body::Digest(_) if range.len() <= list_ids => {
                short_ids += range.len();
                answer.parts.push(range.list(set, key));
            }
            Body::Digest(_) => {
                let branches = range.len().div_ceil(AIM_IDS).min(BRANCHES);
                cut(set, key, range, branches, &mut answer.parts);
            }
            Body::Ids(theirs) => {
                let want = compare(set, key, range, theirs, &mut answer.send);
                short_ids += want.len();
                answer.wanted += want.len();
                if !want.is_empty() {
                    answer.parts.push(range.with(Body::Want(want)));
                }
            }
            Body::Want(wanted) => {
                let wanted: BTreeSet<ShortId> = wanted.iter().copied().collect();
                let ids = set.iter_ranks(range.from, range.to);
                answer
                    .send
                    .extend(ids.filter(|id| wanted.contains(&key.short(id))));
            }
        }
    }
    if answer.send.len() > MAX_SEND {
        answer.send.truncate(MAX_SEND);
        answer.truncated = true;
    }
    answer
}

/// A range of ids and what ranks it has in our set.
#[derive(Clone, Copy)]
struct Range {
    lo: Hash,
    hi: Option<Hash>,
    from: usize,
    to: usize,
}

impl Range {
    fn of(set: &IdSet, part: &Part) -> Self {
        let from = set.rank(&part.lo);
        let to = part.hi.map_or(set.len(), |hi| set.rank(&hi));
        Self {
            lo: part.lo,
            hi: part.hi,
            from,
            to: to.max(from),
        }
    }

    fn len(&self) -> usize {
        self.to - self.from
    }

    fn fingerprint(&self, set: &IdSet) -> Fingerprint {
        set.prefix_fingerprint(self.to) - set.prefix_fingerprint(self.from)
    }

    fn with(&self, body: Body) -> Part {
        Part {
            lo: self.lo,
            hi: self.hi,
            body,
        }
    }

    fn list(&self, set: &IdSet, key: &SessionKey) -> Part {
        let ids = set
            .iter_ranks(self.from, self.to)
            .map(|id| key.short(id))
            .collect();
        self.with(Body::Ids(ids))
    }

    /// Says what we hold, in the fewest bytes.
    fn part(&self, set: &IdSet, key: &SessionKey) -> Part {
        // One short id is as long as a digest and says more; an empty list is shorter.
        if self.len() <= 1 {
            return self.list(set, key);
        }
        self.with(Body::Digest(key.digest(&self.fingerprint(set))))
    }
}

/// Cuts `range` into `branches` parts of even length; it holds at least as many ids.
fn cut(set: &IdSet, key: &SessionKey, range: &Range, branches: usize, parts: &mut Vec<Part>) {
    let mut lo = range.lo;
    let mut from = range.from;
    let mut before = set.prefix_fingerprint(from);
    for branch in 1..=branches {
        let to = range.from + range.len() * branch / branches;
        let hi = if branch == branches {
            range.hi
        } else {
            Some(separator(set, to))
        };
        let upto = set.prefix_fingerprint(to);
        let piece = Range { lo, hi, from, to };
        parts.push(if piece.len() <= 1 {
            piece.list(set, key)
        } else {
            piece.with(Body::Digest(key.digest(&(upto - before))))
        });
        let Some(next) = hi else { break };
        (lo, from, before) = (next, to, upto);
    }
}

/// Returns the shortest bound that separates the ids of rank `rank - 1` and `rank`.
fn separator(set: &IdSet, rank: usize) -> Hash {
    let below = set.nth(rank - 1).expect("cuts lie inside the set");
    let above = set.nth(rank).expect("cuts lie inside the set");
    let same = below
        .as_bytes()
        .iter()
        .zip(above.as_bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let mut bound = [0; 32];
    bound[..=same].copy_from_slice(&above.as_bytes()[..=same]);
    Hash::from_bytes(bound)
}

/// Sums up everything from the first to the last question of `rest` in one digest.
fn sum_up(set: &IdSet, key: &SessionKey, rest: &[(&Part, Range)], parts: &mut Vec<Part>) {
    let mut questions = rest.iter().filter(|(part, _)| part.is_question());
    let Some((_, first)) = questions.next() else {
        return;
    };
    let last = questions.next_back().map_or(first, |(_, last)| last);
    let whole = Range {
        lo: first.lo,
        hi: last.hi,
        from: first.from,
        to: last.to,
    };
    parts.push(whole.part(set, key));
}

/// Compares our ids in `range` with their list; returns what they have and we lack.
fn compare(
    set: &IdSet,
    key: &SessionKey,
    range: &Range,
    theirs: &[ShortId],
    send: &mut Vec<Hash>,
) -> Vec<ShortId> {
    let ours = set.iter_ranks(range.from, range.to);
    if theirs.is_empty() {
        send.extend(ours.take(MAX_SEND + 1));
        return Vec::new();
    }
    let mut theirs: BTreeSet<ShortId> = theirs.iter().copied().collect();
    for id in ours {
        if !theirs.remove(&key.short(id)) {
            send.push(*id);
        }
    }
    theirs.into_iter().collect()
}
