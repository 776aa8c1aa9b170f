//! A sandbox goes on ahead of its disk, and the node that it comes from dies in the middle: another
//! that holds it takes over.
use std::time::Instant;

use serde_json::json;

use crate::{
    remote::{done, join, meshed, sees},
    resume::{COUNTER, count, knows, out},
    sandbox::qemu_is_missing,
    stream::{FILL, HASH, IMAGE, make_image, until},
    support::Daemon,
};

#[test]
fn another_holder_goes_on_when_the_one_that_sends_dies() {
    let test = "another_holder_goes_on_when_the_one_that_sends_dies";
    if qemu_is_missing(test) {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let start = |name: &str| Daemon::start_with_sandboxes(&temp.path().join(name), name);
    let [laptop, cloud] = meshed(["laptop", "cloud"].map(start));
    make_image(&laptop);
    let wanted = json!({"name": "bench", "image": IMAGE, "spaces": ["findings"]});
    let made = done(&laptop, "/v1/sandboxes", wanted);
    let id = made["id"].as_str().unwrap().to_owned();
    let disk = temp.path().join("laptop/sandboxes").join(&id);
    if !disk.join("vm/upper").exists() {
        eprintln!("skipped: {test}: mkfs.ext4 is not installed (apt-get install e2fsprogs)");
        return;
    }
    out(&laptop, COUNTER);
    out(&laptop, FILL);
    let (hash, counted) = (out(&laptop, HASH), count(&laptop));
    let slept = done(
        &laptop,
        "/v1/sandboxes/bench/hibernate",
        json!({"replicas": 1}),
    );
    assert_eq!(slept["kept"]["holders"][0]["name"], "cloud", "{slept}");
    // Whoever wakes it comes later, and so has none of it.
    let edge = start("edge");
    join(&edge, &laptop, "writer");
    sees(&edge, "laptop");
    sees(&edge, "cloud");
    knows(&edge, "asleep");

    let begun = Instant::now();
    let woken = done(&edge, "/v1/resume", json!({"what": "bench"}));
    assert_eq!(woken["state"], "ready", "{woken}");
    let left = woken["arriving"]["left"].as_u64().unwrap();
    assert!(left > 30_000_000, "{woken}");
    // The one that it was put to sleep on, which is asked first, goes in the middle.
    laptop.kill();
    std::fs::remove_dir_all(temp.path().join("laptop")).unwrap();
    until(&edge, "whole", |bench| {
        bench["state"] == "ready" && bench.get("arriving").is_none()
    });
    eprintln!(
        "{left} bytes came from another, all was there after {:?}",
        begun.elapsed()
    );
    assert_eq!(out(&edge, HASH), hash);
    assert!(count(&edge) >= counted);
    edge.stop();
    cloud.stop();
}
