//! How an action is done: step by step, each written down before it is begun.
//!
//! The steps and their order are those of [`crate::life`]; what each does is in the modules named
//! after their subjects. An action that fails before its point of no return is undone here and
//! now; one that fails after it is finished by the next start, or by `doctor --fix`.

use std::{error::Error as _, fs::File, sync::Arc, time::Instant};

use futures::future::BoxFuture;
use tracing::{debug, info, warn};

use super::{Inner, behind, boot, capture, entry::Entry, fork, restore, session};
use crate::{
    Progress, SandboxError,
    image::Image,
    life::{Action, Phase, Plan, State, Step, plan},
    snapshot::Frozen,
};

/// What an action is done with, beside the sandbox itself; most need little of it.
pub(super) struct Work {
    pub(super) progress: Progress,
    /// Create, start: what to boot.
    pub(super) image: Option<Image>,
    /// Snapshot, hibernate, fork: how.
    pub(super) options: Option<super::SnapshotOptions>,
    /// Resume: the key of what the sandbox sleeps in.
    pub(super) key: Option<crate::chunks::StoreKey>,
    /// Resume: from what, if it is not what the sandbox sleeps in.
    pub(super) source: Option<restore::Source>,
    /// Fork: the copies.
    pub(super) copies: Vec<Arc<Entry>>,
    /// What was taken of the guest.
    pub(super) frozen: Option<Arc<Frozen>>,
    /// When the guest was stopped.
    pub(super) stopped: Option<std::time::Instant>,
    /// The guest's channel, connected before the guest runs.
    pub(super) stream: Option<tokio::net::UnixStream>,
    /// Why the guest is lost.
    pub(super) why: Option<String>,
    /// Resume: on what it depends whether it goes on.
    pub(super) relying: restore::Relying,
    /// Resume: files that are in the guest before its programs go on.
    pub(super) tell: Vec<restore::GuestFile>,
    /// The snapshot that was kept.
    pub(super) kept: Option<crate::SnapshotRef>,
    /// When the boot began.
    pub(super) begun: Option<std::time::Instant>,
}

impl Work {
    pub(super) fn new(progress: Progress) -> Self {
        Self {
            progress,
            image: None,
            options: None,
            key: None,
            source: None,
            copies: Vec::new(),
            frozen: None,
            stopped: None,
            stream: None,
            why: None,
            relying: restore::Relying::default(),
            tell: Vec::new(),
            kept: None,
            begun: None,
        }
    }
}

/// Does `action` to a sandbox, after the one that is under way.
///
/// # Errors
/// That it is refused, or what failed; the sandbox is then as before, or what `plan.back` says.
pub(super) fn perform<'a>(
    inner: &'a Arc<Inner>,
    entry: &'a Arc<Entry>,
    action: Action,
    work: &'a mut Work,
) -> BoxFuture<'a, Result<(), SandboxError>> {
    // Boxed, because an action may end in another: a copy's start, a loss.
    Box::pin(take_turn(inner, entry, action, work))
}

async fn take_turn(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    action: Action,
    work: &mut Work,
) -> Result<(), SandboxError> {
    if behind::needs_disks(action) {
        behind::whole(entry, &work.progress).await?;
    }
    let _turn = entry.turn.lock().await;
    let refused = |why| entry.refused(action, why);
    let plan = plan(entry.phase(), action).map_err(refused)?;
    if plan.is_nothing() {
        return Ok(());
    }
    if !matches!(action, Action::MonitorEnds) && inner.stop.is_cancelled() {
        return Err(SandboxError::Stopping);
    }
    inner.admit(entry, &plan)?;
    debug!(sandbox = %entry.id, %action, from = %plan.from, "an action begins");
    let began = Instant::now();
    let followed = follow(inner, entry, &plan, work).await;
    inner
        .counts
        .action(action, began.elapsed(), followed.is_ok());
    if let Some(taken) = &work.kept {
        inner.counts.snapshot(taken);
    }
    followed
}

