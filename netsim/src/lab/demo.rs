//! The main job, end to end: memory that outlives its machine, and a sandbox that does.
//!
//! Eight steps on real parts: three daemons, microVM sandboxes with scripted agents in them, a SIGKILL.
//! Each step says what it does, shows what it saw, and fails if it did not see what it should.

mod sleeper;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Daemon, Hosts, LabError, setup};

/// The task that one agent begins and another ends; contexts are found by it.
const TASK: &str = "mend-isodate";
/// The space that all three nodes share.
const SPACE: &str = "findings";
/// What the agent on `cloud` asks; the fix it looks for is worded otherwise.
const QUESTION: &str = "why does taking months off a date give the wrong year";
/// How long a finding may take from one node to another before the demo calls it lost.
const ARRIVAL: Duration = Duration::from_secs(30);
/// How many steps there are.
pub const STEPS: u32 = 8;

/// What the demo runs with.
#[derive(Debug)]
pub struct Demo {
    /// The `rhizome` program.
    pub program: PathBuf,
    /// The directory of the scripted agents.
    pub agents: PathBuf,
    /// Where images are built once and kept.
    pub images: PathBuf,
    /// A directory for this run, taken away at the end.
    pub scratch: PathBuf,
}

impl Demo {
    /// Runs the eight steps, writing what happens to `out`; returns the number of steps that were seen.
    ///
    /// # Errors
    /// The first thing that was not as it should be.
    pub fn run(&self, out: &mut dyn FnMut(&str)) -> Result<u32, LabError> {
        self.image(out)?;
        let begun = Instant::now();
        let hosts = Hosts::create(&["laptop", "cloud", "edge"]);
        let step = |out: &mut dyn FnMut(&str), number: u32, what: &str| {
            out(&format!(
                "\n[{number}/{STEPS}] {what}  ({:.0} s)",
                begun.elapsed().as_secs_f32()
            ));
        };

        step(
            out,
            1,
            &format!("three daemons start on {}", hosts.describe()),
        );
        let mut daemons = Vec::new();
        for host in hosts.iter() {
            let images = self.images.to_string_lossy().into_owned();
            let data_dir = self.scratch.join(&host.name);
            daemons.push(Daemon::start(
                host,
                &self.program,
                &data_dir,
                &["--images-dir", &images, "--no-mdns"],
            )?);
        }
        let [mut laptop, cloud, edge] =
            <[Daemon; 3]>::try_from(daemons).expect("three hosts were made, so three daemons run");
        for daemon in [&laptop, &cloud, &edge] {
            let status = one(daemon, &["status"])?;
            show(
                out,
                &format!(
                    "{} is node {} at {}",
                    daemon.name(),
                    short(&status["node"]["id"]),
                    addresses(&status)
                ),
            );
        }

        step(
            out,
            2,
            "laptop founds a mesh; cloud and edge join by invite",
        );
        laptop.output(&["init", "--name", "demo", "--space", SPACE])?;
        let invite = laptop.output(&[
            "invite", "create", "--role", "writer", "--space", SPACE, "--uses", "2",
        ])?;
        let invite = invite
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("RHZ1"))
            .unwrap_or_default()
            .to_owned();
        show(out, &format!("invite: {invite}"));
        for daemon in [&cloud, &edge] {
            daemon.output(&["join", &invite])?;
            daemon.wait("the space arrives", ARRIVAL, |daemon| {
                daemon
                    .json(&["space", "list"])
                    .ok()?
                    .iter()
                    .any(|space| space["name"] == SPACE)
                    .then_some(())
            })?;
            show(
                out,
                &format!("{} joined and knows the space `{SPACE}`", daemon.name()),
            );
        }

        step(
            out,
            3,
            "on laptop an agent mends a library in a microVM; cloud watches",
        );
        self.sandbox(out, &laptop, "mender", "bench")?;
        self.sandbox(out, &cloud, "learner", "lookout")?;
        let watcher = [
            "python3",
            "-u",
            "/root/agent/watcher.py",
            "--until",
            "fix",
            "--ask",
            QUESTION,
        ];
        let mut watching = cloud.follow(&exec("lookout", &watcher))?;
        if watching.lines.recv_timeout(ARRIVAL).ok().as_deref() != Some("watching") {
            return Err(watching
                .finish()
                .err()
                .unwrap_or_else(|| not_seen("the agent on cloud does not watch")));
        }
        self.plant(out, &laptop, "bench")?;
        let mender = [
            "python3",
            "-u",
            "/root/agent/mender.py",
            "--task",
            TASK,
            "--stop-after-fix",
        ];
        let mended = self.agent(out, &laptop, "bench", &mender)?;
        check(
            mended["passed"] == true,
            "the agent on laptop ends with all tests passing",
        )?;
        check(
            list(&mended["attempted"]).len() == 2,
            "the agent on laptop tries one idea in vain, then the fix",
        )?;

