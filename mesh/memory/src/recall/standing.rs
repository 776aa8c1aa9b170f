//! A question that waits for its answer: asked of each memory as it comes.
//!
//! A recall ranks whatever has a word in common; who waits for something wants to be told once it
//! is there and not before. So a memory answers a standing query only if it has every word of it,
//! where words are what recall takes for words: folded, stemmed, without stop words.

use std::collections::BTreeSet;

use super::{MAX_QUERY, RecallError, fresh::Analyzers, fresh::body};
use crate::MemoryItem;

/// A query that memories are held against one by one.
pub struct StandingQuery {
    analyzers: Analyzers,
    wanted: [BTreeSet<String>; 2],
}

impl std::fmt::Debug for StandingQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandingQuery")
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl StandingQuery {
    /// Reads a query of at most [`MAX_QUERY`] bytes.
    ///
    /// # Errors
    /// [`RecallError::TooLong`], or [`RecallError::Blank`] if no word is left of it.
    pub fn new(text: &str) -> Result<Self, RecallError> {
        if text.len() > MAX_QUERY {
            return Err(RecallError::TooLong {
                size: text.len(),
                limit: MAX_QUERY,
            });
        }
        let mut analyzers = Analyzers::new();
        let wanted = analyzers.both(text).map(BTreeSet::from_iter);
        if wanted.iter().all(BTreeSet::is_empty) {
            return Err(RecallError::Blank);
        }
        Ok(Self { analyzers, wanted })
    }

    /// Says whether a memory has every word of the query; a node's record never has.
    pub fn matches(&mut self, item: &MemoryItem) -> bool {
        if item.kind.is_record() {
            return false;
        }
        let text = format!("{}\n{}", item.title, body(item));
        let found = self.analyzers.both(&text).map(BTreeSet::from_iter);
        let mut pairs = self.wanted.iter().zip(&found);
        pairs.all(|(wanted, found)| wanted.is_subset(found))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};

    use super::*;
    use crate::{DocId, FragmentId, Hlc, Kind};

    pub(in crate::recall) fn item(kind: Kind, title: &str, text: &str) -> MemoryItem {
        MemoryItem {
            id: FragmentId::from_bytes([1; 32]),
            doc: DocId::from_bytes([2; 32]),
            space: SpaceId::from_bytes([3; 32]),
            kind,
            title: title.into(),
            text: text.into(),
            tags: vec!["ci".into()],
            key: None,
            task: None,
            evidence: Vec::new(),
            supersedes: Vec::new(),
            superseded_by: Vec::new(),
            depends_on: Vec::new(),
            fields: BTreeMap::from([("runner".into(), "arm64".into())]),
            author: AgentId::from_bytes([4; 32]),
            node: NodeId::from_bytes([5; 32]),
            at_ms: 0,
            hlc: Hlc::from_ms(1),
            fingerprint: Hash::of(b""),
            conflicts: Vec::new(),
            retracted: false,
            confirmations: 0,
            confirmed_by: 0,
            buried: String::new(),
        }
    }

    #[test]
    fn every_word_has_to_be_there_wherever_it_is() {
        let build = item(Kind::Fact, "The builds are green again", "");
        let asked = |query: &str| StandingQuery::new(query).unwrap().matches(&build);
        assert!(asked("build green"));
        assert!(asked("GREEN Building"), "words are folded and stemmed");
        assert!(asked("green ci arm64"), "tags and fields count");
        assert!(!asked("build red"), "one word is not enough");
        let korean = item(Kind::Fact, "한국어 문서", "");
        assert!(StandingQuery::new("문서").unwrap().matches(&korean));
        assert!(!StandingQuery::new("문장").unwrap().matches(&korean));
        let record = item(Kind::Snapshot, "build green", "");
        assert!(!StandingQuery::new("build green").unwrap().matches(&record));
    }

    #[test]
    fn a_query_without_a_word_is_refused() {
        for blank in ["", "  ", "the of", "…!"] {
            let refused = StandingQuery::new(blank);
            assert!(matches!(refused, Err(RecallError::Blank)), "{blank:?}");
        }
        let long = "word ".repeat(MAX_QUERY);
        let refused = StandingQuery::new(&long);
        assert!(matches!(refused, Err(RecallError::TooLong { .. })));
    }
}
