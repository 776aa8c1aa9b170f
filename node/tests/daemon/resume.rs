//! Sandboxes that outlive their host: asleep on one node, awake on another.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{
    hosts::Lan,
    remote::{done, meshed},
    sandbox::{qemu_is_missing, run},
    support::{Daemon, code},
};

/// Counts in memory, ten times a second, and writes down where it is.
pub(crate) const COUNTER: &str = "cd /root; echo uncommitted > notes; echo 1000 > count; \
    (setsid sh -c 'n=1000; while :; do n=$((n+1)); echo $n > next; mv next count; sleep 0.1; done' \
    > /dev/null 2>&1 < /dev/null &)";

pub(crate) fn out(daemon: &Daemon, script: &str) -> String {
    let (out, err, end) = run(daemon, &["sh", "-c", script]);
    assert_eq!((err.as_str(), &end), ("", &json!({"code": 0})), "{script}");
    out.trim().to_owned()
}

pub(crate) fn count(daemon: &Daemon) -> u64 {
    out(daemon, "cat /root/count").parse().unwrap()
}

/// Waits until `daemon` knows a record of the sandbox that says `state`.
pub(crate) fn knows(daemon: &Daemon, state: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let known = daemon.get("/v1/memory?kind=snapshot");
        let mut records = known["memories"].as_array().unwrap().iter();
        // Beside the record lie what nodes say of leases and copies.
        let record = records.find(|one| one["fields"]["sandbox"].is_string());
        if let Some(record) = record.filter(|record| record["fields"]["state"] == state) {
            return record.clone();
        }
        assert!(Instant::now() < deadline, "no record says {state}: {known}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sandbox_wakes_on_another_node_when_its_own_is_gone() {
    if qemu_is_missing("a_sandbox_wakes_on_another_node_when_its_own_is_gone") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| Daemon::start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud, edge] = meshed(["laptop", "cloud", "edge"].map(start));

    laptop.post(
        "/v1/agents",
        json!({"name": "mender", "spaces": ["findings"]}),
    );
    let wanted = json!({"name": "bench", "agent": "mender", "spaces": ["findings"], "labels": {"team": "blue"}});
    let made = done(&laptop, "/v1/sandboxes", wanted);
    out(&laptop, COUNTER);
    let before = count(&laptop);
    let slept = done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 1}),
    );
    let holders = slept["kept"]["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 1, "{slept}");
    for daemon in [&cloud, &edge] {
        let record = knows(daemon, "asleep");
        assert_eq!(record["fields"]["manifest"], slept["id"]);
        assert_eq!(record["fields"]["name"], "bench");
    }
    // A record is no memory: whoever looks for findings does not meet it.
    assert_eq!(cloud.get("/v1/memory")["memories"], json!([]));

    laptop.kill();
    std::fs::remove_dir_all(temp.path().join("laptop")).unwrap();

    // The one that does not hold it fetches it from the one that does.
    let (holder, other) = match holders[0]["name"].as_str() {
        Some("cloud") => (&cloud, &edge),
        _ => (&edge, &cloud),
    };
    let woken = done(other, "/v1/resume", json!({"what": "bench"}));
    assert_eq!(
        (&woken["state"], &woken["id"]),
        (&json!("ready"), &made["id"])
    );
    assert!(woken["fetched_bytes"].as_u64().unwrap() > 0, "{woken}");
    assert_eq!(woken["labels"]["team"], "blue");

    // It goes on where it was: memory, files, and a clock that is right.
    let after = count(other);
    assert!(after >= before, "{after} after {before}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while count(other) <= after {
        assert!(Instant::now() < deadline, "the program does not go on");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(out(other, "cat /root/notes"), "uncommitted");
    let guest: u64 = out(other, "date +%s").parse().unwrap();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(
        now.abs_diff(guest) <= 2,
        "the guest says {guest}, it is {now}"
    );

    // Its door is this node's: it speaks as an agent whose key is here.
    assert_eq!(woken["agent"]["name"], "mender-of-laptop");
    assert!(
        woken["notes"].to_string().contains("mender-of-laptop"),
        "{woken}"
    );
    let said = out(other, "wget -qO- http://127.0.0.1:4580/v1/self");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["agent"]["name"], "mender-of-laptop", "{said}");

    // Nobody else wakes it again.
    knows(holder, "awake");
    let again = last(holder, json!({"what": "bench"}));
    assert_eq!(again["error"]["code"], "runs_elsewhere", "{again}");
    // And it sleeps again, and comes to the other one.
    done(other, "/v1/sandboxes/bench/hibernate", json!({}));
    knows(holder, "asleep");
    let there = if std::ptr::eq(other, &cloud) {
        "edge"
    } else {
        "cloud"
    };
    let woken = done(other, "/v1/resume", json!({"what": "bench", "on": there}));
    assert_eq!(woken["node"]["name"], there, "{woken}");
    assert!(count(holder) > after);
    let gone = holder.ask("DELETE", "/v1/sandboxes/bench", None);
    assert_eq!(gone.0, 200, "{gone:?}");
    knows(other, "ended");
    let ended = last(other, json!({"what": "bench"}));
    assert_eq!(ended["error"]["code"], "sandbox_gone", "{ended}");
    let unknown = last(other, json!({"what": "nothing"}));
    assert_eq!(unknown["error"]["code"], "unknown_sandbox", "{unknown}");
    let foreign = other.ask(
        "POST",
        "/v1/memory",
        Some(json!({"kind": "snapshot", "title": "x"})),
    );
    assert_eq!((foreign.0, code(&foreign)), (403, "denied"), "{foreign:?}");
}

