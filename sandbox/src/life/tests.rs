//! Every action in every phase, and a crash around every step of every action.

use std::collections::BTreeSet;

use super::{Step::*, *};
use crate::SandboxId;

/// What exists of a sandbox, as far as steps can touch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct World {
    // On disk, or a process: outlives the daemon.
    vm_dir: bool,
    disk: bool,
    frozen: bool,
    monitor: bool,
    running: bool,
    /// Programs in the guest are held.
    held: bool,
    /// The guest is shutting down, or has.
    shut: bool,
    /// A snapshot that is being taken, stored and pinned.
    captured: bool,
    /// The snapshot that it slept in last.
    snapshot: bool,
    // Of this daemon alone.
    handle: bool,
    session: bool,
}

impl World {
    /// A whole sandbox in this phase.
    fn whole(phase: Phase) -> Self {
        let base = Self {
            snapshot: matches!(phase, Phase::Hibernated | Phase::Lost),
            ..Self::default()
        };
        match phase {
            Phase::Ready | Phase::Paused => Self {
                vm_dir: true,
                disk: true,
                monitor: true,
                running: phase == Phase::Ready,
                handle: true,
                session: true,
                ..base
            },
            Phase::Stopped => Self {
                vm_dir: true,
                disk: true,
                ..base
            },
            _ => base,
        }
    }

    /// Tells whether this is what the phase promises, and nothing besides.
    fn is_whole(&self, phase: Phase) -> bool {
        let clean = !self.frozen && !self.held;
        let none = !self.monitor && !self.handle && !self.session && !self.running;
        clean
            && match phase {
                Phase::Ready => {
                    self.vm_dir
                        && self.disk
                        && self.monitor
                        && self.running
                        && self.handle
                        && self.session
                }
                // A session with a guest that stands still is begun when it goes on.
                Phase::Paused => {
                    self.vm_dir && self.disk && self.monitor && !self.running && self.handle
                }
                Phase::Hibernated => none && !self.vm_dir && self.snapshot,
                Phase::Stopped => none && self.vm_dir && self.disk,
                Phase::Lost | Phase::Failed => none && !self.vm_dir && !self.captured,
                Phase::Killed => none && !self.vm_dir && !self.captured && !self.snapshot,
                _ => false,
            }
    }

    /// The daemon is killed: what is its own is gone.
    fn crash(mut self) -> Self {
        self.handle = false;
        self.session = false;
        self
    }

    fn monitor_dies(&mut self) {
        self.monitor = false;
        self.running = false;
        self.held = false;
        self.shut = false;
        self.session = false;
    }

    /// Does a step; fails where the real one would.
    fn apply(&mut self, step: Step, to: Phase) -> Result<(), &'static str> {
        let need = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        match step {
            PrepareDisks => (self.vm_dir, self.disk) = (true, true),
            Materialise => {
                need(self.snapshot, "nothing to restore from")?;
                (self.vm_dir, self.disk) = (true, true);
            }
            StartMonitor => {
                need(self.vm_dir && self.disk && !self.monitor, "cannot start")?;
                (self.monitor, self.running, self.handle) = (true, true, true);
            }
            RestoreMonitor => {
                need(self.vm_dir && self.disk && !self.monitor, "cannot restore")?;
                (self.monitor, self.handle) = (true, true);
                // It was written down while its programs were held.
                self.held = true;
            }
            AttachMonitor => {
                need(self.monitor, "no monitor")?;
                self.handle = true;
            }
            OpenSession => {
                need(
                    self.handle && self.monitor && self.running,
                    "nobody answers",
                )?;
                self.session = true;
            }
            CloseSession => self.session = false,
            Greet => need(self.session, "no session")?,
            Welcome | Thaw => {
                need(self.session, "no session")?;
                self.held = false;
            }
            Quiesce => {
                need(self.session && self.running, "no session")?;
                self.held = true;
            }
            PauseGuest | RunGuest => {
                need(self.handle && self.monitor, "no handle")?;
                self.running = step == RunGuest;
            }
            Freeze => {
                need(self.handle && self.monitor, "no handle")?;
                self.frozen = true;
                self.running &= to == Phase::Ready;
            }
            Unfreeze => {
                need(self.handle && self.monitor, "no handle")?;
                (self.frozen, self.running) = (false, true);
            }
            DropFrozen => self.frozen = false,
            Spread => need(self.frozen, "nothing to copy")?,
            Capture => {
                need(self.frozen, "nothing to store")?;
                self.captured = true;
            }
            DropCapture => self.captured = false,
            Commit => {
                if to == Phase::Hibernated && self.captured {
                    (self.snapshot, self.captured) = (true, false);
                }
            }
            Shutdown => {
                need(self.session, "no session")?;
                self.monitor_dies();
            }
            EndMonitor => {
                self.monitor_dies();
                self.handle = false;
            }
            RemoveVm => {
                need(!self.monitor, "the monitor still uses it")?;
                (self.vm_dir, self.disk) = (false, false);
            }
            KeepDisk => {
                need(!self.monitor, "the monitor still uses it")?;
            }
            Keep => {}
            ReleaseAll => self.snapshot = false,
        }
        Ok(())
    }
}

