//! The task that owns a running sandbox.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tracing::{debug, info};

use super::{DoorConnection, Inner, entry::Entry};
use crate::{
    SandboxState,
    channel::{DoorStream, GuestChannel},
    driver::Vm,
};

/// Time in which a monitor whose channel broke may still say why it ended.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

/// Follows a sandbox to its end, then cleans up.
pub(super) async fn watch(entry: Arc<Entry>, vm: Vm, channel: GuestChannel) {
    let state = tokio::select! {
        biased;
        () = entry.kill.cancelled() => SandboxState::Killed,
        how = vm.wait() => failed(&how),
        why = channel.closed() => {
            // A monitor that was killed closes its socket first and is reaped a moment later.
            match tokio::time::timeout(LAST_WORDS, vm.wait()).await {
                Ok(how) => failed(&how),
                Err(_) => SandboxState::Failed {
                    reason: format!("the guest's channel ended: {why}"),
                },
            }
        }
    };
    // Execs end now, not when the monitor has been reaped.
    channel.close();
    vm.kill().await;
    info!(sandbox = %entry.id, state = %state, "sandbox ended");
    entry.end(state);
}

fn failed(how: &str) -> SandboxState {
    SandboxState::Failed {
        reason: format!("the monitor ended: {how}"),
    }
}

/// Hands the guest's connections to the node.
pub(super) async fn forward_doors(
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    mut opened: mpsc::Receiver<DoorStream>,
) {
    while let Some(stream) = opened.recv().await {
        let connection = DoorConnection {
            sandbox: entry.id,
            stream,
        };
        tokio::select! {
            biased;
            () = entry.kill.cancelled() => break,
            sent = inner.doors.send(connection) => if sent.is_err() {
                debug!(sandbox = %entry.id, "nobody takes the guest's connections");
                break;
            },
        }
    }
}
