//! Finding memories by words.
//!
//! Text goes through two analyzers: words of Latin and other alphabetic scripts are lower-cased,
//! folded to ASCII, freed of English stop words and stemmed; runs of Han, Kana and Hangul become
//! bigrams, a lone character a unigram, with no dictionary, so that every node makes the same
//! tokens. The score is BM25 over both, a title counting double.
//!
//! A query is words, never query syntax: there is nothing in it to parse, so nothing to break.

mod fresh;
mod rank;
mod search;
mod standing;
mod tokens;

use std::collections::BTreeMap;

use rhizome_identity::SpaceId;
use serde::{Deserialize, Serialize};

pub(crate) use self::search::{MAX_FRESH, Search};
pub use self::standing::StandingQuery;
use self::{fresh::Filter, rank::rank};
use crate::{Kind, MemoryItem, Standing, ViewError, document::DocKey, same::same_text_of};

/// Most bytes of a query.
pub const MAX_QUERY: usize = 8 * 1024;
/// Most hits of one recall.
pub const MAX_HITS: usize = 200;

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecallQuery {
    /// The words; at most [`MAX_QUERY`] bytes.
    pub text: String,
    /// The spaces to look in; none means nothing is found.
    pub spaces: Vec<SpaceId>,
    /// The kinds wanted; none means all.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// Only what was learned in this task.
    #[serde(default)]
    pub task: Option<String>,
    /// Most hits wanted; at most [`MAX_HITS`], 0 means 10.
    #[serde(default)]
    pub limit: usize,
}

/// One memory found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The memory.
    pub item: MemoryItem,
    /// How well it fits; comparable within one answer and one standing only.
    pub score: f32,
    /// How far its author is taken at its word: trusted hits come before doubtful ones.
    pub standing: Standing,
}

/// Why a recall gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecallError {
    /// The query says nothing.
    #[error("the query is blank")]
    Blank,
    /// The query is too long; both sizes in bytes.
    #[error("the query is {size} bytes; at most {limit} are allowed")]
    TooLong {
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The search index failed.
    #[error("the search index failed")]
    Index(#[source] Box<tantivy::TantivyError>),
    /// The view's database failed.
    #[error("the view's database failed")]
    View(#[source] Box<ViewError>),
}

impl RecallError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Blank => Some(
                "give a few words of what is looked for; `list` shows the newest without any"
                    .into(),
            ),
            Self::TooLong { .. } => {
                Some("ask with the words that matter, not with the whole output".into())
            }
            Self::Index(_) | Self::View(_) => {
                Some("restart the node: the view is rebuilt when it is damaged".into())
            }
        }
    }
}

impl From<ViewError> for RecallError {
    fn from(error: ViewError) -> Self {
        Self::View(Box::new(error))
    }
}

/// Hits when the query names no limit.
const DEFAULT_HITS: usize = 10;
/// For each hit wanted, so many candidates are ranked: boosts may lift one from below the limit.
const CANDIDATES_PER_HIT: usize = 3;
/// When candidates are not for showing, or doubtful, so many times as many are looked at, so that
/// nobody crowds out what is trusted…
const MORE_CANDIDATES: usize = 8;
/// … but no more than this.
const MAX_CANDIDATES: usize = 16 * 1024;

/// Finds memories; `item` reads one that may be shown, with what replaces it, and says how far its
/// author is taken at its word.
pub(crate) fn recall(
    search: &Search,
    query: &RecallQuery,
    item: impl Fn(&DocKey) -> Result<Option<(MemoryItem, Standing)>, ViewError>,
) -> Result<Vec<Hit>, RecallError> {
    if query.text.len() > MAX_QUERY {
        return Err(RecallError::TooLong {
            size: query.text.len(),
            limit: MAX_QUERY,
        });
    }
    if query.text.trim().is_empty() {
        return Err(RecallError::Blank);
    }
    let limit = if query.limit == 0 {
        DEFAULT_HITS
    } else {
        query.limit.min(MAX_HITS)
    };
    let filter = Filter {
        spaces: query.spaces.iter().copied().collect(),
        kinds: query.kinds.iter().copied().collect(),
        task: query.task.as_deref(),
    };
    if filter.spaces.is_empty() {
        return Ok(Vec::new());
    }
    let mut wanted = limit * CANDIDATES_PER_HIT;
    let hits = loop {
        let found = search.find(&query.text, &filter, wanted);
        let found = found.map_err(|error| RecallError::Index(Box::new(error)))?;
        let is_all = found.len() < wanted;
        let mut hits = Vec::with_capacity(found.len());
        for (key, score) in found {
            // The index may be ahead of the database after a crash, until the replay has caught up.
            let shown = item(&key)?.filter(|(item, _)| filter.passes(item));
            hits.extend(shown.map(|(item, standing)| Hit {
                item,
                score,
                standing,
            }));
        }
        together(&mut hits);
        let trusted = hits
            .iter()
            .filter(|hit| hit.standing == Standing::Trusted)
            .count();
        if trusted >= limit || is_all || wanted >= MAX_CANDIDATES {
            break hits;
        }
        wanted *= MORE_CANDIDATES;
    };
    let mut hits = hits;
    rank(&mut hits);
    hits.truncate(limit);
    Ok(hits)
}

/// Makes one hit of memories that say the same: two nodes may have taken them in at once.
fn together(hits: &mut Vec<Hit>) {
    let mut titles: BTreeMap<String, usize> = BTreeMap::new();
    let folded = |hit: &Hit| {
        let words: Vec<&str> = hit.item.title.split_whitespace().collect();
        words.join(" ").to_lowercase()
    };
    for hit in hits.iter() {
        *titles.entry(folded(hit)).or_default() += 1;
    }
    if titles.len() == hits.len() {
        return;
    }
    let mut first: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    let mut kept: Vec<Hit> = Vec::with_capacity(hits.len());
    for hit in hits.drain(..) {
        let is_alone = titles.get(&folded(&hit)) == Some(&1);
        let same = if is_alone {
            None
        } else {
            same_text_of(&hit.item)
        };
        let Some(same) = same else {
            kept.push(hit);
            continue;
        };
        match first.get(&same) {
            None => {
                first.insert(same, kept.len());
                kept.push(hit);
            }
            Some(place) => kept[*place].join(hit),
        }
    }
    *hits = kept;
}

impl Hit {
    /// Takes in a hit that says the same: the better voice stays, of equal ones the earlier.
    fn join(&mut self, mut other: Hit) {
        let rank = |hit: &Hit| (std::cmp::Reverse(hit.standing), hit.item.hlc, hit.item.doc);
        if rank(&other) < rank(self) {
            std::mem::swap(self, &mut other);
        }
        self.score = self.score.max(other.score);
        // What a doubtful voice says again confirms nothing.
        if other.standing == Standing::Trusted {
            self.item.confirmations += 1 + other.item.confirmations;
            self.item.confirmed_by += u64::from(other.item.author != self.item.author);
        }
    }
}

#[cfg(test)]
pub(crate) fn tests_item(title: &str) -> MemoryItem {
    standing::tests::item(Kind::Fact, title, "")
}
