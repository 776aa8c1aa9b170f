//! Images between daemons that share no directory.
use std::path::Path;

use serde_json::{Value, json};

use crate::{
    remote::{done, join, sees},
    resume::out,
    sandbox::qemu_is_missing,
    support::{Daemon, code, command},
};

/// Returns the images of a daemon that are called so.
fn called(daemon: &Daemon, name: &str) -> Vec<Value> {
    let images = daemon.get("/v1/images");
    let images = images["images"].as_array().unwrap().iter();
    images
        .filter(|image| image["name"] == name)
        .cloned()
        .collect()
}

/// Makes an image of a sandbox that says `word`.
fn make(daemon: &Daemon, word: &str, name: &str) -> Value {
    done(daemon, "/v1/sandboxes", json!({"name": "bench"}));
    out(daemon, &format!("echo {word} > /etc/marker"));
    let body = json!({"sandbox": "bench", "name": name});
    let made = done(daemon, "/v1/images/commit", body);
    let killed = daemon.ask("DELETE", "/v1/sandboxes/bench", None);
    assert_eq!(killed.0, 200, "{killed:?}");
    made
}

#[test]
fn an_image_that_is_lacking_comes_from_a_peer_and_one_can_be_pushed() {
    if qemu_is_missing("an_image_that_is_lacking_comes_from_a_peer_and_one_can_be_pushed") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str, images: &Path| {
        let dir = temp.path().join(name);
        let mut up = command(&dir, name);
        up.arg("--images-dir").arg(images);
        Daemon::spawn(up, &dir)
    };
    // The names of what is made here are its own: the directory outlives the test.
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    let laptop = start("laptop", &shared);
    let cloud = start("cloud", &temp.path().join("images-of-cloud"));
    laptop.found("findings");
    join(&cloud, &laptop, "writer");
    sees(&cloud, "laptop");
    sees(&laptop, "cloud");
    let word = format!("w{}", std::process::id());
    let fetched = make(&laptop, &word, "peers-fetched");

    // Nobody has it: the answer is the usual one.
    let unknown = last(&cloud, json!({"name": "none", "image": "peers-nothing"}));
    assert_eq!(unknown["error"]["code"], "unknown_image", "{unknown}");
    assert!(
        unknown.to_string().contains("no image is called"),
        "{unknown}"
    );
    // By name, though it was never built there; with its progress.
    assert_eq!(called(&cloud, "peers-fetched"), [] as [Value; 0]);
    let (_, bytes) = cloud
        .client()
        .ask_bytes(
            "POST",
            "/v1/sandboxes",
            Some(json!({"name": "bench", "image": "peers-fetched"})),
        )
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let made: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(made["done"]["image_id"], fetched["id"], "{text}");
    assert!(text.contains(r#""step":"image""#), "{text}");
    assert_eq!(out(&cloud, "cat /etc/marker"), word);
    let here = called(&cloud, "peers-fetched");
    assert_eq!(here.len(), 1);
    assert_eq!(here[0]["id"], fetched["id"]);

    // Pushed before anybody asks; a second time there is nothing to send.
    let pushed = make(&laptop, &format!("{word}p"), "peers-pushed");
    let body = json!({"image": "peers-pushed", "node": "cloud"});
    let sent = done(&laptop, "/v1/images/push", body.clone());
    assert_eq!(sent["id"], pushed["id"], "{sent}");
    assert_eq!(sent["node"]["name"], "cloud");
    assert!(sent["sent_bytes"].as_u64().unwrap() > 0, "{sent}");
    assert_eq!(called(&cloud, "peers-pushed")[0]["id"], pushed["id"]);
    let again = done(&laptop, "/v1/images/push", body);
    assert_eq!(again["sent_bytes"], 0, "{again}");

    // Not for those who may not write anywhere here.
    let visitor = start("visitor", &shared);
    join(&visitor, &laptop, "reader");
    sees(&visitor, "cloud");
    let body = json!({"image": "peers-pushed", "node": "cloud"});
    let refused = visitor
        .client()
        .ask_bytes("POST", "/v1/images/push", Some(body));
    let text = String::from_utf8(refused.unwrap().1).unwrap();
    let refused: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(refused["error"]["code"], "denied", "{refused}");
    let body = json!({"image": "nothing", "node": "nowhere"});
    let unknown = laptop
        .client()
        .ask_bytes("POST", "/v1/images/push", Some(body));
    let text = String::from_utf8(unknown.unwrap().1).unwrap();
    assert!(text.contains("unknown_node"), "{text}");
    for image in ["peers-fetched", "peers-pushed"] {
        let gone = laptop.ask("DELETE", &format!("/v1/images/{image}"), None);
        assert!(gone.0 == 200 || code(&gone) == "image_in_use", "{gone:?}");
    }
}

/// Asks for a sandbox and returns the last line of the answer.
fn last(daemon: &Daemon, body: Value) -> Value {
    let answer = daemon
        .client()
        .ask_bytes("POST", "/v1/sandboxes", Some(body));
    let text = String::from_utf8(answer.unwrap().1).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}
