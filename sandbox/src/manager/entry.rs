//! One sandbox: its state in memory and its directory.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    SandboxError, SandboxId, SandboxInfo, SnapshotRef,
    channel::GuestChannel,
    driver::{Disk, Vm, VmRequest},
    life::{Action, Journal, Phase, Refused, State, Step, plan},
    snapshot::Behind,
    staging::write_atomic,
};

/// The state file in a sandbox's directory.
const STATE: &str = "state.json";
/// The file beside it that is written before each step.
const RUN: &str = "run.json";
/// Version of the state file. The first release's, 1, is read too: it has less.
const STATE_VERSION: u32 = 2;
/// Largest state file that is read, in bytes.
const MAX_STATE_BYTES: u64 = 1024 * 1024;
/// How long a request waits for an action that is under way.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// A monitor process, named so that no other can be taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Monitor {
    pub(super) pid: u32,
    /// Start time in clock ticks since the host's boot.
    pub(super) started: u64,
    /// Which boot of the host.
    pub(super) boot_id: String,
}

/// What a monitor runs, as far as it cannot be read off the sandbox's other particulars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) disks: Vec<MachineDisk>,
    pub(super) kernel_args: Vec<String>,
}

/// One of its disks, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MachineDisk {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
}

/// What `state.json` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    pub(super) info: SandboxInfo,
    pub(super) env: BTreeMap<String, String>,
    /// A snapshot that is durable and has no lasting name yet.
    #[serde(default)]
    pub(super) taken: Option<SnapshotRef>,
    /// What `run.json` holds too; the newer of the two counts.
    #[serde(flatten)]
    pub(super) run: Run,
}

/// What `run.json` holds: what means nothing once the host went down.
///
/// It is written before each step of an action, and not synced: it outlives the daemon in the
/// page cache, and when the host goes, so does every guest, and the sandbox is what `state.json`
/// says: the last commit, which is synced (ADR 0010).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Run {
    /// Counts the writes of both files.
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    pub(super) monitor: Option<Monitor>,
    #[serde(default)]
    pub(super) machine: Option<Machine>,
    /// The action that is under way.
    #[serde(default)]
    pub(super) journal: Option<Journal>,
}

/// One sandbox.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SandboxId,
    pub(super) dir: PathBuf,
    /// Cancelled when the sandbox is to end, whatever is done to it at the moment.
    pub(super) kill: CancellationToken,
    /// Held by the one action that is under way.
    pub(super) turn: tokio::sync::Mutex<()>,
    held: Mutex<Held>,
    standing: watch::Sender<Standing>,
}

/// What requests wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) phase: Phase,
    /// Whether there is a session that requests may use.
    pub(super) open: bool,
}

#[derive(Debug)]
struct Held {
    record: Record,
    vm: Option<Arc<Vm>>,
    channel: Option<GuestChannel>,
    behind: Option<Arc<Behind>>,
}

impl Entry {
    /// Makes the entry of a new sandbox.
    pub(super) fn new(dir: PathBuf, info: SandboxInfo, env: BTreeMap<String, String>) -> Self {
        Self::from_record(
            dir,
            Record {
                version: STATE_VERSION,
                info,
                env,
                taken: None,
                run: Run::default(),
            },
        )
    }

    /// Makes the entry of a sandbox that a state file tells of.
    pub(super) fn from_record(dir: PathBuf, record: Record) -> Self {
        let standing = watch::Sender::new(Standing {
            phase: record.info.state.phase(),
            open: false,
        });
        Self {
            id: record.info.id,
            dir,
            kill: CancellationToken::new(),
            turn: tokio::sync::Mutex::new(()),
            held: Mutex::new(Held {
                record,
                vm: None,
                channel: None,
                behind: None,
            }),
            standing,
        }
    }

    pub(super) fn info(&self) -> SandboxInfo {
        self.held().record.info.clone()
    }

