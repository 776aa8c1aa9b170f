//! One search over two places: tantivy, and what has not got there yet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tantivy::{
    Index, IndexReader, IndexWriter, ReloadPolicy, Searcher, TantivyDocument, TantivyError, Term,
    collector::TopDocs,
    fieldnorm::FieldNormReader,
    indexer::{LogMergePolicy, NoMergePolicy},
    query::{
        Bm25StatisticsProvider, Bm25Weight, BooleanQuery, BoostQuery, ConstScoreQuery, Occur,
        Query, TermQuery,
    },
    schema::{
        BytesOptions, Field, IndexRecordOption, STRING, Schema, TextFieldIndexing, TextOptions,
        Value,
    },
};

use super::{
    fresh::{Analyzers, BOOSTS, FIELDS, Filter, Fresh, body},
    tokens::{BIGRAMS, WORDS, bigrams, words},
};
use crate::{Kind, MemoryItem, document::DocKey};

/// Most different tokens of a query that are looked for.
const MAX_TERMS: usize = 64;
/// What the index writer may hold in memory; the least tantivy takes.
const WRITER_BYTES: usize = 15_000_000;
/// Segments with more documents are merged no further: a merge cannot be interrupted, and closing
/// waits for it.
const MAX_MERGED: usize = 100_000;
/// More documents than this are not kept in memory while they wait for tantivy.
pub(crate) const MAX_FRESH: usize = 2048;

type Result<T> = std::result::Result<T, TantivyError>;

#[derive(Clone, Copy)]
struct Fields {
    key: Field,
    space: Field,
    kind: Field,
    task: Field,
    text: [Field; FIELDS],
}

/// The search index on disk and the fresh documents before it.
pub(crate) struct Search {
    index: Index,
    reader: IndexReader,
    fields: Fields,
    writer: Mutex<Option<IndexWriter>>,
    fresh: RwLock<Fresh>,
    analyzers: Mutex<Analyzers>,
    /// Whether tantivy may have what the database has lost in a crash.
    is_ahead: AtomicBool,
}

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

