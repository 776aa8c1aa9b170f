//! Guests that wait for a sandbox, behind the API, and what a killed daemon leaves of them.
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    sandbox::{qemu_is_missing, run},
    support::{self, Daemon, code},
};

fn start(dir: &Path, pool: &str) -> Daemon {
    let mut command = support::command(dir, "laptop");
    command
        .args(["--pool", pool, "--images-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"));
    Daemon::spawn(command, dir)
}

/// Posts and returns the last line of progress.
fn work(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, lines) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, 200, "{lines}");
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

/// Counts the monitors of guests that are to wait.
fn booting(dir: &Path) -> usize {
    let pool = dir.canonicalize().unwrap().join("sandboxes/pool");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let works_there = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&pool))
    };
    processes.filter(works_there).count()
}

#[test]
fn a_sandbox_is_made_from_a_guest_that_waits_and_nothing_outlives_the_daemon() {
    let name = "a_sandbox_is_made_from_a_guest_that_waits_and_nothing_outlives_the_daemon";
    if qemu_is_missing(name) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("node");
    let daemon = start(&dir, "0");
    let refused = work(&daemon, "/v1/pool", json!({}));
    assert_eq!(refused["error"]["code"], "bad_request", "{refused}");
    daemon.stop();

    let daemon = start(&dir, "2");
    let warm = work(&daemon, "/v1/pool", json!({}));
    assert_eq!(warm["done"]["guests"][0]["taken"], 0, "{warm}");
    assert_eq!(booting(&dir), 0, "what waits has no monitor");
    let summary = daemon.get("/v1/status")["sandboxes"].clone();
    assert_eq!(
        (&summary["waiting"], &summary["total"]),
        (&json!(1), &json!(0))
    );
    assert!(summary["waiting_bytes"].as_u64().unwrap() > 1 << 20);
    let unknown = daemon.ask("POST", "/v1/pool", Some(json!({"colour": "red"})));
    assert_eq!((unknown.0, code(&unknown)), (400, "bad_request"));

    let made = work(&daemon, "/v1/sandboxes", json!({"name": "bench"}));
    assert_eq!(made["done"]["name"], "bench", "{made}");
    let (out, err, _) = run(&daemon, &["hostname"]);
    assert_eq!(out, "bench\n", "{err}");
    let pool = daemon.get("/v1/pool");
    assert_eq!(pool["guests"][0]["taken"], 1, "{pool}");
    assert_eq!(pool["guests"][0]["memory_mib"], 256);
    let drained = daemon.ask("DELETE", "/v1/pool", None).1;
    assert_eq!(drained["drained"], 1);
    // The sandbox goes on without what it was made from.
    assert_eq!(run(&daemon, &["hostname"]).0, "bench\n");
    let log = daemon.get("/v1/audit");
    let mut entries = log["entries"].as_array().unwrap().iter();
    assert!(entries.any(|entry| entry["action"] == "pool.create"));

    // Killed while one boots: the one process that is left goes as sandboxes do.
    let asked = std::thread::spawn({
        let mut client = daemon.client();
        move || drop(client.ask_bytes("POST", "/v1/pool", Some(json!({}))))
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while booting(&dir) == 0 {
        assert!(Instant::now() < deadline, "nothing boots");
        std::thread::sleep(Duration::from_millis(20));
    }
    let guests = daemon.crash();
    asked.join().unwrap();
    drop(guests);
    assert_eq!(booting(&dir), 0);
    assert!(!dir.join("sandboxes/pool").exists());
}
