//! SIGKILL during publishing: nothing acknowledged is lost, no sequence number is used twice.
use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex},
};

use serde_json::json;

use crate::support::Daemon;

const KILLS: usize = 100;
const WRITERS: usize = 4;

#[derive(Default)]
struct Acked {
    /// Fragment by sequence number: one author publishes them all.
    by_seq: Mutex<BTreeMap<u64, String>>,
    more: Condvar,
}

#[test]
fn a_hundred_kills_lose_nothing_that_was_acknowledged() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    let daemon = Daemon::start(&dir, "laptop");
    daemon.found("findings");
    daemon.stop();
    let acked = Acked::default();
    for round in 0..KILLS {
        let daemon = Daemon::start(&dir, "laptop");
        // Between 1 and 14 acknowledgements into the round, each round elsewhere.
        let until = acked.by_seq.lock().unwrap().len() + 1 + round * 5 % 14;
        std::thread::scope(|threads| {
            for writer in 0..WRITERS {
                let (mut client, acked) = (daemon.client(), &acked);
                threads.spawn(move || {
                    for number in 0.. {
                        let title = format!("round {round} writer {writer} number {number}");
                        let body = json!({"kind": "observation", "title": title});
                        // The first request that fails is the one the kill has hit.
                        let Ok((status, receipt)) = client.ask("POST", "/v1/memory", Some(body))
                        else {
                            return;
                        };
                        assert_eq!(status, 200, "{receipt}");
                        let seq = receipt["seq"].as_u64().unwrap();
                        let id = receipt["id"].as_str().unwrap().to_owned();
                        let other = acked.by_seq.lock().unwrap().insert(seq, id.clone());
                        assert_eq!(other, None, "sequence number {seq} was used again");
                        acked.more.notify_all();
                    }
                });
            }
            let enough = acked
                .more
                .wait_while(acked.by_seq.lock().unwrap(), |by_seq| by_seq.len() < until)
                .unwrap();
            drop(enough);
            daemon.kill();
        });
    }
    let daemon = Daemon::start(&dir, "laptop");
    let by_seq = acked.by_seq.into_inner().unwrap();
    assert!(by_seq.len() >= KILLS);
    // A list waits until everything durable is in the view.
    daemon.get("/v1/memory?limit=1");
    let mut client = daemon.client();
    for (seq, id) in &by_seq {
        let (status, why) = client.ask("GET", &format!("/v1/why/{id}"), None).unwrap();
        assert_eq!(
            status, 200,
            "fragment {seq} was acknowledged and is lost: {why}"
        );
        assert_eq!(
            (&why["state"], &why["seq"]),
            (&json!("applied"), &json!(seq))
        );
    }
    let last = *by_seq.keys().next_back().unwrap();
    let next = daemon.post("/v1/memory", json!({"kind": "fact", "title": "on"}));
    assert!(next["seq"].as_u64().unwrap() > last);
    let held = daemon.get("/v1/spaces")["spaces"][0]["fragments"]
        .as_u64()
        .unwrap();
    // The chain has no gap: as many fragments as numbers.
    assert_eq!(held, next["seq"].as_u64().unwrap() + 1);
    daemon.stop();
}
