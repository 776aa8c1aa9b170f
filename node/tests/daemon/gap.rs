//! Sandboxes that sleep until something happens, on real daemons: they wake, once, where a copy is;
//! and copies that are lost are made again.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    hosts::Lan,
    remote::{done, meshed},
    resume::{COUNTER, count, knows, out},
    sandbox::{Exec, qemu_is_missing},
    support::{Daemon, code, command},
};

/// How long something that is bound to happen may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `look` sees something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the sandbox as a daemon lists it among its own.
fn listed(daemon: &Daemon) -> Option<Value> {
    let all = daemon.get("/v1/sandboxes");
    let mut all = all["sandboxes"].as_array().unwrap().iter();
    all.find(|one| one["name"] == "bench").cloned()
}

fn is_ready(daemon: &Daemon) -> bool {
    listed(daemon).is_some_and(|sandbox| sandbox["state"] == "ready")
}

/// Returns what the guest was told of why it woke, once it was.
fn told(daemon: &Daemon, why: &str) -> Value {
    let text = until("nobody told the guest", || {
        let text = out(daemon, "cat /run/rhizome/wake.json 2>/dev/null || true");
        text.contains(&format!(r#""why":"{why}""#)).then_some(text)
    });
    serde_json::from_str(&text).unwrap()
}

fn publish(daemon: &Daemon, title: &str) -> Value {
    daemon.post(
        "/v1/memory",
        json!({"kind": "fact", "title": title, "text": ""}),
    )
}

#[test]
fn of_two_that_hold_it_one_wakes_it_when_its_time_comes_and_its_host_is_gone() {
    if qemu_is_missing("of_two_that_hold_it_one_wakes_it_when_its_time_comes") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| Daemon::start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud, edge] = meshed(["laptop", "cloud", "edge"].map(start));
    done(
        &laptop,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    out(&laptop, COUNTER);
    let before = count(&laptop);
    // Long enough to put it to sleep, to copy it and to kill its host.
    let asked = Instant::now();
    let slept = done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 2, "wake_on": ["time=75s"]}),
    );
    assert_eq!(slept["wake_on"][0]["on"], "time", "{slept}");
    let at_ms = slept["wake_on"][0]["at_ms"].as_u64().unwrap();
    for daemon in [&cloud, &edge] {
        knows(daemon, "asleep");
    }
    laptop.kill();
    std::fs::remove_dir_all(temp.path().join("laptop")).unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(70),
        "this machine is too slow for this test"
    );

    // Whoever looks sees that it sleeps, until when, and that both hold it.
    for daemon in [&cloud, &edge] {
        let shown = daemon.get("/v1/sandboxes/bench");
        assert_eq!(shown["state"], "hibernated", "{shown}");
        assert_eq!(shown["wake_on"], json!([{"on": "time", "at_ms": at_ms}]));
        assert_eq!(shown["copies"]["wanted"], 2);
        assert_eq!(shown["copies"]["connected"], 2, "{shown}");
        let all = daemon.get("/v1/sandboxes?all=1");
        assert_eq!(all["sandboxes"][0]["name"], "bench", "{all}");
        assert!(listed(daemon).is_none());
    }

    let records = [&cloud, &edge].map(|daemon| {
        until("nobody woke it", || {
            let shown = daemon.get("/v1/sandboxes?all=1");
            let mut all = shown["sandboxes"].as_array().unwrap().iter();
            all.find(|one| one["state"] == "ready").cloned()
        });
        knows(daemon, "awake")
    });
    assert_eq!(records[0]["id"], records[1]["id"], "{records:?}");
    assert_eq!(records[0]["conflicts"], Value::Null, "{records:?}");
    let now_ms = u64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap();
    assert!(now_ms >= at_ms, "{now_ms} is before {at_ms}");
    let (runner, other) = match is_ready(&cloud) {
        true => (&cloud, &edge),
        false => (&edge, &cloud),
    };
    assert!(is_ready(runner) && listed(other).is_none());
    assert!(count(runner) >= before);
    let said = told(runner, "time");
    assert_eq!(said["at_ms"], at_ms, "{said}");
    let shown = runner.get("/v1/sandboxes/bench");
    assert_eq!(shown["woken_by"], json!({"why": "time", "at_ms": at_ms}));
    let audit = runner.get("/v1/audit").to_string();
    assert!(audit.contains("sandbox.wake"), "{audit}");
    // Well after the other would have been next in line, nothing has changed.
    std::thread::sleep(Duration::from_secs(8));
    assert!(listed(other).is_none());
    assert_eq!(knows(other, "awake")["conflicts"], Value::Null);
}

