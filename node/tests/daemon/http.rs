//! What the API promises to clients of every kind: once is once, a page at a time, events that go on.
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{Daemon, code};

/// Sends a request with headers of its own and returns status and body.
fn ask(dir: &Path, method: &str, path: &str, headers: &str, body: &Value) -> (u16, Value) {
    let answer = raw(dir, method, path, headers, &body.to_string());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn raw(dir: &Path, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(dir.join("api.sock")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    // At once, and a refusal may come before all of it is read.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_request_with_a_key_is_done_once_also_across_a_kill() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("one");
    let daemon = Daemon::start(&dir, "one");
    daemon.found("findings");
    let key = "idempotency-key: 0d0f2c60\r\n";
    let body = json!({"kind": "fact", "title": "once"});
    let first = ask(&dir, "POST", "/v1/memory", key, &body);
    assert_eq!(first.0, 200, "{first:?}");
    let again = ask(&dir, "POST", "/v1/memory", key, &body);
    assert_eq!(again, first);
    let answer = raw(&dir, "POST", "/v1/memory", key, &body.to_string());
    assert!(answer.contains("idempotency-replayed: true"), "{answer}");
    let other = json!({"kind": "fact", "title": "twice"});
    let mismatch = ask(&dir, "POST", "/v1/memory", key, &other);
    assert_eq!((mismatch.0, code(&mismatch)), (422, "idempotency_mismatch"));
    let elsewhere = ask(&dir, "POST", "/v1/context/checkpoint", key, &body);
    assert_eq!(code(&elsewhere), "idempotency_mismatch");
    for bad in ["idempotency-key: \r\n", "idempotency-key: a b\r\n"] {
        let refused = ask(&dir, "POST", "/v1/memory", bad, &body);
        assert_eq!(code(&refused), "bad_idempotency_key", "{refused:?}");
    }
    // What a request is refused for is its answer too.
    let wrong = json!({"kind": "nonsense", "title": "x"});
    let key_of_wrong = "idempotency-key: wrong\r\n";
    let refused = ask(&dir, "POST", "/v1/memory", key_of_wrong, &wrong);
    assert_eq!((refused.0, code(&refused)), (400, "unknown_kind"));
    assert_eq!(
        ask(&dir, "POST", "/v1/memory", key_of_wrong, &wrong),
        refused
    );
    // A secret that is told once is told once.
    let token = json!({"name": "ci"});
    let made = ask(&dir, "POST", "/v1/tokens", "idempotency-key: t\r\n", &token);
    assert!(made.1["secret"].is_string(), "{made:?}");
    let told = ask(&dir, "POST", "/v1/tokens", "idempotency-key: t\r\n", &token);
    assert_eq!((told.0, code(&told)), (409, "idempotency_told"));
    let secret = made.1["secret"].as_str().unwrap();
    let log = std::fs::read_to_string(dir.join("idempotency.log")).unwrap();
    assert!(!log.contains(secret));
    daemon.kill();

    let daemon = Daemon::start(&dir, "one");
    assert_eq!(ask(&dir, "POST", "/v1/memory", key, &body), first);
    let memories = daemon.get("/v1/memory");
    assert_eq!(memories["memories"].as_array().unwrap().len(), 1);
}

#[test]
fn a_key_that_is_used_by_many_at_once_makes_one() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("one");
    let daemon = Daemon::start(&dir, "one");
    daemon.found("findings");
    let body = json!({"kind": "fact", "title": "once"});
    let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| ask(&dir, "POST", "/v1/memory", "idempotency-key: k\r\n", &body))
            })
            .collect();
        asking
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect()
    });
    let ids: std::collections::BTreeSet<_> = answers
        .iter()
        .filter(|answer| answer.0 == 200)
        .map(|answer| answer.1["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| answer.0 != 200) {
        assert_eq!((answer.0, code(answer)), (409, "idempotency_in_progress"));
    }
    let memories = daemon.get("/v1/memory");
    assert_eq!(memories["memories"].as_array().unwrap().len(), 1);
}

