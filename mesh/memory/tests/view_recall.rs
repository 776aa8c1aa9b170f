//! Finding memories by words.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "view/support.rs"]
mod support;

use rhizome_memory::{Draft, Hit, Kind, MAX_QUERY, Opened, RecallError, RecallQuery, View};
use support::{Node, Writer, draft, keyed, space};

fn query(text: &str) -> RecallQuery {
    RecallQuery {
        text: text.to_owned(),
        spaces: vec![space(1)],
        kinds: Vec::new(),
        task: None,
        limit: 0,
    }
}

fn titles(hits: &[Hit]) -> Vec<&str> {
    hits.iter().map(|hit| hit.item.title.as_str()).collect()
}

/// Runs `check` while everything is fresh, then with everything in tantivy, then after a restart.
fn in_every_place(fill: impl Fn(&mut Node), check: impl Fn(&View)) {
    let dir = tempfile::tempdir().unwrap();
    {
        let mut node = Node::open(dir.path());
        fill(&mut node);
        check(&node.view);
        node.view.flush().unwrap();
        check(&node.view);
    }
    check(&Node::open(dir.path()).view);
}

const CJK: [(&str, &[&str]); 7] = [
    ("即适者生存，生存等于正确的道理", &["适者生存"]),
    ("做好财务护城河", &["财务护城河", "护城河"]),
    ("今日は成語しりとりをした", &["しりとり"]),
    ("오늘 끝말잇기 게임을 했다", &["끝말잇기"]),
    ("今天讨论了部署方案", &["部署"]),
    ("设备清单(devices) NAS cdm-xxc", &["设备", "cdm-xxc"]),
    ("止损 红线", &["止损"]),
];

#[test]
fn the_nine_queries_in_chinese_japanese_and_korean_hit() {
    let fill = |node: &mut Node| {
        let mut ada = Writer::new(1);
        for (n, (text, _)) in (1..).zip(CJK) {
            // Half of them in the title, half in the text.
            let draft = if n % 2 == 0 {
                draft(text)
            } else {
                Draft::new(Kind::Fact, format!("note {n}"), text)
            };
            node.publish(&mut ada, space(1), n, &draft);
        }
    };
    in_every_place(fill, |view| {
        let mut hits = 0;
        for (text, queries) in CJK {
            for words in queries {
                let found = view.recall(&query(words)).unwrap();
                let first = &found
                    .first()
                    .unwrap_or_else(|| panic!("`{words}` finds nothing"))
                    .item;
                assert!(
                    first.title == text || first.text == text,
                    "`{words}` finds {}",
                    first.title
                );
                hits += 1;
            }
        }
        assert_eq!(hits, 9);
    });
}

#[test]
fn other_forms_of_the_words_find_it_and_stop_words_do_not_matter() {
    let fill = |node: &mut Node| {
        let mut ada = Writer::new(1);
        node.publish(&mut ada, space(1), 1, &draft("connection timeout"));
        node.publish(
            &mut ada,
            space(1),
            2,
            &Draft::new(
                Kind::Error,
                "parse_date fails on week dates",
                "isodate raises ValueError",
            ),
        );
        node.publish(
            &mut ada,
            space(1),
            3,
            &Draft::new(
                Kind::Fix,
                "week dates parse again",
                "the year of an ISO week is not the calendar year: use the ISO year",
            ),
        );
        node.publish(&mut ada, space(1), 4, &draft("Café Zürich opens at nine"));
    };
    in_every_place(fill, |view| {
        let hits = view.recall(&query("connections timed out")).unwrap();
        assert_eq!(titles(&hits)[0], "connection timeout");
        let hits = view
            .recall(&query("why is parsing a date given by its week failing?"))
            .unwrap();
        assert!(
            titles(&hits)[..2].contains(&"week dates parse again"),
            "{:?}",
            titles(&hits)
        );
        assert_eq!(
            titles(&view.recall(&query("zurich CAFE")).unwrap()),
            ["Café Zürich opens at nine"]
        );
        assert!(view.recall(&query("the of and")).unwrap().is_empty());
    });
}

#[test]
fn an_update_replaces_its_old_words_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::open(dir.path());
    let mut ada = Writer::new(1);
    node.publish(&mut ada, space(1), 1, &keyed("k", "the elephant is grey"));
    node.view.flush().unwrap();
    node.publish(&mut ada, space(1), 2, &keyed("k", "the giraffe is tall"));
    for _ in 0..2 {
        assert!(node.view.recall(&query("elephant")).unwrap().is_empty());
        assert_eq!(
            titles(&node.view.recall(&query("giraffes")).unwrap()),
            ["the giraffe is tall"]
        );
        node.view.flush().unwrap();
    }
}

#[test]
fn both_sides_of_a_conflict_are_found_and_flagged() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut a, mut b) = (Node::open(one.path()), Node::open(two.path()));
    a.publish(
        &mut Writer::new(1),
        space(1),
        1,
        &keyed("port", "served on elephants"),
    );
    let other = b.publish(
        &mut Writer::new(2),
        space(1),
        2,
        &keyed("port", "served on giraffes"),
    );
    a.verdict(other);
    for words in ["elephant", "giraffe"] {
        let hits = a.view.recall(&query(words)).unwrap();
        assert_eq!((hits.len(), hits[0].item.conflicts.len()), (1, 1));
    }
}

