//! A redaction over three daemons, one of which is away meanwhile.
use std::{fs, path::Path};

use serde_json::json;

use crate::{
    support::{Daemon, code},
    views::{mesh, until},
};

/// One word of letters and digits, which no rule for secrets knows.
const SECRET: &str = "zebra7f1e77aa09c3";

/// Returns the files below a directory that hold the secret.
fn holding(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path));
        } else if let Ok(bytes) = fs::read(&path)
            && bytes
                .windows(SECRET.len())
                .any(|window| window == SECRET.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Returns the files of bodies that are too long to travel in their fragments, of the replica and of
/// what serves them.
fn bodies(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if !path.is_dir() {
            continue;
        }
        found.extend(bodies(&path));
        if name == "bodies" || name == "data" {
            let files = fs::read_dir(&path).unwrap().flatten();
            found.extend(files.map(|file| file.path().display().to_string()));
        }
    }
    found
}

#[test]
fn what_was_redacted_leaves_every_data_directory_also_of_one_that_was_away() {
    let temp = tempfile::tempdir().unwrap();
    let mut daemons = mesh(temp.path(), &["laptop", "cloud", "edge"]);
    let dir = |name: &str| temp.path().join(name);
    let text = format!("the password is {SECRET}, they say");
    let said = daemons[0].post(
        "/v1/memory",
        json!({"kind": "fact", "title": "how to deploy", "text": text, "replicas": 2}),
    );
    let long = format!("{text} {}", "unpressed ".repeat(20_000));
    let blob = daemons[0].post(
        "/v1/memory",
        json!({"kind": "fact", "title": "a long log", "text": long}),
    );
    let found = |daemon: &Daemon| {
        let found = daemon.post("/v1/recall", json!({"query": SECRET}));
        found["hits"].as_array().unwrap().len()
    };
    for daemon in &daemons {
        until("both memories are everywhere", || {
            (found(daemon) == 2).then_some(())
        });
    }
    // The third stops with everything on its disk, and comes back later.
    daemons.pop().unwrap().stop();
    assert!(bodies(&dir("edge")).len() >= 2, "fetched, and handed over");
    assert!(
        !holding(&dir("edge")).is_empty(),
        "the test looks where it was"
    );

    for doc in [&said["doc"], &blob["doc"]] {
        let path = format!("/v1/memory/{}/redact", doc.as_str().unwrap());
        let refused = daemons[1].ask("POST", &path, Some(json!({"reason": "not mine"})));
        assert_eq!((refused.0, code(&refused)), (403, "denied"), "{refused:?}");
        let receipt = daemons[0].post(&path, json!({"reason": "a password"}));
        assert_eq!(
            (&receipt["taken"], &receipt["left"]),
            (&json!(1), &json!(0)),
            "{receipt}"
        );
        let shown = format!("/v1/memory/{}", doc.as_str().unwrap());
        let gone = daemons[0].ask("GET", &shown, None);
        assert_eq!((gone.0, code(&gone)), (410, "redacted"), "{gone:?}");
        let message = gone.1["message"]
            .as_str()
            .or(gone.1["error"]["message"].as_str());
        assert!(message.unwrap().contains("a password"), "{gone:?}");
    }
    assert_eq!(holding(&dir("laptop")), [""; 0]);
    daemons.push(Daemon::start(&dir("edge"), "edge"));
    let why = format!("/v1/why/{}", said["id"].as_str().unwrap());
    for (daemon, name) in daemons.iter().zip(["laptop", "cloud", "edge"]) {
        until("it is redacted", || {
            let why = daemon.get(&why);
            (why["state"] == "redacted" && found(daemon) == 0).then_some(())
        });
        until("its files are rewritten", || {
            let left = [holding(&dir(name)), bodies(&dir(name))];
            left.iter().all(Vec::is_empty).then_some(())
        });
        let why = daemon.get(&why);
        assert_eq!(why["redacted"]["author"]["name"], "laptop", "{why}");
        assert_eq!(why["redacted"]["reason"], "a password", "{why}");
        let watched = daemon.client().lines("/v1/watch?after=0").unwrap();
        assert!(
            watched
                .into_iter()
                .all(|event| !event.to_string().contains(SECRET))
        );
    }
    // All hold the same, and nobody asks for what is not to be had.
    let spaces = |daemon: &Daemon| {
        let space = daemon.get("/v1/spaces")["spaces"][0].clone();
        (space["heads"].clone(), space["fragments"].clone())
    };
    for daemon in &daemons[1..] {
        until("they agree", || {
            (spaces(daemon) == spaces(&daemons[0])).then_some(())
        });
    }
    drop(daemons);
    for name in ["laptop", "cloud", "edge"] {
        assert_eq!(holding(&dir(name)), [""; 0], "{name}");
    }
}
