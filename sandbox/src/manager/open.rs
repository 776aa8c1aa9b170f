//! What a starting daemon does with the sandboxes that another left.
//!
//! Each is asked of [`crate::life::recover`]: monitors that run are taken over, actions that were
//! under way go on or back, what is gone is listed as lost. The same is done by `doctor --fix` for
//! what could not be finished then.

use std::{
    fs, io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde::Serialize;
use tracing::{info, warn};

use super::{
    Inner, Sandboxes,
    act::{Work, do_step, lose, told},
    boot, capture, catalogue,
    entry::{Entry, Monitor, Record},
};
use crate::{
    SandboxError, SandboxId, SandboxState,
    driver::{end_process, monitors_in},
    life::{Action, Facts, Phase, Recovery, Step, plan, recover},
    silent,
};

/// Time for which opening waits for guests that are taken over; what takes longer goes on in the
/// background, and requests for it wait.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);
/// Age below which packs that nothing names are left alone: somebody may be about to name them.
const GC_GRACE: Duration = Duration::from_secs(3600);

/// Why a sandbox is lost whose monitor was not there any more.
pub(super) const LOST: &str = "its monitor was gone when the daemon came back";
/// Why one failed that was being made.
pub(super) const INTERRUPTED: &str = "the daemon stopped while it was being made";

/// What `doctor --fix` did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// Actions that were finished or taken back.
    pub actions: usize,
    /// Monitors that belonged to no sandbox and were ended.
    pub monitors: usize,
    /// Directories that belonged to nothing and were removed.
    pub directories: usize,
    /// Names in the chunk store that belonged to nothing and were removed.
    pub pins: usize,
    /// Bytes that the chunk store gave back.
    pub bytes: u64,
    /// What could not be mended, for people.
    pub left: Vec<String>,
}

/// Reads every sandbox of the directory.
pub(super) fn read(dir: &Path) -> io::Result<Vec<Arc<Entry>>> {
    let mut entries = Vec::new();
    for found in fs::read_dir(dir)? {
        let path = found?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(id) = name.parse::<SandboxId>() else {
            continue;
        };
        match Record::read(&path) {
            Ok(record) if record.info.id == id => {
                entries.push(Arc::new(Entry::from_record(path, record)));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A crash between making the directory and its first state: nothing ran yet, but
                // for a guest of the pool that was nobody's.
                for (pid, started) in monitors_in(&path.join("vm")) {
                    end_process(pid, started);
                }
                let _ = fs::remove_dir_all(&path);
            }
            Err(error) => {
                warn!(sandbox = %id, %error, "a sandbox's state file cannot be used; it is left alone");
            }
        }
    }
    Ok(entries)
}

/// Takes over what runs and makes whole what is not.
pub(super) async fn take_over(inner: &Arc<Inner>) {
    let entries: Vec<_> = inner.entries().values().cloned().collect();
    let work = entries.into_iter().map(|entry| {
        let inner = Arc::clone(inner);
        let owner = Arc::clone(&inner);
        owner.tasks.spawn(async move {
            make_whole(&inner, &entry).await;
        })
    });
    let _ = tokio::time::timeout(OPEN_PATIENCE, join_all(work)).await;
}

/// Makes one sandbox whole; returns whether there was anything to do.
pub(super) async fn make_whole(inner: &Arc<Inner>, entry: &Arc<Entry>) -> bool {
    let _turn = entry.turn.lock().await;
    let record = entry.record();
    let phase = record.info.state.phase();
    let resting =
        !phase.is_running() && record.run.journal.is_none() && record.run.monitor.is_none();
    if resting || entry.vm().is_some() && record.run.journal.is_none() {
        return false;
    }
    let monitor = record.run.monitor.as_ref().is_some_and(boot::is_alive);
    let facts = Facts { monitor };
    let recovery = recover(phase, record.run.journal.as_ref(), facts);
    info!(sandbox = %entry.id, %phase, monitor, to = %recovery.to, "a sandbox is taken over");
    let began = Instant::now();
    run(inner, entry, phase, &recovery).await;
    if monitor && matches!(recovery.to, Phase::Ready | Phase::Paused) {
        let taken_over = entry.phase() == recovery.to;
        let took = began.elapsed();
        inner.counts.action(Action::Attach, took, taken_over);
    }
    true
}

