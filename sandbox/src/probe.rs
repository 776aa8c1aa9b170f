//! What this host can run, found by running it.

use serde::{Deserialize, Serialize};

use crate::{Accel, SandboxConfig};

/// How guests will run on this host, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccelDecision {
    /// `kvm` or `tcg`.
    pub accel: Accel,
    /// Why, in one sentence.
    pub reason: String,
}

/// One line of `rhizome doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Stable short name: `qemu`, `kernel`, `acceleration`, `disk`, `mmdebstrap`, …
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// The command that mends it, where there is one.
    pub mend: Option<String>,
}

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, with less than it could have.
    Warn,
    /// Sandboxes cannot run.
    Fail,
}

/// Looks at everything sandboxes need; boots a kernel at most once per host boot.
pub async fn report(config: &SandboxConfig) -> Vec<Check> {
    let _ = config;
    todo!()
}
