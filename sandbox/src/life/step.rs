//! The steps that plans are made of.

use serde::{Deserialize, Serialize};

/// One step of a [`super::Plan`]: does one thing, and may be done again when it is not known
/// whether it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Make the monitor's directory and the guest's disks; one that is there stays as it is.
    PrepareDisks,
    /// Start a monitor that boots the guest.
    StartMonitor,
    /// Make the monitor's directory from a snapshot: memory, devices, disks.
    Materialise,
    /// Start a monitor on that memory; its processors stand still.
    RestoreMonitor,
    /// Take over a monitor that a former daemon started.
    AttachMonitor,
    /// Begin a session with the guest's agent.
    OpenSession,
    /// End the session.
    CloseSession,
    /// Set the guest's clock, and learn what it is.
    Greet,
    /// Set the clock, renew the randomness, tell the guest that it was resumed; then let the
    /// programs go on that were held when it was written down.
    Welcome,
    /// Run the hook, write out what is dirty, hold the guest's programs.
    Quiesce,
    /// Let the guest's programs go on, with the clock set.
    Thaw,
    /// Hold the processors.
    PauseGuest,
    /// Let the processors go on.
    RunGuest,
    /// Take memory, devices and disks at one moment. In a plan after which the guest runs, they
    /// are copies, and it runs on; else it stands still, and they are what it has.
    Freeze,
    /// Let the guest run on, and give up what was taken.
    Unfreeze,
    /// Give up what was taken; the guest stays as it is.
    DropFrozen,
    /// Start the copies, each from what was taken.
    Spread,
    /// Store memory, devices and disks as chunks, and pin them: durable when done.
    Capture,
    /// Give up what was stored; its chunks go when nothing else names them.
    DropCapture,
    /// Write down that the sandbox is in its new phase.
    Commit,
    /// Ask the guest to shut down, and wait until its monitor ends.
    Shutdown,
    /// End the monitor, whether or not it runs.
    EndMonitor,
    /// Remove the monitor's directory.
    RemoveVm,
    /// Remove everything in the monitor's directory but the writable disk.
    KeepDisk,
    /// Give what was captured its lasting name; a sandbox keeps one snapshot that it slept in, so
    /// the one before is let go.
    Keep,
    /// Let go of the snapshot it slept in.
    ReleaseAll,
}

impl Step {
    /// Tells whether the step needs this process to hold the monitor or a session with the guest,
    /// which a daemon that just started does not.
    pub fn needs_guest(self) -> bool {
        matches!(
            self,
            Self::OpenSession
                | Self::CloseSession
                | Self::Greet
                | Self::Welcome
                | Self::Quiesce
                | Self::Thaw
                | Self::PauseGuest
                | Self::RunGuest
                | Self::Freeze
                | Self::Unfreeze
                | Self::Spread
                | Self::Shutdown
        )
    }
}
