//! The door for clients of E2B: by raw HTTP, and by their own SDKs where those are installed.
#[path = "e2b/clients.rs"]
mod clients;
#[path = "e2b/guests.rs"]
mod guests;
#[path = "e2b/templates.rs"]
mod templates;
#[path = "e2b/volumes.rs"]
mod volumes;
#[path = "e2b/wire.rs"]
pub(crate) mod wire;

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::wire::{Door, PATIENCE, start};
use crate::{
    sandbox::qemu_is_missing,
    support::{self, Daemon},
};

#[test]
fn the_door_refuses_with_reasons_that_clients_understand() {
    let home = tempfile::tempdir().unwrap();
    let daemon = start(&home.path().join("node"), &["--no-sandboxes"]);
    let door = Door::of(&daemon);

    let keyless = door.ask_with("GET", "/v2/sandboxes", None, &[]);
    assert_eq!(keyless.status, 401, "{keyless:?}");
    assert_eq!(keyless.body["code"], 401);
    let bearer = [("authorization", "Bearer anything")];
    let known = door.ask_with("GET", "/v2/sandboxes", None, &bearer);
    assert_eq!((known.status, known.body), (200, json!([])));

    let stranger = [("host", "evil.example.org"), ("x-api-key", "anything")];
    assert_eq!(
        door.ask_with("GET", "/v2/sandboxes", None, &stranger)
            .status,
        403
    );

    // It runs no sandboxes, and says so.
    let health = door.ask_with("GET", "/health", None, &[]);
    assert_eq!(health.status, 503, "{health:?}");
    let create = door.ask("POST", "/v2/sandboxes", Some(json!({"templateID": "base"})));
    assert_eq!(create.status, 503, "{create:?}");
    assert_eq!(create.header("should-retry"), Some("false"));

    for (method, path, status) in [
        ("GET", "/v2/nothing", 404),
        ("PATCH", "/sandboxes", 405),
        ("GET", "/sandboxes/nobody", 404),
        ("DELETE", "/sandboxes/nobody", 404),
        ("POST", "/sandboxes/nobody/pause", 404),
        ("GET", "/v2/sandboxes?state=odd", 400),
        ("GET", "/secrets", 501),
        ("POST", "/secrets", 501),
        ("GET", "/volumecontent/a/dir?path=/", 404),
        ("DELETE", "/volumes/a", 404),
        ("GET", "/templates/aliases/nothing", 404),
    ] {
        let answer = door.ask(method, path, None);
        // Without sandboxes a template cannot be looked for among the images.
        let fits = answer.status == status || (status == 404 && answer.status == 503);
        assert!(fits, "{method} {path}: {answer:?}");
        assert_eq!(answer.body["code"], answer.status, "{path}");
        assert!(answer.body["message"].is_string(), "{path}");
        assert_eq!(answer.header("should-retry"), Some("false"), "{path}");
    }
    let gone = door.health("nobody");
    assert_eq!(gone.status, 502);
    assert!(
        gone.body["message"]
            .as_str()
            .unwrap()
            .contains("was not found")
    );
    assert_eq!(gone.body["sandboxId"], "nobody");
    let token = [("x-access-token", "of nobody")];
    assert_eq!(
        door.ask_with("GET", "/files?path=a", None, &token).status,
        502
    );
    let signed = door.ask_with("GET", "/files?path=a&signature=v1_x", None, &[]);
    assert_eq!(signed.status, 401, "{signed:?}");

    let shown = daemon.get("/v1/e2b");
    assert_eq!(shown["url"], format!("http://{}", door.0));
    daemon.stop();
}

#[test]
fn a_key_that_is_set_has_to_be_sent() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("node");
    let mut command = support::command(&dir, "laptop");
    command
        .args(["--e2b", "127.0.0.1:0", "--no-sandboxes"])
        .env("RHIZOME_E2B_KEY", "the key");
    let daemon = Daemon::spawn(command, &dir);
    let door = Door::of(&daemon);
    assert_eq!(door.ask("GET", "/v2/sandboxes", None).status, 401);
    let key = [("x-api-key", "the key")];
    assert_eq!(
        door.ask_with("GET", "/v2/sandboxes", None, &key).status,
        200
    );
    assert_eq!(daemon.get("/v1/e2b")["key"], "the key");
    assert!(!daemon.get("/v1/config").to_string().contains("the key"));
    daemon.stop();
}

