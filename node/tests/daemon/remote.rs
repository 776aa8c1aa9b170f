//! One node's sandboxes, used from another: as the grants allow, and no further.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    sandbox::{Exec, qemu_is_missing},
    support::{Daemon, code},
};

pub(crate) fn join(daemon: &Daemon, founder: &Daemon, role: &str) {
    let invite = founder.post("/v1/invites", json!({"spaces": ["findings"], "role": role}));
    daemon.post("/v1/mesh/join", json!({"invite": invite["invite"]}));
}

/// Waits until `daemon` is connected to a node called `name`.
pub(crate) fn sees(daemon: &Daemon, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let peers = daemon.get("/v1/peers");
        let mut peers = peers["peers"].as_array().unwrap().iter();
        if peers.any(|peer| peer["name"] == name && peer["state"] == "connected") {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is not connected");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Has the first found a mesh that the others join as writers, and waits until all see each other.
pub(crate) fn meshed<const N: usize>(daemons: [Daemon; N]) -> [Daemon; N] {
    let [first, others @ ..] = &daemons[..] else {
        return daemons;
    };
    first.found("findings");
    for daemon in others {
        join(daemon, first, "writer");
    }
    let named = |daemon: &Daemon| daemon.get("/v1/status")["node"]["name"].clone();
    let names: Vec<_> = daemons.iter().map(named).collect();
    for (at, daemon) in daemons.iter().enumerate() {
        let others = names.iter().enumerate().filter(|(other, _)| *other != at);
        others.for_each(|(_, name)| sees(daemon, name.as_str().unwrap()));
    }
    daemons
}

/// Sends a request whose answer tells of its progress, and returns the last line.
pub(crate) fn done(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, bytes) = daemon
        .client()
        .ask_bytes("POST", path, Some(body))
        .expect("the daemon answers");
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(status, 200, "{text}");
    let last = text.lines().last().expect("an answer has lines");
    let last: Value = serde_json::from_str(last).unwrap();
    assert!(last["done"].is_object(), "{last}");
    last["done"].clone()
}

#[test]
fn the_owners_routes_stay_the_owners_and_nodes_say_what_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    laptop.found("findings");
    join(&cloud, &laptop, "writer");
    sees(&laptop, "cloud");

    for (method, path) in [
        ("POST", "/v1/down"),
        ("GET", "/v1/status"),
        ("POST", "/v1/invites"),
        ("GET", "/v1/agents"),
        ("POST", "/v1/memory"),
        ("POST", "/v1/mesh/init"),
        ("GET", "/v1/on/laptop/v1/status"),
    ] {
        let answer = laptop.ask(method, &format!("/v1/on/cloud{path}"), Some(json!({})));
        assert_eq!(
            (answer.0, code(&answer)),
            (403, "denied"),
            "{path}: {answer:?}"
        );
        let said = answer.1["error"]["message"].as_str().unwrap();
        assert!(said.starts_with("node `cloud`: "), "{said}");
    }
    // On this very node the owner's word is the owner's.
    assert_eq!(
        laptop.get("/v1/on/laptop/v1/status")["node"]["name"],
        "laptop"
    );

    let unknown = laptop.ask("GET", "/v1/on/nowhere/v1/sandboxes", None);
    assert_eq!((unknown.0, code(&unknown)), (404, "unknown_node"));
    let none = laptop.ask("GET", "/v1/on/cloud/v1/sandboxes", None);
    assert_eq!((none.0, code(&none)), (503, "no_sandboxes"), "{none:?}");
    let nobody = laptop.ask("POST", "/v1/on/any/v1/sandboxes", Some(json!({})));
    assert_eq!(
        (nobody.0, code(&nobody)),
        (409, "no_node_fits"),
        "{nobody:?}"
    );
    assert!(
        nobody.1["error"]["causes"]
            .to_string()
            .contains("runs no sandboxes")
    );

    let nodes = laptop.get("/v1/nodes");
    let named = |name: &str| {
        let nodes = nodes["nodes"].as_array().unwrap();
        nodes
            .iter()
            .find(|node| node["node"]["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(named("laptop")["state"], "self");
    assert_eq!(named("cloud")["state"], "connected");
    assert!(
        named("cloud")["facts"]["memory_mib"].as_u64().unwrap() > 0,
        "{nodes}"
    );

    cloud.kill();
    let gone = laptop.ask("GET", "/v1/on/cloud/v1/sandboxes", None);
    assert_eq!(gone.0, 502, "{gone:?}");
    assert!(
        matches!(code(&gone), "node_unreachable" | "node_failed"),
        "{gone:?}"
    );
}

#[test]
fn a_sandbox_on_another_node_is_made_used_and_ended_from_here() {
    if qemu_is_missing("a_sandbox_on_another_node_is_made_used_and_ended_from_here") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start_with_sandboxes(&temp.path().join("cloud"), "cloud");
    let visitor = Daemon::start(&temp.path().join("visitor"), "visitor");
    laptop.found("findings");
    join(&cloud, &laptop, "writer");
    join(&visitor, &laptop, "reader");
    for daemon in [&laptop, &visitor] {
        sees(daemon, "cloud");
    }

    // The only node that fits is chosen; the agent that works there is one of its own.
    let wanted = json!({"name": "bench", "agent": "helper", "spaces": ["findings"]});
    let made = done(&laptop, "/v1/on/any/v1/sandboxes", wanted);
    assert_eq!(made["node"]["name"], "cloud", "{made}");
    assert_eq!(made["agent"]["name"], "helper-of-laptop");
    assert_eq!(cloud.get("/v1/sandboxes/bench")["id"], made["id"]);

    // Its owner's own sandbox belongs to no space, and so to nobody else.
    done(&cloud, "/v1/sandboxes", json!({"name": "private"}));
    let all = laptop.get("/v1/sandboxes?all=1");
    let seen: Vec<_> = all["sandboxes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["name"])
        .collect();
    assert_eq!(seen, ["bench"], "{all}");
    assert_eq!(all["sandboxes"][0]["node"]["name"], "cloud");
    let private = "/v1/on/cloud/v1/sandboxes/private";
    let denied = laptop.ask("GET", private, None);
    assert_eq!((denied.0, code(&denied)), (403, "denied"), "{denied:?}");

    // Files and streams, both ways.
    let bench = "/v1/on/cloud/v1/sandboxes/bench";
    let file = format!("{bench}/file?path=/root/notes");
    let (status, _) = laptop.client().put(&file, &[b'x'; 300_000]).unwrap();
    assert_eq!(status, 200);
    let (_, back) = laptop.client().ask_bytes("GET", &file, None).unwrap();
    assert_eq!(back, [b'x'; 300_000]);
    let body =
        json!({"argv": ["sh", "-c", "wc -c < /root/notes; tr a-z A-Z; exit 7"], "stdin": true});
    let mut exec = Exec::start_at(&laptop, &format!("{bench}/exec"), &body).expect("it starts");
    exec.send(0, b"from afar");
    exec.send(1, b"");
    let (out, _, end) = exec.finish();
    assert_eq!((out.trim(), end), ("300000\nFROM AFAR", json!({"code": 7})));

    // A reader of the space may look at nothing of it, and hears from whom and why.
    let body = json!({"argv": ["id"]});
    let (status, refused) = Exec::start_at(&visitor, &format!("{bench}/exec"), &body)
        .err()
        .unwrap();
    assert_eq!(status, 403, "{refused}");
    let error = &refused["error"];
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("node `cloud`: "),
        "{refused}"
    );
    assert!(
        error["causes"].to_string().contains("has reader"),
        "{refused}"
    );
    let all = visitor.get("/v1/sandboxes?all=1");
    assert!(all["sandboxes"].as_array().unwrap().is_empty(), "{all}");
    let create = json!({"spaces": ["findings"]});
    let refused = visitor.ask("POST", "/v1/on/cloud/v1/sandboxes", Some(create));
    assert_eq!(refused.0, 403, "{refused:?}");

    // A node that dies under a command fails it soon.
    let body = json!({"argv": ["sh", "-c", "echo up; sleep 1000"]});
    let mut exec = Exec::start_at(&laptop, &format!("{bench}/exec"), &body).expect("it starts");
    assert_eq!(exec.receive(), (16, b"up\n".to_vec()));
    let killed = laptop.ask("DELETE", bench, None);
    assert_eq!(killed.0, 200, "{killed:?}");
    let (kind, end) = exec.receive();
    assert_eq!(kind, 18, "{}", String::from_utf8_lossy(&end));
    assert_eq!(cloud.get("/v1/sandboxes/bench")["state"], "killed");
}