impl Search {
    /// Opens the index in `dir`; an error means that it is missing or damaged.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let index = Index::open_in_dir(dir)?;
        if index.schema() != schema().0 {
            return Err(TantivyError::SchemaError(
                "another version's schema".to_owned(),
            ));
        }
        let damaged = index.validate_checksum()?;
        if !damaged.is_empty() {
            return Err(TantivyError::SystemError(format!(
                "{} damaged files",
                damaged.len()
            )));
        }
        Self::over(index)
    }

    /// Starts an empty index in `dir`, in place of whatever is there.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        if dir.exists() {
            std::fs::remove_dir_all(dir)?;
        }
        std::fs::create_dir_all(dir)?;
        Self::over(Index::create_in_dir(dir, schema().0)?)
    }

    fn over(index: Index) -> Result<Self> {
        index.tokenizers().register(WORDS, words());
        index.tokenizers().register(BIGRAMS, bigrams());
        let reader = index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .try_into()?;
        Ok(Self {
            index,
            reader,
            fields: schema().1,
            writer: Mutex::default(),
            fresh: RwLock::default(),
            analyzers: Mutex::new(Analyzers::new()),
            is_ahead: AtomicBool::new(false),
        })
    }

    /// Makes `item` searchable at once; returns how many documents wait for tantivy. `is_new` says
    /// that there was no such document before.
    pub(crate) fn add(
        &self,
        key: DocKey,
        generation: u64,
        item: MemoryItem,
        is_new: bool,
    ) -> usize {
        let is_new = is_new && !self.is_ahead.load(Ordering::Relaxed);
        let mut analyzers = self
            .analyzers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut fresh = self.fresh.write().unwrap_or_else(PoisonError::into_inner);
        fresh.insert(&mut analyzers, key, generation, item, is_new);
        fresh.len()
    }

    /// Says that tantivy may have documents that are new to the database.
    pub(crate) fn set_ahead(&self) {
        self.is_ahead.store(true, Ordering::Relaxed);
    }

    /// Returns how many documents are in tantivy.
    pub(crate) fn len(&self) -> u64 {
        self.reader.searcher().num_docs()
    }

    /// Writes items into tantivy directly; [`Self::commit`] makes them searchable.
    pub(crate) fn write<'a>(
        &self,
        items: impl IntoIterator<Item = (DocKey, &'a MemoryItem)>,
    ) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = match &mut *writer {
            Some(writer) => writer,
            empty => {
                let writer = self.index.writer_with_num_threads(1, WRITER_BYTES)?;
                let mut merging = LogMergePolicy::default();
                merging.set_max_docs_before_merge(MAX_MERGED);
                writer.set_merge_policy(Box::new(merging));
                empty.insert(writer)
            }
        };
        for (key, item) in items {
            writer.delete_term(Term::from_field_bytes(self.fields.key, &key.to_bytes()));
            writer.add_document(self.document(&key, item))?;
        }
        Ok(())
    }

    /// Makes the files of the index hold nothing of these documents but what `said` says; call it
    /// while nothing is settled.
    pub(crate) fn purge(
        &self,
        documents: &BTreeSet<DocKey>,
        said: &[(DocKey, MemoryItem)],
    ) -> Result<()> {
        let waiting: BTreeSet<DocKey> = {
            let mut fresh = self.fresh.write().unwrap_or_else(PoisonError::into_inner);
            let (kept, gone): (BTreeSet<DocKey>, BTreeSet<DocKey>) = documents
                .iter()
                .partition(|key| said.iter().any(|(of, _)| of == *key));
            gone.iter().for_each(|key| fresh.remove(key));
            kept.into_iter()
                .filter(|key| fresh.get(key).is_some())
                .collect()
        };
        // A merge at work would put back what it began with.
        self.rest();
        let mut writer: IndexWriter = self.index.writer_with_num_threads(1, WRITER_BYTES)?;
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for key in documents {
            writer.delete_term(Term::from_field_bytes(self.fields.key, &key.to_bytes()));
        }
        for (key, item) in said {
            // What waits gets there when it is settled.
            if !waiting.contains(key) {
                writer.add_document(self.document(key, item))?;
            }
        }
        writer.commit()?;
        for segment in self.index.searchable_segment_metas()? {
            if segment.num_deleted_docs() > 0 {
                writer.merge(&[segment.id()]).wait()?;
            }
        }
        // The files of a segment stay as long as somebody searches them.
        self.reader.reload()?;
        writer.garbage_collect_files().wait()?;
        writer.wait_merging_threads()
    }

    /// Commits what was written, durably.
    pub(crate) fn commit(&self) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = &mut *writer {
            writer.commit()?;
        }
        self.reader.reload()
    }

    /// Waits until tantivy's threads have written what they are at, and lets them go: nothing is
    /// written in the directory afterwards, until something is settled again.
    ///
    /// A writer that is dropped leaves a merge to its thread, and whoever opens the directory next
    /// would meet it there.
    pub(crate) fn rest(&self) {
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Err(error)) = writer.map(IndexWriter::wait_merging_threads) {
            tracing::warn!(%error, "the search index could not finish a merge");
        }
    }

    /// Moves the fresh documents to tantivy; returns which, with their generations.
    pub(crate) fn settle(&self) -> Result<Vec<([u8; 65], u64)>> {
        let fresh = self
            .fresh
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take_copies();
        if fresh.is_empty() {
            return Ok(Vec::new());
        }
        let written = self
            .write(fresh.iter().map(|(key, _, item)| (*key, item)))
            .and_then(|()| self.commit());
        if let Err(error) = written {
            // A writer that has failed once stays failed.
            *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = None;
            return Err(error);
        }
        // A few at a time: a publish waits for this lock.
        for some in fresh.chunks(16) {
            let mut held = self.fresh.write().unwrap_or_else(PoisonError::into_inner);
            for (key, generation, _) in some {
                held.moved(key, *generation);
            }
        }
        Ok(fresh
            .into_iter()
            .map(|(key, generation, _)| (key.to_bytes(), generation))
            .collect())
    }

    /// Finds the `limit` best documents for the words of `text`.
    pub(super) fn find(
        &self,
        text: &str,
        filter: &Filter<'_>,
        limit: usize,
    ) -> Result<Vec<(DocKey, f32)>> {
        let terms = {
            let mut analyzers = self
                .analyzers
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            distinct(analyzers.both(text))
        };
        let fresh = self.fresh.read().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: what leaves `fresh` is in every later searcher.
        let searcher = self.reader.searcher();
        let statistics = Statistics::new(&searcher, &fresh, &self.fields, &terms)?;
        if terms.is_empty() || statistics.documents == 0 {
            return Ok(Vec::new());
        }
        let mut found = self.find_fresh(&fresh, &statistics, &terms, filter);
        // A document that is fresh again hides its old version in tantivy, which may take a place.
        let hidden = fresh.renewed().clone();
        drop(fresh);

        let mut here: BTreeSet<DocKey> = found.iter().map(|(key, _)| *key).collect();
        let wanted = limit + hidden.len();
        let mut left = limit.max(1);
        let query = self.query(&terms, filter);
        let top = TopDocs::with_limit(wanted).order_by_score();
        for (score, address) in
            searcher.search_with_statistics_provider(&query, &top, &statistics)?
        {
            let document: TantivyDocument = searcher.doc(address)?;
            let key = document
                .get_first(self.fields.key)
                .and_then(|value| value.as_bytes().map(DocKey::from_bytes));
            let Some(Some(key)) = key else { continue };
            // One that has just moved to tantivy is in both places.
            if !hidden.contains(&key) && here.insert(key) {
                found.push((key, score));
                left -= 1;
                if left == 0 {
                    // They come best first; what follows is there for those that are hidden.
                    break;
                }
            }
        }
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        found.truncate(limit);
        Ok(found)
    }

    fn find_fresh(
        &self,
        fresh: &Fresh,
        statistics: &Statistics<'_>,
        terms: &[(usize, String)],
        filter: &Filter<'_>,
    ) -> Vec<(DocKey, f32)> {
        let mut scores: BTreeMap<DocKey, f32> = BTreeMap::new();
        for (field, token) in terms
            .iter()
            .flat_map(|(kind, token)| [(*kind, token), (*kind + 2, token)])
        {
            let Some(having) = fresh.having(field, token) else {
                continue;
            };
            let term = Term::from_field_text(self.fields.text[field], token);
            let average = statistics.tokens[field] as f32 / statistics.documents as f32;
            let frequency = statistics
                .frequencies
                .get(&term)
                .copied()
                .unwrap_or_default();
            let weight = Bm25Weight::for_one_term(frequency, statistics.documents, average)
                .boost_by(BOOSTS[field]);
            for (key, times) in having {
                let Some(document) = fresh
                    .get(key)
                    .filter(|document| filter.passes(&document.item))
                else {
                    continue;
                };
                let length = FieldNormReader::fieldnorm_to_id(document.lengths[field]);
                *scores.entry(*key).or_default() += weight.score(length, *times);
            }
        }
        scores.into_iter().collect()
    }

    fn query(&self, terms: &[(usize, String)], filter: &Filter<'_>) -> BooleanQuery {
        let should = |terms: Vec<Box<dyn Query>>| -> Box<dyn Query> {
            Box::new(BooleanQuery::new(
                terms
                    .into_iter()
                    .map(|term| (Occur::Should, term))
                    .collect(),
            ))
        };
        let text = terms
            .iter()
            .flat_map(|(kind, token)| [(*kind, token), (*kind + 2, token)]);
        let text = text.map(|(field, token)| -> Box<dyn Query> {
            let term = Term::from_field_text(self.fields.text[field], token);
            Box::new(BoostQuery::new(
                Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)),
                BOOSTS[field],
            ))
        });
        let exact = |term: Term| -> Box<dyn Query> {
            Box::new(TermQuery::new(term, IndexRecordOption::Basic))
        };
        let spaces = filter
            .spaces
            .iter()
            .map(|space| exact(Term::from_field_bytes(self.fields.space, space.as_bytes())));
        let mut clauses = vec![
            (Occur::Must, should(text.collect())),
            (Occur::Must, without_score(should(spaces.collect()))),
        ];
        if filter.kinds.is_empty() {
            let unasked = Kind::ALL.into_iter().filter(|kind| !filter.wants(*kind));
            clauses.extend(unasked.map(|kind| {
                let term = Term::from_field_text(self.fields.kind, kind.as_str());
                (Occur::MustNot, exact(term))
            }));
        } else {
            let kinds = filter
                .kinds
                .iter()
                .map(|kind| exact(Term::from_field_text(self.fields.kind, kind.as_str())));
            clauses.push((Occur::Must, without_score(should(kinds.collect()))));
        }
        if let Some(task) = filter.task {
            clauses.push((
                Occur::Must,
                without_score(exact(Term::from_field_text(self.fields.task, task))),
            ));
        }
        BooleanQuery::new(clauses)
    }

    fn document(&self, key: &DocKey, item: &MemoryItem) -> TantivyDocument {
        let mut document = TantivyDocument::new();
        document.add_bytes(self.fields.key, &key.to_bytes());
        document.add_bytes(self.fields.space, item.space.as_bytes());
        document.add_text(self.fields.kind, item.kind.as_str());
        if let Some(task) = &item.task {
            document.add_text(self.fields.task, task);
        }
        let body = body(item);
        document.add_text(self.fields.text[0], &item.title);
        document.add_text(self.fields.text[1], &item.title);
        document.add_text(self.fields.text[2], &body);
        document.add_text(self.fields.text[3], &body);
        document
    }
}

