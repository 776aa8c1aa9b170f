//! What keeps volumes small, counted and reachable: repacking, quotas, who holds what, and volumes in
//! sandboxes of other nodes.
use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    remote::{done, join, meshed, sees},
    resume::out,
    sandbox::qemu_is_missing,
    support::{Daemon, code},
    volume::noise,
};

/// Sends a request whose answer tells of its progress, and returns the error at its end.
fn refused(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (_, bytes) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(last["error"].is_object(), "{last}");
    last["error"].clone()
}

/// Makes `daemon` hold a version like the one before, but for one large file.
fn import(daemon: &Daemon, from: &Path, n: u64) -> Value {
    fs::write(from.join("other"), noise(101 + 2 * n, 4 << 20)).unwrap();
    done(daemon, "/v1/volumes/work/import", json!({"path": from}))["version"].clone()
}

fn create(daemon: &Daemon, from: &Path) -> Value {
    fs::create_dir_all(from).unwrap();
    fs::write(from.join("same"), noise(7, 1 << 20)).unwrap();
    fs::write(from.join("other"), noise(99, 4 << 20)).unwrap();
    let body = json!({"name": "work", "from": from});
    done(daemon, "/v1/volumes", body)["volume"].clone()
}

/// Exports a version and looks whether it is what it was.
fn is_whole(daemon: &Daemon, version: &Value, n: u64, to: &Path) {
    let body = json!({"version": version["id"], "path": to});
    let exported = done(daemon, "/v1/volumes/work/export", body);
    assert_eq!(exported["version"]["tree"], version["tree"]);
    assert!(fs::read(to.join("same")).unwrap() == noise(7, 1 << 20));
    assert!(fs::read(to.join("other")).unwrap() == noise(101 + 2 * n, 4 << 20));
    fs::remove_dir_all(to).unwrap();
}

/// Bytes that the pins of versions name, each pack once.
fn pinned(daemon: &Daemon) -> u64 {
    let usage = daemon.get("/v1/usage?by=space");
    usage["usage"][0]["disk_bytes"].as_u64().unwrap()
}

#[test]
fn repacked_versions_are_whole_on_every_node_and_take_less_room() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let start = |name: &str| Daemon::start_with_sandboxes(&at(name), name);
    let [laptop, edge] = meshed(["laptop", "edge"].map(start));
    create(&laptop, &at("from"));
    let versions: Vec<Value> = (0..5).map(|n| import(&laptop, &at("from"), n)).collect();
    let before = [&laptop, &edge].map(pinned);
    assert!(before.iter().all(|bytes| *bytes > 20 << 20), "{before:?}");
    // The pack of `same` holds the first `other` too, which nobody needs then.
    laptop.post("/v1/volumes/work/forget", json!({"keep": 2}));

    let path = "/v1/volumes/work/repack";
    let would = done(&laptop, path, json!({"dry_run": true}));
    let did = done(&laptop, path, json!({}));
    for field in ["packs", "bytes", "live_bytes"] {
        assert_eq!(would[field], did[field], "{would} {did}");
    }
    assert!(did["versions"].as_u64().unwrap() >= 1, "{did}");
    let again = done(&laptop, path, json!({}));
    assert_eq!(
        (&again["packs"], &again["more"]),
        (&json!(0), &json!(false))
    );
    // Killed at once, it knows where everything lies.
    laptop.kill();
    let laptop = start("laptop");
    for (n, version) in versions.iter().enumerate().skip(3) {
        is_whole(&laptop, version, n as u64, &at("copy"));
    }
    sees(&edge, "laptop");
    // The other one follows, and is whole when the first is gone.
    wait_for(&edge, |edge| {
        done(edge, path, json!({}));
        pinned(edge) < 12 << 20
    });
    assert!(pinned(&laptop) < 12 << 20, "{}", pinned(&laptop));
    laptop.kill();
    fs::remove_dir_all(at("laptop")).unwrap();
    edge.post("/v1/doctor/fix", json!({}));
    for (n, version) in versions.iter().enumerate().skip(3) {
        is_whole(&edge, version, n as u64, &at("copy"));
    }
    edge.stop();
}

