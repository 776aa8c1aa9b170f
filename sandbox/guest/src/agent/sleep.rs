//! Falling asleep and waking up: coming to rest before the guest is copied, and what follows
//! when it runs again from a copy.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::unix::{ffi::OsStringExt, fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rhizome_guest::wire::{
    Exit, FailureCode, Frame, Kind, Quiesce, Quiesced, Reseed, Resumed, SetTime,
};
use rustix::process::Signal;

use super::{Agent, failure::Failed, host, lock, spawn, stream::Stream};
use crate::sys;

/// Where programs find what they may want to know of their machine.
const RUN_DIR: &str = "/run/rhizome";
/// Programs that are run after a resume, in the order of their names.
const RESUMED_DIR: &str = "/etc/rhizome/resumed.d";
/// How long each of them may take.
const RESUMED_WITHIN: Duration = Duration::from_secs(30);
/// What is told of what a hook said, in bytes.
const MAX_SAID: usize = 512;
/// How long the last of it may take after its end.
const SAYS_WITHIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What a hook's path begins with if it names none.
const HOOK_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// File systems that can be frozen.
const DISK_KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "f2fs"];

/// Whether the guest is at rest, and what it takes to be.
pub(crate) struct Sleep {
    /// The disk below the root that takes what is written.
    upper: Option<File>,
    run_dir: Option<PathBuf>,
    /// Whether this is a machine of our own, whose disks may be frozen.
    machine: bool,
    rest: Mutex<Rest>,
    /// How many times it was resumed.
    generation: AtomicU64,
}

#[derive(Default)]
struct Rest {
    /// Counts the times that the guest came to rest.
    times: u64,
    at_rest: bool,
    programs: bool,
    disks: Vec<File>,
}

impl Sleep {
    pub(crate) fn of_machine(upper: Option<File>) -> Self {
        let sleep = Self {
            upper,
            run_dir: Some(PathBuf::from(RUN_DIR)),
            machine: true,
            rest: Mutex::default(),
            generation: AtomicU64::new(0),
        };
        sleep.first_generation();
        sleep
    }

    /// For an agent that is an ordinary process: nothing but programs can be stopped.
    pub(crate) fn of_process(run_dir: Option<PathBuf>) -> Self {
        let sleep = Self {
            upper: None,
            run_dir,
            machine: false,
            rest: Mutex::default(),
            generation: AtomicU64::new(0),
        };
        sleep.first_generation();
        sleep
    }

    /// The file that holds how many times this guest was resumed. It is replaced each time, so
    /// that a program can wait for that.
    pub(crate) fn generation_file(&self) -> Option<PathBuf> {
        self.run_dir.as_ref().map(|dir| dir.join("generation"))
    }

    /// Starts something, unless the guest is at rest.
    pub(crate) fn unless_at_rest<T>(
        &self,
        start: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        // Held while it starts: a child that was stopped before it is a program would keep us.
        let rest = lock(&self.rest);
        if rest.at_rest {
            return Err(Failed::new(FailureCode::AtRest, "the guest is at rest"));
        }
        start()
    }

    /// Lets the guest go on; one that is not at rest is fine.
    pub(crate) fn thaw(&self, agent: &Agent) {
        let mut rest = lock(&self.rest);
        self.undo(agent, &mut rest);
    }

    fn undo(&self, agent: &Agent, rest: &mut Rest) {
        for disk in rest.disks.drain(..) {
            // One that somebody else thawed is fine.
            let _ = sys::thaw(&disk);
        }
        if std::mem::take(&mut rest.programs) {
            let _ = agent.groups.freeze(false);
        }
        rest.at_rest = false;
    }

    /// Thaws after `hold`, unless someone did before.
    fn thaw_later(agent: &Arc<Agent>, times: u64, hold: Duration) -> io::Result<()> {
        let agent = Arc::clone(agent);
        spawn("thaw", move || {
            thread::sleep(hold);
            let mut rest = lock(&agent.sleep.rest);
            if rest.times == times && rest.at_rest {
                agent.sleep.undo(&agent, &mut rest);
            }
        })
        .map(drop)
    }