fn without_score(query: Box<dyn Query>) -> Box<dyn Query> {
    Box::new(ConstScoreQuery::new(query, 0.0))
}

/// Returns each token once, words as 0 and bigrams as 1: the field of the title, the body's is two on.
fn distinct(both: [Vec<String>; 2]) -> Vec<(usize, String)> {
    let mut terms = Vec::new();
    for (kind, tokens) in both.into_iter().enumerate() {
        for token in tokens {
            if terms.len() < MAX_TERMS && !terms.contains(&(kind, token.clone())) {
                terms.push((kind, token));
            }
        }
    }
    terms
}

fn schema() -> (Schema, Fields) {
    let mut schema = Schema::builder();
    let text = |tokenizer: &str| {
        let indexing = TextFieldIndexing::default()
            .set_tokenizer(tokenizer)
            .set_index_option(IndexRecordOption::WithFreqs);
        TextOptions::default().set_indexing_options(indexing)
    };
    let fields = Fields {
        key: schema.add_bytes_field("key", BytesOptions::default().set_indexed().set_stored()),
        space: schema.add_bytes_field("space", BytesOptions::default().set_indexed()),
        kind: schema.add_text_field("kind", STRING),
        task: schema.add_text_field("task", STRING),
        text: [
            schema.add_text_field("title", text(WORDS)),
            schema.add_text_field("title_cjk", text(BIGRAMS)),
            schema.add_text_field("body", text(WORDS)),
            schema.add_text_field("body_cjk", text(BIGRAMS)),
        ],
    };
    (schema.build(), fields)
}

