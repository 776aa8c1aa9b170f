//! The API through the socket, and what a restart keeps.
use serde_json::{Value, json};

use crate::support::{Daemon, code, command};

#[test]
fn two_daemons_on_one_directory() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let first = Daemon::start(&dir, "laptop");
    let second = command(&dir, "second")
        .arg("--no-sandboxes")
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("belongs to a running daemon"), "{said}");
    assert!(said.contains(&format!("process {}", first.pid())), "{said}");
    assert_eq!(first.get("/v1/status")["node"]["name"], "laptop");
    first.stop();
    Daemon::start(&dir, "laptop").stop();
}

#[test]
fn before_it_belongs_to_a_mesh_a_node_says_what_to_do() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&temp.path().join("node"), "laptop");
    let status = daemon.get("/v1/status");
    assert_eq!(status["mesh"], Value::Null);
    assert!(
        status["addrs"][0]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:"),
        "{status}"
    );
    assert!(status["resident_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(daemon.get("/v1/self")["agent"], Value::Null);
    let publish = json!({"kind": "fact", "title": "t"});
    for (method, path, body) in [
        ("POST", "/v1/memory", Some(publish)),
        ("POST", "/v1/invites", Some(json!({}))),
        ("POST", "/v1/agents", Some(json!({"name": "a"}))),
        ("GET", "/v1/spaces", None),
        ("GET", "/v1/peers", None),
        ("GET", "/v1/memory", None),
        ("GET", "/v1/watch", None),
    ] {
        let answer = daemon.ask(method, path, body);
        assert_eq!(
            (answer.0, code(&answer)),
            (409, "no_mesh"),
            "{method} {path}: {answer:?}"
        );
        assert!(
            answer.1["error"]["hint"]
                .as_str()
                .unwrap()
                .contains("rhizome init")
        );
    }
    let answer = daemon.ask("POST", "/v1/sandboxes", Some(json!({})));
    assert_eq!((answer.0, code(&answer)), (503, "no_sandboxes"));
    assert!(answer.1["error"]["hint"].is_string());
    let doctor = daemon.get("/v1/doctor");
    let names: Vec<_> = doctor["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["name"])
        .collect();
    for name in ["data directory", "disk space", "UDP port", "clock", "store"] {
        assert!(
            names.iter().any(|found| *found == name),
            "{name} is missing in {names:?}"
        );
    }
}

#[test]
fn every_verb_of_memory_through_the_socket_and_after_a_restart() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = Daemon::start(&dir, "laptop");
    let init = json!({"name": "lab", "space": "findings"});
    let founded = daemon.post("/v1/mesh/init", init.clone());
    assert!(std::path::Path::new(founded["root_key"].as_str().unwrap()).exists());
    let again = daemon.ask("POST", "/v1/mesh/init", Some(init));
    assert_eq!((again.0, code(&again)), (409, "already_in_mesh"));

    let agent = daemon.post(
        "/v1/agents",
        json!({"name": "mender", "spaces": ["findings"]}),
    );
    assert_eq!(agent["here"], true);
    let taken = daemon.ask("POST", "/v1/agents", Some(json!({"name": "mender"})));
    assert_eq!((taken.0, code(&taken)), (409, "agent_exists"));

    let fix = daemon.post(
        "/v1/memory",
        json!({"agent": "mender", "kind": "fix", "title": "pin the parser to version two",
               "text": "the resolver picks a release candidate", "tags": ["build"], "task": "mend"}),
    );
    assert_eq!((&fix["schema"], &fix["seq"]), (&json!(1), &json!(0)));
    let by_default = daemon.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "the build is slow"}),
    );
    let saved = daemon.post(
        "/v1/context/checkpoint",
        json!({"agent": "mender", "task": "mend", "goal": "green tests", "status": "at it",
               "explored": [{"what": "clean build", "result": "no help"}],
               "errors": [{"error": "E1", "fix": "pin", "status": "fixed"}], "next": ["run the tests"]}),
    );
    assert_eq!(saved["seq"], 1, "the second fragment of that agent");

    let check = |daemon: &Daemon| {
        let hits = daemon.post(
            "/v1/recall",
            json!({"query": "which parser version", "kinds": ["fix"]}),
        );
        assert_eq!(hits["hits"][0]["doc"], fix["doc"], "{hits}");
        assert_eq!(hits["hits"][0]["author"]["name"], "mender");
        assert_eq!(hits["hits"][0]["node"]["name"], "laptop");
        let listed = daemon.get("/v1/memory?kind=fact");
        assert_eq!(listed["memories"][0]["doc"], by_default["doc"], "{listed}");
        assert_eq!(listed["memories"][0]["author"]["name"], "laptop");
        let shown = daemon.get(&format!("/v1/memory/{}", fix["doc"].as_str().unwrap()));
        assert_eq!(shown["tags"], json!(["build"]));
        let why = daemon.get(&format!("/v1/why/{}", fix["id"].as_str().unwrap()));
        assert_eq!(
            (&why["state"], &why["author"]["name"]),
            (&json!("applied"), &json!("mender"))
        );
        assert!(!why["chain"].as_array().unwrap().is_empty(), "{why}");
        let context = daemon.get("/v1/context?task=mend");
        assert_eq!(
            (&context["goal"], &context["status"]),
            (&json!("green tests"), &json!("at it"))
        );
        assert_eq!(context["explored"][0]["result"], "no help");
        assert_eq!(context["errors"][0]["fix"], "pin");
        assert_eq!(context["next"][0]["what"], "run the tests");
        let verification = &context["verification"];
        assert_eq!(
            (&verification["total"], &verification["ok"]),
            (&json!(1), &json!(1)),
            "{context}"
        );
        assert_eq!(daemon.get("/v1/contexts")["contexts"][0]["task"], "mend");
        let space = &daemon.get("/v1/spaces")["spaces"][0];
        assert_eq!(
            (&space["name"], &space["fragments"]),
            (&json!("findings"), &json!(3))
        );
        let titles: Vec<_> = daemon
            .client()
            .lines("/v1/watch")
            .unwrap()
            .filter(|event| event["kind"] != "context")
            .map(|event| event["title"].clone())
            .collect();
        assert_eq!(
            titles,
            ["pin the parser to version two", "the build is slow"]
        );
    };
    check(&daemon);
    let heads = daemon.get("/v1/spaces")["spaces"][0]["heads"].clone();
    daemon.stop();
    let daemon = Daemon::start(&dir, "laptop");
    check(&daemon);
    assert_eq!(daemon.get("/v1/spaces")["spaces"][0]["heads"], heads);
    let next = daemon.post(
        "/v1/memory",
        json!({"agent": "mender", "kind": "fact", "title": "on"}),
    );
    assert_eq!(next["seq"], 2, "the chain goes on where it was");
    let status = daemon.get("/v1/status");
    assert_eq!(
        (&status["recovery"]["clean"], &status["root"]),
        (&json!(true), &json!(true))
    );
    daemon.stop();
}