    /// Returns it as others see it: one whose session is not open yet is being taken over.
    pub(super) fn shown(&self) -> SandboxInfo {
        let open = self.standing.borrow().open;
        let held = self.held();
        let mut info = held.record.info.clone();
        if info.state == State::Ready && !open && held.record.run.journal.is_none() {
            info.state = State::Restoring;
        }
        if let (Some(arriving), Some(behind)) = (&mut info.arriving, &held.behind) {
            arriving.left = behind.standing().left;
        }
        info
    }

    pub(super) fn record(&self) -> Record {
        self.held().record.clone()
    }

    pub(super) fn phase(&self) -> Phase {
        self.held().record.info.state.phase()
    }

    /// Returns the directory that the monitor works in.
    pub(super) fn vm_dir(&self) -> PathBuf {
        self.dir.join("vm")
    }

    /// Returns the directory of what is taken of the guest at one moment.
    pub(super) fn frozen_dir(&self) -> PathBuf {
        self.dir.join("frozen")
    }

    /// Returns the directory that says what of its disks is there, while they are on their way.
    pub(super) fn marks_dir(&self) -> PathBuf {
        self.dir.join("arriving")
    }

    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Returns what its monitor is started with, once that is known.
    pub(super) fn request(&self) -> Option<VmRequest> {
        let held = self.held();
        let info = &held.record.info;
        let machine = held.record.run.machine.as_ref()?;
        Some(VmRequest {
            id: self.id,
            dir: self.vm_dir(),
            console: self.console(),
            kernel: machine.kernel.clone(),
            initramfs: machine.initramfs.clone(),
            disks: machine
                .disks
                .iter()
                .map(|disk| Disk {
                    path: disk.path.clone(),
                    writable: disk.writable,
                })
                .collect(),
            memory_mib: info.memory_mib,
            vcpus: info.vcpus,
            accel: info.accel,
            kernel_args: machine.kernel_args.clone(),
        })
    }

    pub(super) fn vm(&self) -> Option<Arc<Vm>> {
        self.held().vm.clone()
    }

    pub(super) fn set_vm(&self, vm: Option<Arc<Vm>>) -> Option<Arc<Vm>> {
        std::mem::replace(&mut self.held().vm, vm)
    }

    /// Returns the disks that are on their way.
    pub(super) fn behind(&self) -> Option<Arc<Behind>> {
        self.held().behind.clone()
    }

    pub(super) fn set_behind(&self, behind: Option<Arc<Behind>>) -> Option<Arc<Behind>> {
        std::mem::replace(&mut self.held().behind, behind)
    }

    /// Returns the session, whether or not requests may use it.
    pub(super) fn session(&self) -> Option<GuestChannel> {
        self.held().channel.clone()
    }

    pub(super) fn set_session(&self, channel: Option<GuestChannel>) -> Option<GuestChannel> {
        std::mem::replace(&mut self.held().channel, channel)
    }

    /// Lets requests use the session, or makes them wait.
    pub(super) fn set_open(&self, open: bool) {
        self.standing
            .send_if_modified(|standing| std::mem::replace(&mut standing.open, open) != open);
    }

    /// Returns the session for a request, once an action that is under way is over.
    pub(super) async fn channel(&self) -> Result<GuestChannel, SandboxError> {
        let usable = tokio::time::timeout(SETTLE_LIMIT, self.usable()).await;
        usable.unwrap_or_else(|_| {
            let phase = self.phase();
            Err(self.refused(Action::Exec, Refused::Busy(phase)))
        })
    }

    async fn usable(&self) -> Result<GuestChannel, SandboxError> {
        let mut standing = self.standing.subscribe();
        loop {
            let seen = standing.wait_for(|standing| match plan(standing.phase, Action::Exec) {
                Ok(_) => standing.open,
                Err(Refused::Busy(_)) => false,
                Err(_) => true,
            });
            let phase = seen.await.expect("the entry has the sender").phase;
            plan(phase, Action::Exec).map_err(|why| self.refused(Action::Exec, why))?;
            match self.session() {
                Some(channel) if !channel.is_closed() => return Ok(channel),
                // It just broke, or was just closed: what comes of it shows in a moment.
                _ => self.set_open(false),
            }
        }
    }