async fn run(inner: &Arc<Inner>, entry: &Arc<Entry>, phase: Phase, recovery: &Recovery) {
    // Steps about a guest want to know whose plan they are of: attaching is the only one here.
    let attach = plan(Phase::Ready, Action::Attach).expect("what runs is attached to");
    let mut work = Work::new(silent());
    // Requests wait meanwhile: the session is not open. The journal stays as it is.
    for step in &recovery.steps {
        if *step == Step::Commit {
            continue; // Below: it says more here than in a plan.
        }
        let done = tokio::select! {
            biased;
            () = inner.abandon.cancelled() => return,
            done = do_step(inner, entry, &attach, &mut work, *step) => done,
        };
        let Err(error) = done else { continue };
        if step.needs_guest() || *step == Step::AttachMonitor {
            if recovery.or_else == Phase::Lost {
                let how = entry.vm().and_then(|vm| vm.ended.borrow().clone());
                lose(inner, entry, how.unwrap_or_else(|| told(&error))).await;
                return;
            }
            // A guest that is on its way out answers nobody; what follows ends it.
            continue;
        }
        // The journal stays, so that it is tried again.
        warn!(sandbox = %entry.id, ?step, error = %told(&error), "a sandbox cannot be made whole yet");
        return;
    }
    settle(inner, entry, phase, recovery.to);
}

fn settle(inner: &Inner, entry: &Entry, was: Phase, to: Phase) {
    let record = entry.record();
    let asleep = record.info.snapshot.as_ref().map(|s| s.manifest);
    let before = record.info.state;
    let state = match to {
        Phase::Ready => SandboxState::Ready,
        Phase::Paused => SandboxState::Paused,
        Phase::Stopped => SandboxState::Stopped,
        Phase::Killed => SandboxState::Killed,
        Phase::Hibernated => match asleep {
            Some(snapshot) => SandboxState::Hibernated { snapshot },
            None => lost("the snapshot it slept in is not known"),
        },
        Phase::Lost => match before {
            state @ SandboxState::Lost { .. } => state,
            _ => lost(LOST),
        },
        _ => match before {
            state @ SandboxState::Failed { .. } => state,
            _ => SandboxState::Failed {
                reason: INTERRUPTED.to_owned(),
            },
        },
    };
    if was != state.phase() {
        info!(sandbox = %entry.id, %was, state = %state, "a sandbox is whole again");
    }
    entry.set_open(state.phase() == Phase::Ready);
    let written = entry.change(|record| {
        if !state.is_running() {
            inner.lease_over(&mut record.info, state.phase());
            record.info.arriving = None;
        }
        record.info.state = state;
        record.run.journal = None;
    });
    if let Err(error) = written {
        warn!(sandbox = %entry.id, %error, "cannot write down that a sandbox is whole");
    }
}

fn lost(what: &str) -> SandboxState {
    SandboxState::Lost {
        what: what.to_owned(),
    }
}

impl Sandboxes {
    /// Finishes what could not be finished, and removes what belongs to nothing. Safe to repeat:
    /// what was mended is not mended again.
    ///
    /// # Errors
    /// When the directory cannot be read. What cannot be mended is in [`Mended::left`].
    pub async fn mend(&self) -> Result<Mended, SandboxError> {
        let inner = &self.inner;
        let mut mended = Mended::default();
        let entries: Vec<_> = inner.entries().values().cloned().collect();
        for entry in &entries {
            // One that is busy is whole, or will be: an action is at work on it.
            if entry.turn.try_lock().is_err() {
                continue;
            }
            if make_whole(inner, entry).await {
                mended.actions += 1;
                if entry.record().run.journal.is_some() {
                    mended
                        .left
                        .push(format!("an action of sandbox {} is not over", entry.id));
                }
            }
        }
        inner.sweep_directories(&mut mended).await?;
        inner.sweep_store(&mut mended).await;
        Ok(mended)
    }
}

