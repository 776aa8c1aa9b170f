//! What an action means in a phase: steps, each beside its undo.

use super::{
    Action, LeaseEnd, Phase, Refused,
    Step::{self, *},
};

/// A step and what undoes it.
///
/// The undo is safe for a step that was half done or not done at all.
type Pair = (Step, Option<Step>);

/// What an action does, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The action.
    pub action: Action,
    /// The phase in which it was asked for.
    pub from: Phase,
    /// The phase that others see while it is under way.
    pub via: Phase,
    /// The phase after [`Step::Commit`].
    pub to: Phase,
    /// The phase after everything was undone.
    pub back: Phase,
    steps: &'static [Pair],
}

impl Plan {
    /// Returns the steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        self.steps.iter().map(|(step, _)| *step)
    }

    /// Tells whether there is nothing to do: the sandbox is already as asked.
    pub fn is_nothing(&self) -> bool {
        self.steps.is_empty()
    }

    /// Tells whether `step`, once begun, can only be followed by the rest of the plan.
    pub fn is_final(&self, step: Step) -> bool {
        self.place(step) >= self.no_return()
    }

    /// Returns what undoes `failed` and all that was done before it, the last first.
    pub fn undo(&self, failed: Step) -> Vec<Step> {
        let begun = self.steps.iter().take(self.place(failed) + 1);
        begun.rev().filter_map(|(_, undo)| *undo).collect()
    }

    /// Returns `step` and what follows it.
    pub fn rest(&self, step: Step) -> Vec<Step> {
        self.steps().skip(self.place(step)).collect()
    }

    /// Index of the first step that cannot be taken back.
    fn no_return(&self) -> usize {
        let fixed = |pair: &Pair| matches!(pair.0, Commit | Shutdown);
        let found = self.steps.iter().position(fixed);
        found.unwrap_or(self.steps.len())
    }

    fn place(&self, wanted: Step) -> usize {
        let found = self.steps().position(|step| step == wanted);
        // A journal names steps of its own plan; one of another version is taken from the start.
        found.unwrap_or(0)
    }
}

const CREATE: &[Pair] = &[
    (PrepareDisks, Some(RemoveVm)),
    (StartMonitor, Some(EndMonitor)),
    (OpenSession, Some(CloseSession)),
    (Greet, None),
    (Commit, None),
];
const START: &[Pair] = &[
    (PrepareDisks, Some(KeepDisk)),
    (StartMonitor, Some(EndMonitor)),
    (OpenSession, Some(CloseSession)),
    (Greet, None),
    (Commit, None),
];
const PAUSE: &[Pair] = &[(PauseGuest, Some(RunGuest)), (Commit, None)];
const UNPAUSE: &[Pair] = &[
    (RunGuest, Some(PauseGuest)),
    (OpenSession, None),
    (Thaw, None),
    (Commit, None),
];
const SNAPSHOT: &[Pair] = &[
    (Quiesce, Some(Thaw)),
    (Freeze, Some(Unfreeze)),
    (Thaw, None),
    (Capture, Some(DropCapture)),
    (Commit, None),
    (Keep, None),
    (DropFrozen, None),
];
const SNAPSHOT_PAUSED: &[Pair] = &[
    (Freeze, Some(DropFrozen)),
    (Capture, Some(DropCapture)),
    (Commit, None),
    (Keep, None),
    (DropFrozen, None),
];
/// The copies have lives of their own from [`Spread`] on: one that cannot be made undoes itself.
const FORK: &[Pair] = &[
    (Quiesce, Some(Thaw)),
    (Freeze, Some(Unfreeze)),
    (Thaw, None),
    (Spread, None),
    (Commit, None),
    (DropFrozen, None),
];
const FORK_PAUSED: &[Pair] = &[
    (Freeze, Some(DropFrozen)),
    (Spread, None),
    (Commit, None),
    (DropFrozen, None),
];
const HIBERNATE: &[Pair] = &[
    (Quiesce, Some(Thaw)),
    (Freeze, Some(Unfreeze)),
    (Capture, Some(DropCapture)),
    (Commit, None),
    (CloseSession, None),
    (EndMonitor, None),
    (RemoveVm, None),
    (DropFrozen, None),
    (Keep, None),
];
const HIBERNATE_PAUSED: &[Pair] = &[
    (Freeze, Some(DropFrozen)),
    (Capture, Some(DropCapture)),
    (Commit, None),
    (CloseSession, None),
    (EndMonitor, None),
    (RemoveVm, None),
    (DropFrozen, None),
    (Keep, None),
];
/// Nothing that the guest does before [`Commit`] can be seen outside: it has no session that
/// anyone else may use. So going back to the snapshot is going back whole.
const RESUME: &[Pair] = &[
    (Materialise, Some(RemoveVm)),
    (RestoreMonitor, Some(EndMonitor)),
    (RunGuest, None),
    (OpenSession, Some(CloseSession)),
    (Welcome, None),
    (Commit, None),
];
const STOP: &[Pair] = &[
    (Shutdown, None),
    (CloseSession, None),
    (EndMonitor, None),
    (KeepDisk, None),
    (Commit, None),
];
/// The decision comes first: a kill that was begun is never taken back.
const KILL: &[Pair] = &[
    (Commit, None),
    (CloseSession, None),
    (EndMonitor, None),
    (DropFrozen, None),
    (RemoveVm, None),
    (DropCapture, None),
    (ReleaseAll, None),
];
const ATTACH: &[Pair] = &[
    (AttachMonitor, None),
    (RunGuest, None),
    (OpenSession, None),
    (Thaw, None),
    (Commit, None),
];
const ATTACH_PAUSED: &[Pair] = &[(AttachMonitor, None), (PauseGuest, None), (Commit, None)];
const LOSE: &[Pair] = &[
    (Commit, None),
    (CloseSession, None),
    (EndMonitor, None),
    (DropFrozen, None),
    (RemoveVm, None),
    (DropCapture, None),
];
const NOTHING: &[Pair] = &[];

