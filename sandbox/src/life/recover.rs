//! What a daemon does with what another left behind.

use serde::{Deserialize, Serialize};

use super::{Action, Phase, Step, plan};

/// What stands on disk while an action is under way: written, and synced, before each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// The action.
    pub action: Action,
    /// The phase in which it was asked for.
    pub from: Phase,
    /// The step that was begun: it may be done, half done or not done.
    pub step: Step,
}

/// What a starting daemon can see of a sandbox besides its state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether the monitor that was written down is alive.
    pub monitor: bool,
}

/// What is to be done about a sandbox that a daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The steps, in order; all are safe to repeat, so a crash among them is met by the same
    /// question again.
    pub steps: Vec<Step>,
    /// The phase it is in afterwards.
    pub to: Phase,
    /// The phase it is in if the guest cannot be reached: then the monitor is ended too.
    pub or_else: Phase,
}

/// Says how to make a sandbox whole that was in `phase` when its daemon died.
///
/// With a journal, `phase` is what the action showed to others and decides nothing: the action
/// goes on if it was past its point of no return, and is undone otherwise.
#[must_use]
pub fn recover(phase: Phase, journal: Option<&Journal>, facts: Facts) -> Recovery {
    let Some(journal) = journal else {
        return settle(Vec::new(), phase, facts);
    };
    let Ok(plan) = plan(journal.from, journal.action) else {
        // Written by another version, or by nobody: what runs is kept, what does not is lost.
        return settle(Vec::new(), journal.from, facts);
    };
    if plan.is_final(journal.step) {
        let mut steps = plan.rest(journal.step);
        steps.retain(|step| *step != Step::Commit);
        // Asking the guest to shut down takes a session, and this daemon has none yet.
        if steps.contains(&Step::Shutdown) && facts.monitor {
            steps.splice(0..0, [Step::AttachMonitor, Step::OpenSession]);
        } else {
            steps.retain(|step| !step.needs_guest());
        }
        return settle(steps, plan.to, facts);
    }
    let mut steps = plan.undo(journal.step);
    // The session went with the daemon, and attaching lets the guest run.
    for step in &mut steps {
        if *step == Step::Unfreeze {
            *step = Step::DropFrozen;
        }
    }
    steps.retain(|step| !step.needs_guest());
    settle(steps, plan.back, facts)
}

/// Adds what brings a sandbox into `phase` when nothing else is left to do.
fn settle(mut steps: Vec<Step>, phase: Phase, facts: Facts) -> Recovery {
    match (phase, facts.monitor) {
        (Phase::Ready | Phase::Paused, true) => {
            let attach = plan(phase, Action::Attach).expect("what runs can be attached to");
            steps.extend(attach.steps());
            Recovery {
                steps,
                to: attach.to,
                or_else: attach.back,
            }
        }
        (Phase::Ready | Phase::Paused, false) => {
            steps.extend([Step::EndMonitor, Step::DropFrozen, Step::RemoveVm]);
            whole(steps, Phase::Lost)
        }
        (Phase::Failed | Phase::Killed | Phase::Lost | Phase::Hibernated, _) => {
            steps.extend([Step::EndMonitor, Step::DropFrozen, Step::RemoveVm]);
            whole(steps, phase)
        }
        (Phase::Stopped, _) => {
            steps.extend([Step::EndMonitor, Step::DropFrozen, Step::KeepDisk]);
            whole(steps, phase)
        }
        // No journal says what was going on: it was never whole.
        (_, _) => {
            steps.extend([Step::EndMonitor, Step::DropFrozen, Step::RemoveVm]);
            whole(steps, Phase::Failed)
        }
    }
}

fn whole(mut steps: Vec<Step>, phase: Phase) -> Recovery {
    let mut seen = std::collections::BTreeSet::new();
    steps.retain(|step| seen.insert(*step));
    steps.push(Step::Commit);
    Recovery {
        steps,
        to: phase,
        or_else: phase,
    }
}
