//! Invites that are closed, invites that need approval, and agents with two histories.
use serde_json::{Value, json};

use crate::support::{Client, Daemon, code};

fn join(daemon: &Daemon, invite: &Value) -> (u16, Value) {
    daemon.ask(
        "POST",
        "/v1/mesh/join",
        Some(json!({"invite": invite["invite"]})),
    )
}

#[test]
fn a_closed_invite_opens_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    laptop.found("findings");
    let invite = laptop.post("/v1/invites", json!({"uses": 2}));
    let id = invite["id"].as_str().unwrap();
    let path = format!("/v1/invites/{}", &id[..8]);
    let (status, closed) = laptop.ask("DELETE", &path, None);
    assert_eq!(
        (status, &closed["state"]),
        (200, &json!("closed")),
        "{closed}"
    );
    let refused = join(&cloud, &invite);
    assert_eq!((refused.0, code(&refused)), (403, "invite_closed"));
    // By the string itself as well, and again; what is no invite is told apart.
    let path = format!("/v1/invites/{}", invite["invite"].as_str().unwrap());
    assert_eq!(laptop.ask("DELETE", &path, None).0, 200);
    let unknown = laptop.ask("DELETE", "/v1/invites/00000000", None);
    assert_eq!((unknown.0, code(&unknown)), (404, "not_found"));
}

#[test]
fn whoever_needs_approval_waits_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    laptop.found("findings");
    let invite = laptop.post("/v1/invites", json!({"approve": true}));
    assert_eq!(invite["approve"], true);
    let refused = join(&cloud, &invite);
    assert_eq!(
        (refused.0, code(&refused)),
        (403, "invite_needs_approval"),
        "{refused:?}"
    );
    assert!(
        refused.1["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("approve")
    );
    let waiting = laptop.get("/v1/invites/requests");
    assert_eq!(waiting["requests"][0]["node"]["name"], "cloud", "{waiting}");
    assert_eq!(waiting["requests"][0]["approved"], false);
    let stranger = laptop.ask("POST", "/v1/invites/approve", Some(json!({"node": "edge"})));
    assert_eq!((stranger.0, code(&stranger)), (404, "not_found"));
    let approved = laptop.post("/v1/invites/approve", json!({"node": "cloud"}));
    assert_eq!(approved["requests"][0]["approved"], true);
    let (status, joined) = join(&cloud, &invite);
    assert_eq!(status, 200, "{joined}");
    assert_eq!(laptop.get("/v1/invites/requests")["requests"], json!([]));
    assert_eq!(laptop.get("/v1/invites")["invites"][0]["state"], "spent");
}

#[test]
fn a_forked_author_is_shown() {
    let temp = tempfile::tempdir().unwrap();
    let (here, copy) = (temp.path().join("laptop"), temp.path().join("restored"));
    let laptop = Daemon::start(&here, "laptop");
    let cloud = Daemon::start(&temp.path().join("cloud"), "cloud");
    laptop.found("findings");
    let invite = laptop.post("/v1/invites", json!({}));
    assert_eq!(join(&cloud, &invite).0, 200);
    laptop.stop();
    // A backup that is put back while the original goes on: one key, two histories.
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(&here)
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    let laptop = Daemon::start(&here, "laptop");
    let fact = |title: &str, replicas: u32| json!({"kind": "fact", "title": title, "space": "findings", "replicas": replicas});
    laptop.post("/v1/memory", fact("the first history", 1));
    laptop.stop();
    // Had the copy reached another member, it would have learned what it wrote before.
    signal(&cloud, "STOP");
    let restored = Daemon::start(&copy, "laptop");
    // It knows that it is a copy, and has to be told to go on.
    let refused = restored.ask("POST", "/v1/memory", Some(fact("too soon", 0)));
    assert_eq!(
        (refused.0, code(&refused)),
        (409, "restored"),
        "{refused:?}"
    );
    restored.post("/v1/store/accept", json!({}));
    let second = restored.post("/v1/memory", fact("the second history", 0));
    signal(&cloud, "CONT");
    let forks = wait_for_forks(&mut cloud.client());
    assert_eq!(forks.as_array().unwrap().len(), 1, "{forks}");
    assert_eq!(forks[0]["theirs"], second["id"]);
    assert_eq!(forks[0]["space"]["name"], "findings");
    let author = &forks[0]["author"]["id"];
    let agents = cloud.get("/v1/agents");
    let forked = agents["agents"].as_array().unwrap().iter();
    let forked: Vec<_> = forked.filter(|agent| agent["forked"] == true).collect();
    assert_eq!(forked.len(), 1);
    assert_eq!(&forked[0]["id"], author);
    let why = cloud.get(&format!("/v1/why/{}", forks[0]["ours"].as_str().unwrap()));
    assert_eq!(why["fork"], forks[0]);
}

fn signal(daemon: &Daemon, name: &str) {
    let pid = daemon.pid().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", name, &pid])
        .status();
    assert!(sent.unwrap().success());
}

/// Waits until the status tells of forks; both nodes have to find each other first.
fn wait_for_forks(client: &mut Client) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let (_, status) = client.ask("GET", "/v1/status", None).unwrap();
        if status["forks"]
            .as_array()
            .is_some_and(|forks| !forks.is_empty())
        {
            return status["forks"].clone();
        }
        let waited = begun.elapsed();
        assert!(waited.as_secs() < 60, "no fork was told of: {status}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