#[test]
fn a_sandbox_lives_as_clients_of_e2b_expect() {
    if qemu_is_missing("a_sandbox_lives_as_clients_of_e2b_expect") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("node");
    let daemon = start(&dir, &[]);
    let door = Door::of(&daemon);

    let wanted = json!({
        "templateID": "minimal", "timeout": 900,
        "metadata": {"a": "b c"}, "envVars": {"X": "1"}, "an_unknown_field": true,
    });
    let key = [("x-api-key", "anything"), ("idempotency-key", "key-1")];
    let made = door.ask_with("POST", "/v2/sandboxes", Some(wanted.clone()), &key);
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.body["sandboxID"].as_str().unwrap().to_owned();
    let token = made.body["envdAccessToken"].as_str().unwrap().to_owned();
    assert!(token.len() >= 32 && made.body["clientID"].is_string());
    assert_eq!(made.body["envdVersion"], "0.6.4");
    assert_eq!(made.header("rhizome-sandbox"), Some(&id[..]));
    a_key_makes_one_sandbox(&door, &wanted, &id);
    what_cannot_be_met_is_refused(&door);

    assert_eq!(
        door.listed("?metadata=a%3Db%2Bc"),
        std::slice::from_ref(&id)
    );
    assert!(door.listed("?metadata=a%3Dother").is_empty());
    assert!(door.listed("?state=paused").is_empty());
    let item = door.info(&id);
    assert_eq!(item["state"], "running");
    assert_eq!(item["metadata"], json!({"a": "b c"}));
    assert!(
        item["startedAt"].as_str() < item["endAt"].as_str(),
        "{item}"
    );
    let metrics = door.ask("GET", &format!("/sandboxes/{id}/metrics"), None);
    let sample = &metrics.body[0];
    assert!(
        sample["memTotal"].as_u64() > sample["memUsed"].as_u64(),
        "{metrics:?}"
    );
    assert!(sample["diskTotal"].is_u64(), "{metrics:?}");
    let logs = door.ask("GET", &format!("/v2/sandboxes/{id}/logs?limit=1"), None);
    assert_eq!(logs.body["logs"].as_array().unwrap().len(), 1, "{logs:?}");
    time_is_given_and_never_taken_by_connect(&door, &id);
    what_it_may_reach_is_replaced(&door, &daemon, &id);
    only_its_token_opens_it(&door, &id, &token);
    copies_and_snapshots_are_sandboxes_of_their_own(&door, &id);

    let pause = format!("/sandboxes/{id}/pause");
    // As the client 2.20 does: no body at all.
    assert_eq!(door.ask("POST", &pause, None).status, 204);
    assert_eq!(door.ask("POST", &pause, None).status, 409);
    let asleep = door.health(&id);
    assert_eq!(asleep.status, 502, "{asleep:?}");
    assert!(
        asleep.body["message"]
            .as_str()
            .unwrap()
            .contains("was not found")
    );

    // What was acknowledged is known after SIGKILL: of one that sleeps, and of one that runs.
    let guests = daemon.crash();
    let daemon = start(&dir, &[]);
    drop_none(guests);
    let door = Door::of(&daemon);
    let item = door.info(&id);
    assert_eq!(
        (&item["state"], &item["pauseMode"]),
        (&json!("paused"), &json!("full"))
    );
    assert_eq!(item["metadata"], json!({"a": "b c"}));
    let connect = format!("/v2/sandboxes/{id}/connect");
    let woken = door.ask("POST", &connect, Some(json!({"timeout": 600})));
    assert_eq!(woken.status, 200, "{woken:?}");
    assert_eq!(woken.body["envdAccessToken"], token);
    assert_eq!(door.info(&id)["state"], "running");
    let guests = daemon.crash();
    let daemon = start(&dir, &[]);
    drop_none(guests);
    let door = Door::of(&daemon);
    assert_eq!(door.info(&id)["state"], "running");
    assert_eq!(door.info(&id)["envdAccessToken"], token);

    // Shut down with its disk kept, and booted from that again.
    let pause = format!("/sandboxes/{id}/pause");
    let stopped = door.ask("POST", &pause, Some(json!({"memory": false})));
    assert_eq!(stopped.status, 204, "{stopped:?}");
    assert_eq!(door.info(&id)["pauseMode"], "filesystem");
    let booted = door.ask("POST", &connect, Some(json!({"memory": false})));
    assert_eq!(booted.status, 200, "{booted:?}");

    let path = format!("/sandboxes/{id}");
    assert_eq!(door.ask("DELETE", &path, None).status, 204);
    assert_eq!(door.ask("DELETE", &path, None).status, 404);
    assert_eq!(door.ask("GET", &path, None).status, 404);
    assert!(door.listed("").is_empty());
    let log = daemon.get("/v1/audit");
    let entries = log["entries"].as_array().unwrap();
    for action in ["e2b.create", "e2b.pause", "e2b.connect", "e2b.kill"] {
        let noted = |entry: &Value| entry["action"] == action && entry["on"] == id;
        assert!(entries.iter().any(noted), "{action}");
    }
    daemon.stop();
}

/// The next daemon has taken the guests over: they are its own to end.
fn drop_none(guests: support::Guests) {
    std::mem::forget(guests);
}