/// The ways in which a step can have gone when the daemon dies around it.
fn around(world: World, step: Step, to: Phase) -> Vec<World> {
    let mut after = world;
    let mut worlds = vec![world];
    if after.apply(step, to).is_ok() {
        worlds.push(after);
    }
    // Directories that were half made.
    if matches!(step, PrepareDisks | Materialise) {
        worlds.push(World {
            vm_dir: true,
            ..world
        });
    }
    worlds
}

/// Recovers as a daemon does at start; `stop_after` is where it is killed again.
fn recovers(mut world: World, phase: Phase, journal: Option<&Journal>) -> (World, Phase) {
    // As often as it is killed while it recovers, once after each step.
    for killed_after in 0..40 {
        let facts = Facts {
            monitor: world.monitor,
        };
        let recovery = recover(phase, journal, facts);
        let mut to = recovery.to;
        let mut attempt = world.crash();
        for (done, step) in recovery.steps.iter().enumerate() {
            if done == killed_after {
                break;
            }
            // A guest that is on its way out answers nobody.
            if attempt.apply(*step, to).is_err() {
                assert!(step.needs_guest(), "{step:?} in {attempt:?}");
                if recovery.or_else == Phase::Lost {
                    let lose = plan(Phase::Ready, Action::MonitorEnds).unwrap();
                    lose.steps()
                        .for_each(|step| attempt.apply(step, to).unwrap());
                    to = Phase::Lost;
                    break;
                }
            }
        }
        if recovery.steps.len() <= killed_after {
            return (attempt, to);
        }
        world = attempt.crash();
    }
    panic!("a recovery does not end");
}

fn real_plans() -> impl Iterator<Item = Plan> {
    Phase::ALL
        .into_iter()
        .flat_map(|phase| Action::ALL.into_iter().map(move |action| (phase, action)))
        .filter_map(|(phase, action)| plan(phase, action).ok())
        .filter(|plan| !plan.is_nothing())
        // Killing in the middle of something has a test of its own.
        .filter(|plan| !plan.from.is_passing() || plan.from == Phase::Creating)
}

/// The world in which a plan begins.
fn before(plan: &Plan) -> World {
    let mut world = World::whole(plan.from);
    // A sandbox that is made from somebody else's snapshot.
    world.snapshot |= plan.action == Action::Resume;
    if plan.action == Action::Attach {
        world = world.crash();
    }
    world
}

#[test]
fn every_action_in_every_phase() {
    // Rows are actions; `.` nothing to do, `x` refused, `b` busy, else where it ends.
    let letter = |phase| match phase {
        Phase::Ready => 'r',
        Phase::Paused => 'p',
        Phase::Hibernated => 'h',
        Phase::Stopped => 's',
        Phase::Lost => 'l',
        Phase::Killed => 'k',
        other => panic!("no plan ends in {other}"),
    };
    let mut table = String::new();
    for action in Action::ALL {
        let row: String = Phase::ALL
            .into_iter()
            .map(|phase| match plan(phase, action) {
                Ok(plan) if plan.is_nothing() => '.',
                Ok(plan) => letter(plan.to),
                Err(Refused::Busy(seen)) => {
                    assert_eq!(seen, phase);
                    'b'
                }
                Err(_) => 'x',
            })
            .collect();
        table.push_str(&format!("{row} {action}\n"));
    }
    let expected = "\
rbxxbbxbbxxxx create
bb.xbbxbbrxxx start
bb.x.bxbbxxxx exec
bbp.bbxbbxxxx pause
bb.rbbxbbxxxx unpause
bbrpbb.bbxxxx snapshot
bbhhbb.bbxxxx hibernate
rb.rbbrbbxxrx resume
bbrpbb.bbxxxx fork
bbsxbbxbb.xxx stop
kkkkkkkkkk.k. kill
bbhhbb.bb.... lease end
kkkkkkkkkk.k. lease end
bbrpbb.bb.... attach
bbllbb.bb.... monitor end
";
    assert_eq!(table, expected);
}