    fn come_to_rest(agent: &Arc<Agent>, hold: Duration) -> Result<Quiesced, Failed> {
        let sleep = &agent.sleep;
        let mut rest = lock(&sleep.rest);
        // Asked twice: the later hold counts.
        sleep.undo(agent, &mut rest);
        rest.times += 1;
        rest.at_rest = true;
        let mut notes = Vec::new();
        // The clock that ends it runs before anything can get stuck.
        if let Err(error) = Self::thaw_later(agent, rest.times, hold) {
            sleep.undo(agent, &mut rest);
            return Err(error.into());
        }
        // Set first: a freeze that took too long must be undone too.
        rest.programs = true;
        match agent.groups.freeze(true) {
            Ok(frozen) => rest.programs = frozen,
            Err(error) => {
                sleep.undo(agent, &mut rest);
                return Err(error.into());
            }
        }
        sleep.draft_generation();
        if sleep.machine {
            rustix::fs::sync();
            // What is cached can be read again, and would make the copy larger.
            if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
                notes.push(format!("caches: {error}"));
            }
            for (name, disk) in sleep.disks() {
                match sys::freeze(&disk) {
                    Ok(()) => rest.disks.push(disk),
                    Err(error) => notes.push(format!("{name}: {error}")),
                }
            }
        }
        Ok(Quiesced {
            programs: rest.programs,
            disks: u32::try_from(rest.disks.len()).unwrap_or(u32::MAX),
            notes,
        })
    }

    /// Returns every file system on a disk that takes writes.
    fn disks(&self) -> Vec<(String, File)> {
        let mut disks = Vec::new();
        if let Some(upper) = self.upper.as_ref().and_then(|upper| upper.try_clone().ok()) {
            disks.push(("the root's disk".to_owned(), upper));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [source, target, kind, options, ..] = fields[..] else {
                continue;
            };
            let writable = options.split(',').any(|option| option == "rw");
            if source.starts_with("/dev/")
                && writable
                && DISK_KINDS.contains(&kind)
                && let Ok(disk) = File::open(target)
            {
                disks.push((target.to_owned(), disk));
            }
        }
        disks
    }

    fn first_generation(&self) {
        let Some(dir) = &self.run_dir else { return };
        // A machine that can't say it runs all the same.
        let _ = fs::create_dir_all(dir);
        let _ = write_whole(&dir.join("generation"), 0);
    }

    fn next_generation(&self) -> io::Result<u64> {
        let Some(path) = self.generation_file() else {
            return Ok(0);
        };
        let next = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        // Mostly the draft lies there since the guest came to rest.
        fs::rename(draft(&path), &path).or_else(|_| write_whole(&path, next))?;
        Ok(next)
    }

    /// Writes what the next resume puts in place: that has the less to do.
    fn draft_generation(&self) {
        if let Some(path) = self.generation_file() {
            let next = self.generation.load(Ordering::Relaxed) + 1;
            // Without it the resume writes it.
            let _ = fs::write(draft(&path), format!("{next}\n"));
        }
    }
}

/// Answers QUIESCE, THAW and RESUMED.
pub(crate) fn answer(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    let answered = match frame.kind {
        Kind::Quiesce => quiesce(agent, frame).map(|done| stream.send(Kind::Quiesced, &done)),
        Kind::Thaw => {
            agent.sleep.thaw(agent);
            Ok(stream.send_empty(Kind::Done))
        }
        _ => resumed(agent, frame).map(|()| stream.send_empty(Kind::Done)),
    };
    if let Err(Failed(failure)) = answered {
        stream.send(Kind::Failed, &failure);
    }
}

fn quiesce(agent: &Arc<Agent>, frame: &Frame) -> Result<Quiesced, Failed> {
    let request: Quiesce = frame.message()?;
    if !request.hook.is_empty() {
        let words = request.hook.into_iter().map(OsString::from_vec).collect();
        run_hook(agent, words, Duration::from_millis(request.hook_ms), &[])?;
    }
    Sleep::come_to_rest(agent, Duration::from_millis(request.hold_ms))
}

