//! The tasks that notice when a sandbox goes by itself.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use super::{
    DoorConnection, Inner,
    act::{Work, perform, told},
    entry::Entry,
};
use crate::{
    channel::{ChannelError, DoorStream, GuestChannel},
    life::{Action, Phase},
    silent,
};

/// Time in which a monitor whose channel broke may still say why it ended.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

/// Waits for the monitor's end; the sandbox is lost then, unless it was ended on purpose.
pub(super) async fn monitor(
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    mut ended: watch::Receiver<Option<String>>,
    pid: u32,
) {
    let how = tokio::select! {
        biased;
        () = inner.stop.cancelled() => return,
        how = ended.wait_for(Option::is_some) => how.ok().and_then(|how| how.clone()),
    };
    // Commands end now, not when an action that is under way has.
    if let Some(channel) = entry.session()
        && entry.vm().is_some_and(|vm| vm.pid == pid)
    {
        channel.close();
    }
    let how = how.unwrap_or_else(|| "nobody saw how".to_owned());
    end(&inner, &entry, pid, format!("the monitor ended: {how}")).await;
}

/// Waits for the session's end; a guest that only lost its session gets another.
pub(super) async fn session(inner: Arc<Inner>, entry: Arc<Entry>, channel: GuestChannel, pid: u32) {
    let why = tokio::select! {
        biased;
        () = inner.stop.cancelled() => return,
        why = channel.closed() => why,
    };
    let Some(vm) = entry.vm().filter(|vm| vm.pid == pid) else {
        return;
    };
    if !entry.session().is_some_and(|now| now.is_same(&channel)) {
        return;
    }
    entry.set_open(false);
    // A monitor that was killed closes its socket first and is reaped a moment later.
    if tokio::time::timeout(LAST_WORDS, vm.wait()).await.is_ok() {
        return; // The other task has the last words.
    }
    drop(vm);
    if matches!(why, ChannelError::Closed) {
        return;
    }
    if entry.phase() == Phase::Paused {
        // Its processors stand still, so it answers nobody; it gets another session with the word
        // to go on.
        return;
    }
    let again = matches!(why, ChannelError::Gone | ChannelError::Io { .. });
    if again {
        info!(sandbox = %entry.id, %why, "the guest's session broke; beginning another");
        let mut work = Work::new(silent());
        let error = match perform(&inner, &entry, Action::Attach, &mut work).await {
            Ok(()) => return,
            Err(error) => error,
        };
        debug!(sandbox = %entry.id, error = %told(&error), "no other session can be had");
        return;
    }
    end(
        &inner,
        &entry,
        pid,
        format!("the guest's channel ended: {why}"),
    )
    .await;
}

async fn end(inner: &Arc<Inner>, entry: &Arc<Entry>, pid: u32, why: String) {
    let turn = entry.turn.lock().await;
    let still = entry.vm().is_some_and(|vm| vm.pid == pid);
    drop(turn);
    if !still {
        return;
    }
    let mut work = Work::new(silent());
    work.why = Some(why);
    if let Err(error) = perform(inner, entry, Action::MonitorEnds, &mut work).await {
        debug!(sandbox = %entry.id, error = %told(&error), "an end was not heeded");
    }
    inner.prune();
}

/// Hands the guest's connections to the node.
pub(super) async fn forward_doors(
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    mut opened: mpsc::Receiver<DoorStream>,
) {
    loop {
        let stream = tokio::select! {
            biased;
            () = inner.stop.cancelled() => return,
            opened = opened.recv() => opened,
        };
        let Some(stream) = stream else { return };
        let connection = DoorConnection {
            sandbox: entry.id,
            stream,
        };
        tokio::select! {
            biased;
            () = entry.kill.cancelled() => return,
            sent = inner.doors.send(connection) => if sent.is_err() {
                debug!(sandbox = %entry.id, "nobody takes the guest's connections");
                return;
            },
        }
    }
}