/// Asks to wake something and returns the last line of the answer.
fn last(daemon: &Daemon, body: Value) -> Value {
    let answer = daemon.client().ask_bytes("POST", "/v1/resume", Some(body));
    let (_, bytes) = answer.expect("the daemon answers");
    let text = String::from_utf8(bytes).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Waits until `daemon` has lost sight of a node.
fn misses(daemon: &Daemon, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let peers = daemon.get("/v1/peers");
        let mut peers = peers["peers"].as_array().unwrap().iter();
        if peers.any(|peer| peer["name"] == name && peer["state"] == "gone") {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is still there");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn one_of_two_wakes_it_while_they_can_talk_and_a_partition_shows_as_a_fork() {
    if qemu_is_missing("one_of_two_wakes_it_while_they_can_talk") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let lan = Lan::of(&["laptop", "cloud", "edge"]);
    let start = |name: &str| lan.start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud, edge] = meshed(["laptop", "cloud", "edge"].map(start));
    done(
        &laptop,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    out(&laptop, "echo kept > /root/file");
    let slept = done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 2}),
    );
    assert_eq!(
        slept["kept"]["holders"].as_array().unwrap().len(),
        2,
        "{slept}"
    );
    for daemon in [&cloud, &edge] {
        knows(daemon, "asleep");
    }

    // All three ask at once, the one it slept on too.
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asking = [&laptop, &cloud, &edge]
            .map(|daemon| scope.spawn(|| last(daemon, json!({"what": "bench"}))));
        asking.map(|asked| asked.join().unwrap()).into()
    });
    let woke: Vec<_> = answers
        .iter()
        .filter(|answer| answer["done"].is_object())
        .collect();
    assert_eq!(woke.len(), 1, "{answers:?}");
    let refused = answers.iter().filter(|answer| answer["error"].is_object());
    for refused in refused {
        assert_eq!(refused["error"]["code"], "runs_elsewhere", "{refused}");
    }
    let at = woke[0]["done"]["node"]["name"].clone();
    let all = [("laptop", &laptop), ("cloud", &cloud), ("edge", &edge)];
    let runner = all.iter().find(|(name, _)| at == *name).unwrap().1;
    assert_eq!(out(runner, "cat /root/file"), "kept");
    done(
        runner,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 2}),
    );
    for (_, daemon) in &all {
        knows(daemon, "asleep");
    }

    // Cut off from each other, both wake it; nothing is lost, and both versions are there for all.
    if let Err(why) = lan.can_cut() {
        eprintln!("skipped: a fork by a partition: {why}");
        return;
    }
    laptop.kill();
    lan.cut("cloud", "edge");
    misses(&cloud, "edge");
    misses(&edge, "cloud");
    done(&cloud, "/v1/resume", json!({"what": "bench"}));
    out(&cloud, "echo cloud > /root/file");
    let woken = last(&edge, json!({"what": "bench"}));
    assert!(woken["done"].is_object(), "{woken}");
    out(&edge, "echo edge > /root/file");
    lan.heal("cloud", "edge");
    let forked = |daemon: &Daemon| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let known = daemon.get("/v1/memory?kind=snapshot");
            let mut records = known["memories"].as_array().unwrap().iter();
            let record = records.find(|one| one["fields"]["sandbox"].is_string());
            let record = record.expect("the record is there");
            if record["conflicts"]
                .as_array()
                .is_some_and(|others| !others.is_empty())
            {
                let mut runners = vec![record["fields"]["runner"].clone()];
                runners.push(record["conflicts"][0]["fields"]["runner"].clone());
                runners.sort_by_key(Value::to_string);
                return runners;
            }
            assert!(Instant::now() < deadline, "no fork is shown: {known}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let runners = forked(&cloud);
    assert_eq!(runners, forked(&edge));
    assert_ne!(runners[0], runners[1]);
    assert_eq!(out(&cloud, "cat /root/file"), "cloud");
    assert_eq!(out(&edge, "cat /root/file"), "edge");
}
