//! One sandbox: its state in memory and its directory.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    SandboxError, SandboxId, SandboxInfo, SandboxState, channel::GuestChannel,
    staging::write_atomic,
};

/// The state file in a sandbox's directory.
const STATE: &str = "state.json";
/// Version of that file.
const STATE_VERSION: u32 = 1;
/// Largest state file that is read, in bytes.
const MAX_STATE_BYTES: u64 = 1024 * 1024;

/// A monitor process, named so that no other can be taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Monitor {
    pub(super) pid: u32,
    /// Start time in clock ticks since the host's boot.
    pub(super) started: u64,
    /// Which boot of the host.
    pub(super) boot_id: String,
}

/// What `state.json` holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    pub(super) info: SandboxInfo,
    pub(super) env: BTreeMap<String, String>,
    pub(super) monitor: Option<Monitor>,
}

/// One sandbox.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SandboxId,
    pub(super) dir: PathBuf,
    /// Environment of every command.
    pub(super) env: BTreeMap<String, String>,
    /// Cancelled when the sandbox is to end.
    pub(super) kill: CancellationToken,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    info: SandboxInfo,
    monitor: Option<Monitor>,
    channel: Option<GuestChannel>,
}

impl Entry {
    pub(super) fn new(
        dir: PathBuf,
        info: SandboxInfo,
        env: BTreeMap<String, String>,
        kill: CancellationToken,
    ) -> Self {
        let over = watch::Sender::new(info.state.has_ended());
        Self {
            id: info.id,
            dir,
            env,
            kill,
            state: Mutex::new(State {
                info,
                monitor: None,
                channel: None,
            }),
            over,
        }
    }

    pub(super) fn info(&self) -> SandboxInfo {
        self.state().info.clone()
    }

    /// Returns the directory that the monitor works in.
    pub(super) fn vm_dir(&self) -> PathBuf {
        self.dir.join("vm")
    }

    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Returns the channel of a sandbox that is ready.
    pub(super) fn channel(&self) -> Result<GuestChannel, SandboxError> {
        let state = self.state();
        state
            .channel
            .clone()
            .ok_or_else(|| SandboxError::NotRunning {
                id: self.id,
                state: state.info.state.to_string(),
            })
    }

    pub(super) fn booting(&self, monitor: Monitor) -> io::Result<()> {
        let mut state = self.state();
        state.info.state = SandboxState::Booting;
        state.monitor = Some(monitor);
        drop(state);
        self.save()
    }

    pub(super) fn ready(
        &self,
        channel: GuestChannel,
        change: impl FnOnce(&mut SandboxInfo),
    ) -> io::Result<()> {
        let mut state = self.state();
        change(&mut state.info);
        state.info.state = SandboxState::Ready;
        state.channel = Some(channel);
        drop(state);
        self.save()
    }

    /// Ends the sandbox for everybody: its channel closes, its state is final.
    pub(super) fn end(&self, state: SandboxState) {
        let mut held = self.state();
        held.info.state = state;
        held.monitor = None;
        let channel = held.channel.take();
        drop(held);
        if let Some(channel) = channel {
            channel.close();
        }
        // The sandbox is over whether or not the disk takes it down; without the file the next
        // daemon finds it as one that was lost.
        if let Err(error) = self.save() {
            warn!(sandbox = %self.id, %error, "cannot write down that the sandbox ended");
        }
        let _ = fs::remove_dir_all(self.vm_dir());
        self.over.send_replace(true);
    }

    /// Waits until the sandbox is over.
    pub(super) async fn wait_ended(&self) {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn save(&self) -> io::Result<()> {
        let state = self.state();
        let record = Record {
            version: STATE_VERSION,
            info: state.info.clone(),
            env: self.env.clone(),
            monitor: state.monitor.clone(),
        };
        // Written under the lock: two changes at once must not land in the other order on disk.
        let json = serde_json::to_vec_pretty(&record).expect("a state becomes JSON");
        write_atomic(&self.dir.join(STATE), &json)
    }
}

impl Record {
    /// Reads the state file of a sandbox's directory.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let path = dir.join(STATE);
        if fs::metadata(&path)?.len() > MAX_STATE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let record: Self = serde_json::from_slice(&fs::read(&path)?)?;
        if record.version != STATE_VERSION {
            return Err(io::Error::other("a state file of another version"));
        }
        Ok(record)
    }
}