fn resumed(agent: &Arc<Agent>, frame: &Frame) -> Result<(), Failed> {
    let told: Resumed = frame.message()?;
    // All of it before any program goes on; one that fails must not keep them for ever.
    let set = if agent.sleep.machine {
        set_machine(agent, &told)
    } else {
        // An ordinary process has no business with the machine's clock.
        Ok(())
    };
    let generation = agent.sleep.next_generation();
    agent.sleep.thaw(agent);
    set?;
    run_resumed_hooks(agent, generation?, told.fork);
    Ok(())
}

fn set_machine(agent: &Agent, told: &Resumed) -> Result<(), Failed> {
    let unix_ns = told.unix_ns;
    host::set_time(SetTime { unix_ns }).map_err(Failed)?;
    host::reseed(&Reseed { seed: told.seed }).map_err(Failed)?;
    if !told.hostname.is_empty() {
        rustix::system::sethostname(told.hostname.as_bytes()).map_err(io::Error::from)?;
    }
    if told.fork {
        agent.identity.become_another(told.machine)?;
    }
    Ok(())
}

/// Runs what the image wants run after a resume, beside everything else.
fn run_resumed_hooks(agent: &Arc<Agent>, generation: u64, fork: bool) {
    if !agent.sleep.machine {
        return;
    }
    let mut hooks: Vec<PathBuf> = fs::read_dir(RESUMED_DIR)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let mode =
                fs::metadata(path).map(|found| (found.is_file(), found.permissions().mode()));
            mode.is_ok_and(|(is_file, mode)| is_file && mode & 0o111 != 0)
        })
        .collect();
    hooks.sort();
    if hooks.is_empty() {
        return;
    }
    let agent = Arc::clone(agent);
    let env = [
        ("RHIZOME_RESUMED", generation.to_string()),
        ("RHIZOME_FORK", u8::from(fork).to_string()),
    ];
    // Nobody is told of what fails here: the next hook runs all the same.
    let _ = spawn("resumed", move || {
        for hook in hooks {
            let _ = run_hook(&agent, vec![hook.into_os_string()], RESUMED_WITHIN, &env);
        }
    });
}

/// Runs a hook to its end; what it says is told if it fails.
fn run_hook(
    agent: &Arc<Agent>,
    words: Vec<OsString>,
    limit: Duration,
    env: &[(&str, String)],
) -> Result<(), Failed> {
    let hook = |what: String| Failed::new(FailureCode::Hook, what);
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    command
        .args(words)
        .env_clear()
        .env("PATH", HOOK_PATH)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let started = agent.reaper.spawn(&mut command);
    let (mut spawned, child) = started.map_err(|error| hook(error.to_string()))?;
    drop(command);
    let saying = spawned.stderr.take().map(|mut pipe| {
        spawn("hook", move || {
            let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
            // Read to its end, so that it is never held up; little of it is kept.
            while let Ok(len @ 1..) = pipe.read(&mut buffer) {
                said.extend_from_slice(&buffer[..len.min(MAX_SAID - said.len().min(MAX_SAID))]);
            }
            String::from_utf8_lossy(&said).trim().to_owned()
        })
    });
    let Some(exit) = child.wait(Some(limit)) else {
        agent.reaper.signal(&child, Signal::KILL);
        child.wait(None);
        return Err(Failed::new(FailureCode::TimedOut, "the hook took too long"));
    };
    if exit == Exit::Code(0) {
        return Ok(());
    }
    let said = match saying {
        // What it left running may hold the pipe for ever.
        Some(Ok(saying)) => {
            let until = Instant::now() + SAYS_WITHIN;
            while !saying.is_finished() && Instant::now() < until {
                thread::sleep(LOOK_AGAIN);
            }
            if saying.is_finished() {
                saying.join().unwrap_or_default()
            } else {
                String::new()
            }
        }
        _ => String::new(),
    };
    let how = match exit {
        Exit::Code(code) => format!("exit code {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::TimedOut => "out of time".to_owned(),
    };
    Err(hook(format!("{how}: {said}")))
}

/// Replaces a file, so that its readers see the old or the new one.
fn write_whole(path: &Path, number: u64) -> io::Result<()> {
    let draft = draft(path);
    fs::write(&draft, format!("{number}\n"))?;
    fs::rename(draft, path)
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}