#[test]
fn what_is_superseded_ranks_below_what_replaces_it_and_says_so() {
    let fill = |node: &mut Node| {
        let mut ada = Writer::new(1);
        let old = node.publish(
            &mut ada,
            space(1),
            1,
            &draft("restart mends the cache cache cache"),
        );
        let text = "it was long thought that a restart mends it, but the cache comes back broken after an hour or so";
        let new = Draft {
            supersedes: vec![old.header.doc],
            ..Draft::new(Kind::Fact, "clear the cache directory", text)
        };
        node.publish(&mut ada, space(1), 2, &new);
    };
    in_every_place(fill, |view| {
        let hits = view.recall(&query("restart cache")).unwrap();
        assert_eq!(
            titles(&hits),
            [
                "clear the cache directory",
                "restart mends the cache cache cache"
            ]
        );
        assert_eq!(hits[1].item.superseded_by, [hits[0].item.doc]);
        assert!(hits[0].score > hits[1].score);
    });
}

#[test]
fn filters_by_space_kind_and_task_hold_in_both_places() {
    let fill = |node: &mut Node| {
        let mut ada = Writer::new(1);
        for n in 0..4_u8 {
            let kind = if n % 2 == 0 { Kind::Fact } else { Kind::Rule };
            let draft = Draft {
                task: Some(format!("t{n}")),
                ..Draft::new(kind, format!("walrus {n}"), "")
            };
            node.publish(&mut ada, space(n / 2 + 1), u64::from(n) + 1, &draft);
        }
    };
    in_every_place(fill, |view| {
        assert_eq!(view.recall(&query("walrus")).unwrap().len(), 2);
        let everywhere = RecallQuery {
            spaces: vec![space(1), space(2)],
            ..query("walrus")
        };
        assert_eq!(view.recall(&everywhere).unwrap().len(), 4);
        let rules = RecallQuery {
            kinds: vec![Kind::Rule],
            ..query("walrus")
        };
        assert_eq!(titles(&view.recall(&rules).unwrap()), ["walrus 1"]);
        let task = RecallQuery {
            task: Some("t3".into()),
            ..everywhere
        };
        assert_eq!(titles(&view.recall(&task).unwrap()), ["walrus 3"]);
        assert!(
            view.recall(&RecallQuery {
                spaces: Vec::new(),
                ..query("walrus")
            })
            .unwrap()
            .is_empty()
        );
        assert_eq!(
            view.recall(&RecallQuery {
                limit: 1,
                ..query("walrus")
            })
            .unwrap()
            .len(),
            1
        );
    });
}

#[test]
fn the_score_is_the_same_before_and_after_the_move_to_tantivy() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::open(dir.path());
    let mut ada = Writer::new(1);
    for n in 1..40 {
        let text = "walrus ".repeat(usize::try_from(n % 7).unwrap())
            + &"tusk 护城河 ".repeat(usize::try_from(n % 5).unwrap());
        node.publish(
            &mut ada,
            space(1),
            n,
            &Draft::new(Kind::Fact, format!("entry {n} walrus"), text),
        );
    }
    let all = RecallQuery {
        limit: 50,
        ..query("walrus tusks 护城河 entry")
    };
    let fresh = node.view.recall(&all).unwrap();
    node.view.flush().unwrap();
    let settled = node.view.recall(&all).unwrap();
    assert_eq!(fresh.len(), 39);
    assert_eq!(titles(&fresh), titles(&settled));
    for (a, b) in fresh.iter().zip(&settled) {
        assert!(
            (a.score - b.score).abs() < 1e-3,
            "{} and {}",
            a.score,
            b.score
        );
    }
}

#[test]
fn hostile_queries_get_results_or_a_typed_error() {
    let fill = |node: &mut Node| {
        node.publish(&mut Writer::new(1), space(1), 1, &draft("walrus AND tusk"));
    };
    in_every_place(fill, |view| {
        for words in [
            "walrus AND",
            "\"walrus",
            "walrus) OR (",
            "title:walrus",
            "+walrus -tusk",
            "walrus~2 tusk^9",
            "[walrus TO *]",
            "\u{0}walrus\u{7}\u{1b}[31m",
            "walrus \u{202e}\u{feff}\u{10ffff}",
            "{walrus: /.*/}",
            "walrus\n\r\ttusk",
        ] {
            assert_eq!(view.recall(&query(words)).unwrap().len(), 1, "`{words}`");
        }
        let long = query(&"walrus ".repeat(150_000));
        assert!(matches!(
            view.recall(&long),
            Err(RecallError::TooLong {
                limit: MAX_QUERY,
                ..
            })
        ));
        assert!(matches!(
            view.recall(&query(" \n")),
            Err(RecallError::Blank)
        ));
        for nothing in ["()[]{}", "\u{1}\u{2}", "🦭🦭", "-"] {
            assert!(view.recall(&query(nothing)).unwrap().is_empty());
        }
        let many: Vec<String> = (0..1_000).map(|n| format!("w{n}")).collect();
        assert!(view.recall(&query(&many.join(" "))).unwrap().is_empty());
    });
}