        step(
            out,
            4,
            "on cloud another agent saw each finding arrive, and recalls the fix in other words",
        );
        show(out, &format!("asked: {QUESTION}"));
        let mut learned = Value::Null;
        while let Ok(line) = watching.lines.recv_timeout(ARRIVAL) {
            match line.starts_with('{') {
                true => learned = serde_json::from_str(&line).unwrap_or_default(),
                false => show(out, &format!("cloud | {line}")),
            }
        }
        watching.finish()?;
        for kind in ["error", "decision", "attempt", "fix"] {
            check(
                list(&learned["seen"]).iter().any(|seen| seen == kind),
                &format!("cloud sees the {kind} arrive"),
            )?;
        }
        let best = &learned["best"];
        check(
            best["author"]["name"] == "mender",
            "the fix that cloud recalls is mender's",
        )?;
        check(
            best["node"]["name"] == "laptop",
            "the fix that cloud recalls was found on laptop",
        )?;

        step(
            out,
            5,
            "laptop puts a running sandbox to sleep, and is killed with SIGKILL",
        );
        let before = sleeper::sleeps(out, &laptop, &edge)?;
        let whole = |daemon: &Daemon| {
            let context = one(daemon, &["context", "show", "--task", TASK]).ok()?;
            (context["status"] == "fault mended").then_some(())
        };
        edge.wait("edge holds the context of the task", ARRIVAL, whole)?;
        laptop.kill();
        check(
            laptop.output(&["status"]).is_err(),
            "laptop answers no more",
        )?;
        fs::remove_dir_all(laptop.data_dir()).map_err(|source| LabError::File {
            path: laptop.data_dir().to_owned(),
            source,
        })?;
        show(
            out,
            "laptop's daemon and its microVM are gone, and so is its data directory",
        );

        step(
            out,
            6,
            "edge, which never ran that agent, resumes its context and goes on",
        );
        let context = one(&edge, &["context", "resume", "--task", TASK])?;
        self.context(out, &context)?;
        self.sandbox(out, &edge, "successor", "bench")?;
        self.plant(out, &edge, "bench")?;
        let successor = ["python3", "-u", "/root/agent/mender.py", "--task", TASK];
        let resumed = self.agent(out, &edge, "bench", &successor)?;
        check(
            resumed["passed"] == true,
            "the agent on edge ends with all tests passing",
        )?;
        check(
            resumed["applied"].is_string(),
            "the agent on edge starts from the fix that is known",
        )?;
        check(
            list(&resumed["attempted"]).is_empty(),
            "the agent on edge repeats no attempt",
        )?;
        check(
            list(&resumed["skipped"]).len() == 1,
            "the agent on edge knows the attempt that did not help",
        )?;
        let done = one(&edge, &["context", "show", "--task", TASK])?;
        check(
            done["status"] == "done" && list(&done["next"]).is_empty(),
            "the task is done, nothing is left to do",
        )?;

        step(out, 7, "`rhizome peers` on cloud");
        let edge_in_sync = |daemon: &Daemon| {
            let peers = daemon.json(&["peers"]).ok()?;
            let there = peers.iter().find(|peer| peer["name"] == "edge")?;
            let gone = peers.iter().find(|peer| peer["name"] == "laptop")?;
            (there["state"] == "connected" && gone["state"] == "gone")
                .then(|| (there.clone(), gone.clone()))
        };
        let (there, gone) = cloud.wait("cloud knows that laptop is gone", ARRIVAL, edge_in_sync)?;
        for line in cloud.output(&["peers"])?.lines() {
            show(out, line);
        }
        check(
            gone["since_ms"].is_u64(),
            "cloud says since when laptop is gone",
        )?;
        check(
            there["path"]["rtt_us"].as_u64().is_some_and(|rtt| rtt > 0),
            "cloud measures the round trip to edge",
        )?;
        check(
            there["path"]["kind"] == "direct",
            "cloud reaches edge directly",
        )?;
        check(there["role"] == "writer", "cloud knows edge's role")?;
        check(
            there["sync"].is_array(),
            "cloud says how far it is in sync with edge",
        )?;