fn wait_for(daemon: &Daemon, mut is_so: impl FnMut(&Daemon) -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so(daemon) {
        let volumes = daemon.get("/v1/volumes");
        assert!(std::time::Instant::now() < deadline, "{volumes}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn versions_count_and_are_refused_beyond_the_quota_and_it_is_told_who_holds_them() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let start = |name: &str| Daemon::start_with_sandboxes(&at(name), name);
    let [laptop, edge] = meshed(["laptop", "edge"].map(start));
    create(&laptop, &at("from"));
    let first = import(&laptop, &at("from"), 1);
    let (taken, there) = (pinned(&laptop), pinned(&edge));
    for bytes in [taken, there] {
        assert!((9 << 20..10 << 20).contains(&bytes), "{bytes}");
    }
    let rows = laptop.get("/v1/usage?by=sandbox")["usage"].clone();
    let id = laptop.get("/v1/volumes")["volumes"][0]["id"].clone();
    assert_eq!(
        (&rows[0]["volume"], &rows[0]["sandbox"]),
        (&id, &Value::Null)
    );

    // Beyond the quota nothing more is stored: not of one's own, and not for others.
    let quota = json!({"space": "findings", "limits": {"disk": 5 << 20}});
    laptop.post("/v1/quotas", quota.clone());
    let body = json!({"path": at("from")});
    let error = refused(&laptop, "/v1/volumes/work/import", body.clone());
    assert_eq!(error["code"], "quota_exceeded", "{error}");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains("forget versions"), "{hint}");
    let named = json!({"name": "more", "space": "findings"});
    let error = refused(&laptop, "/v1/volumes", named);
    assert_eq!(error["code"], "quota_exceeded", "{error}");
    // What is there can be read.
    is_whole(&laptop, &first, 1, &at("copy"));
    laptop.ask("DELETE", "/v1/quotas?space=findings", None);
    edge.post("/v1/quotas", quota);
    let second = import(&laptop, &at("from"), 2);
    assert_eq!(second["holders"].as_array().unwrap().len(), 1, "{second}");

    let held = |by: &str| {
        let log = laptop.get(&format!("/v1/volumes/work/log?held_by={by}"));
        let versions = log["versions"].as_array().unwrap().iter();
        versions.map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(held("laptop").len(), 3);
    assert_eq!(held("edge").len(), 2);
    assert_eq!(held("edge")[0], first["id"]);
    let listed = |by: &str| laptop.get(&format!("/v1/volumes?held_by={by}"))["volumes"].clone();
    assert_eq!(listed("edge").as_array().unwrap().len(), 1);
    let unknown = laptop.ask("GET", "/v1/volumes?held_by=nobody", None);
    assert_eq!((unknown.0, code(&unknown)), (404, "unknown_node"));
    edge.stop();
    laptop.stop();
}

#[test]
fn a_volume_is_attached_to_a_sandbox_of_another_node_as_grants_allow() {
    if qemu_is_missing("a_volume_is_attached_to_a_sandbox_of_another_node_as_grants_allow") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let laptop = Daemon::start_with_sandboxes(&at("laptop"), "laptop");
    let edge = Daemon::start_with_sandboxes(&at("edge"), "edge");
    let guest = Daemon::start(&at("guest"), "guest");
    laptop.found("findings");
    join(&edge, &laptop, "writer");
    join(&guest, &laptop, "reader");
    for name in ["edge", "guest"] {
        sees(&laptop, name);
    }
    sees(&guest, "edge");
    sees(&edge, "laptop");
    fs::create_dir_all(at("from")).unwrap();
    fs::write(at("from").join("readme"), "hello").unwrap();
    let body = json!({"name": "work", "from": at("from")});
    done(&laptop, "/v1/volumes", body);
    let spaces = json!({"name": "bench", "spaces": ["findings"]});
    done(&edge, "/v1/sandboxes", spaces);
    done(&edge, "/v1/sandboxes", json!({"name": "private"}));
    wait_for(&edge, |edge| {
        edge.get("/v1/volumes")["volumes"][0]["name"] == "work"
    });

    let body = json!({"sandbox": "bench", "path": "/work"});
    let attach = "/v1/volumes/work/attach";
    // Who may only read is refused, and nobody uses a sandbox of no space.
    let denied = guest.ask("POST", &format!("/v1/on/edge{attach}"), Some(body.clone()));
    assert!(matches!(denied.0, 403 | 404), "{denied:?}");
    let private = json!({"sandbox": "private", "path": "/work"});
    let denied = laptop.ask("POST", &format!("/v1/on/edge{attach}"), Some(private));
    assert_eq!((denied.0, code(&denied)), (403, "denied"), "{denied:?}");
    let other = laptop.ask(
        "POST",
        "/v1/on/edge/v1/volumes/work/import",
        Some(json!({})),
    );
    assert_eq!((other.0, code(&other)), (403, "denied"), "{other:?}");

    let shown = done(&laptop, &format!("/v1/on/any{attach}"), body)["volume"].clone();
    assert_eq!(shown["attached"][0]["node"]["name"], "edge", "{shown}");
    assert_eq!(
        out(&edge, "cat /work/readme; echo more > /work/new"),
        "hello"
    );
    let body = json!({"sandbox": "bench", "message": "from afar"});
    let made = done(&laptop, "/v1/on/edge/v1/volumes/work/checkpoint", body);
    assert_eq!(
        (&made["changed"], &made["version"]["author"]),
        (&json!(true), &json!("edge"))
    );
    let body = json!({"sandbox": "bench"});
    done(&laptop, "/v1/on/any/v1/volumes/work/detach", body);
    assert_eq!(edge.get("/v1/volumes")["volumes"][0]["attached"], json!([]));
    let nobody = json!({"sandbox": "nobody", "path": "/work"});
    let unknown = laptop.ask("POST", &format!("/v1/on/any{attach}"), Some(nobody));
    assert_eq!(
        (unknown.0, code(&unknown)),
        (404, "unknown_sandbox"),
        "{unknown:?}"
    );
    edge.stop();
    laptop.stop();
    guest.stop();
}