async fn follow(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let mut unfinished = None;
    for step in plan.steps() {
        let done = if step == Step::Commit {
            commit(inner, entry, plan, work)
        } else {
            let written = match plan.action {
                // Attaching changes nothing that the next daemon could not find out by itself.
                Action::Attach => Ok(()),
                action => entry.begin(action, plan.from, step),
            };
            let written = written.map_err(super::directory(&entry.dir));
            match written {
                Ok(()) => interruptible(inner, entry, plan, work, step).await,
                Err(error) => Err(error),
            }
        };
        let Err(error) = done else { continue };
        if matches!(
            error,
            SandboxError::Cancelled { .. } | SandboxError::Stopping
        ) {
            // Whoever ends the sandbox takes it as it stands, and so does the next daemon.
            return Err(error);
        }
        if plan.is_final(step) {
            warn!(sandbox = %entry.id, action = %plan.action, ?step, error = %told(&error), "a step is left to the next start");
            unfinished.get_or_insert(step);
            continue;
        }
        undo(inner, entry, plan, work, step, &error).await;
        return Err(error);
    }
    if unfinished.is_none() {
        finish(entry, plan);
    }
    Ok(())
}

/// Does a step, unless the sandbox is to end or the daemon stops.
async fn interruptible(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
    step: Step,
) -> Result<(), SandboxError> {
    // What cannot be taken back is done to its end: it is short, or has a limit of its own.
    if plan.is_final(step) {
        return do_step(inner, entry, plan, work, step).await;
    }
    tokio::select! {
        biased;
        () = entry.kill.cancelled() => Err(SandboxError::Cancelled { id: entry.id }),
        () = inner.abandon.cancelled() => Err(SandboxError::Stopping),
        done = do_step(inner, entry, plan, work, step) => done,
    }
}

/// Does one step of a plan, or of an undo.
pub(super) async fn do_step(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
    step: Step,
) -> Result<(), SandboxError> {
    match step {
        Step::PrepareDisks => boot::prepare_disks(entry, plan, work).await,
        Step::StartMonitor => boot::start_monitor(inner, entry, work).await,
        Step::Greet => boot::greet(entry, work).await,
        Step::Shutdown => {
            // A monitor that ends by itself is not there to be read any more.
            inner.read_last(entry);
            boot::shut_down(entry).await
        }
        Step::EndMonitor => {
            inner.read_last(entry);
            boot::end_monitor(entry).await
        }
        Step::RemoveVm => {
            behind::forget(entry)?;
            boot::remove(entry, &entry.vm_dir())
        }
        Step::KeepDisk => boot::keep_disk(entry),
        Step::Materialise => restore::materialise(inner, entry, work).await,
        Step::RestoreMonitor => restore::restore_monitor(inner, entry, work).await,
        Step::AttachMonitor => session::attach_monitor(inner, entry, work).await,
        Step::OpenSession => session::open(inner, entry, plan, work).await,
        Step::CloseSession => session::close(entry),
        Step::Welcome => session::welcome(entry, work).await,
        Step::Quiesce => session::quiesce(entry, work).await,
        Step::Thaw => session::thaw(entry).await,
        Step::PauseGuest => session::pause(entry).await,
        Step::RunGuest => session::run(entry).await,
        Step::Freeze => capture::freeze(entry, plan, work).await,
        Step::Unfreeze => capture::unfreeze(entry, work).await,
        Step::DropFrozen => {
            work.frozen = None;
            boot::remove(entry, &entry.frozen_dir())
        }
        Step::Capture => capture::capture(inner, entry, plan, work).await,
        Step::DropCapture => capture::drop_capture(inner, entry).await,
        Step::Keep => capture::keep(inner, entry, work).await,
        Step::ReleaseAll => capture::release_all(inner, entry).await,
        Step::Spread => fork::spread(inner, entry, work).await,
        Step::Commit => commit(inner, entry, plan, work),
    }
}

/// Writes down the new phase.
fn commit(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let taken = entry.record().taken;
    let state = match plan.to {
        Phase::Hibernated => match taken {
            Some(taken) => State::Hibernated {
                snapshot: taken.manifest,
            },
            // It cannot be: `Capture` sets it. Without it the sandbox must not be ended.
            None => return Err(SandboxError::NoSnapshot { id: entry.id }),
        },
        Phase::Lost => State::Lost {
            what: work.why.take().unwrap_or_else(|| "nobody saw how".into()),
        },
        phase => plain(phase),
    };
    let after = plan.rest(Step::Commit).len() > 1;
    let journal = after.then_some(crate::life::Journal {
        action: plan.action,
        from: plan.from,
        step: Step::Commit,
    });
    info!(sandbox = %entry.id, action = %plan.action, state = %state, "sandbox changes");
    if plan.to == Phase::Ready || plan.to == Phase::Paused {
        // Requests may come as soon as the phase allows them.
        entry.set_open(plan.to == Phase::Ready);
    }
    let written = entry.change(|record| {
        if !plan.to.is_running() {
            inner.lease_over(&mut record.info, plan.to);
            record.info.arriving = None;
        }
        if plan.to == Phase::Hibernated {
            // Whoever sees that it sleeps sees in what; `Keep` gives it its lasting name.
            record.info.snapshot.clone_from(&record.taken);
        }
        record.info.state = state;
        record.run.journal = journal;
    });
    written.map_err(super::directory(&entry.dir))?;
    if plan.from == Phase::Creating {
        // With what is in it, the directory's name.
        let synced = File::open(&inner.dir).and_then(|dir| dir.sync_all());
        synced.map_err(super::directory(&inner.dir))?;
    }
    Ok(())
}

