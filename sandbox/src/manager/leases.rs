//! Leases: written down with the sandbox, watched by one deadline.

use std::sync::PoisonError;

use super::{Inner, Sandboxes, directory, now_ms};
use crate::{
    SandboxError, SandboxId, SandboxInfo,
    life::{Lease, LeaseEnd, Leases, Phase},
};

impl Sandboxes {
    /// Sets a sandbox's lease, replaces it, or with `None` lets the sandbox live on without one.
    /// A deliberate act: it may end earlier than the one before.
    ///
    /// # Errors
    /// [`SandboxError::Lease`], [`SandboxError::NotRunning`], [`SandboxError::Directory`].
    pub fn set_lease(
        &self,
        id: &SandboxId,
        lease: Option<Lease>,
    ) -> Result<SandboxInfo, SandboxError> {
        let entry = self.inner.entry(id)?;
        let lease = lease.map(|lease| lease.checked(now_ms())).transpose()?;
        let state = entry.info().state;
        if state.has_ended() {
            return Err(SandboxError::NotRunning {
                id: *id,
                state: state.to_string(),
            });
        }
        let written = entry.change(|record| record.info.lease.clone_from(&lease));
        written.map_err(directory(&entry.dir))?;
        self.inner.leases_mut(|leases| match lease {
            Some(lease) => leases.set(*id, lease),
            None => leases.remove(id),
        });
        Ok(entry.info())
    }

    /// Makes a sandbox's lease last until `until_ms` at least; one that lasts longer stays, and one
    /// that has none needs none.
    ///
    /// # Errors
    /// As [`Self::set_lease`].
    pub fn renew_lease(&self, id: &SandboxId, until_ms: u64) -> Result<SandboxInfo, SandboxError> {
        let info = self.inner.entry(id)?.info();
        match info.lease.clone() {
            Some(lease) if lease.until_ms < until_ms => {
                self.set_lease(id, Some(lease.renewed(until_ms)))
            }
            _ => Ok(info),
        }
    }

    /// Waits for the next lease that ends, and returns whose it was and what is to become of it.
    /// One whose sandbox does not end then comes again after a minute.
    ///
    /// # Cancel safety
    /// Nothing is lost: an end that nobody heeded comes again.
    pub async fn lease_ended(&self) -> (SandboxId, LeaseEnd) {
        loop {
            let changed = self.inner.leases_changed.notified();
            let (due, deadline) = self.inner.leases_mut_quiet(|leases| {
                // One at a time: what comes after it is due at the next call.
                let due = leases.take_due(now_ms());
                (due, leases.next_deadline())
            });
            if let Some(due) = due {
                return due;
            }
            let wait = deadline.map(|at| at.saturating_sub(now_ms()));
            tokio::select! {
                () = changed => {}
                () = sleep_ms(wait) => {}
            }
        }
    }
}

async fn sleep_ms(wait: Option<u64>) {
    match wait {
        Some(ms) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
        None => std::future::pending().await,
    }
}

impl Inner {
    /// Changes the leases, and lets whoever waits look at the deadline again.
    pub(super) fn leases_mut(&self, change: impl FnOnce(&mut Leases)) {
        self.leases_mut_quiet(change);
        self.leases_changed.notify_one();
    }

    fn leases_mut_quiet<T>(&self, change: impl FnOnce(&mut Leases) -> T) -> T {
        change(&mut self.leases.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A sandbox came to rest: its lease is over, unless it is to be killed in the end.
    pub(super) fn lease_over(&self, info: &mut SandboxInfo, phase: Phase) {
        let stays = !phase.has_ended()
            && info
                .lease
                .as_ref()
                .is_some_and(|lease| lease.then == LeaseEnd::Kill);
        if !stays {
            info.lease = None;
            self.leases_mut(|leases| leases.remove(&info.id));
        }
    }
}
