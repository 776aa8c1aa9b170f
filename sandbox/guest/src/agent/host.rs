//! What the host asks of the guest as a whole.

use std::{
    fs, io,
    io::Write,
    process,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use rhizome_guest::wire::{Failure, Info, Reseed, SetTime};
use rustix::{
    system::{RebootCommand, reboot, sysinfo, uname},
    time::{ClockId, Timespec, clock_gettime, clock_settime},
};

use super::{Agent, OnShutdown, failure::Failed, spawn};
use crate::sys;

/// The kernel's randomness. Held open: to find it again right after a resume, when nothing is in
/// any cache, costs more than what is done with it.
static RANDOM: OnceLock<fs::File> = OnceLock::new();
/// How long the answer to a SHUTDOWN has to reach the host, and programs have to end.
const GRACE: Duration = Duration::from_millis(200);

pub(crate) fn info(execs: usize) -> Info {
    let system = uname();
    let memory = sysinfo();
    let unit = u64::from(memory.mem_unit);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(':'))
        .map_or("", |(_, model)| model.trim());
    Info {
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: system.release().to_string_lossy().into_owned(),
        arch: system.machine().to_string_lossy().into_owned(),
        cpu: cpu.to_owned(),
        hostname: system.nodename().to_string_lossy().into_owned(),
        cpus: thread::available_parallelism()
            .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX)),
        memory_total: memory.totalram.saturating_mul(unit),
        memory_available: available,
        uptime_ms: uptime_ms(),
        execs: u32::try_from(execs).unwrap_or(u32::MAX),
    }
}

/// Milliseconds since the kernel's start.
pub(crate) fn uptime_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000) + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Milliseconds since 1970, by the guest's clock.
pub(crate) fn unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000) + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

pub(crate) fn set_time(SetTime { unix_ns }: SetTime) -> Result<(), Failure> {
    let now = Timespec {
        tv_sec: i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(unix_ns % 1_000_000_000).unwrap_or(0),
    };
    clock_settime(ClockId::Realtime, now).map_err(|error| failed(error.into()))
}

pub(crate) fn reseed(Reseed { seed }: &Reseed) -> Result<(), Failure> {
    let reseed = || -> io::Result<()> {
        if RANDOM.get().is_none() {
            let opened = fs::OpenOptions::new().write(true).open("/dev/urandom")?;
            // Another thread may have been first, and one is as good as the other.
            let _ = RANDOM.set(opened);
        }
        let mut random = RANDOM.get().expect("it was just set");
        random.write_all(seed)?;
        sys::reseed_now(random)?;
        Ok(())
    };
    reseed().map_err(failed)
}

/// Begins the end; the thread that reads from the host goes on meanwhile.
pub(crate) fn shut_down(agent: &Arc<Agent>) {
    let agent = Arc::clone(agent);
    let end = move || {
        thread::sleep(GRACE);
        // A disk that takes no writes could not be written out.
        agent.sleep.thaw(&agent);
        match agent.on_shutdown {
            OnShutdown::Exit => process::exit(0),
            OnShutdown::PowerOff => power_off(),
        }
    };
    // Without a thread there is nothing that could end in good order.
    if spawn("shutdown", end).is_err() {
        power_off();
    }
}

/// Ends all programs, writes out what they wrote, and powers off.
pub(crate) fn power_off() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            // Kernel threads take no signals.
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
                && !pid.is_init()
            {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        thread::sleep(GRACE);
    }
    rustix::fs::sync();
    // Remounts everything read-only, so that the disks are clean at their next use.
    let _ = fs::write("/proc/sysrq-trigger", "u");
    thread::sleep(GRACE);
    for how in [RebootCommand::PowerOff, RebootCommand::Restart] {
        let _ = reboot(how);
    }
}

fn failed(error: io::Error) -> Failure {
    Failed::from(error).0
}
