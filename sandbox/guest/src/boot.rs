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
    Agent, GRACE, Groups, Identity, OnShutdown, Setup, Sleep, VirtioPort, VsockPort, power_off,
    uptime_ms,
};
use cmdline::Words;

/// Where the image keeps kernel modules, named so that they load in order.
const MODULES: &str = "/lib/rhizome/modules";
/// Those of machines with PCI, where the channel is a virtio socket. Others have no use for them,
/// and each takes its time.
const PCI_MODULES: &[&str] = &[
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
];
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

/// The way to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The virtio-serial port.
    Serial,
    /// A port of the virtio socket.
    Vsock(u32),
}

impl Way {
    /// Reads `rhizome.channel`.
    fn from_words(words: &Words) -> Self {
        let port = words
            .get("channel")
            .and_then(|way| way.strip_prefix("vsock:")?.parse().ok());
        port.map_or(Self::Serial, Self::Vsock)
    }
}

/// The way to the host, once it is open.
enum Port {
    Serial(VirtioPort),
    Vsock(VsockPort),
}

impl Port {
    fn open(way: Way) -> io::Result<Self> {
        match way {
            Way::Serial => VirtioPort::open().map(Self::Serial),
            Way::Vsock(port) => VsockPort::open(port).map(Self::Vsock),
        }
    }

    fn connected(&self) -> io::Result<(File, File)> {
        match self {
            Self::Serial(port) => port.connected(),
            Self::Vsock(port) => port.connected(),
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
    let way = Way::from_words(&words);
    load_modules(way, &mut warnings);
    let upper = match root::Plan::from_words(&words) {
        Some(plan) => root::switch(&plan, &mut warnings)?,
        None => None,
    };
    mounts::finish(&mut warnings);
    if let Some(name) = words.get("hostname") {
        let set = rustix::system::sethostname(name.as_bytes()).map_err(io::Error::from);
        warnings.note("host name", set);
    }
    let mut identity = Identity::default();
    warnings.note("the boot's number", identity.take_boot());
    if let Some(number) = words.get("machine_id") {
        warnings.note("the machine's number", identity.take_machine(number));
    }
    warnings.note("loopback", loopback::bring_up());
    warnings.note("the state of the root", crate::cli::mark_clean());
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, DOOR_PORT));
    let port = Port::open(way)?;
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
        identity,
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

fn load_modules(way: Way, warnings: &mut Warnings) {
    let mut paths: Vec<PathBuf> = fs::read_dir(MODULES)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .filter(|path| way != Way::Serial || !PCI_MODULES.contains(&module_name(path)))
        .collect();
    paths.sort();
    for path in paths {
        let loaded = load_module(&path);
        warnings.note(&format!("module {}", path.display()), loaded);
    }
}

/// Returns a module's name without the number that it is sorted by.
fn module_name(path: &Path) -> &str {
    let name = path.file_stem().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    name.split_once('-').map_or(name, |(_, name)| name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_host_is_named_by_the_host() {
        let way = |line: &str| Way::from_words(&Words::parse(line));
        assert_eq!(way("rhizome.channel=vsock:1024"), Way::Vsock(1024));
        for other in ["", "rhizome.channel=vsock:x", "rhizome.channel=serial"] {
            assert_eq!(way(other), Way::Serial, "{other}");
        }
    }

    #[test]
    fn modules_are_known_by_their_names() {
        let name = module_name(Path::new("/m/07-virtio_pci.ko"));
        assert!(PCI_MODULES.contains(&name), "{name}");
        assert!(!PCI_MODULES.contains(&module_name(Path::new("/m/00-virtio_mmio.ko"))));
    }
}
