//! Falling asleep and waking up.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rhizome_guest::wire::{self, Failure, FailureCode, Kind, MAX_PAYLOAD, Payload, contains_magic};
use tokio::time::timeout;

use super::{
    ChannelError, QuiesceError,
    error::printable,
    mux::{self, Purpose, Shared},
};

/// How long writing out and freezing may take beside the hook.
const SYNC_DEADLINE: Duration = Duration::from_secs(60);

/// How a guest is made fit to be copied.
#[derive(Debug, Clone)]
pub struct Quiesce {
    /// A program in the guest that is run before all else, and its arguments; empty for none.
    pub hook: Vec<String>,
    /// Time that it may take.
    pub hook_deadline: Duration,
    /// Time after which the guest thaws by itself: its uptime, so that sleep does not count.
    pub hold: Duration,
}

impl Default for Quiesce {
    fn default() -> Self {
        Self {
            hook: Vec::new(),
            hook_deadline: Duration::from_secs(10),
            hold: Duration::from_secs(60),
        }
    }
}

/// How far a guest is fit to be copied, as it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quiesced {
    /// Whether none of its programs runs; they go on after a thaw, or a resume.
    pub programs: bool,
    /// Disks that take no writes until then.
    pub disks: u32,
    /// What could not be done, without making the copy useless.
    pub notes: Vec<String>,
}

/// What a guest is told that runs again from a copy.
#[derive(Clone)]
pub struct Resume {
    /// The time it is.
    pub now: SystemTime,
    /// Randomness for this guest alone.
    pub seed: [u8; 32],
    /// Whether others run from the same copy.
    pub fork: bool,
    /// Its host name from now on, if it changes.
    pub hostname: Option<String>,
    /// Its machine's number from now on (`/etc/machine-id`), if it changes.
    pub machine: Option<[u8; 16]>,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume")
            .field("now", &self.now)
            .field("fork", &self.fork)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

pub(super) async fn quiesce(
    shared: &Arc<Shared>,
    request: Quiesce,
) -> Result<Quiesced, QuiesceError> {
    let patience = request.hook_deadline + SYNC_DEADLINE;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let payload = wire::Quiesce {
        hook: request.hook.into_iter().map(String::into_bytes).collect(),
        hook_ms: millis(request.hook_deadline),
        hold_ms: millis(request.hold),
    }
    .to_payload();
    if payload.len() > MAX_PAYLOAD || contains_magic(&payload) {
        let message = "its arguments are too long, or hold the channel's own greeting".to_owned();
        return Err(QuiesceError::Hook { message });
    }
    let asked = async {
        let mut stream = shared.open(Purpose::Ask, Kind::Quiesce, payload).await?;
        stream.expect().await
    };
    let Ok(answered) = timeout(patience, asked).await else {
        return Err(QuiesceError::TimedOut { after: patience });
    };
    let frame = answered?;
    match frame.kind {
        Kind::Quiesced => {
            let wire::Quiesced {
                programs,
                disks,
                notes,
            } = mux::decode(&frame)?;
            Ok(Quiesced {
                programs,
                disks,
                notes: notes.iter().map(|note| printable(note)).collect(),
            })
        }
        Kind::Failed => {
            let failure: Failure = mux::decode(&frame)?;
            let message = printable(&failure.message);
            Err(match failure.code {
                FailureCode::Hook => QuiesceError::Hook { message },
                FailureCode::TimedOut => QuiesceError::TimedOut {
                    after: request.hook_deadline,
                },
                _ => QuiesceError::Guest { message },
            })
        }
        _ => Err(super::files::fail(shared, "a request has another's answer").into()),
    }
}

pub(super) fn resumed(resume: Resume) -> Result<Vec<u8>, ChannelError> {
    let since = resume.now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let hostname = resume.hostname.unwrap_or_default();
    if hostname.len() > 64 || hostname.contains('\0') {
        let message = "a host name is at most 64 bytes".to_owned();
        return Err(ChannelError::Failed { message });
    }
    Ok(wire::Resumed {
        unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        seed: resume.seed,
        fork: resume.fork,
        hostname,
        machine: resume.machine,
    }
    .to_payload())
}