impl Inner {
    /// Removes directories that no listed sandbox has, after the monitors that use them.
    async fn sweep_directories(&self, mended: &mut Mended) -> Result<(), SandboxError> {
        let directory = super::directory(&self.dir);
        let found: Vec<_> = fs::read_dir(&self.dir)
            .map_err(directory)?
            .filter_map(Result::ok)
            .collect();
        for found in found {
            let path = found.path();
            let name = found.file_name();
            let Ok(id) = name.to_string_lossy().parse::<SandboxId>() else {
                continue;
            };
            if self.pool.has_id(&id) {
                continue;
            }
            if self.entries().contains_key(&id) {
                self.sweep_one(&id, &path, mended);
                continue;
            }
            if let Ok(record) = Record::read(&path)
                && let Some(monitor) = record.run.monitor
                && boot::is_alive(&monitor)
            {
                boot::end_recorded(&monitor).await;
                mended.monitors += 1;
            }
            match fs::remove_dir_all(&path) {
                Ok(()) => mended.directories += 1,
                Err(error) => mended.left.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(())
    }

    /// Removes what a listed sandbox has no use for.
    fn sweep_one(&self, id: &SandboxId, path: &Path, mended: &mut Mended) {
        let Ok(entry) = self.entry(id) else { return };
        let Ok(_turn) = entry.turn.try_lock() else {
            return;
        };
        let record = entry.record();
        let phase = record.info.state.phase();
        if record.run.journal.is_some() || phase.is_passing() {
            return;
        }
        let mut useless = vec![path.join("frozen")];
        if phase.has_ended() || phase == Phase::Hibernated {
            useless.push(path.join("vm"));
            useless.push(entry.marks_dir());
        }
        for dir in useless {
            match fs::remove_dir_all(&dir) {
                Ok(()) => mended.directories += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => mended.left.push(format!("{}: {error}", dir.display())),
            }
        }
    }

    /// Lets go of what no sandbox and no snapshot names, then collects the garbage.
    async fn sweep_store(self: &Arc<Self>, mended: &mut Mended) {
        let mut wanted = std::collections::BTreeSet::new();
        for entry in self.entries().values() {
            wanted.insert(capture::pending(&entry.id));
            if entry.record().info.snapshot.is_some() {
                wanted.insert(capture::asleep(&entry.id));
            }
        }
        for info in self.catalogue.list() {
            wanted.insert(catalogue::pin_of(&info.snapshot.manifest));
        }
        // Others have names of their own in the store; these kinds are ours.
        let ours = |name: &String| {
            ["capture-", "sleep-", "snapshot-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        let store = self.chunks.clone();
        let swept = tokio::task::spawn_blocking(move || {
            let mut pins = 0;
            for name in store.pins() {
                if ours(&name) && !wanted.contains(&name) && store.unpin(&name)? {
                    pins += 1;
                }
            }
            let freed = store.gc(GC_GRACE)?;
            Ok::<_, crate::chunks::ChunkError>((pins, freed))
        });
        match swept.await {
            Ok(Ok((pins, freed))) => {
                mended.pins += pins;
                mended.bytes += freed.bytes;
            }
            Ok(Err(error)) => mended.left.push(format!("the chunk store: {error}")),
            Err(error) => mended.left.push(format!("the chunk store: {error}")),
        }
    }
}

/// Ends every monitor that is written down in a directory of sandboxes, without a daemon: what
/// `rhizome down --sandboxes kill` does when none runs. Returns how many ran.
///
/// The next daemon lists them as lost. Call it only while no daemon uses the directory.
///
/// # Errors
/// [`SandboxError::Directory`], and [`SandboxError::InUse`] if a daemon does.
pub async fn end_monitors(dir: &Path) -> Result<usize, SandboxError> {
    if !dir.exists() {
        return Ok(0);
    }
    let _lock = super::lock(dir).await?;
    let mut ended = 0;
    super::pool::sweep(&dir.join(super::POOL)).await;
    let found = fs::read_dir(dir).map_err(super::directory(dir))?;
    for found in found.filter_map(Result::ok) {
        let monitor: Option<Monitor> = Record::read(&found.path())
            .ok()
            .and_then(|record| record.run.monitor);
        // Those that were started and not yet written down are found by where they work.
        for monitor in boot::monitors_of(&found.path().join("vm"), monitor) {
            boot::end_recorded(&monitor).await;
            ended += 1;
        }
    }
    Ok(ended)
}
