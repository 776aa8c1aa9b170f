//! Members who are revoked, what stays of their work, and a root that is replaced.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Daemon, code};

pub(crate) fn join(host: &Daemon, guest: &Daemon) {
    let invite = host.post("/v1/invites", json!({}));
    guest.post("/v1/mesh/join", json!({"invite": invite["invite"]}));
}

pub(crate) fn titles(daemon: &Daemon) -> Vec<String> {
    let list = daemon.get("/v1/memory?space=findings");
    let memories = list["memories"].as_array().unwrap().iter();
    let mut titles: Vec<String> = memories
        .map(|memory| memory["title"].as_str().unwrap().to_owned())
        .collect();
    titles.sort();
    titles
}

/// Asks until the answer is as wanted.
pub(crate) fn until<T: std::fmt::Debug>(
    what: &str,
    ask: impl Fn() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let begun = Instant::now();
    loop {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what}: {answer:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn fact(title: &str, replicas: u32) -> Value {
    json!({"kind": "fact", "title": title, "space": "findings", "replicas": replicas})
}

#[test]
fn a_revoked_node_is_out_and_what_was_kept_of_it_stays() {
    let temp = tempfile::tempdir().unwrap();
    let [laptop, cloud, edge] =
        ["laptop", "cloud", "edge"].map(|name| Daemon::start(&temp.path().join(name), name));
    laptop.found("findings");
    join(&laptop, &cloud);
    join(&laptop, &edge);
    let first = cloud.post("/v1/memory", fact("kept", 2));
    let at_ms = first["at_ms"].as_u64();
    let shown = cloud.get(&format!("/v1/why/{}", first["id"].as_str().unwrap()));
    let after = at_ms.or(shown["at_ms"].as_u64()).unwrap() + 1;
    std::thread::sleep(Duration::from_millis(5));
    let second = cloud.post("/v1/memory", fact("set aside", 2));
    assert_eq!(titles(&edge), ["kept", "set aside"]);
    // An ordinary member revokes nobody.
    let refused = edge.ask("DELETE", "/v1/members/cloud", None);
    assert_eq!((refused.0, code(&refused)), (403, "not_allowed"));
    let bad = laptop.ask("DELETE", "/v1/members/cloud?keep=some", None);
    assert_eq!((bad.0, code(&bad)), (400, "bad_request"));
    let path = format!("/v1/members/cloud?reason=left&keep=before:{after}");
    let (status, revoked) = laptop.ask("DELETE", &path, None);
    assert_eq!(status, 200, "{revoked}");
    assert_eq!(revoked["kept"], 1);
    assert_eq!(revoked["rekeyed"][0]["name"], "findings");
    assert_eq!(titles(&laptop), ["kept"]);
    until(
        "the revocation travels",
        || titles(&edge),
        |titles| *titles == ["kept"],
    );
    // Its connections are closed, and it hears of nothing that comes after.
    let peers = until(
        "the revoked node is gone",
        || laptop.get("/v1/peers"),
        |peers| {
            let peers = peers["peers"].as_array().unwrap();
            !peers
                .iter()
                .any(|peer| peer["name"] == "cloud" && peer["state"] == "connected")
        },
    );
    assert!(peers["peers"].as_array().unwrap().len() >= 2);
    laptop.post("/v1/memory", fact("under a new key", 1));
    until(
        "a new key is known",
        || titles(&edge).len(),
        |count| *count == 2,
    );
    // It may have heard of its revocation before it was cut off, and says so then.
    let (status, told) = cloud.ask("GET", "/v1/memory?space=findings", None);
    assert!([200, 409].contains(&status), "{told}");
    assert!(!told.to_string().contains("under a new key"), "{told}");
    let why = laptop.get(&format!("/v1/why/{}", second["id"].as_str().unwrap()));
    assert_eq!(why["state"], "set_aside", "{why}");
    assert_eq!(why["by"][0]["kind"], "revoke");
    let listed = laptop.get("/v1/members");
    let members = listed["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    assert_eq!(members[2]["state"], "revoked");
    let id = members[2]["node"]["id"].as_str().unwrap();
    let shown = laptop.get(&format!("/v1/members/{id}"));
    assert_eq!(shown["revocations"][0]["reason"], "left");
    assert!(
        shown["chains"][0]["set_aside"].as_u64() >= Some(1),
        "{shown}"
    );
    // And given back.
    let restored = laptop.post(&format!("/v1/members/{id}/restore"), json!({}));
    assert_eq!(restored["chains"][0]["set_aside"], 0);
    for daemon in [&laptop, &edge] {
        until("it is back", || titles(daemon).len(), |count| *count == 3);
    }
    let again = laptop.ask(
        "POST",
        &format!("/v1/members/{id}/restore"),
        Some(json!({})),
    );
    assert_eq!((again.0, code(&again)), (409, "nothing_set_aside"));
    // The node itself comes back by an invite, as its refusals say, and speaks by a new agent.
    join(&laptop, &cloud);
    let listed = until(
        "the node is a member again",
        || laptop.get("/v1/members"),
        |listed| listed["members"][2]["state"] != "revoked",
    );
    assert_eq!(listed["members"].as_array().unwrap().len(), 3, "{listed}");
    until(
        "it reads what it missed",
        || cloud.ask("GET", "/v1/memory?space=findings", None).1,
        |told| {
            told["memories"]
                .as_array()
                .is_some_and(|all| all.len() == 3)
        },
    );
}

#[test]
fn a_root_is_replaced_by_the_key_that_was_chosen_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let laptop = Daemon::start(&dir, "laptop");
    laptop.found("findings");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let next = read("next-root.key");
    let rotated = laptop.post("/v1/root/rotate", json!({}));
    assert_eq!(read("root.key"), next);
    assert_ne!(read("next-root.key"), next);
    let again = laptop.post("/v1/root/rotate", json!({}));
    assert_ne!(again["root"], rotated["root"]);
    let (kept, elsewhere) = (dir.join("next-root.key"), dir.join("elsewhere.key"));
    std::fs::rename(&kept, &elsewhere).unwrap();
    let missing = laptop.ask("POST", "/v1/root/rotate", Some(json!({})));
    assert_eq!((missing.0, code(&missing)), (409, "no_root_key"));
    std::fs::rename(&elsewhere, &kept).unwrap();
    // An admin is the root's to revoke, and the root is the new one.
    let refused = laptop.ask("DELETE", "/v1/members/laptop", None);
    assert_eq!(
        (refused.0, code(&refused)),
        (403, "not_allowed"),
        "{refused:?}"
    );
    let (status, revoked) = laptop.ask("DELETE", "/v1/members/laptop?as_root=true", None);
    assert_eq!(status, 200, "{revoked}");
    let out = laptop.ask("GET", "/v1/members", None);
    assert_eq!((out.0, code(&out)), (409, "revoked"));
    let said = out.1.to_string();
    assert!(said.contains("by the mesh's root key"), "{said}");
}

#[test]
fn an_agents_helper_may_do_no_more_and_falls_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let laptop = Daemon::start(&temp.path().join("laptop"), "laptop");
    laptop.found("findings");
    laptop.post("/v1/agents", json!({"name": "mender", "expires_secs": 60}));
    let scout = laptop.post("/v1/agents", json!({"name": "scout", "by": "mender"}));
    assert!(scout["not_after_ms"].as_u64().is_some(), "{scout}");
    let longer = json!({"name": "longer", "by": "mender", "expires_secs": 600});
    let refused = laptop.ask("POST", "/v1/agents", Some(longer));
    assert_eq!((refused.0, code(&refused)), (403, "not_allowed"));
    let nobody = json!({"name": "x", "by": "nobody"});
    assert_eq!(laptop.ask("POST", "/v1/agents", Some(nobody)).0, 404);
    assert_eq!(laptop.ask("DELETE", "/v1/agents/mender", None).0, 200);
    let agents = laptop.get("/v1/agents");
    let names: Vec<_> = agents["agents"].as_array().unwrap().iter().collect();
    assert!(
        !names.iter().any(|agent| agent["name"] == "scout"),
        "{agents}"
    );
}

#[test]
fn a_root_key_goes_to_paper_and_comes_back() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let laptop = Daemon::start(&dir, "laptop");
    laptop.found("findings");
    let rhizome = |args: &[&str], input: &str| {
        use std::io::Write;
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command.arg("--data-dir").arg(&dir).args(args);
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let written = child.stdin.take().unwrap().write_all(input.as_bytes());
        drop(written);
        let output = child.wait_with_output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (done, words) = rhizome(&["root", "export", "--next"], "");
    assert!(done);
    assert_eq!(words.split_whitespace().count(), 17);
    let path = dir.join("next-root.key");
    let key = std::fs::read(&path).unwrap();
    assert!(
        !rhizome(&["root", "import", "--next"], &words).0,
        "never overwritten"
    );
    std::fs::remove_file(&path).unwrap();
    let mistaken = words.replacen(words.split(' ').next().unwrap(), "babab", 1);
    assert!(!rhizome(&["root", "import", "--next"], &mistaken).0);
    assert!(rhizome(&["root", "import", "--next"], &words.to_uppercase()).0);
    assert_eq!(std::fs::read(&path).unwrap(), key);
    laptop.post("/v1/root/rotate", json!({}));
}
