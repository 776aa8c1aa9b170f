//! A full disk: a typed error, nothing lost, and on it goes when there is room again.
use std::{fs, io::Write, path::Path, process::Command};

use serde_json::json;

use crate::support::{Daemon, code};

struct Tmpfs<'a>(&'a Path);

impl Tmpfs<'_> {
    fn mount(at: &Path) -> Result<Tmpfs<'_>, String> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs"])
            .arg(at)
            .output()
            .map_err(|error| error.to_string())?;
        match mounted.status.success() {
            true => Ok(Tmpfs(at)),
            false => Err(String::from_utf8_lossy(&mounted.stderr).into_owned()),
        }
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_loss() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("node");
    fs::create_dir(&dir).unwrap();
    let _mount = match Tmpfs::mount(&dir) {
        Ok(mount) => mount,
        Err(reason) => {
            eprintln!(
                "skipped a_full_disk_is_an_error_and_no_loss: cannot mount a tmpfs: {reason}"
            );
            return;
        }
    };
    let daemon = Daemon::start(&dir, "laptop");
    daemon.found("findings");
    let mut acked = Vec::new();
    let mut publish = |daemon: &Daemon, number: usize| {
        let text = "x".repeat(40_000);
        let body =
            json!({"kind": "observation", "title": format!("number {number}"), "text": text});
        let answer = daemon.ask("POST", "/v1/memory", Some(body));
        if answer.0 == 200 {
            acked.push(answer.1["id"].as_str().unwrap().to_owned());
        }
        answer
    };
    assert_eq!(publish(&daemon, 0).0, 200);
    let filler = dir.join("filler");
    fill(&filler);
    let refused = (1..400)
        .map(|number| publish(&daemon, number))
        .find(|answer| answer.0 != 200);
    let refused = refused.expect("a disk without room refuses at some point");
    assert_eq!(
        (refused.0, code(&refused)),
        (507, "disk_full"),
        "{refused:?}"
    );
    assert!(refused.1["error"]["hint"].is_string());
    // What was acknowledged can still be read, on the full disk.
    let status = daemon.get("/v1/status");
    assert_eq!(status["node"]["name"], "laptop");
    fs::remove_file(&filler).unwrap();
    let after = publish(&daemon, 1_000);
    assert_eq!(after.0, 200, "it goes on once there is room: {after:?}");
    let newest = &daemon.get("/v1/memory?limit=1")["memories"][0];
    assert_eq!(newest["title"], "number 1000", "and it is found");
    daemon.kill();
    let daemon = Daemon::start(&dir, "laptop");
    // A list waits until everything durable is in the view.
    daemon.get("/v1/memory?limit=1");
    let mut client = daemon.client();
    for id in &acked {
        let (status, why) = client.ask("GET", &format!("/v1/why/{id}"), None).unwrap();
        assert_eq!((status, &why["state"]), (200, &json!("applied")), "{why}");
    }
    daemon.kill();
}

fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}