/// A state that has no particulars.
fn plain(phase: Phase) -> State {
    match phase {
        Phase::Ready => State::Ready,
        Phase::Paused => State::Paused,
        Phase::Stopped => State::Stopped,
        Phase::Killed => State::Killed,
        other => unreachable!("no plan ends in {other} without saying why"),
    }
}

fn finish(entry: &Entry, plan: &Plan) {
    if entry.record().run.journal.is_none() {
        return;
    }
    // What names a snapshot is over on disk before anybody is told: else the next start after the
    // host went down would do it again, also for a snapshot that was removed meanwhile. Done again,
    // the other steps change nothing.
    let written = match plan.steps().any(|step| step == Step::Keep) {
        true => entry.change(|record| record.run.journal = None),
        false => entry.note(|run| run.journal = None),
    };
    if let Err(error) = written {
        warn!(sandbox = %entry.id, %error, "cannot write down that an action is over");
    }
}

/// Takes back what was done until `failed`, and writes down how the sandbox stands.
async fn undo(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
    failed: Step,
    error: &SandboxError,
) {
    info!(sandbox = %entry.id, action = %plan.action, ?failed, error = %told(error), "an action is taken back");
    let mut broken = None;
    for step in plan.undo(failed) {
        if let Err(error) = do_step(inner, entry, plan, work, step).await {
            warn!(sandbox = %entry.id, ?step, error = %told(&error), "cannot take a step back");
            if step.needs_guest() {
                broken = Some(told(&error));
            }
        }
    }
    let runs = matches!(plan.back, Phase::Ready | Phase::Paused);
    let dead = entry.vm().is_none_or(|vm| vm.ended.borrow().is_some());
    if plan.back == Phase::Lost || runs && (dead || broken.is_some()) {
        let how = entry.vm().and_then(|vm| vm.ended.borrow().clone());
        lose(inner, entry, how.or(broken).unwrap_or_else(|| told(error))).await;
        return;
    }
    let info = entry.info();
    let state = match plan.back {
        Phase::Failed => State::Failed {
            reason: told(error),
        },
        Phase::Hibernated => match info.snapshot {
            Some(snapshot) => State::Hibernated {
                snapshot: snapshot.manifest,
            },
            None => State::Failed {
                reason: told(error),
            },
        },
        phase => plain(phase),
    };
    if plan.back == Phase::Ready {
        entry.set_open(true);
    }
    let written = entry.change(|record| {
        if !state.is_running() {
            inner.lease_over(&mut record.info, state.phase());
            record.info.arriving = None;
        }
        record.info.state = state;
        record.run.journal = None;
        record.taken = None;
    });
    if let Err(error) = written {
        warn!(sandbox = %entry.id, %error, "cannot write down that an action was taken back");
    }
}

/// Ends what is left of a sandbox whose guest is gone. The caller has its turn.
pub(super) fn lose<'a>(
    inner: &'a Arc<Inner>,
    entry: &'a Arc<Entry>,
    what: String,
) -> BoxFuture<'a, ()> {
    Box::pin(follow_loss(inner, entry, what))
}

async fn follow_loss(inner: &Arc<Inner>, entry: &Arc<Entry>, what: String) {
    let Ok(plan) = plan(Phase::Ready, Action::MonitorEnds) else {
        return;
    };
    let mut work = Work::new(crate::silent());
    work.why = Some(what);
    // Nothing of it can be taken back, and it reports nothing.
    let _ = follow(inner, entry, &plan, &mut work).await;
}

/// Returns an error with its causes in one line.
pub(super) fn told(error: &SandboxError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