#[test]
fn refusals_say_what_it_is() {
    for (phase, action, refused) in [
        (Phase::Paused, Action::Exec, Refused::Paused),
        (Phase::Hibernated, Action::Exec, Refused::Hibernated),
        (Phase::Stopped, Action::Exec, Refused::Stopped),
        (Phase::Lost, Action::Exec, Refused::Lost),
        (Phase::Killed, Action::Exec, Refused::Ended(Phase::Killed)),
        (Phase::Failed, Action::Resume, Refused::Ended(Phase::Failed)),
        (
            Phase::Restoring,
            Action::Exec,
            Refused::Busy(Phase::Restoring),
        ),
        (Phase::Ready, Action::Create, Refused::Running),
    ] {
        assert_eq!(plan(phase, action), Err(refused));
        assert!(!refused.hint().is_empty());
    }
}

#[test]
fn a_plan_has_each_step_once_and_commits_once() {
    for plan in real_plans() {
        let steps: Vec<_> = plan.steps().collect();
        let different: BTreeSet<_> = steps.iter().collect();
        assert_eq!(different.len(), steps.len(), "{plan:?}");
        assert!(different.contains(&Commit), "{plan:?}");
    }
}

#[test]
fn every_action_ends_in_a_whole_sandbox() {
    for plan in real_plans() {
        let mut world = before(&plan);
        for step in plan.steps() {
            let done = world.apply(step, plan.to);
            assert_eq!(done, Ok(()), "{step:?} of {plan:?} in {world:?}");
        }
        world.captured &= plan.to != Phase::Ready && plan.to != Phase::Paused;
        assert!(world.is_whole(plan.to), "{plan:?} ended in {world:?}");
    }
}

#[test]
fn a_step_that_fails_is_undone_to_a_whole_sandbox() {
    for plan in real_plans() {
        // What is left has to be done, not undone; and attaching has another way out.
        for failed in plan.steps().filter(|step| !plan.is_final(*step)) {
            if plan.action == Action::Attach {
                continue;
            }
            let mut world = before(&plan);
            for step in plan.steps().take_while(|step| *step != failed) {
                world.apply(step, plan.to).unwrap();
            }
            for mut world in around(world, failed, plan.to) {
                for undo in plan.undo(failed) {
                    world.apply(undo, plan.back).unwrap();
                }
                assert!(
                    world.is_whole(plan.back),
                    "{failed:?} of {plan:?} left {world:?}"
                );
            }
        }
    }
}

#[test]
fn a_crash_around_every_step_leaves_one_of_two_whole_sandboxes() {
    for plan in real_plans() {
        let journalled = plan.action != Action::Attach;
        let mut world = before(&plan);
        for step in plan.steps() {
            let journal = journalled.then_some(Journal {
                action: plan.action,
                from: plan.from,
                step,
            });
            // A commit that stands in the journal was made: both are one write.
            let worlds = match step {
                Commit => around(world, step, plan.to).split_off(1),
                step => around(world, step, plan.to),
            };
            for crashed in worlds {
                let seen = if journalled { plan.via } else { plan.from };
                let (end, phase) = recovers(crashed.crash(), seen, journal.as_ref());
                let expected = if plan.is_final(step) {
                    plan.to
                } else if journalled {
                    plan.back
                } else {
                    plan.from
                };
                assert_eq!(phase, expected, "{step:?} of {plan:?}");
                let mut end = end;
                // A snapshot that was taken is in the catalogue, not a leftover.
                end.captured &= !plan.is_final(step) || phase == Phase::Killed;
                assert!(
                    end.is_whole(phase) && !end.captured,
                    "after {step:?} of {plan:?}: {end:?}"
                );
                // The host went down with it: nothing that ran is there any more.
                let mut dark = crashed.crash();
                dark.monitor_dies();
                let (end, phase) = recovers(dark, seen, journal.as_ref());
                let expected = match expected {
                    Phase::Ready | Phase::Paused => Phase::Lost,
                    other => other,
                };
                assert_eq!(phase, expected, "{step:?} of {plan:?}, in the dark");
                let mut end = end;
                end.captured &= !plan.is_final(step);
                assert!(end.is_whole(phase), "after {step:?} of {plan:?}: {end:?}");
            }
            world.apply(step, plan.to).unwrap();
        }
    }
}

