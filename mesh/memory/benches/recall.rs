//! What recall costs: `cargo bench -p rhizome-memory --bench recall [-- <memories>]`.
//!
//! Prints the time of a publish through the view (compose, fence, database, fresh index) until it
//! can be recalled, and of a recall among many memories, before and after they are in tantivy. The
//! limit of a recall is a bare tantivy search for the same words over the same texts. Then what all
//! of it takes on disk and in memory.

#![allow(
    clippy::print_stdout,
    reason = "a benchmark reports on standard output"
)]

use std::{
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};
use rhizome_memory::{
    Applied, ComposeContext, Composed, ContextPatch, Draft, Explored, FragmentId, Header, Hlc,
    Kind, Opened, RecallQuery, View,
};
use tantivy::{
    Index, TantivyDocument,
    collector::TopDocs,
    query::QueryParser,
    schema::{Schema, TEXT},
};

const SPACE: SpaceId = SpaceId::from_bytes([1; 32]);
const WORDS: [&str; 24] = [
    "connection",
    "timeout",
    "parser",
    "cache",
    "socket",
    "retry",
    "certificate",
    "clock",
    "migration",
    "index",
    "queue",
    "deadlock",
    "memory",
    "kernel",
    "sandbox",
    "snapshot",
    "token",
    "header",
    "部署",
    "设备",
    "しりとり",
    "게임을",
    "builder",
    "linker",
];

fn main() {
    // `cargo bench` passes `--bench`; the first number is ours.
    let count = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10_000_u64);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let view = View::open(dir.path()).expect("a view");
    println!("the view alone, {count} memories of 40 words; no disk is waited for");

    let mut publish = Vec::new();
    for n in 1..=count {
        let start = Instant::now();
        let found = publish_one(&view, n);
        publish.push(start.elapsed());
        assert_eq!(found, Applied::Applied);
    }
    report("publish, compose to recallable", &mut publish);

    let mut found_at_once = Vec::new();
    for n in count + 1..=count + 100 {
        let start = Instant::now();
        publish_one(&view, n);
        let hits = view
            .recall(&query(&format!("unique{n}")))
            .expect("a recall");
        found_at_once.push(start.elapsed());
        assert_eq!(hits.len(), 1, "a publish is recallable at once");
    }
    report("publish and recall it", &mut found_at_once);

    let mut recall = Vec::new();
    measure(&view, &mut recall);
    report("recall, some still fresh", &mut recall);
    view.flush().expect("a flush");
    recall.clear();
    measure(&view, &mut recall);
    report("recall, all in tantivy", &mut recall);
    sizes(dir.path(), count);
    let mut bare = bare_tantivy(count);
    report("limit: bare tantivy, ids only", &mut bare);
    println!(
        "recall is {:.1} times the limit",
        median(&recall).as_secs_f64() / median(&bare).as_secs_f64()
    );

    let mut flush = Vec::new();
    for n in count + 101..=count + 130 {
        publish_one(&view, n);
        let start = Instant::now();
        view.flush().expect("a flush");
        flush.push(start.elapsed());
    }
    report("flush of one memory to disk", &mut flush);
    checkpoints();
}

