//! Where a sandbox is in its life.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chunks::PackId;

/// Where a sandbox is in its life, with what is known about it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum State {
    /// Its image and directory are being made ready.
    Creating,
    /// Its microVM runs and has not answered yet.
    Booting,
    /// It answers.
    Ready,
    /// Its processors stand still; its memory stays where it is.
    Paused,
    /// A snapshot of it is being taken.
    Snapshotting,
    /// It is being put to sleep.
    Hibernating,
    /// It sleeps: no process, no memory, all of it in a snapshot.
    Hibernated {
        /// The manifest of that snapshot.
        snapshot: PackId,
    },
    /// It is being made from a snapshot.
    Restoring,
    /// Its guest shuts down.
    Stopping,
    /// Its guest shut down cleanly; its disk waits for the next start.
    Stopped,
    /// It could not be made, or ended without being asked to before it was ready.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// It was ready once, and what it held in memory is gone.
    Lost {
        /// What was lost and how, for people.
        what: String,
    },
    /// It was ended on request.
    Killed,
}

impl State {
    /// Returns the phase alone.
    pub fn phase(&self) -> Phase {
        match self {
            Self::Creating => Phase::Creating,
            Self::Booting => Phase::Booting,
            Self::Ready => Phase::Ready,
            Self::Paused => Phase::Paused,
            Self::Snapshotting => Phase::Snapshotting,
            Self::Hibernating => Phase::Hibernating,
            Self::Hibernated { .. } => Phase::Hibernated,
            Self::Restoring => Phase::Restoring,
            Self::Stopping => Phase::Stopping,
            Self::Stopped => Phase::Stopped,
            Self::Failed { .. } => Phase::Failed,
            Self::Lost { .. } => Phase::Lost,
            Self::Killed => Phase::Killed,
        }
    }

    /// Tells whether the sandbox is over: nothing of it can run again by itself.
    pub fn has_ended(&self) -> bool {
        self.phase().has_ended()
    }

    /// Tells whether a monitor holds memory for it, or soon will.
    pub fn is_running(&self) -> bool {
        self.phase().is_running()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phase().as_str())?;
        match self {
            Self::Failed { reason } => write!(f, ": {reason}"),
            Self::Lost { what } => write!(f, ": {what}"),
            _ => Ok(()),
        }
    }
}

/// A [`State`] without its particulars: what the state machine decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// See [`State::Creating`].
    Creating,
    /// See [`State::Booting`].
    Booting,
    /// See [`State::Ready`].
    Ready,
    /// See [`State::Paused`].
    Paused,
    /// See [`State::Snapshotting`].
    Snapshotting,
    /// See [`State::Hibernating`].
    Hibernating,
    /// See [`State::Hibernated`].
    Hibernated,
    /// See [`State::Restoring`].
    Restoring,
    /// See [`State::Stopping`].
    Stopping,
    /// See [`State::Stopped`].
    Stopped,
    /// See [`State::Failed`].
    Failed,
    /// See [`State::Lost`].
    Lost,
    /// See [`State::Killed`].
    Killed,
}

impl Phase {
    /// Every phase, in the order of a life.
    pub const ALL: [Self; 13] = [
        Self::Creating,
        Self::Booting,
        Self::Ready,
        Self::Paused,
        Self::Snapshotting,
        Self::Hibernating,
        Self::Hibernated,
        Self::Restoring,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Lost,
        Self::Killed,
    ];

    /// Returns the word for it, as in the API and in state files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Booting => "booting",
            Self::Ready => "ready",
            Self::Paused => "paused",
            Self::Snapshotting => "snapshotting",
            Self::Hibernating => "hibernating",
            Self::Hibernated => "hibernated",
            Self::Restoring => "restoring",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Killed => "killed",
        }
    }

    /// Tells whether an action is under way, which will end in another phase.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Creating
                | Self::Booting
                | Self::Snapshotting
                | Self::Hibernating
                | Self::Restoring
                | Self::Stopping
        )
    }

    /// See [`State::has_ended`].
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Failed | Self::Lost | Self::Killed)
    }

    /// See [`State::is_running`].
    pub fn is_running(self) -> bool {
        self.is_passing() || matches!(self, Self::Ready | Self::Paused)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
