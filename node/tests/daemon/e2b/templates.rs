//! Templates that a client builds.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::wire::{Door, debian_is_missing, encoded, send, start};
use crate::sandbox::qemu_is_missing;

/// How long a build may take: it writes a whole root file system, in emulation.
const BUILD: Duration = Duration::from_secs(600);

/// Builds a template from steps and returns its last status.
fn build(door: &Door, name: &str, asked: Value) -> Value {
    let made = door.ask("POST", "/v3/templates", Some(json!({"name": name})));
    assert_eq!(made.status, 202, "{made:?}");
    let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
    let (id, build) = (text("templateID"), text("buildID"));
    let path = format!("/v2/templates/{id}/builds/{build}");
    let begun = door.ask("POST", &path, Some(asked));
    assert_eq!(begun.status, 202, "{begun:?}");
    let since = Instant::now();
    loop {
        let path = format!("/templates/{id}/builds/{build}/status?logsOffset=0");
        let status = door.ask("GET", &path, None).body;
        if status["status"] != "building" && status["status"] != "waiting" {
            return status;
        }
        assert!(since.elapsed() < BUILD, "{status}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// On a node with a pool, so that the guest it is built in is a copy of one that waited.
#[test]
fn a_template_says_who_runs_where_and_with_what() {
    let name = "a_template_says_who_runs_where_and_with_what";
    if qemu_is_missing(name) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let daemon = start(&home.path().join("node"), &["--pool", "1"]);
    if debian_is_missing(name, &daemon) {
        return;
    }
    let door = Door::of(&daemon);
    for (asked, why) in [
        (
            json!({"fromImage": "base", "fromImageRegistry": {"type": "general"}}),
            "registry",
        ),
        (json!({"fromImage": "python:3.13"}), "rhizome image import"),
    ] {
        let refused = build(&door, "refused", asked);
        assert_eq!(refused["status"], "error", "{refused}");
        assert!(refused["reason"]["message"].as_str().unwrap().contains(why));
    }
    // What is copied came before, under the hash of what it is.
    let hash = "ab".repeat(32);
    let made = door.ask("POST", "/v3/templates", Some(json!({"name": "tool"})));
    let id = made.body["templateID"].as_str().unwrap();
    let place = door.ask("GET", &format!("/templates/{id}/files/{hash}"), None);
    assert_eq!((place.status, &place.body["present"]), (201, &json!(false)));
    let url = place.body["url"].as_str().unwrap();
    let (_, path) = url.split_once(&door.0).unwrap();
    let archive = tar_of("greet.sh", b"echo hello from $WHERE\n");
    let wrong = path.replace("token=", "token=0");
    assert_eq!(send(&door.0, "PUT", &wrong, &[], &archive).status, 401);
    assert_eq!(send(&door.0, "PUT", path, &[], &archive).status, 200);

    let steps = json!([
        {"type": "ENV", "args": ["WHERE", "the bench"]},
        {"type": "WORKDIR", "args": ["/srv/tool"]},
        {"type": "COPY", "args": ["greet.sh", "greet.sh", "", "0755"], "filesHash": hash},
        {"type": "USER", "args": ["ada"]},
        {"type": "RUN", "args": ["id -un > ~/built-by && pwd >> ~/built-by"]},
    ]);
    let built = build(
        &door,
        "tool",
        json!({"fromImage": "e2bdev/base", "steps": steps}),
    );
    assert_eq!(built["status"], "ready", "{built}");
    let sandbox = door.create(json!({"templateID": "tool", "timeout": 600}));
    assert_eq!(
        sandbox.run("id -un; pwd; sh greet.sh; cat ~/built-by"),
        "ada\n/srv/tool\nhello from the bench\nada\n/srv/tool\n"
    );
    // Files go to the user's home and are the user's; another user is named.
    let octets = [("content-type", "application/octet-stream")];
    let (_, put) = sandbox
        .ask("POST", "/files?path=note", &octets, b"1")
        .json();
    assert_eq!(put[0]["path"], "/home/ada/note");
    assert_eq!(sandbox.run("stat -c %U /home/ada/note"), "ada\n");
    let root = format!("Basic {}", encoded("root:"));
    let mut by_root = sandbox.start("id -un", json!({}), &[("authorization", &root)]);
    by_root.pid();
    assert_eq!(by_root.finish().0, "root\n");
    assert_eq!(sandbox.control("DELETE", "", &json!({})), 204);
    assert_eq!(
        door.ask("DELETE", &format!("/templates/{id}"), None).status,
        204
    );
    let gone = door.ask("POST", "/v2/sandboxes", Some(json!({"templateID": "tool"})));
    assert_eq!(gone.status, 404, "{gone:?}");
    daemon.stop();
}

/// Returns an archive of one file.
fn tar_of(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", bytes.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = vec![0; bytes.len().next_multiple_of(512) - bytes.len() + 1024];
    [&header[..], bytes, &padding].concat()
}