/// What BM25 has to know, over both places.
struct Statistics<'a> {
    searcher: &'a Searcher,
    fields: [Field; FIELDS],
    documents: u64,
    tokens: [u64; FIELDS],
    frequencies: HashMap<Term, u64>,
}

impl<'a> Statistics<'a> {
    fn new(
        searcher: &'a Searcher,
        fresh: &Fresh,
        fields: &Fields,
        terms: &[(usize, String)],
    ) -> Result<Self> {
        let mut tokens = [0; FIELDS];
        for (field, total) in tokens.iter_mut().enumerate() {
            *total = searcher.total_num_tokens(fields.text[field])? + fresh.total_tokens(field);
        }
        let mut frequencies = HashMap::new();
        for (field, token) in terms
            .iter()
            .flat_map(|(kind, token)| [(*kind, token), (*kind + 2, token)])
        {
            let term = Term::from_field_text(fields.text[field], token);
            let here = fresh
                .having(field, token)
                .map_or(0, |having| having.len() as u64);
            frequencies.insert(term.clone(), searcher.doc_freq(&term)? + here);
        }
        Ok(Self {
            searcher,
            fields: fields.text,
            documents: Bm25StatisticsProvider::total_num_docs(searcher)? + fresh.len() as u64,
            tokens,
            frequencies,
        })
    }
}

impl Bm25StatisticsProvider for Statistics<'_> {
    fn total_num_tokens(&self, field: Field) -> Result<u64> {
        match self.fields.iter().position(|known| *known == field) {
            Some(field) => Ok(self.tokens[field]),
            None => self.searcher.total_num_tokens(field),
        }
    }

    fn total_num_docs(&self) -> Result<u64> {
        Ok(self.documents)
    }

    fn doc_freq(&self, term: &Term) -> Result<u64> {
        match self.frequencies.get(term) {
            Some(frequency) => Ok(*frequency),
            None => self.searcher.doc_freq(term),
        }
    }
}