#[test]
fn a_webhook_or_a_memory_wakes_it_and_where_it_slept_that_shows() {
    if qemu_is_missing("a_webhook_or_a_memory_wakes_it") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| Daemon::start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud] = meshed(["laptop", "cloud"].map(start));
    done(
        &laptop,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    let hibernate = "/v1/sandboxes/bench/hibernate";

    // What cannot be waited for is refused while it is awake.
    for (wake_on, expected) in [
        ("rain", "bad_wake_on"),
        ("time=yesterday", "bad_wake_on"),
        ("time=2001-01-01T00:00:00Z", "bad_wake_on"),
        ("memory=", "bad_wake_on"),
    ] {
        let body = json!({"wake_on": [wake_on]});
        let (_, bytes) = laptop
            .client()
            .ask_bytes("POST", hibernate, Some(body))
            .unwrap();
        let refused: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(refused["error"]["code"], expected, "{wake_on}: {refused}");
        assert!(refused["error"]["hint"].is_string(), "{refused}");
    }
    assert!(is_ready(&laptop));

    let slept = done(
        &laptop,
        hibernate,
        json!({"replicas": 1, "wake_on": ["webhook", "memory=build green"]}),
    );
    let webhook = slept["webhook"].as_str().unwrap().to_owned();
    let record = knows(&cloud, "asleep").to_string();
    let token = webhook.strip_prefix("/v1/wake/").unwrap();
    assert!(
        !record.contains(token),
        "the record does not tell the token"
    );
    for wrong in ["00", &"0".repeat(64), &token.to_uppercase()] {
        let refused = cloud.ask("POST", &format!("/v1/wake/{wrong}"), None);
        assert_eq!(
            (refused.0, code(&refused)),
            (404, "unknown_webhook"),
            "{refused:?}"
        );
    }
    let large = json!("x".repeat(300_000));
    let refused = cloud.ask("POST", &webhook, Some(large));
    assert_eq!(
        (refused.0, code(&refused)),
        (413, "too_large"),
        "{refused:?}"
    );
    let woken = cloud.post(&webhook, json!({"ref": "main"}));
    assert_eq!(woken["node"]["name"], "cloud", "{woken}");
    assert_eq!(
        out(&cloud, "cat /run/rhizome/wake.body"),
        r#"{"ref":"main"}"#
    );
    assert_eq!(told(&cloud, "webhook")["bytes"], 14);
    let spent = cloud.ask("POST", &webhook, None);
    assert_eq!(
        (spent.0, code(&spent)),
        (404, "unknown_webhook"),
        "{spent:?}"
    );

    // A client that stands still for longer than an idle connection may holds up its command alone.
    let body = json!({"argv": ["head", "-c", "33554432", "/dev/zero"]});
    let path = "/v1/on/cloud/v1/sandboxes/bench/exec";
    let mut paused = Exec::start_at(&laptop, path, &body).expect("it starts");
    std::thread::sleep(Duration::from_secs(33));
    let mut bytes = 0;
    let end = loop {
        match paused.receive() {
            (16, output) => bytes += output.len(),
            (kind, end) => break (kind, end),
        }
    };
    assert_eq!(end, (18, br#"{"code":0}"#.to_vec()));
    assert_eq!(bytes, 33_554_432);

    // Where it slept it is not said to sleep any more.
    let stale = until("the list is never corrected", || {
        listed(&laptop).filter(|sandbox| sandbox["state"] == "elsewhere")
    });
    assert!(
        stale["reason"].as_str().unwrap().contains("cloud"),
        "{stale}"
    );
    let all = laptop.get("/v1/sandboxes?all=1");
    let all = all["sandboxes"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["node"]["name"], "cloud");

    // A memory: only one that is published later, and has every word.
    publish(&laptop, "The build is green, as it was before");
    let slept = done(
        &cloud,
        hibernate,
        json!({"replicas": 1, "wake_on": ["memory=build green"]}),
    );
    assert_eq!(
        slept["wake_on"],
        json!([{"on": "memory", "query": "build green"}])
    );
    knows(&laptop, "asleep");
    publish(&laptop, "The build is red");
    std::thread::sleep(Duration::from_secs(3));
    knows(&laptop, "asleep");
    let green = publish(&laptop, "Builds are green again");
    let runner = until("no memory woke it", || {
        [&laptop, &cloud]
            .into_iter()
            .find(|daemon| is_ready(daemon))
    });
    let record = knows(runner, "awake");
    let cause: Value =
        serde_json::from_str(record["fields"]["woken_by"].as_str().unwrap()).unwrap();
    assert_eq!(cause["fragment"], green["id"], "{cause}");
    let said = told(runner, "memory");
    assert_eq!(
        (&said["fragment"], &said["doc"]),
        (&green["id"], &green["doc"])
    );
    for daemon in [&laptop, &cloud] {
        assert_eq!(knows(daemon, "awake")["id"], record["id"]);
    }

    // What it waits for can be changed, and forgotten, from any node.
    done(
        runner,
        hibernate,
        json!({"replicas": 1, "wake_on": ["time=1h"]}),
    );
    for daemon in [&laptop, &cloud] {
        knows(daemon, "asleep");
    }
    let other = if std::ptr::eq(runner, &laptop) {
        &cloud
    } else {
        &laptop
    };
    let set = other.post(
        "/v1/wake-on",
        json!({"what": "bench", "wake_on": ["memory=x1", "webhook"]}),
    );
    assert!(set["webhook"].is_string(), "{set}");
    let shown = until("the change is never seen", || {
        let shown = runner.get("/v1/wake-on?what=bench");
        (shown["wake_on"][0]["on"] == "memory").then_some(shown)
    });
    assert_eq!(shown["webhook"], Value::Null, "it is told once");
    let cancelled = other.post("/v1/wake-on", json!({"what": "bench", "wake_on": []}));
    assert_eq!(cancelled["wake_on"], json!([]));
}

#[test]
fn a_partition_wakes_it_on_both_sides_and_both_are_there_for_all() {
    if qemu_is_missing("a_partition_wakes_it_on_both_sides") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let lan = Lan::of(&["laptop", "cloud", "edge"]);
    if let Err(why) = lan.can_cut() {
        eprintln!("skipped a_partition_wakes_it_on_both_sides: {why}");
        return;
    }
    let start = |name: &str| lan.start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud, edge] = meshed(["laptop", "cloud", "edge"].map(start));
    done(
        &laptop,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    out(&laptop, "echo kept > /root/file");
    done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 2}),
    );
    for daemon in [&cloud, &edge] {
        knows(daemon, "asleep");
    }
    laptop.kill();
    // Said once the host is gone, from another node; heard by all before the cut.
    cloud.post(
        "/v1/wake-on",
        json!({"what": "bench", "wake_on": ["time=30s"]}),
    );
    until("edge never hears when it is to wake", || {
        let shown = edge.get("/v1/wake-on?what=bench");
        (shown["wake_on"][0]["on"] == "time").then_some(())
    });
    lan.cut("cloud", "edge");
    for daemon in [&cloud, &edge] {
        until("one side sleeps on", || is_ready(daemon).then_some(()));
        assert_eq!(out(daemon, "cat /root/file"), "kept");
    }
    out(&cloud, "echo cloud > /root/file");
    out(&edge, "echo edge > /root/file");
    lan.heal("cloud", "edge");
    for daemon in [&cloud, &edge] {
        until("no fork is shown", || {
            let record = knows(daemon, "awake");
            let fork = record["conflicts"][0]["fields"]["runner"].clone();
            (fork.is_string() && fork != record["fields"]["runner"]).then_some(())
        });
    }
    assert_eq!(out(&cloud, "cat /root/file"), "cloud");
    assert_eq!(out(&edge, "cat /root/file"), "edge");
}

