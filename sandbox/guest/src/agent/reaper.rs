//! PID 1's duty: every child that ended is taken in, our own and orphans.

use std::{
    collections::BTreeMap,
    io,
    process::{Child as Spawned, Command},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rhizome_guest::wire::Exit;
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, wait, waitid},
};

use super::{lock, spawn};

/// Takes in the ends of all children: of our own, which someone waits for, and of orphans, which
/// PID 1 inherits and nobody waits for.
pub(crate) struct Reaper {
    /// Held while a child is started, so that its end is never taken in before it is known.
    children: Mutex<BTreeMap<i32, Arc<Child>>>,
    started: Condvar,
}

/// A child of ours, the leader of its process group.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// Rings at its end, and whenever else its owner should look up.
    pub(crate) bell: Bell,
    exit: Mutex<Option<Exit>>,
    ended: Condvar,
}

/// Something to poll for that others can ring.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(crate) fn ring(&self) {
        // Fails only when it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it silent again.
    pub(crate) fn hush(&self) {
        // Fails when it is silent.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl rustix::fd::AsFd for Bell {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Reaper {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self {
            children: Mutex::default(),
            started: Condvar::new(),
        });
        let reaping = Arc::clone(&reaper);
        spawn("reap", move || reaping.run())?;
        Ok(reaper)
    }

    /// Starts a child. Its pipes are the caller's; its end is ours.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<(Spawned, Arc<Child>)> {
        self.take_on(|| {
            let spawned = command.spawn()?;
            let pid = i32::try_from(spawned.id()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("a child has no process number"))?;
            Ok((spawned, pid))
        })
    }

    /// Takes on the child that `start` starts.
    pub(crate) fn take_on<T>(
        &self,
        start: impl FnOnce() -> io::Result<(T, Pid)>,
    ) -> io::Result<(T, Arc<Child>)> {
        let bell = Bell::new()?;
        let mut children = lock(&self.children);
        let (spawned, pid) = start()?;
        let child = Arc::new(Child {
            pid,
            bell,
            exit: Mutex::default(),
            ended: Condvar::new(),
        });
        children.insert(pid.as_raw_nonzero().get(), Arc::clone(&child));
        self.started.notify_one();
        Ok((spawned, child))
    }

    /// Signals the group of a child that has not ended: only as long is its number its own.
    pub(crate) fn signal(&self, child: &Child, signal: Signal) {
        let children = lock(&self.children);
        if children.contains_key(&child.pid.as_raw_nonzero().get()) {
            // It may be gone already, as a zombie that is not taken in yet.
            let _ = kill_process_group(child.pid, signal);
        }
    }

    fn run(&self) {
        loop {
            // Only looks: the end is taken in below, with the table locked.
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) => self.take_in(),
                Err(Errno::CHILD) => {
                    let mut children = lock(&self.children);
                    while children.is_empty() {
                        children = self
                            .started
                            .wait(children)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn take_in(&self) {
        let mut children = lock(&self.children);
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(child) = children.remove(&pid.as_raw_nonzero().get()) else {
                continue;
            };
            let exit = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Code(-1),
            };
            *lock(&child.exit) = Some(exit);
            child.ended.notify_all();
            child.bell.ring();
        }
    }
}

impl Child {
    /// Returns how it ended, if it did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        *lock(&self.exit)
    }

    /// Waits for the end, or for `limit` to pass.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Exit> {
        // A limit beyond what the clock can hold is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut exit = lock(&self.exit);
        loop {
            if exit.is_some() {
                return *exit;
            }
            exit = match until {
                None => self
                    .ended
                    .wait(exit)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.ended
                        .wait_timeout(exit, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }
}
