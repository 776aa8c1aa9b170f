//! What can happen to a sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LeaseEnd, Phase};

/// What can happen to a sandbox: the one door to its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Make it and boot its guest.
    Create,
    /// Boot the guest of a stopped one again, on the disk it left.
    Start,
    /// Use it: run a command, move a file.
    Exec,
    /// Hold its processors.
    Pause,
    /// Let them go on.
    Unpause,
    /// Write it down as it is, and let it go on.
    Snapshot,
    /// Write it down and end its process.
    Hibernate,
    /// Go on from the snapshot it sleeps in.
    Resume,
    /// Write it down for copies that will go on beside it.
    Fork,
    /// Shut its guest down and keep the disk.
    Stop,
    /// End it and all that is in it.
    Kill,
    /// Its lease ran out.
    LeaseEnds(LeaseEnd),
    /// A daemon opens the directory that another left: take the running guest over.
    Attach,
    /// Its monitor ended without being asked to, or its guest fell silent for good.
    MonitorEnds,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 15] = [
        Self::Create,
        Self::Start,
        Self::Exec,
        Self::Pause,
        Self::Unpause,
        Self::Snapshot,
        Self::Hibernate,
        Self::Resume,
        Self::Fork,
        Self::Stop,
        Self::Kill,
        Self::LeaseEnds(LeaseEnd::Hibernate),
        Self::LeaseEnds(LeaseEnd::Kill),
        Self::Attach,
        Self::MonitorEnds,
    ];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Snapshot => "snapshot",
            Self::Hibernate => "hibernate",
            Self::Resume => "resume",
            Self::Fork => "fork",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::LeaseEnds(_) => "lease end",
            Self::Attach => "attach",
            Self::MonitorEnds => "monitor end",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an action cannot be done in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Another action is under way; asking again once it is over may succeed.
    #[error("it is {0}")]
    Busy(Phase),
    /// It is paused.
    #[error("it is paused")]
    Paused,
    /// It sleeps in a snapshot.
    #[error("it is hibernated")]
    Hibernated,
    /// Its guest was shut down.
    #[error("it is stopped")]
    Stopped,
    /// What it held is gone.
    #[error("its state was lost")]
    Lost,
    /// It is over.
    #[error("it has ended ({0})")]
    Ended(Phase),
    /// The action makes no sense for a sandbox that runs.
    #[error("it runs already")]
    Running,
}

impl Refused {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Busy(_) => "try again in a moment",
            Self::Paused => "let it go on with `rhizome sandbox unpause`",
            Self::Hibernated => "wake it with `rhizome sandbox resume`",
            Self::Stopped => "boot it again with `rhizome sandbox start`",
            Self::Lost => {
                "what was in memory is gone; `rhizome sandbox resume` goes back to its last snapshot, if it has one"
            }
            Self::Ended(_) => {
                "create a new sandbox; `rhizome sandbox logs` shows what its console said"
            }
            Self::Running => "stop or kill it first",
        }
    }
}
