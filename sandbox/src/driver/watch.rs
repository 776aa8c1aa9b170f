//! The task that owns a monitor's process: it keeps the console, ends the monitor when told, and
//! says how it ended.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    io::{AsyncReadExt, BufReader, unix::AsyncFd},
    net::UnixStream,
    process::{Child, ChildStderr},
    sync::{oneshot, watch},
};

use tokio_util::sync::CancellationToken;

use super::{Console, Tether, cage::Cage, process_start};
use crate::command::{Lines, Tail};

/// What a monitor says whenever a guest on a template has freed memory: that it cannot be given
/// back, since it is everybody's. It is said for each block, and nobody can do anything about it.
const CANNOT_GIVE_BACK: &str = "ram_block_discard_range: Failed to ";

/// A monitor's process.
#[derive(Debug)]
pub(super) enum Process {
    /// Our own child.
    Ours(Child),
    /// One that a former daemon started; the descriptor pins it.
    Foreign(AsyncFd<OwnedFd>),
}

impl Process {
    /// Finds the process that a former daemon started; `None` if it is gone.
    pub(super) fn find(pid: u32, started: u64) -> Option<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let descriptor = pidfd_open(number, PidfdFlags::NONBLOCK).ok()?;
        // The other way round it could have ended, and another have come, in between.
        if process_start(pid)? != started {
            return None;
        }
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for descriptors that change under their owner; this one cannot"
        )]
        AsyncFd::new(descriptor).ok().map(Self::Foreign)
    }

    /// Waits for the end and returns how it came.
    async fn ended(&mut self) -> String {
        let status = match self {
            Self::Ours(child) => child.wait().await.map(|status| status.to_string()),
            Self::Foreign(descriptor) => descriptor
                .readable()
                .await
                .map(|_| "a former daemon started it, so nobody saw how".to_owned()),
        };
        status.unwrap_or_else(|error| error.to_string())
    }

    fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Ours(child) => child.start_kill(),
            Self::Foreign(descriptor) => Ok(pidfd_send_signal(descriptor.get_ref(), Signal::KILL)?),
        }
    }

    fn take_stderr(&mut self) -> Option<ChildStderr> {
        match self {
            Self::Ours(child) => child.stderr.take(),
            Self::Foreign(_) => None,
        }
    }
}

/// A process that ends with whoever holds this, unless it is let go first: also when the runtime
/// goes down and the task that holds it never runs again.
#[derive(Debug)]
struct Leash {
    process: Process,
    release: CancellationToken,
}

impl Drop for Leash {
    fn drop(&mut self) {
        if !self.release.is_cancelled() {
            let _ = self.process.kill();
        }
    }
}

/// Where the guest's console comes from.
#[derive(Debug)]
enum Source {
    /// The monitor does not listen yet.
    Awaited(oneshot::Receiver<UnixStream>),
    Open(UnixStream),
    Closed,
}

impl Source {
    /// Reads what there is. A dropped future loses nothing.
    async fn read(&mut self, buffer: &mut [u8]) -> usize {
        if let Self::Awaited(stream) = self {
            *self = match stream.await {
                Ok(stream) => Self::Open(stream),
                Err(_) => Self::Closed,
            };
        }
        let size = match self {
            Self::Open(stream) => stream.read(buffer).await.unwrap_or(0),
            _ => 0,
        };
        if size == 0 {
            *self = Self::Closed;
        }
        size
    }

    fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

/// Owns the process until it has ended, or until it is let go.
pub(super) async fn watch_over(
    process: Process,
    cage: Cage,
    mut console: Console,
    label: &'static str,
    stream: oneshot::Receiver<UnixStream>,
    tether: Tether,
    told: watch::Sender<Option<String>>,
) {
    let mut leash = Leash {
        process,
        release: tether.release.clone(),
    };
    let mut errors = leash
        .process
        .take_stderr()
        .map(|stderr| Lines::new(BufReader::new(stderr)));
    let mut source = Source::Awaited(stream);
    let mut tail = Tail::default();
    let mut buffer = vec![0; 16 * 1024];
    let how = loop {
        let silent = errors.as_ref().is_none_or(|errors| errors.done);
        tokio::select! {
            biased;
            () = tether.kill.cancelled() => {
                let _ = leash.process.kill();
                break leash.process.ended().await;
            }
            // A child that is not waited for here is still reaped by the runtime.
            () = tether.release.cancelled() => return,
            size = source.read(&mut buffer), if !source.is_closed() => {
                console.push(&buffer[..size]);
            }
            line = next_line(&mut errors), if !silent => if let Some(line) = line
                && !line.contains(CANNOT_GIVE_BACK)
            {
                console.push(format!("[{label}] {line}\n").as_bytes());
                tail.push(&line);
            },
            // The last words come first.
            how = leash.process.ended(), if source.is_closed() && silent => break how,
        }
    };
    cage.remove();
    let how = match tail.text() {
        said if said.is_empty() => how,
        said => format!("{how}: {said}"),
    };
    let _ = told.send(Some(how));
}

async fn next_line(errors: &mut Option<Lines<BufReader<ChildStderr>>>) -> Option<String> {
    errors.as_mut()?.next().await
}
