//! Backups of daemons that run, and nodes that come back from them.
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    member::{fact, join, titles, until},
    support::{Daemon, code},
};

/// Runs the command line.
fn rhizome(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .env_remove("RHIZOME_SOCKET")
        .arg("--data-dir")
        .arg(dir)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub(crate) fn ok(args: &[&str], dir: &Path) -> Value {
    let output = rhizome(&[args, &["--json"]].concat(), dir);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

pub(crate) fn fails(args: &[&str], dir: &Path) -> String {
    let output = rhizome(args, dir);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Writes a passphrase and returns where it and a backup lie.
pub(crate) fn files(temp: &Path) -> (String, String) {
    let pass = temp.join("pass");
    fs::write(&pass, "correct horse battery staple\n").unwrap();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    (path(pass), path(temp.join("laptop.age")))
}

/// Starts two nodes of one mesh, the first of which has said something.
fn two_nodes(temp: &Path) -> ([PathBuf; 2], [Daemon; 2]) {
    let names = ["laptop", "cloud"];
    let dirs = names.map(|name| temp.join(name));
    let [laptop, cloud] = [0, 1].map(|at: usize| Daemon::start(&dirs[at], names[at]));
    laptop.found("findings");
    join(&laptop, &cloud);
    laptop.post("/v1/memory", fact("before", 1));
    (dirs, [laptop, cloud])
}

#[test]
fn a_node_that_comes_back_from_a_backup_fetches_its_own_chain_before_it_publishes() {
    let temp = tempfile::tempdir().unwrap();
    let (dirs, [laptop, cloud]) = two_nodes(temp.path());
    let (pass, file) = files(temp.path());
    let made = ok(
        &["backup", "--to", &file, "--passphrase-file", &pass],
        &dirs[0],
    );
    assert_eq!(made["bytes"], fs::metadata(&file).unwrap().len());
    let sealed = fs::read(&file).unwrap();
    let key = fs::read(dirs[0].join("node.key")).unwrap();
    assert!(
        !sealed.windows(32).any(|piece| piece == &key[20..52]),
        "it is encrypted"
    );
    // A backup is never overwritten.
    let said = fails(
        &["backup", "--to", &file, "--passphrase-file", &pass],
        &dirs[0],
    );
    assert!(said.contains("never overwritten"), "{said}");
    let sound = ok(
        &["backup", "verify", &file, "--passphrase-file", &pass],
        temp.path(),
    );
    assert_eq!(
        (&sound["name"], &sound["members"]),
        (&json!("laptop"), &json!(2))
    );
    assert_eq!(sound["damaged"], 0);
    // What it publishes afterwards is at its peer alone once its disk is gone.
    for number in 0..5 {
        laptop.post("/v1/memory", fact(&format!("after {number}"), 1));
    }
    laptop.kill();
    fs::remove_dir_all(&dirs[0]).unwrap();
    let again = temp.path().join("again");
    let data = again.to_str().unwrap();
    let args = ["restore", &file, "--passphrase-file", &pass, "--data", data];
    let restored = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&restored.stderr);
    assert!(restored.status.success() && said.contains("peer"), "{said}");
    let laptop = Daemon::start(&again, "laptop");
    until(
        "it publishes again",
        || laptop.ask("POST", "/v1/memory", Some(fact("goes on", 1))),
        |answer| match answer.0 {
            200 => true,
            _ => {
                assert_eq!(code(answer), "restored", "{answer:?}");
                false
            }
        },
    );
    let wanted = [
        "after 0", "after 1", "after 2", "after 3", "after 4", "before", "goes on",
    ];
    for daemon in [&laptop, &cloud] {
        until(
            "both hold all of it",
            || titles(daemon),
            |titles| *titles == wanted,
        );
        let status = daemon.get("/v1/status");
        assert_eq!(
            status["forks"].as_array().map_or(0, Vec::len),
            0,
            "{status}"
        );
    }
    let notes = laptop.get("/v1/status")["recovery"]["notes"].to_string();
    assert!(
        notes.contains("of this node's own agents from peers"),
        "{notes}"
    );
}

#[test]
fn a_restored_node_without_its_peers_says_that_it_waits() {
    let temp = tempfile::tempdir().unwrap();
    let (dirs, [laptop, cloud]) = two_nodes(temp.path());
    let (pass, file) = files(temp.path());
    cloud.kill();
    laptop.stop();
    // Without a daemon too.
    ok(
        &["backup", "--to", &file, "--passphrase-file", &pass],
        &dirs[0],
    );
    let again = temp.path().join("again");
    ok(&["restore", &file, "--passphrase-file", &pass], &again);
    let laptop = Daemon::start(&again, "laptop");
    let refused = laptop.ask("POST", "/v1/memory", Some(fact("too soon", 0)));
    assert_eq!(
        (refused.0, code(&refused)),
        (409, "restored"),
        "{refused:?}"
    );
    ok(&["member", "accept-copy"], &again);
    laptop.post("/v1/memory", fact("goes on", 0));
}

#[test]
fn what_is_acknowledged_before_a_backup_is_in_it_while_others_publish() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let laptop = Daemon::start(&dir, "laptop");
    laptop.found("findings");
    let (pass, _) = files(temp.path());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let said = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (laptop, stop, said) = (&laptop, &stop, &said);
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    laptop.post("/v1/memory", fact(&format!("{writer} {number}"), 0));
                    said.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    number += 1;
                }
            });
        }
        for round in 0..3 {
            let acknowledged = said.load(std::sync::atomic::Ordering::SeqCst);
            let file = temp.path().join(format!("{round}.age"));
            let file = file.to_str().unwrap();
            ok(&["backup", "--to", file, "--passphrase-file", &pass], &dir);
            let sound = ok(
                &["restore", file, "--verify", "--passphrase-file", &pass],
                &dir,
            );
            assert_eq!(sound["damaged"], 0, "{sound}");
            assert!(
                sound["fragments"].as_u64() >= Some(acknowledged),
                "{acknowledged}: {sound}"
            );
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_root_key_goes_into_a_file_and_comes_back() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let laptop = Daemon::start(&dir, "laptop");
    laptop.found("findings");
    let (pass, file) = files(temp.path());
    let to = ["root", "export", "--to", &file, "--passphrase-file", &pass];
    let told = ok(&to, &dir);
    assert!(
        told["words"].is_null() && told["public"].is_string(),
        "{told}"
    );
    let before = fs::read(dir.join("root.key")).unwrap();
    fs::remove_file(dir.join("root.key")).unwrap();
    let wrong = temp.path().join("wrong");
    fs::write(&wrong, "another\n").unwrap();
    let from = |pass: &str| {
        ["root", "import", "--from", &file, "--passphrase-file", pass].map(str::to_owned)
    };
    let args = from(wrong.to_str().unwrap());
    let said = fails(&args.each_ref().map(String::as_str), &dir);
    assert!(
        said.contains("does not open with this passphrase"),
        "{said}"
    );
    assert!(!dir.join("root.key").exists());
    let args = from(&pass);
    ok(&args.each_ref().map(String::as_str), &dir);
    assert_eq!(fs::read(dir.join("root.key")).unwrap(), before);
}
