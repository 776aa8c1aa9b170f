//! Volumes on hosts with networks of their own, in real guests: whole after their node is gone,
//! and after a partition in which two wrote.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rhizome_netsim::lab::{Daemon, Host, Hosts};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

/// Everything that a tree has, in one text: kinds, modes, owners, times and bytes.
const TREE: &str = "cd /work && find . ! -name . ! -name . | sort | while read -r f; do \
     if [ -L \"$f\" ]; then echo \"$f link $(readlink \"$f\")\"; \
     elif [ -d \"$f\" ]; then stat -c '%n dir %a %u %g' \"$f\"; \
     else stat -c '%n file %a %u %g %Y %s' \"$f\"; sha256sum < \"$f\"; fi; done";

fn skipped(test: &str) -> Option<Hosts> {
    let qemu = Command::new("qemu-system-x86_64")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !qemu.is_ok_and(|status| status.success()) {
        eprintln!("skipped: {test}: qemu-system-x86_64 is not installed");
        return None;
    }
    let hosts = Hosts::namespaces(&["laptop", "cloud", "edge"]);
    let tried = hosts.and_then(|hosts| {
        let host = hosts.iter().next().expect("three hosts were made").clone();
        host.cut().and_then(|()| host.mend()).map(|()| hosts)
    });
    match tried {
        Ok(hosts) => Some(hosts),
        Err(error) => {
            eprintln!("skipped: {test}: {error}");
            None
        }
    }
}

fn up(host: &Host, dir: &Path) -> Daemon {
    let images = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    let program = env!("CARGO_BIN_EXE_rhizome").as_ref();
    let extra = ["--no-mdns", "--images-dir", images.to_str().unwrap()];
    Daemon::start(host, program, &dir.join(&host.name), &extra).unwrap()
}

fn one(daemon: &Daemon, args: &[&str]) -> Value {
    let mut found = daemon.json(args).unwrap();
    assert_eq!(found.len(), 1, "{args:?}: {found:?}");
    found.remove(0)
}

fn sh(daemon: &Daemon, sandbox: &str, script: &str) -> String {
    let args = ["sandbox", "exec", sandbox, "--", "sh", "-c", script];
    daemon.output(&args).unwrap()
}

fn peer_is(daemon: &Daemon, name: &str, state: &str) {
    daemon
        .wait(&format!("{name} is {state}"), PATIENCE, |daemon| {
            let peers = daemon.json(&["peers"]).ok()?;
            let mut named = peers.iter().filter(|peer| peer["name"] == name);
            named.any(|peer| peer["state"] == state).then_some(())
        })
        .unwrap();
}

/// Waits until `daemon` knows a volume that `is_so`.
fn knows(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    daemon
        .wait(what, PATIENCE, |daemon| {
            let volumes = daemon.json(&["volume", "list"]).ok()?;
            volumes.into_iter().find(|volume| is_so(volume))
        })
        .unwrap()
}

fn heads(volume: &Value) -> usize {
    volume["heads"].as_array().map_or(0, Vec::len)
}

/// Ends the monitor of the only sandbox of `daemon`, and waits until that was seen.
fn lose(daemon: &Daemon) {
    let states = daemon.data_dir().join("sandboxes");
    let pid = walk(&states).find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        let state: Value = serde_json::from_str(&text).ok()?;
        state["monitor"]["pid"].as_u64()
    });
    let pid = pid.unwrap().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status();
    assert!(killed.unwrap().success());
    daemon
        .wait("the sandbox is lost", PATIENCE, |daemon| {
            let all = daemon.json(&["sandbox", "list"]).ok()?;
            (all.first()?["state"] == "lost").then_some(())
        })
        .unwrap();
}

fn walk(dir: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    let mut left = vec![dir.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "json") {
                files.push(path);
            }
        }
    }
    files.into_iter()
}

