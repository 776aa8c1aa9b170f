//! Volumes between daemons: whole elsewhere when their node is gone, and two versions where two
//! nodes wrote apart.
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    sandbox::{qemu_is_missing, run},
    support::Daemon,
};

fn join(daemon: &Daemon, founder: &Daemon) {
    let invite = founder.post(
        "/v1/invites",
        json!({"spaces": ["findings"], "role": "writer"}),
    );
    daemon.post("/v1/mesh/join", json!({"invite": invite["invite"]}));
}

/// Waits until `is_so` says something of a daemon's volumes.
fn wait<T>(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let volumes = daemon.get("/v1/volumes");
        if let Some(found) = is_so(&volumes["volumes"]) {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: {volumes}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn connected(daemon: &Daemon) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let others = |peers: &Value| {
        let peers = peers["peers"].as_array().unwrap().clone();
        peers
            .iter()
            .filter(|peer| peer["state"] == "connected")
            .count()
    };
    while others(&daemon.get("/v1/peers")) == 0 {
        assert!(Instant::now() < deadline, "nobody is connected");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the last line of an answer that tells of its progress.
fn last(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, bytes) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn done(daemon: &Daemon, path: &str, body: Value) -> Value {
    let last = last(daemon, path, body);
    assert!(last["done"].is_object(), "{last}");
    last["done"].clone()
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

fn holders(version: &Value) -> Vec<String> {
    let holders = version["holders"].as_array().unwrap().iter();
    holders
        .map(|holder| holder["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_volume_is_whole_on_another_node_after_its_own_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let laptop = Daemon::start_with_sandboxes(&at("laptop"), "laptop");
    laptop.found("findings");
    let edge = Daemon::start_with_sandboxes(&at("edge"), "edge");
    join(&edge, &laptop);
    connected(&laptop);

    let large = "rhizome ".repeat(200_000);
    write(
        &at("from"),
        &[
            ("readme", "hello"),
            ("src/deep/lib", "two"),
            ("large", &large),
        ],
    );
    let body = json!({"name": "work", "from": at("from")});
    let made = done(&laptop, "/v1/volumes", body)["volume"].clone();
    let head = &made["heads"][0];
    assert_eq!(holders(head), ["laptop", "edge"], "{head}");
    // A second version, of which little is new.
    write(&at("from"), &[("readme", "changed")]);
    let body = json!({"path": at("from"), "message": "second"});
    let second = done(&laptop, "/v1/volumes/work/import", body);
    let (id, tree) = (
        second["version"]["id"].clone(),
        second["version"]["tree"].clone(),
    );
    assert_ne!(tree, head["tree"]);
    let diff = laptop.get("/v1/volumes/work/diff");
    assert_eq!(diff["changes"].as_array().unwrap().len(), 1, "{diff}");
    assert_eq!(diff["changes"][0]["path"], "readme");
    assert_eq!(diff["changes"][0]["kind"], "modified");

    wait(&edge, "edge knows who holds it", |volumes| {
        let head = &volumes[0]["heads"][0];
        (head["id"] == id && holders(head).len() == 2).then_some(())
    });
    laptop.kill();
    fs::remove_dir_all(at("laptop")).unwrap();

    let body = json!({"path": at("copy")});
    let exported = done(&edge, "/v1/volumes/work/export", body);
    assert_eq!(exported["version"]["tree"], tree);
    assert_eq!(files(&at("copy")), files(&at("from")));
    // What it was before is there too.
    let body = json!({"path": at("before"), "version": head["id"]});
    done(&edge, "/v1/volumes/work/export", body);
    assert_eq!(files(&at("before"))["readme"], "hello");
    // And can be what it is again.
    let body = json!({"version": head["id"]});
    let restored = done(&edge, "/v1/volumes/work/restore", body);
    assert_eq!(restored["version"]["tree"], head["tree"]);
    let log = edge.get("/v1/volumes/work/log");
    assert_eq!(log["versions"].as_array().unwrap().len(), 3);
    edge.stop();
}

/// Holds a daemon's process, or lets it go on: to the others it is as if it were cut off.
fn signal(daemon: &Daemon, signal: &str) {
    let pid = daemon.pid().to_string();
    let sent = std::process::Command::new("kill")
        .args([signal, &pid])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn nodes_that_wrote_apart_keep_both_versions_and_merge_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let start = |name: &str| Daemon::start_with_sandboxes(&at(name), name);
    let laptop = start("laptop");
    laptop.found("findings");
    let edge = start("edge");
    join(&edge, &laptop);
    connected(&laptop);
    write(&at("base"), &[("shared", "0"), ("kept", "0")]);
    done(
        &laptop,
        "/v1/volumes",
        json!({"name": "work", "from": at("base")}),
    );
    wait(&edge, "edge knows the volume", |volumes| {
        (volumes[0]["heads"][0]["id"].is_string()).then_some(())
    });

    // One writes while the other is away, and then the other way round.
    edge.stop();
    write(
        &at("ours"),
        &[("shared", "laptop"), ("kept", "0"), ("only-laptop", "1")],
    );
    done(
        &laptop,
        "/v1/volumes/work/import",
        json!({"path": at("ours")}),
    );
    signal(&laptop, "-STOP");
    let edge = start("edge");
    write(
        &at("theirs"),
        &[("shared", "edge"), ("kept", "0"), ("only-edge", "2")],
    );
    done(
        &edge,
        "/v1/volumes/work/import",
        json!({"path": at("theirs")}),
    );
    signal(&laptop, "-CONT");
    wait(&laptop, "laptop knows both versions", |volumes| {
        (volumes[0]["heads"].as_array()?.len() == 2).then_some(())
    });
    connected(&laptop);

    // Which one is meant is asked, not guessed.
    let refused = last(
        &laptop,
        "/v1/volumes/work/export",
        json!({"path": at("copy")}),
    );
    assert_eq!(refused["error"]["code"], "volume_forked", "{refused}");
    let merged = done(&laptop, "/v1/volumes/work/merge", json!({}));
    assert_eq!(merged["conflicts"].as_array().unwrap().len(), 1, "{merged}");
    assert_eq!(merged["conflicts"][0]["path"], "shared");
    assert_eq!(merged["conflicts"][0]["kind"], "both_changed");
    done(
        &laptop,
        "/v1/volumes/work/export",
        json!({"path": at("copy")}),
    );
    let all = files(&at("copy"));
    let beside = merged["conflicts"][0]["kept_as"].as_str().unwrap();
    assert!(beside.starts_with("shared.from-laptop-"), "{beside}");
    let expected = [
        ("kept", "0"),
        ("only-edge", "2"),
        ("only-laptop", "1"),
        ("shared", "edge"),
        (beside, "laptop"),
    ];
    let expected = expected.map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(all, BTreeMap::from(expected));
    // Once together, there is nothing to bring together.
    let again = done(&laptop, "/v1/volumes/work/merge", json!({}));
    assert_eq!(
        (&again["changed"], &again["version"]["id"]),
        (&json!(false), &merged["version"]["id"])
    );
    wait(&edge, "edge knows the merged version", |volumes| {
        (volumes[0]["heads"][0]["id"] == merged["version"]["id"]).then_some(())
    });
    edge.stop();
    laptop.stop();
}

/// Deterministic bytes that neither compress nor repeat.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8))
        .flat_map(|_| next())
        .take(len)
        .collect()
}

fn packs_of(daemon: &Daemon) -> Vec<std::path::PathBuf> {
    let found = fs::read_dir(daemon.dir.join("chunks/own")).unwrap();
    found.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_is_read_first_is_fetched_first() {
    if qemu_is_missing("what_is_read_first_is_fetched_first") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let laptop = Daemon::start_with_sandboxes(&at("laptop"), "laptop");
    laptop.found("findings");
    write(&at("from"), &[("first", "read first")]);
    let body = json!({"name": "work", "from": at("from")});
    done(&laptop, "/v1/volumes", body);
    let before = packs_of(&laptop);
    fs::write(at("from").join("later"), noise(7, 40 << 20)).unwrap();
    done(
        &laptop,
        "/v1/volumes/work/import",
        json!({"path": at("from")}),
    );
    // A full pack, that holds nothing but a part of `later`, cannot be had for a while.
    let full = |path: &std::path::PathBuf| {
        !before.contains(path) && fs::metadata(path).unwrap().len() > 15 << 20
    };
    let full = packs_of(&laptop).into_iter().find(full).unwrap();
    let aside = at("aside");
    fs::rename(&full, &aside).unwrap();

    let edge = Daemon::start_with_sandboxes(&at("edge"), "edge");
    join(&edge, &laptop);
    connected(&edge);
    wait(&edge, "edge knows both versions", |volumes| {
        (volumes[0]["versions"] == 2).then_some(())
    });
    done(
        &edge,
        "/v1/sandboxes",
        json!({"name": "bench", "spaces": ["findings"]}),
    );
    let body = json!({"sandbox": "bench", "path": "/work"});
    done(&edge, "/v1/volumes/work/attach", body);
    let (out, err, _) = run(&edge, &["cat", "/work/first"]);
    assert_eq!((out.as_str(), err.as_str()), ("read first", ""));
    let arrived = wait(&edge, "all but one pack has come", |volumes| {
        let arrived = volumes[0]["attached"][0]["arrived"].clone();
        let (packs, of) = (arrived["packs"].as_u64()?, arrived["of"].as_u64()?);
        (packs + 1 == of).then_some(arrived)
    });
    assert!(arrived["of"].as_u64().unwrap() >= 4, "{arrived}");
    // A read of what nobody has fails, and says so; it does not hang, and invents nothing.
    let (_, err, end) = run(&edge, &["md5sum", "/work/later"]);
    assert_ne!(end, json!({"code": 0}), "{err}");
    // What was changed meanwhile is a version all the same.
    let (_, err, _) = run(&edge, &["sh", "-c", "echo 1 > /work/new"]);
    assert_eq!(err, "");
    let kept = done(&edge, "/v1/volumes/work/checkpoint", json!({}));
    assert_eq!(kept["changed"], true, "{kept}");

    fs::rename(&aside, &full).unwrap();
    let (out, err, end) = run(&edge, &["sh", "-c", "wc -c < /work/later"]);
    assert_eq!((err.as_str(), &end), ("", &json!({"code": 0})));
    assert_eq!(out.trim(), (40 << 20).to_string());
    wait(&edge, "all of it has come", |volumes| {
        let arrived = &volumes[0]["attached"][0]["arrived"];
        (arrived["packs"] == arrived["of"]).then_some(())
    });
    laptop.kill();
    let (_, err, end) = run(&edge, &["md5sum", "/work/later"]);
    assert_eq!((err.as_str(), &end), ("", &json!({"code": 0})));
    edge.stop();
}

#[test]
fn a_version_that_nobody_else_holds_is_copied_once_somebody_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let laptop = Daemon::start_with_sandboxes(&at("laptop"), "laptop");
    laptop.found("findings");
    write(&at("from"), &[("file", "one")]);
    let body = json!({"name": "work", "from": at("from")});
    let made = done(&laptop, "/v1/volumes", body)["volume"].clone();
    assert_eq!(holders(&made["heads"][0]), ["laptop"], "{made}");
    let edge = Daemon::start_with_sandboxes(&at("edge"), "edge");
    join(&edge, &laptop);
    wait(&edge, "edge holds it too", |volumes| {
        (holders(volumes[0]["heads"].get(0)?) == ["laptop", "edge"]).then_some(())
    });
    laptop.kill();
    fs::remove_dir_all(at("laptop")).unwrap();
    done(
        &edge,
        "/v1/volumes/work/export",
        json!({"path": at("copy")}),
    );
    assert_eq!(files(&at("copy")), files(&at("from")));
    edge.stop();
}

#[test]
fn what_is_forgotten_goes_and_what_is_needed_stays() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with_sandboxes(&temp.path().join("laptop"), "laptop");
    daemon.found("findings");
    let from = temp.path().join("from");
    write(&from, &[("same", "in all of them"), ("n", "0")]);
    done(
        &daemon,
        "/v1/volumes",
        json!({"name": "work", "from": from}),
    );
    for n in 1..5 {
        write(&from, &[("n", &n.to_string())]);
        done(&daemon, "/v1/volumes/work/import", json!({"path": from}));
    }
    let log = || {
        let log = daemon.get("/v1/volumes/work/log");
        let versions = log["versions"].as_array().unwrap().clone();
        let ids = versions
            .iter()
            .map(|version| version["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let before = log();
    assert_eq!(before.len(), 5);
    for body in [json!({}), json!({"keep": 0}), json!({"versions": ["zzzz"]})] {
        let refused = daemon.ask("POST", "/v1/volumes/work/forget", Some(body));
        assert!(matches!(refused.0, 400 | 404), "{refused:?}");
    }
    let newest = daemon.ask(
        "POST",
        "/v1/volumes/work/forget",
        Some(json!({"versions": [before[0]]})),
    );
    assert_eq!(newest.1["error"]["code"], "version_needed", "{newest:?}");
    let gone = daemon.post("/v1/volumes/work/forget", json!({"versions": [before[3]]}));
    assert_eq!(
        (&gone["forgotten"], &gone["kept"]),
        (&json!([before[3]]), &json!(4))
    );
    let gone = daemon.post("/v1/volumes/work/forget", json!({"keep": 2}));
    assert_eq!(gone["kept"], 2, "{gone}");
    assert_eq!(log(), before[..2]);
    // Also for the next daemon; and what is kept is whole when the packs of the others went.
    daemon.stop();
    let daemon = Daemon::start_with_sandboxes(&temp.path().join("laptop"), "laptop");
    let pins = fs::read_dir(temp.path().join("laptop/chunks/pins"))
        .unwrap()
        .count();
    assert_eq!(pins, 2);
    daemon.post("/v1/doctor/fix", json!({}));
    for (version, n) in [(&before[0], "4"), (&before[1], "3")] {
        let to = temp.path().join(format!("to-{n}"));
        done(
            &daemon,
            "/v1/volumes/work/export",
            json!({"version": version, "path": to}),
        );
        let found = files(&to);
        assert_eq!((&found["n"][..], &found["same"][..]), (n, "in all of them"));
    }
    let lost = daemon.ask(
        "GET",
        &format!("/v1/volumes/work/diff?from={}", before[4]),
        None,
    );
    assert_eq!(lost.0, 404, "{lost:?}");
    daemon.stop();
}
