//! What sandboxes run under is the node's to choose, and said where it cannot be had.
use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    sandbox::{qemu_is_missing, run},
    support::Daemon,
};

/// Starts a daemon whose `config.json` names this driver.
fn start(dir: &Path, driver: &str) -> Daemon {
    let config = json!({
        "driver": driver,
        "accel": if driver == "qemu-microvm" { "tcg" } else { "auto" },
        "cloud_hypervisor": "/no/such/cloud-hypervisor",
    });
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    Daemon::start_with_sandboxes(dir, "laptop")
}

fn create(daemon: &Daemon, name: &str) -> Value {
    let body = Some(json!({ "name": name }));
    let (_, lines) = daemon
        .client()
        .ask_bytes("POST", "/v1/sandboxes", body)
        .unwrap();
    let lines = String::from_utf8(lines).unwrap();
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

fn check(daemon: &Daemon, name: &str) -> Value {
    let doctor = daemon.get("/v1/doctor");
    let mut checks = doctor["checks"].as_array().unwrap().iter();
    checks.find(|check| check["name"] == name).unwrap().clone()
}

#[test]
fn a_node_chooses_its_driver_and_a_sandbox_keeps_its_own() {
    if qemu_is_missing("a_node_chooses_its_driver_and_a_sandbox_keeps_its_own") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = start(&dir, "qemu-microvm");
    daemon.found("findings");
    let found = check(&daemon, "driver")["seen"].to_string();
    assert!(found.contains("qemu-microvm"), "{found}");
    // It cannot run here, and that is not grave.
    let other = check(&daemon, "cloud-hypervisor");
    assert_eq!(other["status"], "warn", "{other}");
    assert!(other["seen"].to_string().contains("/no/such/"), "{other}");
    let made = create(&daemon, "bench");
    assert_eq!(made["done"]["driver"], "qemu-microvm", "{made}");
    let guests = daemon.crash();

    // Another choice is for new sandboxes: the one there is goes on under its own.
    let daemon = start(&dir, "cloud-hypervisor");
    std::mem::forget(guests);
    let (out, err, end) = run(&daemon, &["echo", "still here"]);
    assert_eq!(
        (out.as_str(), end),
        ("still here\n", json!({"code": 0})),
        "{err}"
    );
    assert_eq!(check(&daemon, "cloud-hypervisor")["status"], "fail");
    let refused = create(&daemon, "other");
    let error = &refused["error"];
    assert!(error.to_string().contains("cloud-hypervisor"), "{refused}");
    assert!(error["hint"].is_string(), "{refused}");
    // What was refused left nothing, and nothing else was chosen in its place.
    let list = daemon.get("/v1/sandboxes");
    let names: Vec<_> = list["sandboxes"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 1, "{list}");
    daemon.stop_and("kill");
}
