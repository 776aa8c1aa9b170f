//! The documents that tantivy does not have yet.
//!
//! A tantivy commit takes tens of milliseconds; a publish shall be found at once. So a document
//! goes here first, tokenised by the same analyzers and scored by the same formula over the same
//! statistics, and moves to tantivy in the background.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rhizome_identity::SpaceId;
use tantivy::tokenizer::TextAnalyzer;

use super::tokens::{bigrams, tokens, words};
use crate::{Kind, MemoryItem, document::DocKey};

/// The indexed fields: words and bigrams of the title, words and bigrams of the rest.
pub(super) const FIELDS: usize = 4;
/// What a field counts for, in the order of the fields: a title counts double.
pub(super) const BOOSTS: [f32; FIELDS] = [2.0, 2.0, 1.0, 1.0];

/// Both analyzers; they keep buffers, hence not shared.
pub(super) struct Analyzers {
    words: TextAnalyzer,
    bigrams: TextAnalyzer,
}

impl Analyzers {
    pub(super) fn new() -> Self {
        Self {
            words: words(),
            bigrams: bigrams(),
        }
    }

    /// Returns the tokens of both analyzers.
    pub(super) fn both(&mut self, text: &str) -> [Vec<String>; 2] {
        [
            tokens(&mut self.words, text),
            tokens(&mut self.bigrams, text),
        ]
    }
}

/// Returns what is searched of an item beside its title.
pub(super) fn body(item: &MemoryItem) -> String {
    let mut body = item.text.clone();
    let fields = item.fields.iter().flat_map(|(name, value)| [name, value]);
    for part in item
        .tags
        .iter()
        .chain(&item.key)
        .chain(&item.task)
        .chain(&item.evidence)
        .chain(fields)
    {
        body.push('\n');
        body.push_str(part);
    }
    // Whoever searches for what one side of a conflict says has to find it.
    for conflict in &item.conflicts {
        body.push('\n');
        body.push_str(&conflict.title);
        body.push('\n');
        body.push_str(&conflict.text);
    }
    body.push_str(&item.buried);
    body
}

pub(super) struct FreshDoc {
    pub(super) generation: u64,
    pub(super) item: MemoryItem,
    /// The number of tokens in each field.
    pub(super) lengths: [u32; FIELDS],
    terms: Vec<(usize, String)>,
}

/// What a document must be like to be found.
pub(super) struct Filter<'a> {
    pub(super) spaces: BTreeSet<SpaceId>,
    pub(super) kinds: BTreeSet<Kind>,
    pub(super) task: Option<&'a str>,
}

impl Filter<'_> {
    /// Returns whether a kind is among those wanted; records of nodes are never wanted unasked.
    pub(super) fn wants(&self, kind: Kind) -> bool {
        if self.kinds.is_empty() {
            !kind.is_record()
        } else {
            self.kinds.contains(&kind)
        }
    }

    pub(super) fn passes(&self, item: &MemoryItem) -> bool {
        self.spaces.contains(&item.space)
            && self.wants(item.kind)
            && self
                .task
                .is_none_or(|task| item.task.as_deref() == Some(task))
    }
}

/// A small inverted index in memory.
#[derive(Default)]
pub(super) struct Fresh {
    documents: BTreeMap<DocKey, FreshDoc>,
    /// Those of which tantivy may have an older version.
    renewed: BTreeSet<DocKey>,
    /// Field and token → documents that have it, and how often.
    postings: HashMap<(usize, String), BTreeMap<DocKey, u32>>,
    total_tokens: [u64; FIELDS],
}

impl Fresh {
    pub(super) fn insert(
        &mut self,
        analyzers: &mut Analyzers,
        key: DocKey,
        generation: u64,
        item: MemoryItem,
        is_new: bool,
    ) {
        // One that came here new stays so until it goes to tantivy.
        let was_here = self.documents.contains_key(&key);
        let is_renewed = self.renewed.contains(&key) || !(was_here || is_new);
        self.remove(&key);
        if is_renewed {
            self.renewed.insert(key);
        }
        let [title_words, title_bigrams] = analyzers.both(&item.title);
        let [body_words, body_bigrams] = analyzers.both(&body(&item));
        let mut lengths = [0; FIELDS];
        let mut terms = Vec::new();
        for (field, tokens) in [title_words, title_bigrams, body_words, body_bigrams]
            .into_iter()
            .enumerate()
        {
            lengths[field] = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            self.total_tokens[field] += u64::from(lengths[field]);
            for token in tokens {
                let times = self
                    .postings
                    .entry((field, token.clone()))
                    .or_default()
                    .entry(key)
                    .or_default();
                *times += 1;
                if *times == 1 {
                    terms.push((field, token));
                }
            }
        }
        self.documents.insert(
            key,
            FreshDoc {
                generation,
                item,
                lengths,
                terms,
            },
        );
    }

    /// Removes a document.
    pub(super) fn remove(&mut self, key: &DocKey) {
        let Some(document) = self.documents.remove(key) else {
            return;
        };
        self.renewed.remove(key);
        for term in document.terms {
            if let Some(having) = self.postings.get_mut(&term) {
                having.remove(key);
                if having.is_empty() {
                    self.postings.remove(&term);
                }
            }
        }
        for (total, length) in self.total_tokens.iter_mut().zip(document.lengths) {
            *total -= u64::from(length);
        }
    }

    /// Removes a document that tantivy now has, unless it has changed since.
    pub(super) fn moved(&mut self, key: &DocKey, generation: u64) {
        if self
            .documents
            .get(key)
            .is_some_and(|document| document.generation == generation)
        {
            self.remove(key);
        }
    }

    /// Returns all documents, which go to tantivy now: from here on it may have them.
    pub(super) fn take_copies(&mut self) -> Vec<(DocKey, u64, MemoryItem)> {
        self.renewed.extend(self.documents.keys().copied());
        let copy = |(key, document): (&DocKey, &FreshDoc)| {
            (*key, document.generation, document.item.clone())
        };
        self.documents.iter().map(copy).collect()
    }

    /// Returns the documents of which tantivy may have an older version.
    pub(super) fn renewed(&self) -> &BTreeSet<DocKey> {
        &self.renewed
    }

    pub(super) fn len(&self) -> usize {
        self.documents.len()
    }

    pub(super) fn get(&self, key: &DocKey) -> Option<&FreshDoc> {
        self.documents.get(key)
    }

    pub(super) fn total_tokens(&self, field: usize) -> u64 {
        self.total_tokens[field]
    }

    pub(super) fn having(&self, field: usize, token: &str) -> Option<&BTreeMap<DocKey, u32>> {
        self.postings.get(&(field, token.to_owned()))
    }
}
