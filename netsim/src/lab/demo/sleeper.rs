//! A sandbox that outlives its host: asleep on one node, awake on another.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{ARRIVAL, SPACE, check, exec, list, not_seen, one, show, text};
use crate::lab::{Daemon, LabError};

/// What the sandbox is called.
const NAME: &str = "counter";
/// Counts in memory, beside a number that it drew once and wrote down nowhere else.
const COUNTER: &str = "
import os, time
drawn, count = os.urandom(8).hex(), 0
while True:
    count += 1
    with open('/root/count.new', 'w') as file:
        file.write(f'{count} {drawn}')
    os.replace('/root/count.new', '/root/count')
    time.sleep(0.05)
";
/// Makes files that nobody has committed anywhere.
const FILES: &str = "mkdir -p /root/work/deep; seq 1 50000 > /root/work/notes; \
    head -c 300000 /dev/urandom > /root/work/deep/data";
/// One hash over all of them, their names included.
const TREE: &str = "cd /root/work; find . -type f | sort | xargs sha256sum | sha256sum";
/// How far a guest's clock may be off when it wakes, in seconds.
const CLOCK: f64 = 1.0;

/// What was seen of the sandbox before it slept.
#[derive(Debug)]
pub(super) struct Before {
    count: u64,
    drawn: String,
    tree: String,
}

/// Starts the sandbox on `on`, with a program that counts and files, and puts it to sleep.
pub(super) fn sleeps(
    out: &mut dyn FnMut(&str),
    on: &Daemon,
    watcher: &Daemon,
) -> Result<Before, LabError> {
    let create = ["sandbox", "create", "--image", "debian", "--memory", "256"];
    let whose = ["--name", NAME, "--agent", "mender", "--space", SPACE];
    on.output(&[&create[..], &whose].concat())?;
    let counter = ["python3", "-u", "-c", COUNTER];
    let start = ["sandbox", "exec", NAME, "--detach", "--"];
    on.output(&[&start[..], &counter].concat())?;
    on.output(&exec(NAME, &["sh", "-c", FILES]))?;
    let counts = |daemon: &Daemon| counted(daemon).ok().filter(|(count, _)| *count >= 20);
    on.wait("the program counts", ARRIVAL, counts)?;
    let tree = on.output(&exec(NAME, &["sh", "-c", TREE]))?;
    let (count, drawn) = counted(on)?;
    let slept = one(on, &["sandbox", "hibernate", NAME, "--replicas", "1"])?;
    let holders: Vec<_> = list(&slept["kept"]["holders"])
        .iter()
        .map(|holder| text(&holder["name"]))
        .collect();
    check(holders.len() == 1, "another node keeps the snapshot")?;
    show(
        out,
        &format!(
            "laptop: sandbox `{NAME}` counts in memory, is at {count}, and is put to sleep ({} of memory and disk, {} stored)",
            mib(&slept["bytes_read"]),
            mib(&slept["bytes_stored"]),
        ),
    );
    show(
        out,
        &format!("its snapshot is kept by {}, too", holders.join(", ")),
    );
    let known = |daemon: &Daemon| {
        let records = daemon
            .json(&["memory", "list", "--kind", "snapshot"])
            .ok()?;
        let asleep = |record: &Value| record["fields"]["state"] == "asleep";
        records.iter().any(asleep).then_some(())
    };
    watcher.wait("edge knows where the sandbox sleeps", ARRIVAL, known)?;
    Ok(Before { count, drawn, tree })
}

/// Wakes it on `on`, and compares.
pub(super) fn wakes(
    out: &mut dyn FnMut(&str),
    on: &Daemon,
    before: &Before,
) -> Result<(), LabError> {
    let woken = one(on, &["resume", NAME])?;
    let drawn_first = on.output(&exec(NAME, &["sh", "-c", DRAW]))?;
    show(
        out,
        &format!(
            "edge: sandbox `{NAME}` is {}, {} came over the mesh",
            text(&woken["state"]),
            mib(&woken["fetched_bytes"])
        ),
    );
    for note in list(&woken["notes"]) {
        show(out, &format!("edge: {}", text(note)));
    }
    let later = |daemon: &Daemon| {
        let (count, drawn) = counted(daemon).ok()?;
        (count > before.count).then_some((count, drawn))
    };
    let (count, drawn) = on.wait("the program goes on counting", ARRIVAL, later)?;
    check(
        drawn == before.drawn,
        "the program still has in memory what it drew on laptop",
    )?;
    // Two seconds of counting and the time of a wake-up, not a count that began anew.
    show(
        out,
        &format!("edge | it was at {}, goes on, is at {count}", before.count),
    );
    let tree = on.output(&exec(NAME, &["sh", "-c", TREE]))?;
    check(tree == before.tree, "its files are identical")?;
    show(out, "edge | its uncommitted files are identical");
    let off = clock_off(on)?;
    check(off <= CLOCK, "the guest's clock is right")?;
    show(
        out,
        &format!("edge | its clock is right within {:.1} s", off.max(0.1)),
    );

    // Once more from the same snapshot: were its randomness that of the snapshot, it would draw the
    // same again.
    on.output(&["sandbox", "kill", NAME])?;
    on.output(&["resume", NAME, "--force"])?;
    let drawn_again = on.output(&exec(NAME, &["sh", "-c", DRAW]))?;
    check(
        drawn_first != drawn_again && drawn_first.len() >= 32,
        "two wake-ups from one snapshot draw different random numbers",
    )?;
    show(
        out,
        "edge | woken twice from one snapshot, it draws different random numbers",
    );
    Ok(())
}

/// Draws from the guest's randomness.
const DRAW: &str = "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'";

/// Returns where the program is, and what it drew when it began.
fn counted(daemon: &Daemon) -> Result<(u64, String), LabError> {
    let said = daemon.output(&exec(NAME, &["cat", "/root/count"]))?;
    let (count, drawn) = said
        .split_once(' ')
        .ok_or_else(|| not_seen("the program writes down its count"))?;
    let count = count
        .parse()
        .map_err(|_| not_seen("the program counts in numbers"))?;
    Ok((count, drawn.to_owned()))
}

/// Returns by how many seconds the guest's clock is off, the time of asking aside.
fn clock_off(daemon: &Daemon) -> Result<f64, LabError> {
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or(Duration::ZERO).as_secs_f64()
    };
    let asked = now();
    let said = daemon.output(&exec(NAME, &["date", "+%s.%N"]))?;
    let answered = now();
    let guest: f64 = said
        .parse()
        .map_err(|_| not_seen("the guest says what time it is"))?;
    Ok((asked - guest).max(guest - answered).max(0.0))
}

fn mib(bytes: &Value) -> String {
    format!(
        "{:.0} MiB",
        bytes.as_f64().unwrap_or_default() / 1_048_576.0
    )
}
