//! A sandbox goes on elsewhere before its disk is there, whatever becomes of the nodes meanwhile.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    remote::{done, join, sees},
    resume::{knows, out},
    sandbox::qemu_is_missing,
    support::Daemon,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// Much more than its memory.
pub(crate) const FILL: &str = "mkdir -p /root/tree/deep; cd /root/tree; \
    for n in 1 2 3 4 5 6 7 8; do head -c 12000000 /dev/urandom > deep/$n; echo $n > small-$n; done; sync";
pub(crate) const HASH: &str =
    "cd /root/tree && find . -type f | sort | xargs sha256sum | sha256sum";
pub(crate) const IMAGE: &str = "stream-base";

/// Makes an image with a root file system, so that its sandboxes have a disk.
pub(crate) fn make_image(daemon: &Daemon) {
    let images = daemon.get("/v1/images");
    let mut images = images["images"].as_array().unwrap().iter();
    if images.any(|image| image["name"] == IMAGE) {
        return;
    }
    done(daemon, "/v1/sandboxes", json!({"name": "first"}));
    let body = json!({"sandbox": "first", "name": IMAGE});
    done(daemon, "/v1/images/commit", body);
    daemon.ask("DELETE", "/v1/sandboxes/first", None);
}

/// Waits until the sandbox is as it should be.
pub(crate) fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let sandboxes = daemon.get("/v1/sandboxes");
        let mut all = sandboxes["sandboxes"].as_array().unwrap().iter();
        let bench = all.find(|sandbox| sandbox["name"] == "bench");
        if let Some(bench) = bench.filter(|bench| is_so(bench)) {
            return bench.clone();
        }
        assert!(begun.elapsed() < LIMIT, "it is not {what}: {sandboxes}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sandbox_goes_on_before_its_disk_is_there_and_waits_for_who_has_it() {
    let test = "a_sandbox_goes_on_before_its_disk_is_there_and_waits_for_who_has_it";
    if qemu_is_missing(test) {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| Daemon::start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, edge] = ["laptop", "edge"].map(start);
    laptop.found("findings");
    // Who is started again has another address: this one stays, and tells the others.
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    for daemon in [&edge, &cloud] {
        join(daemon, &laptop, "writer");
    }
    for name in ["edge", "cloud"] {
        sees(&laptop, name);
    }
    sees(&edge, "cloud");
    make_image(&laptop);
    let wanted = json!({"name": "bench", "image": IMAGE, "spaces": ["findings"]});
    let made = done(&laptop, "/v1/sandboxes", wanted);
    let id = made["id"].as_str().unwrap();
    let disk = |node: &str| {
        temp.path()
            .join(node)
            .join("sandboxes")
            .join(id)
            .join("vm/upper")
    };
    if !disk("laptop").exists() {
        eprintln!("skipped: {test}: mkfs.ext4 is not installed (apt-get install e2fsprogs)");
        return;
    }
    out(&laptop, FILL);
    let hash = out(&laptop, HASH);
    done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 0}),
    );
    knows(&edge, "asleep");

    let begun = Instant::now();
    let woken = done(&edge, "/v1/resume", json!({"what": "bench"}));
    // The only one that has it goes, in the middle.
    drop(laptop);
    eprintln!(
        "it goes on after {:?}, {} bytes came, {} are left",
        begun.elapsed(),
        woken["fetched_bytes"],
        woken["arriving"]["left"]
    );
    assert_eq!(woken["state"], "ready", "{woken}");
    assert!(
        woken["arriving"]["left"].as_u64().unwrap() > 30_000_000,
        "{woken}"
    );
    let asked = json!({"argv": ["sh", "-c", format!("{HASH} > /tmp/hash")], "detach": true});
    // Whether the program begins depends on how much of the disk had come.
    let mut client = edge.client();
    let asking = std::thread::spawn(move || {
        let _ = client.ask("POST", "/v1/sandboxes/bench/exec", Some(asked));
    });
    let held = until(&edge, "held", |bench| bench["state"] == "paused");
    assert!(
        held["arriving"]["waits"].is_string() && held["reason"].is_string(),
        "{held}"
    );
    let refused = edge.ask(
        "POST",
        "/v1/sandboxes/bench/exec",
        Some(json!({"argv": ["true"], "detach": true})),
    );
    assert_eq!(refused.1["error"]["code"], "disk_arriving", "{refused:?}");

    // And the one that runs it is killed, and comes back first.
    let guests = edge.crash();
    let _ = asking.join();
    let edge = start("edge");
    let still = until(&edge, "listed", |_| true);
    assert_eq!(still["state"], "paused", "{still}");
    assert!(still["arriving"]["left"].as_u64().unwrap() > 0, "{still}");
    let laptop = start("laptop");
    sees(&edge, "laptop");
    until(&edge, "whole", |bench| {
        bench["state"] == "ready" && bench.get("arriving").is_none()
    });
    assert_eq!(out(&edge, HASH), hash);
    let stopped = edge.ask("POST", "/v1/sandboxes/bench/stop", Some(json!({})));
    assert_eq!(stopped.0, 200, "{stopped:?}");
    let checked = std::process::Command::new("e2fsck")
        .args(["-f", "-n"])
        .arg(disk("edge"))
        .output();
    let checked = checked.unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
    drop((edge, laptop, cloud, guests));
}
