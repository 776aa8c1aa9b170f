//! Keys of spaces: replaced by hand, and out of the reach of who stores what they seal.
use std::{fs, path::Path};

use rhizome_identity::{
    NodeKey,
    keyfile::{self, KeyKind},
};
use rhizome_memory::{Replica, ReplicaConfig};
use serde_json::{Value, json};

use crate::{
    member::{join, titles, until},
    support::{Daemon, code},
};

/// Joins with a role.
fn join_as(host: &Daemon, guest: &Daemon, role: &str) {
    let invite = host.post("/v1/invites", json!({"role": role}));
    guest.post("/v1/mesh/join", json!({"invite": invite["invite"]}));
}

fn space(daemon: &Daemon) -> Value {
    daemon.get("/v1/spaces")["spaces"][0].clone()
}

fn fact(title: &str, text: &str, replicas: u32) -> Value {
    let space = "findings";
    json!({"kind": "fact", "title": title, "text": text, "space": space, "replicas": replicas})
}

/// Returns the files below a directory that hold one of these, with which.
pub(crate) fn holding(dir: &Path, wanted: &[(String, Vec<u8>)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            // A socket is no file; one that is gone by now holds nothing.
            let Ok(bytes) = fs::read(&path) else { continue };
            for (what, wanted) in wanted {
                if bytes.windows(wanted.len()).any(|piece| piece == wanted) {
                    found.push(format!("{} holds {what}", path.display()));
                }
            }
        }
    }
    found
}

/// Returns 32 bytes as they may be spelled.
pub(crate) fn spellings(what: &str, bytes: &[u8; 32]) -> Vec<(String, Vec<u8>)> {
    use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};
    let spelled = [HEXLOWER, HEXUPPER, BASE64, BASE64_NOPAD, BASE64URL_NOPAD];
    let spelled = spelled
        .iter()
        .map(|encoding| encoding.encode(bytes).into_bytes());
    spelled
        .chain([bytes.to_vec()])
        .map(|spelled| (what.to_owned(), spelled))
        .collect()
}

#[test]
fn a_key_is_replaced_by_hand_and_what_was_said_before_stays_readable() {
    let temp = tempfile::tempdir().unwrap();
    let [laptop, cloud] =
        ["laptop", "cloud"].map(|name| Daemon::start(&temp.path().join(name), name));
    laptop.found("findings");
    join(&laptop, &cloud);
    laptop.post("/v1/memory", fact("first", "", 1));
    let before = space(&laptop);
    assert_eq!(
        (&before["epoch"], &before["epoch_stale"]),
        (&json!(1), &json!(false))
    );
    let made = before["epoch_at_ms"].as_u64().unwrap();
    assert!(rhizome_memory::now_ms() - made < 60_000, "{before}");
    let refused = cloud.ask("POST", "/v1/spaces/findings/rotate", Some(json!({})));
    assert_eq!(
        (refused.0, code(&refused)),
        (403, "not_allowed"),
        "{refused:?}"
    );
    let unknown = laptop.ask("POST", "/v1/spaces/nothing/rotate", Some(json!({})));
    assert_eq!((unknown.0, code(&unknown)), (404, "unknown_space"));
    let rotated = laptop.post("/v1/spaces/findings/rotate", json!({}));
    assert_eq!(rotated["epoch"], 2, "{rotated}");
    until(
        "the other hears of it",
        || space(&cloud),
        |space| space["epoch"] == 2,
    );
    assert!(space(&laptop)["epoch_at_ms"].as_u64() >= before["epoch_at_ms"].as_u64());
    cloud.post("/v1/memory", fact("second", "", 1));
    // Who comes later reads all of it, with the newest key alone to begin with.
    let edge = Daemon::start(&temp.path().join("edge"), "edge");
    join_as(&laptop, &edge, "reader");
    for daemon in [&laptop, &cloud, &edge] {
        until(
            "all of it is read",
            || titles(daemon),
            |titles| *titles == ["first", "second"],
        );
    }
}

#[test]
fn a_relay_stores_checks_and_serves_what_it_cannot_read() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = ["laptop", "relay", "edge"].map(|name| temp.path().join(name));
    let [laptop, relay, edge] =
        [0, 1, 2].map(|at: usize| Daemon::start(&dirs[at], ["laptop", "relay", "edge"][at]));
    laptop.found("findings");
    join_as(&laptop, &relay, "relay");
    join_as(&laptop, &edge, "reader");
    until(
        "the relay and the reader know each other",
        || {
            relay.get("/v1/peers")["peers"]
                .to_string()
                .matches("\"connected\"")
                .count()
        },
        |connected| *connected == 2,
    );
    // While the reader is away, and under two keys.
    edge.stop();
    let plain = "the heron nests behind the ninth weir";
    laptop.post("/v1/memory", fact("heron-weir-nine", plain, 1));
    laptop.post("/v1/spaces/findings/rotate", json!({}));
    let large = format!("{plain} {}", "reed ".repeat(30_000));
    laptop.post("/v1/memory", fact("heron-weir-large", &large, 1));
    let held = space(&relay);
    assert_eq!(held["role"], "relay", "{held}");
    let fragments = space(&laptop)["fragments"].clone();
    until(
        "the relay holds all of it",
        || space(&relay),
        |space| space["fragments"] == fragments,
    );
    let bodies = || fs::read_dir(dirs[1].join("store/bodies")).map_or(0, Iterator::count);
    until("with what is too long for a fragment", bodies, |bodies| {
        *bodies == 1
    });
    assert_eq!(space(&relay)["quarantined"], 0);
    let refused = relay.ask("GET", "/v1/memory?space=findings", None);
    assert_eq!((refused.0, code(&refused)), (403, "denied"), "{refused:?}");
    let refused = relay.ask("POST", "/v1/memory", Some(fact("x", "", 0)));
    assert_eq!(refused.0, 403, "{refused:?}");
    // It serves it to a reader when nobody else is there to do so.
    laptop.stop();
    let edge = Daemon::start(&dirs[2], "edge");
    until(
        "the reader has it from the relay",
        || titles(&edge),
        |titles| *titles == ["heron-weir-large", "heron-weir-nine"],
    );
    edge.stop();
    relay.stop();
    // The keys, from the node that made them.
    let key = keyfile::load(&dirs[0].join("node.key"), KeyKind::Node).unwrap();
    let replica = Replica::open(
        &dirs[0].join("store"),
        NodeKey::from(key),
        ReplicaConfig::default(),
    )
    .unwrap();
    let id = replica.authority().spaces().next().unwrap().id;
    let mut wanted = vec![
        ("plaintext".to_owned(), plain.as_bytes().to_vec()),
        ("a title".to_owned(), b"heron-weir".to_vec()),
    ];
    for epoch in [1, 2] {
        let key = replica.space_key(&id, epoch).unwrap().secret_bytes();
        wanted.extend(spellings(&format!("the key of epoch {epoch}"), &key));
    }
    drop(replica);
    assert_eq!(holding(&dirs[1], &wanted), Vec::<String>::new());
    // The search finds what is there: a reader's view is plain.
    assert!(!holding(&dirs[2], &wanted[..2]).is_empty());
}