#[test]
fn listings_are_told_a_page_at_a_time_each_item_once() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&temp.path().join("one"), "one");
    daemon.found("findings");
    let publish = |number: usize| {
        let body = json!({"kind": "fact", "title": format!("fact {number}")});
        daemon.post("/v1/memory", body)
    };
    for number in 0..7 {
        publish(number);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/memory?limit=3".to_owned();
    let mut pages = 0;
    loop {
        let page = daemon.get(&path);
        let memories = page["memories"].as_array().unwrap();
        assert!(memories.len() <= 3);
        seen.extend(memories.iter().map(|memory| memory["title"].to_string()));
        pages += 1;
        // What comes in between moves nothing twice into view.
        publish(100 + pages);
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/memory?limit=3&cursor={next}");
    }
    let wanted: Vec<String> = (0..7).rev().map(|n| format!("\"fact {n}\"")).collect();
    assert_eq!(seen, wanted);

    for name in ["beta", "gamma", "delta"] {
        daemon.post("/v1/spaces", json!({"name": name}));
    }
    let all = daemon.get("/v1/spaces");
    assert_eq!(all["spaces"].as_array().unwrap().len(), 4);
    assert!(all.get("next").is_none());
    let mut seen = Vec::new();
    let mut path = "/v1/spaces?limit=1".to_owned();
    while seen.len() < 10 {
        let page = daemon.get(&path);
        seen.extend(page["spaces"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/spaces?limit=1&cursor={next}");
    }
    assert_eq!(json!(seen), all["spaces"]);
    for (path, status) in [
        ("/v1/spaces?limit=0", 400),
        ("/v1/spaces?limit=x", 400),
        ("/v1/spaces?cursor=nonsense", 400),
        ("/v1/memory?cursor=nonsense", 400),
        ("/v1/contexts?limit=5&space=findings", 200),
        ("/v1/sandboxes?limit=5&nonsense=1", 400),
        ("/v1/sandboxes?limit=5", 503),
    ] {
        let answer = daemon.ask("GET", path, None);
        assert_eq!(answer.0, status, "{path} {answer:?}");
    }
}

#[test]
fn events_go_on_where_a_client_lost_them() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("one");
    let daemon = Daemon::start(&dir, "one");
    daemon.found("findings");
    for number in 0..3 {
        let body = json!({"kind": "fact", "title": format!("fact {number}")});
        daemon.post("/v1/memory", body);
    }
    let open = |headers: &str| {
        let mut stream = UnixStream::connect(dir.join("api.sock")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let accept = "accept: text/event-stream";
        write!(
            stream,
            "GET /v1/watch HTTP/1.1\r\nhost: node\r\n{accept}\r\n{headers}\r\n"
        )
        .unwrap();
        BufReader::new(stream)
    };
    // The lines of events stand in chunks, whose sizes are skipped here.
    let next = |reader: &mut BufReader<UnixStream>| {
        let mut id = None;
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ended");
            if let Some(given) = line.strip_prefix("id: ") {
                id = given.trim().parse::<u64>().ok();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(data).unwrap();
                assert_eq!(event["arrival"].as_u64(), id);
                return (id.unwrap(), event["title"].as_str().unwrap().to_owned());
            }
        }
    };
    let mut stream = open("");
    let (_, first) = next(&mut stream);
    let (second_id, second) = next(&mut stream);
    assert_eq!([&first[..], &second], ["fact 0", "fact 1"]);
    drop(stream);
    let mut stream = open(&format!("last-event-id: {second_id}\r\n"));
    assert_eq!(next(&mut stream).1, "fact 2");
    daemon.post("/v1/memory", json!({"kind": "fact", "title": "fresh"}));
    assert_eq!(next(&mut stream).1, "fresh");
    let refused = raw(
        &dir,
        "GET",
        "/v1/watch",
        "accept: text/event-stream\r\nlast-event-id: x\r\n",
        "",
    );
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
}
