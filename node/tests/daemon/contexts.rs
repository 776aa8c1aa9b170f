//! What the work in a sandbox relies on, checked before it goes on there: one boot.
use serde_json::{Value, json};

use crate::{
    sandbox::{qemu_is_missing, run},
    support::{Daemon, code},
};

/// Posts and returns the last line of progress.
fn work(daemon: &Daemon, path: &str, body: Value) -> Value {
    let (status, lines) = daemon.client().ask_bytes("POST", path, Some(body)).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, 200, "{lines}");
    serde_json::from_str(lines.lines().last().unwrap()).unwrap()
}

fn context(daemon: &Daemon, more: &str) -> (u16, Value) {
    daemon.ask("GET", &format!("/v1/context?task=mend{more}"), None)
}

#[test]
fn a_context_goes_on_only_where_what_it_relies_on_holds() {
    if qemu_is_missing("a_context_goes_on_only_where_what_it_relies_on_holds") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with_sandboxes(&temp.path().join("node"), "laptop");
    daemon.found("findings");
    let create = json!({"name": "bench", "agent": "laptop", "spaces": ["findings"]});
    let made = work(&daemon, "/v1/sandboxes", create)["done"].clone();
    let rhizome = |words: &str| {
        let argv: Vec<_> = "rhizome context"
            .split(' ')
            .chain(words.split(' '))
            .collect();
        run(&daemon, &argv)
    };

    // From inside: it is refused with the difference named, and told all the same when forced.
    let (out, err, end) =
        rhizome("checkpoint --task mend --goal green --requires cmake>=3 --requires env:PATH");
    assert_eq!(end, json!({"code": 0}), "{out}{err}");
    let (out, err, end) = rhizome("resume --task mend");
    assert_ne!(end, json!({"code": 0}), "{out}");
    assert!(
        err.contains("`cmake>=3` does not hold: it is not there"),
        "{err}"
    );
    assert!(
        err.contains("--force") && !err.contains("env:PATH"),
        "{err}"
    );
    let (out, err, end) = rhizome("resume --task mend --force");
    assert_eq!(end, json!({"code": 0}), "{err}");
    assert!(out.contains("DOES NOT HOLD HERE: `cmake>=3`"), "{out}");

    // From outside, for that sandbox; without one nothing is compared.
    let there = "&resume=1&sandbox=bench";
    let refused = context(&daemon, there);
    assert_eq!((refused.0, code(&refused)), (409, "contract_broken"));
    let forced = context(&daemon, &format!("{there}&force=1"));
    assert_eq!(
        forced.1["breaks"].as_array().unwrap().len(),
        1,
        "{}",
        forced.1
    );
    assert_eq!(forced.1["fingerprint"], made["fingerprint_hash"]);
    let shown = context(&daemon, "&sandbox=bench");
    assert_eq!((shown.0, &shown.1["breaks"]), (200, &forced.1["breaks"]));
    let apart = context(&daemon, "&resume=1").1;
    assert_eq!(
        (&apart["requires"][0]["what"], &apart["breaks"]),
        (&json!("cmake>=3"), &Value::Null)
    );

    // The sandbox that the work was done in does not wake where it cannot go on, unless forced.
    work(&daemon, "/v1/sandboxes/bench/hibernate", json!({}));
    let refused = work(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    assert_eq!(refused["error"]["code"], "contract_broken", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the context of the task `mend` relies on: `cmake>=3`"),
        "{message}"
    );
    assert_eq!(daemon.get("/v1/sandboxes/bench")["state"], "hibernated");
    // Woken as from anywhere, by its record.
    let refused = work(&daemon, "/v1/resume", json!({"what": "bench"}));
    assert_eq!(refused["error"]["code"], "contract_broken", "{refused}");
    let woken = work(
        &daemon,
        "/v1/resume",
        json!({"what": "bench", "force": true}),
    );
    assert_eq!(woken["done"]["state"], "ready", "{woken}");

    // What is relied on is replaced; nonsense is refused before it is written.
    let nonsense = json!({"task": "mend", "requires": ["cmake >> 3"]});
    let refused = daemon.ask("POST", "/v1/context/checkpoint", Some(nonsense));
    assert_eq!((refused.0, code(&refused)), (400, "bad_request"));
    let (out, err, end) = rhizome("checkpoint --task mend --requires memory>=64");
    assert_eq!(end, json!({"code": 0}), "{out}{err}");
    let fine = context(&daemon, there).1;
    assert_eq!(fine["requires"].as_array().unwrap().len(), 1, "{fine}");
    assert_eq!(fine["requires"][0]["by"], made["agent"]);
    work(&daemon, "/v1/sandboxes/bench/hibernate", json!({}));
    let woken = work(&daemon, "/v1/sandboxes/bench/resume", json!({}));
    assert_eq!(woken["done"]["state"], "ready", "{woken}");
    daemon.stop();
}
