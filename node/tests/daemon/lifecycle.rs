//! A sandbox behind the API through daemons that die, pauses, sleeps and leases: one boot.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    sandbox::{Exec, qemu_is_missing, run},
    support::{Daemon, code},
};

fn start(dir: &std::path::Path) -> Daemon {
    Daemon::start_with_sandboxes(dir, "laptop")
}

/// Posts and returns the last line of progress.
fn work(daemon: &Daemon, path: &str, body: Value) -> Value {
    let last = last(daemon, path, body);
    assert!(last["done"].is_object(), "{last}");
    last["done"].clone()
}

fn last(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, lines) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, 200, "{lines}");
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

fn out(daemon: &Daemon, script: &str) -> String {
    let (out, err, end) = run(daemon, &["sh", "-c", script]);
    assert_eq!((err.as_str(), &end), ("", &json!({"code": 0})), "{script}");
    out.trim().to_owned()
}

fn state(daemon: &Daemon) -> Value {
    daemon.get("/v1/sandboxes/bench")["state"].clone()
}

/// Waits until the audit log says that the daemon did something, and that it went well.
fn is_noted(daemon: &Daemon, action: &str, on: &Value) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let log = daemon.get("/v1/audit");
        let mut entries = log["entries"].as_array().unwrap().iter();
        if entries.any(|e| {
            e["action"] == action
                && e["on"] == *on
                && e["outcome"] == "ok"
                && e["who"]["kind"] == "daemon"
        }) {
            return;
        }
        assert!(Instant::now() < deadline, "no {action} in {log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn becomes(daemon: &Daemon, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(daemon) != wanted {
        assert!(Instant::now() < deadline, "it is {}", state(daemon));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn refused(daemon: &Daemon) -> (u16, String) {
    let refused = Exec::start(daemon, &json!({"argv": ["true"]}))
        .err()
        .unwrap();
    (refused.0, code(&refused).to_owned())
}

#[test]
fn a_sandbox_outlives_what_happens_to_its_daemon() {
    if qemu_is_missing("a_sandbox_outlives_what_happens_to_its_daemon") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = start(&dir);
    daemon.found("findings");
    let create = json!({"name": "bench", "lease": {"for_ms": 3_600_000, "then": "kill"}});
    let made = work(&daemon, "/v1/sandboxes", create);
    assert_eq!(made["lease"]["then"], "kill");
    out(&daemon, "echo kept > /root/file; mkdir /run/mark");

    // SIGKILL of the daemon: the sandbox is listed, commands work, nothing was booted again.
    let uptime = |daemon: &Daemon| -> f64 {
        let said = out(daemon, "cut -d' ' -f1 /proc/uptime");
        said.parse().unwrap()
    };
    let before = uptime(&daemon);
    let guests = daemon.crash();
    let daemon = start(&dir);
    std::mem::forget(guests);
    assert_eq!(
        out(&daemon, "cat /root/file; ls /run | grep mark"),
        "kept\nmark"
    );
    assert!(uptime(&daemon) >= before);
    assert_eq!(daemon.get("/v1/sandboxes/bench")["id"], made["id"]);
    assert_eq!(daemon.get("/v1/sandboxes/bench/health")["answers"], true);

    // Paused: whoever connects is told so, also after the daemon came and went.
    let paused = daemon.post("/v1/sandboxes/bench/pause", json!({}));
    assert_eq!(paused["state"], "paused");
    assert_eq!(refused(&daemon), (409, "paused".into()));
    daemon.stop_and("keep");
    let daemon = start(&dir);
    assert_eq!(state(&daemon), "paused");
    let going = work(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    assert_eq!(going["state"], "ready");
    assert_eq!(out(&daemon, "cat /root/file"), "kept");

    // A lease that ends puts it to sleep, with what was written a moment before and not synced.
    out(&daemon, "echo unsynced > /root/late");
    let lease = json!({"for_ms": 300, "then": "hibernate"});
    daemon.post("/v1/sandboxes/bench/lease", lease);
    becomes(&daemon, "hibernated");
    is_noted(&daemon, "lease.ended", &made["id"]);
    assert_eq!(refused(&daemon), (409, "hibernated".into()));
    let snapshots = daemon.get("/v1/snapshots");
    assert_eq!(snapshots["snapshots"][0]["asleep"], true, "{snapshots}");
    let guests = daemon.crash();
    let daemon = start(&dir);
    std::mem::forget(guests);
    assert_eq!(state(&daemon), "hibernated");
    work(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    assert_eq!(
        out(&daemon, "cat /root/late; ls /run | grep mark"),
        "unsynced\nmark"
    );

    // A snapshot that is forgotten and comes back from a file; a damaged file is told apart.
    let taken = work(&daemon, "/v1/sandboxes/bench/snapshot", json!({}));
    let id = taken["id"].as_str().unwrap();
    let file = temp.path().join("bench.rzsnap");
    let path = json!({"path": file});
    let written = work(&daemon, &format!("/v1/snapshots/{id}/export"), path.clone());
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(written["bytes"], bytes.len());
    let gone = daemon.ask("DELETE", &format!("/v1/snapshots/{id}"), None);
    assert_eq!(gone.0, 200, "{gone:?}");
    let damaged = temp.path().join("damaged");
    let mut flipped = bytes;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&damaged, flipped).unwrap();
    for (path, wanted) in [
        (json!(damaged), "bad_snapshot"),
        (json!("bench.rzsnap"), "bad_request"),
        (json!(temp.path().join("none")), "bad_path"),
    ] {
        let refused = last(&daemon, "/v1/snapshots/import", json!({"path": path}));
        assert_eq!(refused["error"]["code"], wanted, "{refused}");
    }
    assert_eq!(
        daemon.ask("GET", &format!("/v1/snapshots/{id}"), None).0,
        404
    );
    let imported = work(&daemon, "/v1/snapshots/import", path);
    assert_eq!(imported["id"], taken["id"]);

    // A copy of it; the copy goes, the snapshot is forgotten.
    let restore = json!({"as_new": true, "name": "twin"});
    let twin = work(&daemon, &format!("/v1/snapshots/{id}/restore"), restore);
    assert_eq!(
        (&twin["state"], &twin["parent"]),
        (&json!("ready"), &made["id"])
    );
    assert_eq!(daemon.ask("DELETE", "/v1/sandboxes/twin", None).0, 200);
    let held = snapshots["snapshots"][0]["id"].as_str().unwrap();
    assert_eq!(
        daemon
            .ask("DELETE", &format!("/v1/snapshots/{held}"), None)
            .0,
        400
    );
    assert_eq!(
        daemon.ask("DELETE", &format!("/v1/snapshots/{id}"), None).0,
        200
    );

    // A monitor that is killed: what was in memory is gone, and that is what is said.
    let state_file = std::fs::read(dir.join(format!(
        "sandboxes/{}/state.json",
        made["id"].as_str().unwrap()
    )));
    let record: Value = serde_json::from_slice(&state_file.unwrap()).unwrap();
    let pid = record["monitor"]["pid"].to_string();
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
    assert!(killed.unwrap().success());
    becomes(&daemon, "lost");
    assert_eq!(refused(&daemon), (410, "state_lost".into()));
    let mended = daemon.post("/v1/doctor/fix", json!({}));
    assert_eq!(mended["left"], json!([]));
    daemon.stop();
}
