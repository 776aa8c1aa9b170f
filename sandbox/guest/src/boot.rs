//! From the kernel's first call to a served channel.
//!
//! PID 1 must not end: whatever fails is noted, told to the host in READY, and passed over. Only
//! without a channel to the host, or without the root that was asked for, is there nothing to go
//! on with; then the machine is powered off, which the host sees.

mod cmdline;
mod loopback;
mod mounts;
mod root;

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use rhizome_guest::wire::{DOOR_PORT, Ready};

use crate::agent::{
    Agent, GRACE, Groups, OnShutdown, Setup, Sleep, VirtioPort, power_off, uptime_ms,
};
use cmdline::Words;

/// Where the image keeps kernel modules, named so that they load in order.
const MODULES: &str = "/lib/rhizome/modules";
/// How long to wait before a broken channel is opened anew.
const RETRY: Duration = Duration::from_millis(500);

/// What went wrong without stopping us.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Vec<String>);

impl Warnings {
    fn note<T>(&mut self, what: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                say(&format!("{what}: {error}"));
                self.0.push(format!("{what}: {error}"));
                None
            }
        }
    }
}

/// Runs as PID 1.
pub(crate) fn run() -> ! {
    let Err(error) = try_run();
    say(&format!("cannot go on: {error}"));
    power_off();
    // The kernel would panic if we returned.
    loop {
        thread::park();
    }
}

fn try_run() -> Result<Infallible, io::Error> {
    let mut warnings = Warnings::default();
    mounts::basics(&mut warnings);
    let words = Words::parse(&fs::read_to_string("/proc/cmdline").unwrap_or_default());
    load_modules(&mut warnings);
    let upper = match root::Plan::from_words(&words) {
        Some(plan) => root::switch(&plan, &mut warnings)?,
        None => None,
    };
    mounts::finish(&mut warnings);
    if let Some(name) = words.get("hostname") {
        let set = rustix::system::sethostname(name.as_bytes()).map_err(io::Error::from);
        warnings.note("host name", set);
    }
    warnings.note("loopback", loopback::bring_up());
    warnings.note("the state of the root", crate::cli::mark_clean());
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, DOOR_PORT));
    let port = VirtioPort::open()?;
    let ready = Ready {
        boot_ms: uptime_ms(),
        warnings: warnings.0,
    };
    let agent = Agent::start(Setup {
        on_shutdown: OnShutdown::PowerOff,
        door,
        ready,
        groups: Groups::of_machine(),
        sleep: Sleep::of_machine(upper),
        grace: GRACE,
    })?;
    loop {
        match port.connected() {
            Ok((reader, writer)) => agent.serve(reader, writer),
            Err(error) => {
                say(&format!("channel: {error}"));
                thread::sleep(RETRY);
            }
        }
    }
}

fn load_modules(warnings: &mut Warnings) {
    let mut paths: Vec<PathBuf> = fs::read_dir(MODULES)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .collect();
    paths.sort();
    for path in paths {
        let loaded = load_module(&path);
        warnings.note(&format!("module {}", path.display()), loaded);
    }
}

fn load_module(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    match rustix::system::finit_module(&file, c"", 0) {
        // It is there already, or part of the kernel.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Says something on the console.
fn say(text: &str) {
    // There is nobody to tell if the console is closed.
    let _ = writeln!(io::stderr(), "rhizome-guest[{}]: {text}", process::id());
}
