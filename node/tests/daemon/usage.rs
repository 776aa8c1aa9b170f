//! What a sandbox uses is counted once, over the end of its daemon and its own sleep; what a quota
//! does to it; and the metrics, parsed as strictly as the format is: one boot.
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    sandbox::{qemu_is_missing, run},
    support::{Daemon, code},
};

fn start(dir: &Path) -> Daemon {
    Daemon::start_with_sandboxes(dir, "laptop")
}

/// Posts and returns the last line of progress.
fn work(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, lines) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, 200, "{lines}");
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

/// The processor time of the sandbox's monitor, in milliseconds, as the kernel says it.
fn monitor_cpu_ms(dir: &Path, id: &str) -> u64 {
    let sandbox = dir.join("sandboxes").join(id);
    let read = |name: &str| -> Value {
        let text = std::fs::read(sandbox.join(name)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    };
    let pid = [read("run.json"), read("state.json")]
        .iter()
        .find_map(|file| file["monitor"]["pid"].as_u64())
        .unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11..15]
        .iter()
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks * 10
}

fn rows(daemon: &Daemon, by: &str) -> Vec<Value> {
    let answer = daemon.get(&format!("/v1/usage?by={by}"));
    answer["usage"].as_array().unwrap().clone()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts that what the node counted is what the kernel counted, and returns it.
fn counted_once(daemon: &Daemon, id: &str, earlier: u64) -> u64 {
    let before = monitor_cpu_ms(&daemon.dir, id);
    let row = rows(daemon, "sandbox").pop().unwrap();
    let after = monitor_cpu_ms(&daemon.dir, id);
    let counted = number(&row["cpu_ms"]);
    assert!(
        (earlier + before..=earlier + after).contains(&counted),
        "{counted} is not between {before} and {after} after {earlier}"
    );
    counted
}

fn becomes(daemon: &Daemon, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let state = daemon.get("/v1/sandboxes/bench")["state"].clone();
        if state == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "it is {state}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_is_used_is_counted_once_and_limited() {
    if qemu_is_missing("what_is_used_is_counted_once_and_limited") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = start(&dir);
    daemon.found("findings");
    let create = json!({"name": "bench", "agent": "laptop", "spaces": ["findings"]});
    let made = work(&daemon, "/v1/sandboxes", create.clone())["done"].clone();
    let id = made["id"].as_str().unwrap().to_owned();
    let memory = number(&made["memory_mib"]);

    // It is charged to its agent and its space, and memory by how long it was there.
    counted_once(&daemon, &id, 0);
    for (by, whose) in [("agent", &made["agent"]), ("space", &made["spaces"][0])] {
        let row = rows(&daemon, by).pop().unwrap();
        let named = if by == "agent" {
            &row["agent"]
        } else {
            &row["spaces"][0]
        };
        assert_eq!((named, &row["running"]), (whose, &json!(1)), "{row}");
        let (ram, ran) = (number(&row["ram_mib_s"]), number(&row["sandbox_ms"]));
        assert!(
            ran > 100 && ram.abs_diff(memory * ran / 1_000) <= memory,
            "{row}"
        );
        assert!(number(&row["disk_bytes"]) > 0, "{row}");
    }

    let (out, err, _) = run(&daemon, &["rhizome", "usage"]);
    assert!(
        out.contains("cpu ") && out.contains(" MiB s\n"),
        "{out}{err}"
    );

    // The daemon is killed while the guest works; the next one counts what came in between, once.
    let busy = json!({"argv": ["sh", "-c", "while :; do :; done"], "detach": true});
    daemon.post("/v1/sandboxes/bench/exec", busy);
    let guests = daemon.crash();
    let began = Instant::now();
    while monitor_cpu_ms(&dir, &id) == 0 || began.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    let daemon = start(&dir);
    std::mem::forget(guests);
    let counted = counted_once(&daemon, &id, 0);
    let ran = number(&rows(&daemon, "sandbox")[0]["sandbox_ms"]);
    assert!(ran >= 1_000 && counted <= 4 * ran, "{counted} of {ran}");

    // A quota that is used up: it is put to sleep, its agent is told, and nothing is to run.
    let set = json!({"agent": "laptop", "limits": {"cpu": 1, "sandbox": 360_000}});
    let quotas = daemon.post("/v1/quotas", set)["quotas"].clone();
    assert_eq!(
        (&quotas[0]["resource"], &quotas[0]["over"]),
        (&json!("cpu"), &json!(true))
    );
    assert_eq!(
        (&quotas[1]["resource"], &quotas[1]["over"]),
        (&json!("sandbox"), &json!(false))
    );
    becomes(&daemon, "hibernated");
    let (_, _) = (quotas, ran);
    let told = daemon.get("/v1/memory?kind=observation")["memories"].clone();
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    let text = told[0]["text"].as_str().unwrap();
    assert!(text.contains("agent `laptop` has used"), "{text}");
    assert!(
        text.contains("rhizome quota set --agent laptop cpu="),
        "{text}"
    );
    assert_eq!(
        (&told[0]["author"], &told[0]["tags"]),
        (&made["agent"], &json!(["quota"]))
    );
    refused(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    let another = json!({"agent": "laptop", "spaces": ["findings"]});
    refused(&daemon, "/v1/sandboxes", another);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let log = daemon.get("/v1/audit");
        let mut entries = log["entries"].as_array().unwrap().iter();
        if entries
            .any(|e| e["action"] == "quota.hibernate" && e["outcome"] == "ok" && e["on"] == *id)
        {
            break;
        }
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }

    // All that it used until it slept was read; with more quota it goes on, as another monitor.
    let asleep = number(&rows(&daemon, "sandbox")[0]["cpu_ms"]);
    assert!(asleep >= counted);
    assert_eq!(rows(&daemon, "sandbox")[0]["running"], 0);
    let removed = daemon.ask("DELETE", "/v1/quotas?agent=laptop&resource=cpu", None);
    assert_eq!(
        (removed.0, &removed.1["quotas"][0]["limit"]),
        (200, &json!(1))
    );
    let woken = work(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    assert_eq!(woken["done"]["state"], "ready", "{woken}");
    counted_once(&daemon, &id, asleep);
    let (out, err, end) = run(&daemon, &["true"]);
    assert_eq!(
        (out.as_str(), err.as_str(), &end),
        ("", "", &json!({"code": 0}))
    );

    metrics_say_what_happened(&daemon);
    let last = number(&rows(&daemon, "sandbox")[0]["cpu_ms"]);
    daemon.stop();
    let daemon = start(&dir);
    assert!(number(&rows(&daemon, "agent")[0]["cpu_ms"]) >= last);
    daemon.stop();
}

fn refused(daemon: &Daemon, path: &str, body: Value) {
    let last = work(daemon, path, body);
    let error = &last["error"];
    assert_eq!(error["code"], "quota_exceeded", "{last}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("of CPU time this day, and its quota is 1 s a day"),
        "{message}"
    );
    let hint = error["hint"].as_str().unwrap();
    assert!(
        hint.contains("rhizome quota set --agent laptop cpu="),
        "{hint}"
    );
}

fn metrics_say_what_happened(daemon: &Daemon) {
    let metrics = scrape(daemon);
    let one = |sample: &str| *metrics.get(sample).unwrap_or_else(|| panic!("no {sample}"));
    assert_eq!(one(r#"rhizome_sandboxes{state="ready"}"#), 1.0);
    assert_eq!(one(r#"rhizome_sandboxes{state="hibernated"}"#), 0.0);
    // The daemon was started anew after the boot.
    assert_eq!(one("rhizome_sandbox_boots_total"), 0.0);
    for (action, outcome) in [
        ("hibernate", "done"),
        ("resume", "done"),
        ("attach", "done"),
    ] {
        let sample =
            format!(r#"rhizome_sandbox_actions_total{{action="{action}",outcome="{outcome}"}}"#);
        assert!(one(&sample) >= 1.0, "{sample}");
    }
    let took = one(r#"rhizome_sandbox_action_duration_seconds_sum{action="hibernate"}"#);
    assert!(took > 0.0 && took < 90.0);
    assert_eq!(one("rhizome_snapshots_total"), 1.0);
    assert!(one(r#"rhizome_snapshot_bytes_total{kind="read"}"#) > 1e6);
    assert_eq!(one(r#"rhizome_execs_total{outcome="started"}"#), 1.0);
    assert!(one("rhizome_audit_entries_total") >= 5.0);
    assert!(one("rhizome_chunk_store_bytes") > 1e5);
    assert_eq!(
        (one("rhizome_quotas"), one("rhizome_quotas_over")),
        (1.0, 0.0)
    );
    let agent = &rows(daemon, "agent")[0];
    let sample = format!(
        r#"rhizome_usage_cpu_seconds_total{{kind="agent",id="{}",name="laptop"}}"#,
        agent["agent"]["id"].as_str().unwrap()
    );
    let later = number(&agent["cpu_ms"]) as f64 / 1_000.0;
    assert!(
        one(&sample) > 0.0 && one(&sample) <= later,
        "{} {later}",
        one(&sample)
    );
}

#[test]
fn quotas_are_checked_before_they_are_kept_and_survive_a_kill() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = Daemon::start(&dir, "laptop");
    daemon.found("findings");
    for (body, wanted) in [
        (json!({"limits": {"cpu": 1}}), "bad_request"),
        (
            json!({"agent": "laptop", "each": "agent", "limits": {"cpu": 1}}),
            "bad_request",
        ),
        (json!({"each": "node", "limits": {"cpu": 1}}), "bad_request"),
        (json!({"agent": "laptop", "limits": {}}), "bad_request"),
        (
            json!({"agent": "laptop", "limits": {"gpu": 1}}),
            "bad_request",
        ),
        (
            json!({"agent": "laptop", "limits": {"cpu": -1}}),
            "bad_request",
        ),
        (
            json!({"agent": "laptop", "per": "moment", "limits": {"cpu": 1}}),
            "bad_request",
        ),
        (
            json!({"agent": "nobody", "limits": {"cpu": 1}}),
            "unknown_agent",
        ),
        (
            json!({"space": "nowhere", "limits": {"cpu": 1}}),
            "unknown_space",
        ),
    ] {
        let answer = daemon.ask("POST", "/v1/quotas", Some(body.clone()));
        assert_eq!(code(&answer), wanted, "{body}: {answer:?}");
    }
    assert_eq!(daemon.get("/v1/quotas")["quotas"], json!([]));
    let gone = daemon.ask("DELETE", "/v1/quotas?space=findings", None);
    assert_eq!((gone.0, code(&gone)), (404, "not_found"));

    let set = json!({"space": "findings", "per": "month", "limits": {"ram": 10, "disk": 5}});
    daemon.post("/v1/quotas", set);
    daemon.post(
        "/v1/quotas",
        json!({"each": "agent", "limits": {"egress": 7}}),
    );
    let kept = daemon.get("/v1/quotas")["quotas"].clone();
    let seen: Vec<_> = kept
        .as_array()
        .unwrap()
        .iter()
        .map(|quota| {
            (
                quota["resource"].as_str().unwrap(),
                quota["per"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [("egress", "day"), ("ram", "month"), ("disk", "moment")]
    );
    daemon.kill();
    let daemon = Daemon::start(&dir, "laptop");
    assert_eq!(daemon.get("/v1/quotas")["quotas"], kept);
    let metrics = scrape(&daemon);
    assert_eq!(metrics["rhizome_sandboxes_available"], 0.0);
    assert_eq!(metrics["rhizome_quotas"], 2.0);
    assert_eq!(metrics[r#"rhizome_peers{state="connected"}"#], 0.0);
    daemon.stop();
    // A node that forgot its quotas would let everything run: it does not start instead.
    std::fs::write(dir.join("quotas.json"), "{}").unwrap();
    let refused = crate::support::command(&dir, "laptop")
        .arg("--no-sandboxes")
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("quotas.json") && said.contains("move it away"),
        "{said}"
    );
}

/// Fetches the metrics and returns each sample by what stands before its value.
fn scrape(daemon: &Daemon) -> BTreeMap<String, f64> {
    let (status, text) = daemon.client().ask_bytes("GET", "/metrics", None).unwrap();
    assert_eq!(status, 200);
    parse(std::str::from_utf8(&text).unwrap())
}

/// Parses the text format 0.0.4 and takes nothing that it does not allow.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'), "the last line has an end");
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family: Option<(String, String)> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, said) = help.split_once(' ').expect("a help text");
            assert!(!said.is_empty() && is_name(name), "{line}");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            let kind = lines.next().expect("a type after the help");
            let kind = kind
                .strip_prefix(&format!("# TYPE {name} "))
                .expect("its own type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(
                name.ends_with("_total"),
                kind == "counter",
                "{name} is a {kind}"
            );
            family = Some((name.to_owned(), kind.to_owned()));
            continue;
        }
        let (name, kind) = family.as_ref().expect("no sample before its type");
        let (head, value) = line.rsplit_once(' ').expect("a value");
        let value: f64 = value.parse().expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let (of, labels) = head
            .split_once('{')
            .map_or((head, None), |(of, rest)| (of, Some(rest)));
        let suffixes: &[&str] = match &kind[..] {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(
            suffixes
                .iter()
                .any(|suffix| of == format!("{name}{suffix}")),
            "{line} in {name}"
        );
        if let Some(labels) = labels {
            check_labels(labels.strip_suffix('}').expect("a closing brace"));
        }
        assert!(
            samples.insert(head.to_owned(), value).is_none(),
            "{head} comes twice"
        );
    }
    check_histograms(&samples);
    samples
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain)
}

fn check_labels(mut rest: &str) {
    let mut seen = BTreeSet::new();
    loop {
        let (label, value) = rest.split_once("=\"").expect("a value in quotes");
        assert!(is_name(label) && seen.insert(label), "{label}");
        let mut characters = value.char_indices();
        let end = loop {
            match characters.next().expect("a closing quote") {
                (_, '\\') => {
                    let (_, escaped) = characters.next().expect("what is escaped");
                    assert!(matches!(escaped, '\\' | '"' | 'n'), "\\{escaped}");
                }
                (at, '"') => break at,
                _ => {}
            }
        };
        rest = &value[end + 1..];
        if rest.is_empty() {
            return;
        }
        rest = rest.strip_prefix(',').expect("a comma between labels");
    }
}

/// Buckets grow, and the last one holds as many as there are.
fn check_histograms(samples: &BTreeMap<String, f64>) {
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (head, value) in samples.iter().filter(|(head, _)| head.contains("_bucket{")) {
        let (series, bound) = head.rsplit_once(",le=\"").expect("the bound comes last");
        let bound = bound.strip_suffix("\"}").unwrap();
        let bound = if bound == "+Inf" {
            f64::INFINITY
        } else {
            bound.parse().unwrap()
        };
        buckets
            .entry(series.to_owned())
            .or_default()
            .push((bound, *value));
    }
    assert!(!buckets.is_empty() || samples["rhizome_sandboxes_available"] == 0.0);
    for (series, mut counts) in buckets {
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(
            counts.is_sorted_by(|a, b| a.1 <= b.1),
            "{series}: {counts:?}"
        );
        let (bound, all) = *counts.last().unwrap();
        let count = samples[&(series.replace("_bucket{", "_count{") + "}")];
        assert!(bound.is_infinite() && all == count, "{series}");
    }
}

#[test]
fn the_parser_takes_nothing_that_is_not_the_format() {
    let fails = |text: &str| std::panic::catch_unwind(|| parse(text)).is_err();
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"\\\"\\n\"} 1\n";
    let with = |more: &str| {
        format!(
            "{good}# HELP rhizome_sandboxes_available S\n# TYPE rhizome_sandboxes_available gauge\nrhizome_sandboxes_available 0\n{more}"
        )
    };
    assert_eq!(parse(&with("")).len(), 2);
    for bad in [
        with("a_total 2\n"),
        with("rhizome_sandboxes_available 0\n"),
        with("b 1\n"),
        with("# HELP b B\n# TYPE b counter\nb 1\n"),
        with("# HELP b B\n# TYPE b gauge\nb{x=\"y\"z=\"1\"} 1\n"),
        with("# HELP b B\n# TYPE b gauge\nb{x=\"\\t\"} 1\n"),
        with("# HELP b B\n# TYPE b gauge\nb NaN\n"),
        with("# HELP b B\n# TYPE b gauge\nb 1"),
    ] {
        assert!(fails(&bad), "{bad}");
    }
}