fn a_key_makes_one_sandbox(door: &Door, wanted: &Value, id: &str) {
    let key = [("x-api-key", "anything"), ("idempotency-key", "key-1")];
    let again = door.ask_with("POST", "/v2/sandboxes", Some(wanted.clone()), &key);
    assert_eq!((again.status, &again.body["sandboxID"]), (201, &json!(id)));
    let mut other = wanted.clone();
    other["timeout"] = json!(5);
    let refused = door.ask_with("POST", "/v2/sandboxes", Some(other), &key);
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(refused.body["error_code"], "idempotency_request_mismatch");
    let bad = [
        ("x-api-key", "anything"),
        ("idempotency-key", "Not Allowed"),
    ];
    let refused = door.ask_with("POST", "/v2/sandboxes", Some(wanted.clone()), &bad);
    assert_eq!(refused.status, 400, "{refused:?}");
}

fn what_cannot_be_met_is_refused(door: &Door) {
    for (body, status) in [
        (json!({"templateID": "nothing-like-it"}), 404),
        (
            json!({"templateID": "minimal", "autoPause": true, "autoPauseMemory": false}),
            400,
        ),
        (
            json!({"templateID": "minimal", "autoResume": {"enabled": true}}),
            400,
        ),
        (json!({"templateID": "minimal", "timeout": -1}), 400),
        (json!({"templateID": "minimal", "mcp": {"x": {}}}), 400),
        (json!({"templateID": "minimal", "iam": {"tokens": {}}}), 400),
        (
            json!({"templateID": "minimal", "network": {"rules": {"a.org": [
                {"transform": {"headers": {"x": "y"}}},
            ]}}}),
            400,
        ),
        (
            json!({"templateID": "minimal", "metadata": {"rhizome.agent": "ada"}}),
            403,
        ),
        (
            json!({"templateID": "minimal", "metadata": {"rhizome.colour": "red"}}),
            400,
        ),
        (
            json!({"templateID": "minimal", "volumeMounts": [{"name": "no", "path": "/v"}]}),
            404,
        ),
        (
            json!({"templateID": "minimal", "network": {"dnsServers": ["1.1.1.1"]}}),
            400,
        ),
    ] {
        let answer = door.ask("POST", "/sandboxes", Some(body.clone()));
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert_eq!(answer.header("should-retry"), Some("false"), "{body}");
        // Old clients call `create` too, so both paths say it alike.
        assert_eq!(
            answer.body["error_code"], "sandbox_create_refused",
            "{body}"
        );
    }
}

fn time_is_given_and_never_taken_by_connect(door: &Door, id: &str) {
    let end = |door: &Door| door.info(id)["endAt"].as_str().unwrap().to_owned();
    let connect = format!("/v2/sandboxes/{id}/connect");
    let before = end(door);
    let answer = door.ask("POST", &connect, Some(json!({"timeout": 1})));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(end(door), before);
    assert_eq!(
        door.ask("POST", &connect, Some(json!({"timeout": 3600})))
            .status,
        200
    );
    assert!(end(door) > before);
    let longest = end(door);
    let refresh = format!("/sandboxes/{id}/refreshes");
    assert_eq!(
        door.ask("POST", &refresh, Some(json!({"duration": 5})))
            .status,
        204
    );
    assert_eq!(end(door), longest);
    let timeout = format!("/sandboxes/{id}/timeout");
    assert_eq!(
        door.ask("POST", &timeout, Some(json!({"timeout": 600})))
            .status,
        204
    );
    assert!(end(door) < longest);
    assert_eq!(door.ask("POST", &timeout, None).status, 400);
}

fn what_it_may_reach_is_replaced(door: &Door, daemon: &Daemon, id: &str) {
    let policy = || daemon.get(&format!("/v1/sandboxes/{id}/policy"))["shown"].clone();
    assert_eq!(policy(), "open");
    let put = |body: Value| door.ask("PUT", &format!("/sandboxes/{id}/network"), Some(body));
    let only = put(json!({"allowOut": ["api.example.org"], "denyOut": ["0.0.0.0/0"]}));
    assert_eq!(only.status, 204, "{only:?}");
    assert_eq!(policy(), "allow api.example.org");
    let headers = json!({"rules": {"a.org": [{"transform": {"headers": {"x": "y"}}}]}});
    assert_eq!(put(headers).status, 400);
    assert_eq!(put(json!({"allow_internet_access": false})).status, 204);
    assert_eq!(policy(), "none");
}