/// Prints what the view takes on disk, and what this process has taken in memory.
fn sizes(dir: &Path, count: u64) {
    let size = |name: &str| {
        let path = dir.join(name);
        let files = std::fs::read_dir(&path).map(|entries| entries.flatten().collect::<Vec<_>>());
        let of_dir = files.unwrap_or_default();
        let of_dir = of_dir.iter().filter_map(|entry| entry.metadata().ok());
        let of_file = std::fs::metadata(&path)
            .ok()
            .filter(std::fs::Metadata::is_file);
        of_dir.chain(of_file).map(|meta| meta.len()).sum::<u64>()
    };
    let mib = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
    let (database, index) = (size("view.redb"), size("tantivy"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or(" unknown")
        .trim();
    println!(
        "{:<34} view.redb {:.1} MiB, tantivy {:.1} MiB, {} bytes a memory; most memory {most}",
        "on disk",
        mib(database),
        mib(index),
        (database + index) / count.max(1)
    );
}

/// What a checkpoint costs as its context grows: the document is saved and loaded each time.
fn checkpoints() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let view = View::open(dir.path()).expect("a view");
    for (from, to) in [(1, 100), (101, 300), (301, 600), (601, 1_000)] {
        let mut times = Vec::new();
        for n in from..=to {
            let patch = ContextPatch {
                status: Some(format!("step {n}")),
                explored: vec![Explored {
                    what: format!("path {n}"),
                    result: "no change".to_owned(),
                }],
                ..ContextPatch::default()
            };
            let start = Instant::now();
            let composed = view
                .compose_context(ctx(n), "task", &patch)
                .expect("a change");
            assert_eq!(finish(&view, n, composed), Applied::Applied);
            times.push(start.elapsed());
        }
        report(&format!("checkpoints {from} to {to}"), &mut times);
    }
}

fn ctx(n: u64) -> ComposeContext {
    let (author, node) = (AgentId::from_bytes([2; 32]), NodeId::from_bytes([3; 32]));
    ComposeContext {
        author,
        node,
        now: Hlc::from_ms(n),
        space: SPACE,
    }
}

fn measure(view: &View, times: &mut Vec<Duration>) {
    for n in 0..300 {
        let words = question(n);
        let start = Instant::now();
        black_box(view.recall(&query(&words)).expect("a recall"));
        times.push(start.elapsed());
    }
}

/// Searches for the same words with nothing around the library: no stemming, no space, no items.
fn bare_tantivy(count: u64) -> Vec<Duration> {
    let mut schema = Schema::builder();
    let fields = [
        schema.add_text_field("title", TEXT),
        schema.add_text_field("body", TEXT),
    ];
    let index = Index::create_in_ram(schema.build());
    let mut writer = index
        .writer_with_num_threads(1, 15_000_000)
        .expect("a writer");
    for n in 1..=count {
        let mut document = TantivyDocument::new();
        let (title, text) = texts(n);
        document.add_text(fields[0], title);
        document.add_text(fields[1], text);
        writer.add_document(document).expect("room");
    }
    writer.commit().expect("a commit");
    let searcher = index.reader().expect("a reader").searcher();
    let parser = QueryParser::for_index(&index, fields.to_vec());
    let search = |n| {
        let words = question(n);
        let start = Instant::now();
        let query = parser.parse_query(&words).expect("plain words");
        let top = TopDocs::with_limit(10).order_by_score();
        black_box(searcher.search(&query, &top).expect("a search"));
        start.elapsed()
    };
    (0..300).map(search).collect()
}

fn question(n: u64) -> String {
    [word(n), word(n / 5 + 3), word(n * 7 + 1)].join(" ")
}

fn query(text: &str) -> RecallQuery {
    RecallQuery {
        text: text.to_owned(),
        spaces: vec![SPACE],
        kinds: Vec::new(),
        task: None,
        limit: 10,
    }
}

fn word(n: u64) -> &'static str {
    // A multiplicative hash: spread, and the same on every run.
    let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    WORDS[usize::try_from(spread).expect("32 bits") % WORDS.len()]
}

fn texts(n: u64) -> (String, String) {
    let title = format!("{} {} unique{n}", word(n), word(n + 1));
    let text: Vec<&str> = (0..40).map(|at| word(n * 41 + at)).collect();
    (title, text.join(" "))
}

fn publish_one(view: &View, n: u64) -> Applied {
    let (title, text) = texts(n);
    let draft = Draft {
        task: Some(format!("task {}", n % 50)),
        ..Draft::new(Kind::Fact, title, text)
    };
    let composed = view.compose(ctx(n), &draft).expect("a change");
    finish(view, n, composed)
}

fn finish(view: &View, n: u64, composed: Composed) -> Applied {
    let ComposeContext {
        author, node, now, ..
    } = ctx(n);
    let header = Header {
        version: 1,
        mesh: MeshId::from_bytes([0; 32]),
        space: SPACE,
        author,
        node,
        seq: n - 1,
        prev: (n > 1).then_some(FragmentId::from_bytes([0; 32])),
        auth_heads: Vec::new(),
        deps: composed.deps.clone(),
        hlc: now,
        kind: composed.kind,
        doc: composed.doc,
        fingerprint: Hash::of(b""),
        epoch: 0,
        nonce: [0; 24],
        body_hash: Hash::of(&composed.change),
        body_len: u32::try_from(composed.change.len()).expect("a small change"),
    };
    let id = FragmentId::from(Hash::of(&header.to_bytes()));
    view.reserve(&SPACE, &composed, id);
    let verdicts = view.apply(
        n,
        vec![Opened {
            id,
            header,
            change: Bytes::from(composed.change),
        }],
    );
    verdicts.into_iter().next().expect("a verdict").1
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "{what:<34} p50 {:>7.3} ms   p99 {:>7.3} ms   max {:>7.3} ms   of {}",
        ms(at(50)),
        ms(at(99)),
        ms(at(100)),
        times.len()
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