/// Says what `action` means for a sandbox that is in `from`.
///
/// A plan without steps means that it is as asked already: every action may be repeated.
///
/// # Errors
/// [`Refused`] if it cannot be done there; [`Refused::Busy`] if it may be later.
pub fn plan(from: Phase, action: Action) -> Result<Plan, Refused> {
    use Phase as P;
    let (via, to, steps) = match (action, from) {
        // These come for whatever has not ended, also in the middle of another action.
        (Action::Kill | Action::LeaseEnds(LeaseEnd::Kill), P::Failed | P::Killed) => {
            (from, from, NOTHING)
        }
        (Action::Kill | Action::LeaseEnds(LeaseEnd::Kill), _) => (P::Killed, P::Killed, KILL),

        (Action::Create, P::Creating) => (P::Booting, P::Ready, CREATE),
        // A sandbox that is made from a snapshot of another, or of another node.
        (Action::Resume, P::Creating) => (P::Restoring, P::Ready, RESUME),
        (Action::Exec, P::Ready | P::Snapshotting) => (from, from, NOTHING),
        (_, phase) if phase.is_passing() => return Err(Refused::Busy(phase)),

        // An action that is under way notices by itself, and takes it from there.
        (Action::MonitorEnds, P::Ready | P::Paused) => (P::Lost, P::Lost, LOSE),
        (Action::MonitorEnds, _) => (from, from, NOTHING),
        (Action::Create, P::Failed | P::Lost | P::Killed) => return Err(Refused::Ended(from)),
        (Action::Create, _) => return Err(Refused::Running),

        (Action::Pause, P::Ready) => (P::Ready, P::Paused, PAUSE),
        (Action::Snapshot, P::Ready) => (P::Snapshotting, P::Ready, SNAPSHOT),
        (Action::Fork, P::Ready) => (P::Snapshotting, P::Ready, FORK),
        (Action::Hibernate | Action::LeaseEnds(LeaseEnd::Hibernate), P::Ready) => {
            (P::Hibernating, P::Hibernated, HIBERNATE)
        }
        (Action::Stop, P::Ready) => (P::Stopping, P::Stopped, STOP),
        (Action::Attach, P::Ready) => (P::Ready, P::Ready, ATTACH),
        (Action::Start | Action::Unpause | Action::Resume, P::Ready) => (from, from, NOTHING),

        (Action::Unpause | Action::Resume, P::Paused) => (P::Paused, P::Ready, UNPAUSE),
        (Action::Snapshot, P::Paused) => (P::Snapshotting, P::Paused, SNAPSHOT_PAUSED),
        (Action::Fork, P::Paused) => (P::Snapshotting, P::Paused, FORK_PAUSED),
        (Action::Hibernate | Action::LeaseEnds(LeaseEnd::Hibernate), P::Paused) => {
            (P::Hibernating, P::Hibernated, HIBERNATE_PAUSED)
        }
        (Action::Attach, P::Paused) => (P::Paused, P::Paused, ATTACH_PAUSED),
        (Action::Pause, P::Paused) => (from, from, NOTHING),
        (Action::Exec | Action::Start | Action::Stop, P::Paused) => return Err(Refused::Paused),

        (Action::Resume, P::Hibernated | P::Lost) => (P::Restoring, P::Ready, RESUME),
        (
            Action::Hibernate
            | Action::Snapshot
            | Action::Fork
            | Action::Attach
            | Action::LeaseEnds(LeaseEnd::Hibernate),
            P::Hibernated,
        ) => (from, from, NOTHING),
        (_, P::Hibernated) => return Err(Refused::Hibernated),

        (Action::Start, P::Stopped) => (P::Booting, P::Ready, START),
        (Action::Stop | Action::Attach | Action::LeaseEnds(LeaseEnd::Hibernate), P::Stopped) => {
            (from, from, NOTHING)
        }
        (_, P::Stopped) => return Err(Refused::Stopped),

        (Action::Attach | Action::LeaseEnds(LeaseEnd::Hibernate), _) => (from, from, NOTHING),
        (_, P::Lost) => return Err(Refused::Lost),
        (_, phase) => return Err(Refused::Ended(phase)),
    };
    let back = match (action, from) {
        (_, P::Creating) => P::Failed,
        // There is no way back to the daemon that went.
        (Action::Attach, P::Ready | P::Paused) => P::Lost,
        _ => from,
    };
    Ok(Plan {
        action,
        from,
        via,
        to,
        back,
        steps,
    })
}