#[test]
fn a_copy_that_is_lost_is_made_again_elsewhere() {
    if qemu_is_missing("a_copy_that_is_lost_is_made_again_elsewhere") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let dir = temp.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), r#"{"replica_grace_secs": 3}"#).unwrap();
        let mut up = command(&dir, name);
        up.arg("--images-dir")
            .arg(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"));
        Daemon::spawn(up, &dir)
    };
    let [laptop, cloud, edge] = meshed(["laptop", "cloud", "edge"].map(start));
    done(
        &laptop,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    let slept = done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 1}),
    );
    let holder = slept["kept"]["holders"][0]["name"].as_str().unwrap();
    let (lost, left) = match holder {
        "cloud" => (cloud, edge),
        _ => (edge, cloud),
    };
    let name_of = |daemon: &Daemon| daemon.get("/v1/status")["node"]["name"].clone();
    let left_name = name_of(&left);
    lost.kill();
    let shown = until("no copy is made again", || {
        let shown = laptop.get("/v1/sandboxes/bench");
        let holders = shown["copies"]["holders"].as_array().unwrap().clone();
        let is_there = holders.iter().any(|holder| holder["name"] == left_name);
        is_there.then_some(shown)
    });
    assert_eq!(shown["copies"]["wanted"], 1);
    assert_eq!(shown["copies"]["connected"], 1, "{shown}");
    let facts = left.get("/v1/nodes")["nodes"][0]["facts"].clone();
    assert_eq!(facts["snapshots"], json!([slept["id"]]), "{facts}");
    // It is whole: it wakes there when the other two are gone.
    laptop.kill();
    let woken = done(&left, "/v1/resume", json!({"what": "bench"}));
    assert_eq!(
        (&woken["state"], &woken["fetched_bytes"]),
        (&json!("ready"), &json!(0))
    );
}
