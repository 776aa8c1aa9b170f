//! Steps about the session with a guest's agent.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tracing::{debug, warn};

use super::{Inner, act::Work, behind, boot, entry::Entry, network, watch};
use crate::{
    Accel, SandboxError,
    channel::{ChannelError, ChannelLimits, GuestChannel, Quiesce, Resume},
    life::{Action, Phase, Plan},
    progress::step,
};

/// Time a guest has to come up: ten times the median and more, since a loaded host is no fault of
/// the guest's.
/// How long each of the files that a guest is told of its wake-up by may take.
const TELL_LIMIT: Duration = Duration::from_secs(5);
const TCG_BOOT_DEADLINE: Duration = Duration::from_secs(60);
const KVM_BOOT_DEADLINE: Duration = Duration::from_secs(15);
/// How often a guest that does not come up is started.
const BOOT_TRIES: u32 = 2;
/// Time for which a guest stays held if nobody lets it go on, counted by the guest's own clock,
/// which stands still while it is paused.
const HOLD: Duration = Duration::from_secs(60);

/// Begins a session, unless there is one that works.
pub(super) async fn open(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    plan: &Plan,
    work: &mut Work,
) -> Result<(), SandboxError> {
    if entry.session().is_some_and(|channel| !channel.is_closed()) {
        return Ok(());
    }
    let mut tried = 1;
    loop {
        let error = match try_open(inner, entry, work).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let boots = matches!(plan.action, Action::Create | Action::Start);
        let hangs = matches!(
            error,
            SandboxError::Guest {
                source: ChannelError::NotReady { .. },
                ..
            }
        );
        // A guest that hangs early is started once more: seen on hosts so busy that the guest's
        // first timer was lost.
        if !boots || !hangs || tried == BOOT_TRIES {
            return Err(error);
        }
        tried += 1;
        warn!(sandbox = %entry.id, "the guest did not come up; trying once more");
        step(
            &work.progress,
            "boot",
            "the guest did not come up; trying once more",
        );
        inner.read_last(entry);
        boot::end_monitor(entry).await?;
        boot::start_monitor(inner, entry, work).await?;
    }
}

async fn try_open(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let vm = entry.vm().ok_or_else(|| none(entry))?;
    let stream = match work.stream.take() {
        Some(stream) => stream,
        None => vm.connect().await?,
    };
    let limits = ChannelLimits {
        hello_deadline: match entry.info().accel {
            Accel::Kvm => KVM_BOOT_DEADLINE,
            Accel::Auto | Accel::Tcg => TCG_BOOT_DEADLINE,
        },
        ..ChannelLimits::default()
    };
    // A monitor that ends says so at once; its channel alone would be waited for.
    let greeted = tokio::select! {
        biased;
        greeted = GuestChannel::start(stream, limits) => greeted,
        _ = vm.wait() => Err(ChannelError::Gone),
    };
    let (channel, doors) = match greeted {
        Ok(started) => started,
        Err(source) => {
            let status = vm.status().await;
            debug!(sandbox = %entry.id, ?status, %source, "the guest did not come up");
            let id = entry.id;
            let how = timeout(watch::LAST_WORDS, vm.wait()).await.ok();
            return Err(match (source, how) {
                // The monitor went first; what it said tells more than a closed socket.
                (ChannelError::Gone | ChannelError::Io { .. }, Some(how)) => {
                    SandboxError::MonitorEnded { id, how }
                }
                (source, _) => SandboxError::Guest { id, source },
            });
        }
    };
    network::attach(inner, entry, &channel).await?;
    inner.tasks.spawn(watch::forward_doors(
        Arc::clone(inner),
        Arc::clone(entry),
        doors,
    ));
    inner.tasks.spawn(watch::session(
        Arc::clone(inner),
        Arc::clone(entry),
        channel.clone(),
        vm.pid,
    ));
    entry.set_session(Some(channel));
    Ok(())
}

/// Ends the session for everybody.
pub(super) fn close(entry: &Entry) -> Result<(), SandboxError> {
    entry.set_open(false);
    if let Some(channel) = entry.set_session(None) {
        channel.close();
    }
    Ok(())
}