#[test]
fn a_volume_outlives_its_node_and_a_partition() {
    let Some(hosts) = skipped("a_volume_outlives_its_node_and_a_partition") else {
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let [laptop_host, cloud_host, edge_host] =
        [0, 1, 2].map(|at| hosts.iter().nth(at).unwrap().clone());
    let mut laptop = up(&laptop_host, temp.path());
    let (cloud, edge) = (up(&cloud_host, temp.path()), up(&edge_host, temp.path()));
    laptop
        .output(&["init", "--name", "lab", "--space", "findings"])
        .unwrap();
    let invite = [
        "invite", "create", "--role", "writer", "--space", "findings",
    ];
    let invite = laptop
        .output(&[&invite[..], &["--uses", "2"]].concat())
        .unwrap();
    for daemon in [&cloud, &edge] {
        daemon.output(&["join", invite.trim()]).unwrap();
    }
    peer_is(&laptop, "cloud", "connected");
    peer_is(&laptop, "edge", "connected");
    peer_is(&cloud, "edge", "connected");

    // Written on one node: from a directory, and then in a guest.
    let from = temp.path().join("from");
    fs::create_dir_all(from.join("src/deep")).unwrap();
    fs::write(from.join("src/deep/main"), "one").unwrap();
    fs::write(from.join("gone"), "x").unwrap();
    fs::write(from.join("shared"), "0").unwrap();
    fs::write(from.join("large"), vec![7; 3_000_000]).unwrap();
    let from = from.to_str().unwrap();
    laptop
        .output(&["volume", "create", "work", "--from", from])
        .unwrap();
    let create = ["sandbox", "create", "--space", "findings", "--name"];
    let create = |daemon: &Daemon, name: &str| {
        daemon.output(&[&create[..], &[name]].concat()).unwrap();
    };
    create(&laptop, "bench");
    laptop
        .output(&["volume", "attach", "work", "bench", "/work"])
        .unwrap();
    sh(
        &laptop,
        "bench",
        "cd /work && rm gone && echo two > src/deep/main && mkdir -p new/empty && \
         echo 3 > new/file && chmod 750 new && chown 7:8 new/file && ln -s ../large new/link && \
         head -c 100000 /dev/urandom > new/noise && touch -d @1000000000 new/noise",
    );
    let before = sh(&laptop, "bench", TREE);
    let kept = one(
        &laptop,
        &[
            "volume",
            "checkpoint",
            "work",
            "-m",
            "by bench",
            "--replicas",
            "1",
        ],
    );
    assert_eq!(kept["changed"], true, "{kept}");
    // What was sent for it is what was new in it, not the volume.
    let stored = kept["version"]["bytes_stored"].as_u64().unwrap();
    assert!((100_000..200_000).contains(&stored), "{kept}");
    let head = kept["version"]["id"].clone();
    for daemon in [&cloud, &edge] {
        knows(daemon, "the version is known", |volume| {
            let holders = volume["heads"][0]["holders"].as_array();
            volume["heads"][0]["id"] == head && holders.is_some_and(|all| all.len() == 2)
        });
    }

    // That node goes, with all it had; the volume goes on elsewhere, the same to the bit.
    laptop.kill();
    fs::remove_dir_all(laptop.data_dir()).unwrap();
    let (holder, other) = match kept["version"]["holders"][1]["name"].as_str() {
        Some("cloud") => ((&cloud, &cloud_host), (&edge, &edge_host)),
        _ => ((&edge, &edge_host), (&cloud, &cloud_host)),
    };
    create(other.0, "desk");
    peer_is(other.0, "laptop", "gone");
    let attach = ["volume", "attach", "work", "desk", "/work"];
    let busy = other.0.output(&attach).unwrap_err().to_string();
    assert!(busy.contains("until its lease ends"), "{busy}");
    other.0.output(&["volume", "detach", "work"]).unwrap();
    other.0.output(&attach).unwrap();
    assert_eq!(sh(other.0, "desk", TREE), before);
    let same = one(other.0, &["volume", "checkpoint", "work"]);
    assert_eq!(same["changed"], false, "{same}");
    assert_eq!(same["version"]["tree"], kept["version"]["tree"]);

    // While one writes, another one may only read, or has to insist.
    create(holder.0, "bench");
    knows(holder.0, "the writer is known", |volume| {
        let attached = volume["attached"].as_array().unwrap();
        attached.len() == 1 && attached[0]["path"] == "/work"
    });
    let attach = ["volume", "attach", "work", "bench", "/work"];
    let busy = holder.0.output(&attach).unwrap_err().to_string();
    assert!(busy.contains("may write the volume"), "{busy}");
    holder
        .0
        .output(&[&attach[..], &["--read-only"]].concat())
        .unwrap();
    assert_eq!(sh(holder.0, "bench", "cat /work/src/deep/main"), "two");
    assert!(
        holder
            .0
            .output(&["sandbox", "exec", "bench", "--", "touch", "/work/x"])
            .is_err()
    );
    holder.0.output(&["volume", "detach", "work"]).unwrap();

    // A partition: both write, each for itself.
    other.1.cut().unwrap();
    peer_is(holder.0, &other.1.name, "gone");
    peer_is(other.0, &holder.1.name, "gone");
    holder
        .0
        .output(&[&attach[..], &["--force"]].concat())
        .unwrap();
    let write = |who: &str| {
        format!(
            "cd /work && echo {who} > shared && echo {who} > only-{who} && echo {who} >> new/file"
        )
    };
    sh(holder.0, "bench", &write("holder"));
    sh(other.0, "desk", &write("other"));
    for daemon in [holder.0, other.0] {
        let kept = one(daemon, &["volume", "checkpoint", "work"]);
        assert_eq!(kept["changed"], true, "{kept}");
    }
    other.1.mend().unwrap();
    peer_is(holder.0, &other.1.name, "connected");
    for daemon in [holder.0, other.0] {
        knows(daemon, "both versions are known", |volume| {
            heads(volume) == 2
        });
    }
    // Which is meant is asked, and what comes of both loses no file.
    let export = |name: &str| {
        let to = temp.path().join(name);
        let args = ["volume", "export", "work", to.to_str().unwrap()];
        holder.0.output(&args).map(|_| to)
    };
    let asked = export("copy").unwrap_err().to_string();
    assert!(asked.contains("did not know of each other"), "{asked}");
    let merged = one(holder.0, &["volume", "merge", "work"]);
    let mut conflicts: Vec<(String, String)> = merged["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|conflict| {
            assert_eq!(conflict["kind"], "both_changed", "{merged}");
            let text = |key: &str| conflict[key].as_str().unwrap().to_owned();
            (text("path"), text("kept_as"))
        })
        .collect();
    conflicts.sort();
    let paths: Vec<&str> = conflicts.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["new/file", "shared"]);
    let to = export("copy").unwrap();
    let text = |path: &str| fs::read_to_string(to.join(path)).unwrap();
    for who in ["holder", "other"] {
        assert_eq!(text(&format!("only-{who}")), format!("{who}\n"));
    }
    for (path, beside) in &conflicts {
        let mut both = [text(path), text(beside)];
        both.sort();
        let all = both.concat();
        assert!(
            all.contains("holder") && all.contains("other"),
            "{path}: {both:?}"
        );
    }
    assert_eq!(text("src/deep/main"), "two\n");
    assert_eq!(fs::read(to.join("large")).unwrap(), vec![7; 3_000_000]);
    assert!(!to.join("gone").exists());
    let known = knows(other.0, "the merged version is known", |volume| {
        heads(volume) == 1 && volume["heads"][0]["id"] == merged["version"]["id"]
    });
    let said = known["heads"][0]["message"].as_str().unwrap();
    assert!(said.ends_with("conflicts: new/file, shared"), "{said}");

    // Of two who would write at once, one may.
    holder.0.output(&["volume", "detach", "work"]).unwrap();
    other.0.output(&["volume", "detach", "work"]).unwrap();
    for daemon in [holder.0, other.0] {
        knows(daemon, "nobody has it", |volume| {
            heads(volume) == 1 && volume["attached"].as_array().is_some_and(Vec::is_empty)
        });
    }
    let outcomes = std::thread::scope(|scope| {
        let asking = [(holder.0, "bench"), (other.0, "desk")].map(|(daemon, sandbox)| {
            scope.spawn(move || daemon.output(&["volume", "attach", "work", sandbox, "/work"]))
        });
        asking.map(|asked| asked.join().unwrap())
    });
    let refused: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err().map(ToString::to_string))
        .collect();
    assert_eq!(refused.len(), 1, "{outcomes:?}");
    assert!(
        refused[0].contains("two versions will come of it"),
        "{refused:?}"
    );
}