fn only_its_token_opens_it(door: &Door, id: &str, token: &str) {
    let ask = |path: &str, port: &str, token: &str| {
        let headers = [
            ("e2b-sandbox-id", id),
            ("e2b-sandbox-port", port),
            ("x-access-token", token),
        ];
        door.ask_with("GET", path, None, &headers).status
    };
    assert_eq!(ask("/files?path=/nothing", "49983", "wrong"), 401);
    assert_ne!(ask("/files?path=/nothing", "49983", token), 401);
    assert_eq!(ask("/init", "49983", token), 404);
    let closed = [("e2b-sandbox-id", id), ("e2b-sandbox-port", "9")];
    let closed = door.ask_with("GET", "/", None, &closed);
    assert_eq!(closed.status, 502, "{closed:?}");
    assert!(
        closed.body["message"]
            .as_str()
            .unwrap()
            .contains("port is not open")
    );
    let host = format!("9-{id}.localhost:1");
    let by_host = door.ask_with("GET", "/sandboxes", None, &[("host", &host)]);
    assert!(
        by_host.body["message"]
            .as_str()
            .unwrap()
            .contains("port is not open")
    );
}

fn copies_and_snapshots_are_sandboxes_of_their_own(door: &Door, id: &str) {
    let forked = door.ask(
        "POST",
        &format!("/sandboxes/{id}/fork"),
        Some(json!({"timeout": 300})),
    );
    assert_eq!(forked.status, 201, "{forked:?}");
    let copy = forked.body[0]["sandbox"]["sandboxID"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_ne!(copy, id);
    assert_ne!(
        forked.body[0]["sandbox"]["envdAccessToken"],
        door.info(id)["envdAccessToken"]
    );
    let first = door.ask("GET", "/v2/sandboxes?limit=1", None);
    let next = first
        .header("x-next-token")
        .expect("there is a second page")
        .to_owned();
    let mut ids = door.listed(&format!("?limit=1&nextToken={next}"));
    ids.push(first.body[0]["sandboxID"].as_str().unwrap().to_owned());
    ids.sort_unstable();
    let mut both = [id.to_owned(), copy.clone()];
    both.sort_unstable();
    assert_eq!(ids, both);
    assert_eq!(
        door.ask("DELETE", &format!("/sandboxes/{copy}"), None)
            .status,
        204
    );

    let path = format!("/sandboxes/{id}/snapshots");
    let taken = door.ask("POST", &path, Some(json!({"name": "ready"})));
    assert_eq!(taken.status, 201, "{taken:?}");
    let snapshot = taken.body["snapshotID"].as_str().unwrap().to_owned();
    assert_eq!(taken.body["names"], json!(["ready"]));
    let listed = door.ask("GET", &format!("/snapshots?sandboxID={id}"), None);
    assert_eq!(listed.body[0]["snapshotID"], snapshot, "{listed:?}");
    let wanted = json!({"templateID": "ready", "timeout": 300, "autoPause": true});
    let made = door.ask("POST", "/v2/sandboxes", Some(wanted));
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.body["sandboxID"].as_str().unwrap().to_owned();
    // Its time is over soon, and it then sleeps.
    let timeout = format!("/sandboxes/{made}/timeout");
    assert_eq!(
        door.ask("POST", &timeout, Some(json!({"timeout": 1})))
            .status,
        204
    );
    let since = Instant::now();
    while door.info(&made)["pauseMode"] != "full" {
        assert!(since.elapsed() < PATIENCE, "{}", door.info(&made));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(
        door.ask("DELETE", &format!("/sandboxes/{made}"), None)
            .status,
        204
    );
    let path = format!("/templates/{snapshot}");
    assert_eq!(door.ask("DELETE", &path, None).status, 204);
    assert_eq!(door.ask("DELETE", &path, None).status, 404);
}

#[test]
fn tls_and_the_domain_lead_to_the_same_door() {
    let name = "tls_and_the_domain_lead_to_the_same_door";
    if Command::new("curl")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("skipped {name}: curl is not installed (apt-get install curl)");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("node");
    let daemon = start(
        &dir,
        &["--no-sandboxes", "--e2b-tls", "--e2b-domain", "box.test"],
    );
    let shown = daemon.get("/v1/e2b");
    let (domain, port) = shown["domain"].as_str().unwrap().split_once(':').unwrap();
    assert_eq!(domain, "box.test");
    assert_eq!(shown["url"], format!("https://api.box.test:{port}"));
    let ca = shown["ca"].as_str().unwrap();
    let curl = |host: &str, path: &str| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--cacert", ca])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .args(["--header", "x-api-key: anything"])
            .arg(format!("https://{host}:{port}{path}"))
            .output()
            .unwrap();
        let failed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{host}: {failed}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(curl("api.box.test", "/v2/sandboxes"), "[]");
    assert_eq!(curl("localhost", "/v2/sandboxes"), "[]");
    let gone = curl("49983-nobody.box.test", "/health");
    assert!(
        gone.contains("was not found") && gone.contains("nobody"),
        "{gone}"
    );
    daemon.stop();
}
