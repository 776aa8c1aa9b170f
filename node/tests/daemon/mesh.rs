//! Several daemons in one mesh, joined by invites.
use serde_json::{Value, json};

use crate::support::{Daemon, code};

fn join(daemon: &Daemon, invite: &Value) -> (u16, Value) {
    daemon.ask(
        "POST",
        "/v1/mesh/join",
        Some(json!({"invite": invite["invite"]})),
    )
}

#[test]
fn three_daemons_joined_by_invites_share_what_they_learn() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    let edge = Daemon::start(&temp.path().join("edge"), "edge");
    laptop.found("findings");
    let invite = laptop.post("/v1/invites", json!({"spaces": ["findings"], "uses": 2}));
    assert!(
        invite["invite"].as_str().unwrap().starts_with("RHZ1"),
        "{invite}"
    );
    for daemon in [&cloud, &edge] {
        let (status, joined) = join(daemon, &invite);
        assert_eq!(status, 200, "{joined}");
        assert_eq!(
            (&joined["mesh"]["name"], &joined["role"]),
            (&json!("lab"), &json!("writer"))
        );
        assert_eq!(joined["by"]["name"], "laptop");
        assert_eq!(joined["spaces"][0]["name"], "findings");
    }
    assert_eq!(laptop.get("/v1/invites")["invites"][0]["state"], "spent");
    let again = join(&cloud, &invite);
    assert_eq!((again.0, code(&again)), (409, "already_in_mesh"));

    let mut follower = edge.client().lines("/v1/watch?follow=1").unwrap();
    let fix =
        json!({"kind": "fix", "title": "pin the parser", "text": "to version two", "replicas": 2});
    let receipt = laptop.post("/v1/memory", fix);
    assert_eq!(
        receipt["replicas"].as_array().unwrap().len(),
        2,
        "{receipt}"
    );
    let event = follower.next().unwrap();
    assert_eq!(
        (&event["title"], &event["own"]),
        (&json!("pin the parser"), &json!(false))
    );
    assert_eq!(
        (&event["node"]["name"], &event["trust"]),
        (&json!("laptop"), &json!("member"))
    );
    let hits = cloud.post("/v1/recall", json!({"query": "parser"}));
    assert_eq!(hits["hits"][0]["doc"], receipt["doc"], "{hits}");
    let back = cloud.post(
        "/v1/memory",
        json!({"kind": "outcome", "title": "it helped", "replicas": 2}),
    );
    assert_eq!(back["seq"], 0);
    let heads = |daemon: &Daemon| daemon.get("/v1/spaces")["spaces"][0]["heads"].clone();
    assert_eq!(heads(&laptop), heads(&cloud));
    assert_eq!(heads(&laptop), heads(&edge));

    let checkpoint = json!({"task": "mend", "goal": "green", "next": ["go on"]});
    laptop.post("/v1/context/checkpoint", checkpoint);
    // The fragment after it has reached the others, and chains arrive in order.
    laptop.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "bye", "replicas": 2}),
    );
    laptop.kill();
    let context = edge.get("/v1/context?task=mend");
    assert_eq!(
        (&context["goal"], &context["verification"]["ok"]),
        (&json!("green"), &json!(1))
    );
    assert_eq!(context["next"][0]["by"]["name"], "laptop");
}

#[test]
fn an_invite_that_cannot_be_used_says_why() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    laptop.found("findings");
    let invite = laptop.post("/v1/invites", json!({}));
    let text = invite["invite"].as_str().unwrap();
    let mistyped = {
        let mut text = text.to_owned();
        let last = if text.pop() == Some('0') { '1' } else { '0' };
        text.push(last);
        text
    };
    for broken in ["hello", &text[..text.len() - 7], &mistyped, ""] {
        let answer = cloud.ask("POST", "/v1/mesh/join", Some(json!({"invite": broken})));
        assert_eq!(
            (answer.0, code(&answer)),
            (400, "bad_invite"),
            "{broken}: {answer:?}"
        );
    }
    let own = join(&laptop, &invite);
    assert!(
        matches!(code(&own), "own_invite" | "already_in_mesh"),
        "{own:?}"
    );
    laptop.kill();
    let offline = join(&cloud, &invite);
    assert_eq!(
        (offline.0, code(&offline)),
        (502, "inviter_unreachable"),
        "{offline:?}"
    );
    assert!(offline.1["error"]["hint"].is_string());
    assert_eq!(
        cloud.get("/v1/status")["mesh"],
        Value::Null,
        "and nothing has changed"
    );
}

#[test]
fn a_publish_that_wants_more_replicas_than_there_are_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    laptop.found("findings");
    let body = json!({"kind": "fact", "title": "alone", "replicas": 1, "replicas_timeout_ms": 50});
    let answer = laptop.ask("POST", "/v1/memory", Some(body));
    assert_eq!(
        (answer.0, code(&answer)),
        (504, "replicas_timeout"),
        "{answer:?}"
    );
    // It is durable here all the same.
    assert_eq!(laptop.get("/v1/memory")["memories"][0]["title"], "alone");
}
