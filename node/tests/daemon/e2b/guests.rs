//! What rides along where clients of E2B look away, and sandboxes that a request wakes.
use std::time::{Duration, Instant};

use serde_json::json;

use super::wire::{Door, PATIENCE, debian_is_missing};
use crate::{
    sandbox::qemu_is_missing,
    support::{self, Daemon},
};

#[test]
fn extras_ride_along_and_a_request_wakes_who_sleeps() {
    let name = "extras_ride_along_and_a_request_wakes_who_sleeps";
    if qemu_is_missing(name) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("node");
    let mut command = support::command(&dir, "laptop");
    // A key is set: whoever has it may have what the mesh has.
    command
        .args(["--e2b", "127.0.0.1:0", "--images-dir"])
        .arg(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"))
        .env("RHIZOME_E2B_KEY", "anything");
    let daemon = Daemon::spawn(command, &dir);
    if debian_is_missing(name, &daemon) {
        return;
    }
    daemon.found("findings");
    daemon.post(
        "/v1/agents",
        json!({"name": "mender", "spaces": ["findings"]}),
    );
    let door = Door::of(&daemon);
    let metadata = json!({
        "rhizome.name": "bench", "rhizome.agent": "mender", "rhizome.space": "findings",
        "rhizome.memory_mib": "384", "rhizome.vcpus": "1", "task": "mend",
    });
    let sandbox = door.create(json!({
        "templateID": "base", "timeout": 600, "metadata": metadata,
        "autoPause": true, "autoResume": {"enabled": true},
    }));
    let id = &sandbox.id;

    // What was asked for in `metadata` is what the node made of it, and headers say so.
    let shown = daemon.get("/v1/sandboxes/bench");
    assert_eq!(
        (&shown["id"], &shown["memory_mib"]),
        (&json!(id), &json!(384))
    );
    assert_eq!(shown["agent"]["name"], "mender", "{shown}");
    for (header, said) in [
        ("rhizome-sandbox", &**id),
        ("rhizome-state", "ready"),
        ("rhizome-agent", shown["agent"]["id"].as_str().unwrap()),
        ("rhizome-image", shown["image_id"].as_str().unwrap()),
        (
            "rhizome-fingerprint",
            shown["fingerprint_hash"].as_str().unwrap(),
        ),
    ] {
        assert_eq!(sandbox.made.header(header), Some(said), "{header}");
    }
    let boot_ms = sandbox.made.header("rhizome-boot-ms").unwrap();
    assert!(boot_ms.parse::<u64>().unwrap() > 0);
    assert_eq!(sandbox.made.header("rhizome-node").unwrap().len(), 64);
    let info = door.info(id);
    assert_eq!(
        (&info["metadata"], &info["memoryMB"]),
        (&metadata, &json!(384))
    );
    assert_eq!(
        info["lifecycle"],
        json!({"autoResume": true, "onTimeout": "pause"})
    );
    // It writes in the memory of its space, for its agent.
    let told = sandbox.run(
        "rhizome memory publish --kind fix --title 'the door sticks' >/dev/null && \
         rhizome memory recall door",
    );
    assert!(told.contains("the door sticks"), "{told}");

    // Asking how it is wakes nobody; asking for something does.
    sandbox.run("echo before > note");
    assert_eq!(sandbox.control("POST", "/pause", &json!({})), 204);
    assert_eq!(door.health(id).status, 502);
    assert_eq!(door.info(id)["state"], "paused");
    let read = sandbox.ask("GET", "/files?path=note", &[], b"");
    assert_eq!((read.status, &*read.bytes()), (200, &b"before\n"[..]));
    assert_eq!(door.info(id)["state"], "running");
    assert_eq!(door.health(id).status, 204);

    // So it is when its time is over; and it then has the time that it had.
    let timeout = json!({"timeout": 1});
    assert_eq!(sandbox.control("POST", "/timeout", &timeout), 204);
    let since = Instant::now();
    while door.info(id)["state"] != "paused" {
        assert!(since.elapsed() < PATIENCE, "{}", door.info(id));
        std::thread::sleep(Duration::from_millis(200));
    }
    // Of several at once, one wakes it and all are answered.
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| sandbox.ask("GET", "/files?path=note", &[], b"").status))
            .collect();
        for ask in asks {
            assert_eq!(ask.join().unwrap(), 200);
        }
    });
    assert_eq!(
        door.ask("DELETE", &format!("/sandboxes/{id}"), None).status,
        204
    );
    daemon.stop();
}