        step(
            out,
            8,
            "edge wakes the sandbox that slept on laptop, which is gone",
        );
        sleeper::wakes(out, &edge, &before)?;
        Ok(STEPS)
    }

    /// Builds the image that all sandboxes start from, unless an earlier run has built it.
    ///
    /// A daemon of its own does it, on the machine's own network: the three nodes of the demo reach
    /// each other and nothing else.
    fn image(&self, out: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        out("the sandbox image `debian`: built once, about a minute; later runs find it built");
        let hosts = Hosts::loopback(&["builder"]);
        let host = hosts.iter().next().expect("one host was made");
        let images = self.images.to_string_lossy().into_owned();
        let builder = Daemon::start(
            host,
            &self.program,
            &self.scratch.join("builder"),
            &["--images-dir", &images, "--no-mdns"],
        )?;
        let build = ["image", "build", "debian", "--packages", "python3-isodate"];
        builder.lines(&build, |line| show(out, line)).map(drop)
    }

    /// Creates an agent and a sandbox for it, and copies the scripted agents in.
    fn sandbox(
        &self,
        out: &mut dyn FnMut(&str),
        on: &Daemon,
        agent: &str,
        name: &str,
    ) -> Result<(), LabError> {
        on.output(&["agent", "create", agent, "--space", SPACE])?;
        let create = [
            "sandbox", "create", "--image", "debian", "--memory", "512", "--name", name,
        ];
        on.output(&[&create[..], &["--agent", agent, "--space", SPACE]].concat())?;
        let agents = self.agents.to_string_lossy().into_owned();
        on.output(&["sandbox", "cp", &agents, &format!("{name}:/root/agent")])?;
        let info = one(on, &["sandbox", "list"])?;
        show(
            out,
            &format!(
                "{}: agent `{agent}` has sandbox `{name}` ({}, {}, kernel {}, up in {:.1} s)",
                on.name(),
                text(&info["driver"]),
                text(&info["accel"]),
                text(&info["fingerprint"]["kernel"]),
                info["boot_ms"].as_f64().unwrap_or_default() / 1e3
            ),
        );
        Ok(())
    }

    /// Lays the library with its fault into a sandbox.
    fn plant(&self, out: &mut dyn FnMut(&str), on: &Daemon, sandbox: &str) -> Result<(), LabError> {
        let plant = ["python3", "/root/agent/plant.py", "/root/work"];
        on.lines(&exec(sandbox, &plant), |line| {
            show(out, &format!("{} | {line}", on.name()))
        })
        .map(drop)
    }

    /// Runs a scripted agent in a sandbox and returns the summary it prints last.
    fn agent(
        &self,
        out: &mut dyn FnMut(&str),
        on: &Daemon,
        sandbox: &str,
        argv: &[&str],
    ) -> Result<Value, LabError> {
        let mut summary = Value::Null;
        on.lines(&exec(sandbox, argv), |line| match line.starts_with('{') {
            true => summary = serde_json::from_str(line).unwrap_or_default(),
            false => show(out, &format!("{} | {line}", on.name())),
        })?;
        Ok(summary)
    }

    /// Shows what `edge` resumes from and checks that nothing of it is missing or unverified.
    fn context(&self, out: &mut dyn FnMut(&str), context: &Value) -> Result<(), LabError> {
        show(out, &format!("goal: {}", text(&context["goal"])));
        for part in ["explored", "decisions", "errors", "next"] {
            let entries = list(&context[part]);
            check(
                !entries.is_empty(),
                &format!("the context that edge resumes has {part}"),
            )?;
            for entry in entries {
                let what = ["what", "error"]
                    .iter()
                    .find_map(|key| entry[*key].as_str())
                    .unwrap_or_default();
                show(out, &format!("{part}: {what}"));
            }
        }
        check(
            list(&context["errors"])
                .iter()
                .any(|error| error["fix"].is_string()),
            "the error has its fix beside it",
        )?;
        let (ok, total) = (
            &context["verification"]["ok"],
            &context["verification"]["total"],
        );
        check(
            total.as_u64().is_some_and(|total| total > 0) && ok == total,
            "every signature is verified",
        )?;
        show(out, &format!("{ok} of {total} signatures verified"));
        Ok(())
    }
}

/// Makes sure that everything the demo needs is here, then runs it in a scratch directory of its own.
///
/// # Errors
/// As [`Demo::run`] and [`setup::setup`].
pub fn demo(
    program: PathBuf,
    agents: PathBuf,
    images: PathBuf,
    out: &mut dyn FnMut(&str),
) -> Result<u32, LabError> {
    setup::setup(&mut *out)?;
    let scratch = std::env::temp_dir().join(format!("rhizome-demo-{}", std::process::id()));
    for dir in [&scratch, &images] {
        fs::create_dir_all(dir).map_err(|source| LabError::File {
            path: dir.clone(),
            source,
        })?;
    }
    let demo = Demo {
        program,
        agents,
        images,
        scratch,
    };
    let result = demo.run(out);
    match &result {
        Ok(_) => drop(fs::remove_dir_all(&demo.scratch)),
        Err(_) => out(&format!(
            "what the daemons said is in {}",
            demo.scratch.display()
        )),
    }
    result
}

fn exec<'a>(sandbox: &'a str, argv: &[&'a str]) -> Vec<&'a str> {
    [&["sandbox", "exec", sandbox, "--"], argv].concat()
}

fn one(daemon: &Daemon, args: &[&str]) -> Result<Value, LabError> {
    let empty = || LabError::Output {
        command: args.join(" "),
        found: "nothing".to_owned(),
    };
    daemon.json(args)?.into_iter().next().ok_or_else(empty)
}

fn show(out: &mut dyn FnMut(&str), line: &str) {
    out(&format!("      {line}"));
}

fn check(seen: bool, what: &str) -> Result<(), LabError> {
    if seen { Ok(()) } else { Err(not_seen(what)) }
}

fn not_seen(what: &str) -> LabError {
    LabError::NotSeen(format!("not seen: {what}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn short(value: &Value) -> &str {
    let id = text(value);
    id.get(..10).unwrap_or(id)
}

fn addresses(status: &Value) -> String {
    list(&status["addrs"])
        .iter()
        .map(text)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the directory where images are kept between runs.
pub fn default_images_dir() -> PathBuf {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new("/tmp").to_owned());
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    cache.join("rhizome").join("images")
}