    /// Waits until no action is under way, and returns the phase.
    pub(super) async fn settled(&self) -> Phase {
        let mut standing = self.standing.subscribe();
        let settled = standing.wait_for(|standing| !standing.phase.is_passing());
        settled.await.expect("the entry has the sender").phase
    }

    /// Says why an action is refused.
    pub(super) fn refused(&self, action: Action, why: Refused) -> SandboxError {
        let id = self.id;
        let info = self.shown();
        if let (Refused::Paused, Some(arriving)) = (why, &info.arriving)
            && arriving.waits.is_some()
        {
            return SandboxError::Arriving {
                id,
                left: arriving.left,
                why: arriving.waits.clone(),
            };
        }
        let state = self.held().record.info.state.clone();
        match (why, state) {
            (Refused::Lost, State::Lost { what }) => SandboxError::StateLost { id, what },
            (Refused::Ended(_), state) => SandboxError::NotRunning {
                id,
                state: state.to_string(),
            },
            (why, _) => SandboxError::Refused { id, action, why },
        }
    }

    /// Changes what others see, until the next write takes it down.
    pub(super) fn show(&self, change: impl FnOnce(&mut Record)) {
        let mut held = self.held();
        change(&mut held.record);
        self.announce(&held.record);
    }

    fn announce(&self, record: &Record) {
        let phase = record.info.state.phase();
        self.standing
            .send_if_modified(|standing| std::mem::replace(&mut standing.phase, phase) != phase);
    }

    /// Changes what is written down, and writes it: on disk when this returns.
    pub(super) fn change(&self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut held = self.held();
        change(&mut held.record);
        held.record.version = STATE_VERSION;
        held.record.run.seq += 1;
        self.announce(&held.record);
        // Written under the lock: two changes at once must not land in the other order on disk.
        let json = serde_json::to_vec_pretty(&held.record).expect("a state becomes JSON");
        write_atomic(&self.dir.join(STATE), &json)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Writes it down for the first time, not synced: nobody was told of it yet, and its first
    /// commit is.
    pub(super) fn found(&self) -> io::Result<()> {
        let held = self.held();
        let json = serde_json::to_vec_pretty(&held.record).expect("a state becomes JSON");
        write_unsynced(&self.dir.join(STATE), &json)
    }

    /// Changes what the next daemon has to know, and writes that.
    pub(super) fn note(&self, change: impl FnOnce(&mut Run)) -> io::Result<()> {
        let mut held = self.held();
        let run = &mut held.record.run;
        change(run);
        run.seq += 1;
        let json = serde_json::to_vec(&run).expect("a state becomes JSON");
        write_unsynced(&self.dir.join(RUN), &json)
    }

    /// Writes down that `step` begins.
    pub(super) fn begin(&self, action: Action, from: Phase, step: Step) -> io::Result<()> {
        let journal = Journal { action, from, step };
        self.note(|run| run.journal = Some(journal))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Reads the state file of a sandbox's directory.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let path = dir.join(STATE);
        match fs::metadata(&path)?.len() {
            // The host went down before its first commit, which is when somebody is told of it.
            0 => return Err(io::ErrorKind::NotFound.into()),
            1..=MAX_STATE_BYTES => {}
            _ => return Err(io::ErrorKind::FileTooLarge.into()),
        }
        let mut record: Self = serde_json::from_slice(&fs::read(&path)?)?;
        // Not synced, so it may be anything after the host went down; then it has no say.
        let run = fs::read(dir.join(RUN)).unwrap_or_default();
        if let Ok(run) = serde_json::from_slice::<Run>(&run)
            && run.seq > record.run.seq
        {
            record.run = run;
        }
        if !(1..=STATE_VERSION).contains(&record.version) {
            return Err(io::Error::other("a state file of another version"));
        }
        Ok(record)
    }
}

/// Writes a file whole for whoever reads it while the host is up.
fn write_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, bytes)?;
    fs::rename(draft, path)
}