#[test]
fn a_kill_in_the_middle_of_anything_leaves_nothing() {
    for running in real_plans().filter(|plan| plan.via.is_passing()) {
        let kill = plan(running.via, Action::Kill).unwrap();
        let mut world = before(&running);
        for step in running.steps() {
            for mut killed in around(world, step, running.to) {
                let done = kill
                    .steps()
                    .try_for_each(|step| killed.apply(step, kill.to));
                assert_eq!(done, Ok(()));
                assert!(killed.is_whole(Phase::Killed), "{step:?} of {running:?}");
            }
            world.apply(step, running.to).unwrap();
        }
    }
}

#[test]
fn without_a_journal_what_runs_is_kept_and_the_rest_is_lost() {
    for (phase, monitor, to) in [
        (Phase::Ready, true, Phase::Ready),
        (Phase::Ready, false, Phase::Lost),
        (Phase::Paused, true, Phase::Paused),
        (Phase::Paused, false, Phase::Lost),
        (Phase::Hibernated, false, Phase::Hibernated),
        (Phase::Stopped, false, Phase::Stopped),
        (Phase::Booting, true, Phase::Failed),
        (Phase::Creating, false, Phase::Failed),
        (Phase::Killed, false, Phase::Killed),
    ] {
        assert_eq!(recover(phase, None, Facts { monitor }).to, to, "{phase}");
    }
    // A journal of an action that this version would refuse.
    let strange = Journal {
        action: Action::Create,
        from: Phase::Ready,
        step: Capture,
    };
    let alive = Facts { monitor: true };
    assert_eq!(
        recover(Phase::Ready, Some(&strange), alive).to,
        Phase::Ready
    );
}

fn lease(until_ms: u64) -> Lease {
    Lease {
        owner: LeaseOwner::Client("test".into()),
        until_ms,
        then: LeaseEnd::Hibernate,
    }
}

#[test]
fn nobody_shortens_a_lease_by_asking() {
    assert_eq!(lease(100).renewed(50).until_ms, 100);
    assert_eq!(lease(100).renewed(150).until_ms, 150);
}

#[test]
fn leases_are_checked() {
    assert_eq!(lease(10).checked(10), Err(LeaseError::Past));
    assert!(lease(11).checked(10).is_ok());
    assert_eq!(
        lease(11 + MAX_LEASE_MS).checked(10),
        Err(LeaseError::TooLong)
    );
    let nobody = Lease {
        owner: LeaseOwner::Agent(String::new()),
        ..lease(11)
    };
    assert_eq!(nobody.checked(10), Err(LeaseError::Owner));
}

#[test]
fn leases_have_one_deadline_and_an_end_that_fails_comes_again() {
    let id = |byte| SandboxId::from_bytes([byte; 16]);
    let mut leases = Leases::default();
    assert_eq!(leases.next_deadline(), None);
    leases.set(id(1), lease(2_000));
    leases.set(id(2), lease(1_000));
    assert_eq!(leases.next_deadline(), Some(1_000));
    assert!(leases.handle_timeout(999).is_empty());
    assert_eq!(leases.handle_timeout(1_000), [(id(2), LeaseEnd::Hibernate)]);
    // It did not come about: first the other one, then this one again.
    assert_eq!(leases.next_deadline(), Some(2_000));
    assert_eq!(leases.handle_timeout(2_000).len(), 1);
    assert_eq!(leases.next_deadline(), Some(61_000));
    assert_eq!(
        leases.handle_timeout(61_000),
        [(id(2), LeaseEnd::Hibernate)]
    );
    leases.remove(&id(2));
    leases.remove(&id(1));
    assert_eq!(leases.next_deadline(), None);
}