/// Takes over the monitor that another daemon started; one that is held already stays.
pub(super) async fn attach_monitor(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &Work,
) -> Result<(), SandboxError> {
    if entry.vm().is_some_and(|vm| vm.ended.borrow().is_none()) {
        return Ok(());
    }
    let gone = || SandboxError::MonitorEnded {
        id: entry.id,
        how: "it was gone when the daemon came back".to_owned(),
    };
    let record = entry.record();
    let (Some(monitor), Some(request)) = (record.run.monitor, entry.request()) else {
        return Err(gone());
    };
    if !boot::is_alive(&monitor) {
        return Err(gone());
    }
    step(&work.progress, "attach", "taking over the running guest");
    let vm = inner
        .driver_of(entry)
        .attach(&request, monitor.pid, monitor.started)
        .await?;
    boot::hold(inner, entry, vm)
}

/// Tells a guest that it runs again from a copy: clock, randomness and name first, then its
/// programs.
pub(super) async fn welcome(entry: &Entry, work: &mut Work) -> Result<(), SandboxError> {
    let channel = entry.session().ok_or_else(|| none(entry))?;
    for file in std::mem::take(&mut work.tell) {
        // Its programs are held and its disks frozen; what is in memory can be written.
        let written = channel.write_file(&file.path, file.mode, true, &file.bytes[..]);
        let written = timeout(TELL_LIMIT, written).await;
        if !matches!(written, Ok(Ok(_))) {
            warn!(sandbox = %entry.id, path = file.path, ?written, "a guest could not be told of its wake-up");
        }
    }
    let fork = work.source.as_ref().is_some_and(|source| source.is_copy());
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| SandboxError::Directory {
        path: entry.dir.clone(),
        source: error.into(),
    })?;
    let resumed = Resume {
        now: std::time::SystemTime::now(),
        seed,
        fork,
        hostname: fork.then(|| boot::hostname(&entry.info())),
        machine: fork.then(|| *entry.id.as_bytes()),
    };
    // To go on it thaws its disk, which may be on its way still.
    let told = tokio::select! {
        biased;
        told = channel.resumed(resumed) => told,
        error = behind::fails(entry) => return Err(error),
    };
    told.map_err(|source| SandboxError::Guest {
        id: entry.id,
        source,
    })
}

/// Runs the hook, writes out what is dirty, holds the guest's programs.
pub(super) async fn quiesce(entry: &Entry, work: &mut Work) -> Result<(), SandboxError> {
    let channel = entry.session().ok_or_else(|| none(entry))?;
    let options = work.options.as_ref().expect("a snapshot has options");
    step(&work.progress, "quiesce", "holding the guest's programs");
    // Whoever asks now waits until the guest goes on.
    entry.set_open(false);
    let asked = Quiesce {
        hook: options.hook.clone().unwrap_or_default(),
        hook_deadline: options.deadline,
        hold: HOLD,
    };
    let held = timeout(options.deadline + HOLD, channel.quiesce(asked)).await;
    let failed = |what: String| SandboxError::Quiesce { id: entry.id, what };
    match held {
        Ok(Ok(quiesced)) => {
            for note in &quiesced.notes {
                step(&work.progress, "quiesce", format_args!("{note}"));
            }
            Ok(())
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("it did not answer in time".to_owned())),
    }
}

/// Lets the guest's programs go on, with the clock set.
pub(super) async fn thaw(entry: &Entry) -> Result<(), SandboxError> {
    let channel = entry.session().ok_or_else(|| none(entry))?;
    let guest = |source| SandboxError::Guest {
        id: entry.id,
        source,
    };
    channel
        .set_time(std::time::SystemTime::now())
        .await
        .map_err(guest)?;
    channel.thaw().await.map_err(guest)?;
    entry.set_open(true);
    Ok(())
}

/// Holds the processors.
pub(super) async fn pause(entry: &Entry) -> Result<(), SandboxError> {
    entry.set_open(false);
    let vm = entry.vm().ok_or_else(|| none(entry))?;
    let behind = entry.behind();
    if let Some(behind) = &behind {
        behind.hold(true);
    }
    let paused = vm.pause().await;
    if let Some(behind) = &behind {
        behind.hold(false);
    }
    Ok(paused?)
}

/// Lets the processors go on.
pub(super) async fn run(entry: &Entry) -> Result<(), SandboxError> {
    entry.vm().ok_or_else(|| none(entry))?.resume().await?;
    if entry.phase() == Phase::Ready {
        entry.set_open(true);
    }
    Ok(())
}

/// The guest went while something was done to it.
pub(super) fn none(entry: &Entry) -> SandboxError {
    SandboxError::MonitorEnded {
        id: entry.id,
        how: "it ended in the middle of an action".to_owned(),
    }
}