#[test]
fn a_follower_sees_what_is_published_and_can_go_on_from_there() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&temp.path().join("node"), "laptop");
    daemon.found("findings");
    let mut follower = daemon.client().lines("/v1/watch?follow=1&after=0").unwrap();
    daemon.post("/v1/memory", json!({"kind": "fact", "title": "one"}));
    let first = follower.next().unwrap();
    assert_eq!(
        (&first["title"], &first["own"]),
        (&json!("one"), &json!(true))
    );
    daemon.post("/v1/memory", json!({"kind": "fact", "title": "two"}));
    assert_eq!(follower.next().unwrap()["title"], "two");
    let path = format!("/v1/watch?after={}", first["arrival"]);
    let rest: Vec<_> = daemon.client().lines(&path).unwrap().collect();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0]["title"], "two");
    // A daemon that stops ends the stream instead of hanging on it.
    daemon.stop();
    assert!(follower.next().is_none());
}

#[test]
fn bad_requests_say_what_is_wrong_with_them() {
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&temp.path().join("node"), "laptop");
    daemon.found("findings");
    daemon.post("/v1/spaces", json!({"name": "other"}));
    let none = "0".repeat(64);
    let cases = [
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"kind": "fact", "title": "t"}),
            400,
            "space_needed",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"kind": "fact", "title": "t", "space": "x"}),
            404,
            "unknown_space",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"kind": "x", "title": "t", "space": "other"}),
            400,
            "unknown_kind",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"kind": "fact", "title": "", "space": "other"}),
            400,
            "bad_draft",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"kind": "fact", "title": "t", "agent": "x"}),
            404,
            "unknown_agent",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            json!({"knid": "fact"}),
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/recall".to_owned(),
            json!({"query": " "}),
            400,
            "bad_query",
        ),
        (
            "POST",
            "/v1/spaces".to_owned(),
            json!({"name": "other"}),
            409,
            "space_exists",
        ),
        (
            "POST",
            "/v1/spaces".to_owned(),
            json!({"name": "a\nb"}),
            400,
            "bad_name",
        ),
        (
            "POST",
            "/v1/agents".to_owned(),
            json!({"name": "../x"}),
            400,
            "bad_name",
        ),
        (
            "POST",
            "/v1/invites".to_owned(),
            json!({"role": "king"}),
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/invites".to_owned(),
            json!({"uses": 0}),
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/context/checkpoint".to_owned(),
            json!({"task": "t", "space": "other"}),
            400,
            "bad_request",
        ),
        (
            "GET",
            "/v1/nothing".to_owned(),
            Value::Null,
            404,
            "no_route",
        ),
        (
            "DELETE",
            "/v1/memory".to_owned(),
            Value::Null,
            405,
            "no_method",
        ),
        (
            "GET",
            "/v1/memory?colour=red".to_owned(),
            Value::Null,
            400,
            "bad_request",
        ),
        (
            "GET",
            "/v1/memory/xyz".to_owned(),
            Value::Null,
            400,
            "bad_request",
        ),
        (
            "GET",
            format!("/v1/memory/{none}"),
            Value::Null,
            404,
            "not_found",
        ),
        (
            "GET",
            format!("/v1/why/{none}"),
            Value::Null,
            404,
            "not_found",
        ),
    ];
    for (method, path, body, status, wanted) in cases {
        let sent = (!body.is_null()).then(|| body.clone());
        let answer = daemon.ask(method, &path, sent);
        assert_eq!(
            (answer.0, code(&answer)),
            (status, wanted),
            "{method} {path} {body}: {answer:?}"
        );
        assert!(answer.1["error"]["message"].is_string());
    }
    let long = json!({"kind": "fact", "title": "t", "text": "x".repeat(2 << 20)});
    let answer = daemon.client().ask("POST", "/v1/memory", Some(long));
    // The daemon may refuse before the client has sent it all, which then cannot go on writing.
    assert!(answer.is_err() || answer.unwrap().0 == 413);
}