#[test]
fn a_volume_goes_with_a_sandbox_that_wakes_elsewhere() {
    let Some(hosts) = skipped("a_volume_goes_with_a_sandbox_that_wakes_elsewhere") else {
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let [laptop_host, edge_host] = [0, 2].map(|at| hosts.iter().nth(at).unwrap().clone());
    let (mut laptop, edge) = (up(&laptop_host, temp.path()), up(&edge_host, temp.path()));
    laptop
        .output(&["init", "--name", "lab", "--space", "findings"])
        .unwrap();
    let invite = [
        "invite", "create", "--role", "writer", "--space", "findings",
    ];
    let invite = laptop.output(&invite).unwrap();
    edge.output(&["join", invite.trim()]).unwrap();
    peer_is(&laptop, "edge", "connected");
    let from = temp.path().join("from");
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("unread"), "from the start").unwrap();
    fs::write(from.join("file"), "0").unwrap();
    let from = from.to_str().unwrap();
    laptop
        .output(&["volume", "create", "work", "--from", from])
        .unwrap();
    laptop
        .output(&[
            "sandbox", "create", "--space", "findings", "--name", "bench",
        ])
        .unwrap();
    laptop
        .output(&["volume", "attach", "work", "bench", "/work"])
        .unwrap();
    // A guest that is booted anew goes on from the version that its stop made.
    sh(&laptop, "bench", "echo 1 > /work/file");
    laptop.output(&["sandbox", "stop", "bench"]).unwrap();
    laptop.output(&["sandbox", "start", "bench"]).unwrap();
    assert_eq!(sh(&laptop, "bench", "cat /work/file"), "1");
    sh(&laptop, "bench", "echo 1 >> /work/file");
    // It sleeps, and what it wrote is a version at once; then its node is gone.
    laptop
        .output(&["sandbox", "hibernate", "bench", "--replicas", "1"])
        .unwrap();
    let slept = knows(&edge, "the version of the sleep is known", |volume| {
        let head = &volume["heads"][0];
        head["message"] == "before it slept" && head["holders"].as_array().unwrap().len() == 2
    });
    edge.wait("edge knows that it sleeps", PATIENCE, |edge| {
        let known = edge.json(&["memory", "list", "--kind", "snapshot"]).ok()?;
        let record = known.first()?;
        (record["fields"]["state"] == "asleep").then_some(())
    })
    .unwrap();
    laptop.kill();
    fs::remove_dir_all(laptop.data_dir()).unwrap();
    peer_is(&edge, "laptop", "gone");

    edge.output(&["resume", "bench"]).unwrap();
    // What it never read comes from here now, and what it writes follows what it wrote.
    let script = "cat /work/unread /work/file; echo 2 > /work/file";
    assert_eq!(sh(&edge, "bench", script), "from the start1\n1");
    let kept = one(&edge, &["volume", "checkpoint", "work"]);
    let parents = kept["version"]["parents"].as_array().unwrap();
    assert_eq!(parents, &[slept["heads"][0]["id"].clone()], "{kept}");
    let volume = knows(&edge, "the volume is served", |volume| {
        volume["attached"][0]["served"] == true
    });
    assert_eq!(heads(&volume), 1);
    assert_eq!(volume["attached"][0]["node"]["name"], "edge", "{volume}");

    // Woken once more from the earlier sleep, it does not pass for what came after that.
    lose(&edge);
    edge.output(&["resume", "bench"]).unwrap();
    assert_eq!(
        sh(&edge, "bench", "cat /work/file; echo 3 > /work/file"),
        "1\n1"
    );
    let kept = one(&edge, &["volume", "checkpoint", "work"]);
    let parents = kept["version"]["parents"].as_array().unwrap();
    assert_eq!(parents, &[slept["heads"][0]["id"].clone()], "{kept}");
    let volume = knows(&edge, "both versions are kept", |volume| heads(volume) == 2);
    assert_eq!(volume["versions"], 5);

    // A copy of the sandbox goes on from the same changes, for itself.
    edge.output(&["sandbox", "fork", "bench", "--name", "try"])
        .unwrap();
    let all = edge.json(&["sandbox", "list"]).unwrap();
    let named = |one: &&Value| {
        one["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("try"))
    };
    let copy = all.iter().find(named).unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(sh(&edge, &copy, "cat /work/file; echo 4 > /work/file"), "3");
    assert_eq!(sh(&edge, "bench", "cat /work/file"), "3");
    let copied = one(&edge, &["volume", "checkpoint", "work", "--sandbox", &copy]);
    let parents = copied["version"]["parents"].as_array().unwrap();
    assert_eq!(parents, &[kept["version"]["id"].clone()], "{copied}");
    edge.output(&["volume", "detach", "work", "--sandbox", &copy])
        .unwrap();
    edge.output(&["sandbox", "kill", &copy]).unwrap();

    // At an interval, without anybody asking.
    edge.output(&["volume", "detach", "work"]).unwrap();
    edge.output(&["volume", "merge", "work"]).unwrap();
    let attach = [
        "volume", "attach", "work", "bench", "/work", "--every", "5s",
    ];
    edge.output(&attach).unwrap();
    sh(&edge, "bench", "echo 5 > /work/file");
    knows(&edge, "a checkpoint is made by itself", |volume| {
        volume["heads"][0]["message"] == "at an interval"
    });
}