fn filled(dir: &std::path::Path, count: u64) -> Vec<Opened> {
    let mut node = Node::open(dir);
    let mut ada = Writer::new(1);
    let all = (1..=count)
        .map(|n| node.publish(&mut ada, space(1), n, &draft(&format!("walrus number{n}"))))
        .collect();
    node.view.flush().unwrap();
    all
}

#[test]
fn a_damaged_or_missing_search_index_is_made_anew() {
    type Harm = fn(&std::path::Path);
    let harms: [Harm; 4] = [
        |tantivy| std::fs::remove_dir_all(tantivy).unwrap(),
        |tantivy| std::fs::write(tantivy.join("meta.json"), b"{").unwrap(),
        |tantivy| std::fs::remove_file(tantivy.join("meta.json")).unwrap(),
        |tantivy| {
            for file in std::fs::read_dir(tantivy)
                .unwrap()
                .map(|file| file.unwrap().path())
            {
                if file.extension().is_some_and(|kind| {
                    ["idx", "term", "store", "fieldnorm"].contains(&kind.to_str().unwrap())
                }) {
                    let mut bytes = std::fs::read(&file).unwrap();
                    let middle = bytes.len() / 3;
                    bytes[middle] ^= 0x10;
                    std::fs::write(&file, bytes).unwrap();
                }
            }
        },
    ];
    for harm in harms {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), 30);
        harm(&dir.path().join("tantivy"));
        let node = Node::open(dir.path());
        assert_eq!(node.view.watermark(), 30);
        assert_eq!(
            titles(&node.view.recall(&query("number7")).unwrap()),
            ["walrus number7"]
        );
        assert_eq!(
            node.view
                .recall(&RecallQuery {
                    limit: 50,
                    ..query("walrus")
                })
                .unwrap()
                .len(),
            30
        );
    }
}

#[test]
fn after_a_crash_the_replay_from_the_watermark_finds_everything_again() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut node = Node::open(dir.path());
    let mut ada = Writer::new(1);
    let mut all: Vec<Opened> = Vec::new();
    for n in 1..=40 {
        all.push(node.publish(&mut ada, space(1), n, &draft(&format!("walrus number{n}"))));
        if n == 20 {
            node.view.flush().unwrap();
        }
    }
    // What a crash leaves: the files as they are now, whatever was synced of them.
    copy(dir.path(), crashed.path());
    let mut node = Node::open(crashed.path());
    let watermark = usize::try_from(node.view.watermark()).unwrap();
    assert!((20..=40).contains(&watermark), "{watermark}");
    let replayed: Vec<Opened> = all.drain(watermark..).collect();
    node.take(replayed);
    for n in 1..=40 {
        assert_eq!(
            titles(&node.view.recall(&query(&format!("number{n}"))).unwrap()),
            [format!("walrus number{n}")]
        );
    }
}

#[test]
fn a_view_that_was_dropped_writes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut ada = Writer::new(1);
    for round in 0..3 {
        let mut node = Node::open(dir.path());
        // Enough segments that tantivy begins to merge them.
        for n in 0..9 {
            let title = format!("round {round} memory {n}");
            node.publish(&mut ada, space(1), 100 * round + n + 1, &draft(&title));
            node.view.flush().unwrap();
        }
        drop(node);
        std::fs::remove_dir_all(dir.path().join("tantivy")).unwrap();
    }
    let node = Node::open(dir.path());
    assert_eq!(node.view.recall(&query("memory 5")).unwrap().len(), 10);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else if entry.file_name() != ".tantivy-writer.lock" {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn records_of_nodes_are_found_by_who_asks_for_them() {
    let fill = |node: &mut Node| {
        let mut ada = Writer::new(1);
        node.publish(&mut ada, space(1), 1, &draft("a wombat burrow"));
        let record = Draft::new(Kind::Snapshot, "a wombat asleep", "");
        node.publish(&mut ada, space(1), 2, &record);
    };
    in_every_place(fill, |view| {
        let general = view.recall(&query("wombat")).unwrap();
        assert_eq!(titles(&general), ["a wombat burrow"]);
        let asked = RecallQuery {
            kinds: vec![Kind::Snapshot],
            ..query("wombat")
        };
        assert_eq!(titles(&view.recall(&asked).unwrap()), ["a wombat asleep"]);
        let list = |kind| {
            let query = rhizome_memory::ListQuery {
                spaces: Some(vec![space(1)]),
                kind,
                task: None,
                limit: 0,
                ..rhizome_memory::ListQuery::default()
            };
            view.list(&query).unwrap()
        };
        assert_eq!(list(None).len(), 1);
        assert_eq!(list(Some(Kind::Snapshot))[0].title, "a wombat asleep");
    });
}
