//! The guest's channel over a virtio socket.
//!
//! Cloud Hypervisor offers the guest's ports behind one socket of its own: who connects there
//! writes `CONNECT <port>`, and reads `OK <number>` once the guest has accepted. A guest that is
//! not that far yet refuses, and one that is paused answers nothing, so the way to it is found in a
//! task of its own, while the caller has its end of the stream already: what it writes goes on
//! when there is somebody to read it.

use std::{io, path::Path, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes},
    net::UnixStream,
};

use crate::driver::{
    DriverError,
    launch::{CHANNEL_SOCKET, io_error},
    sockets,
};

/// The port that the guest's agent listens on.
pub(super) const GUEST_PORT: u32 = 1024;
/// Time between two tries. A guest that is about to listen gives no sign of it.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How often a caller is looked after whose guest does not answer.
const LOOK_AFTER: Duration = Duration::from_millis(250);
/// Longest answer, its line's end included.
const MAX_ANSWER_BYTES: usize = 32;
/// Bytes carried at once, each way.
const CARRY_BYTES: usize = 64 * 1024;

/// Opens the way to the guest; the stream ends when the guest's does, or the monitor.
pub(super) async fn connect(dir: &Path, monitor: u32) -> Result<UnixStream, DriverError> {
    // The first is the caller's to see fail: there is no monitor.
    let first = sockets::connect(dir, CHANNEL_SOCKET, Some(monitor)).await?;
    let (theirs, ours) = UnixStream::pair().map_err(io_error(dir))?;
    let dir = dir.to_owned();
    tokio::spawn(async move {
        // The caller sees the end of its stream, whatever it came from.
        let _ = carry(ours, first, &dir, monitor).await;
    });
    Ok(theirs)
}

async fn carry(
    mut caller: UnixStream,
    first: UnixStream,
    dir: &Path,
    monitor: u32,
) -> io::Result<()> {
    let mut guest = first;
    while !reach(&mut guest, &caller).await? {
        tokio::time::sleep(TRY_AGAIN).await;
        if is_gone(&caller)? {
            return Ok(());
        }
        guest = sockets::connect(dir, CHANNEL_SOCKET, Some(monitor))
            .await
            .map_err(io::Error::other)?;
    }
    copy_bidirectional_with_sizes(&mut caller, &mut guest, CARRY_BYTES, CARRY_BYTES).await?;
    Ok(())
}

/// Asks for the agent; tells whether it accepted. An error means that asking again is no use.
async fn reach(guest: &mut UnixStream, caller: &UnixStream) -> io::Result<bool> {
    let asked = format!("CONNECT {GUEST_PORT}\n");
    if guest.write_all(asked.as_bytes()).await.is_err() {
        return Ok(false);
    }
    let mut answer = Vec::new();
    loop {
        let mut byte = [0];
        tokio::select! {
            read = guest.read(&mut byte) => match read {
                Ok(1) => answer.push(byte[0]),
                _ => return Ok(false),
            },
            () = tokio::time::sleep(LOOK_AFTER) => if is_gone(caller)? {
                return Err(io::ErrorKind::BrokenPipe.into());
            },
        }
        if answer.ends_with(b"\n") && answer.starts_with(b"OK ") {
            return Ok(true);
        }
        if answer.ends_with(b"\n") || answer.len() >= MAX_ANSWER_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Tells whether the other end of a stream was closed, whatever is still to be read from it.
fn is_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    Ok(fds[0].revents().intersects(gone))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;

    use tokio::{
        io::{AsyncBufReadExt, BufReader},
        net::UnixListener,
    };

    use super::*;

    fn listen(dir: &Path) -> UnixListener {
        std::fs::create_dir(dir.join("run")).unwrap();
        let listener = StdListener::from(sockets::listen(dir, CHANNEL_SOCKET).unwrap());
        listener.set_nonblocking(true).unwrap();
        UnixListener::from_std(listener).unwrap()
    }

    async fn asked(listener: &UnixListener) -> BufReader<UnixStream> {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "CONNECT 1024\n");
        stream
    }

    #[tokio::test]
    async fn a_guest_that_is_not_there_yet_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let listener = listen(dir.path());
        let us = std::process::id();
        let mut caller = connect(dir.path(), us).await.unwrap();
        caller.write_all(b"hello").await.unwrap();
        drop(asked(&listener).await);
        drop(asked(&listener).await);
        let mut guest = asked(&listener).await;
        guest.write_all(b"OK 77\nwel").await.unwrap();
        guest.write_all(b"come").await.unwrap();
        let mut said = [0; 5];
        guest.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        let mut heard = [0; 7];
        caller.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"welcome");
        // Either end is the other's.
        drop(guest);
        assert_eq!(caller.read(&mut heard).await.unwrap(), 0);
        drop(caller);

        let caller = connect(dir.path(), us).await.unwrap();
        let mut guest = asked(&listener).await;
        guest.write_all(b"OK 78\n").await.unwrap();
        drop(caller);
        assert_eq!(guest.read(&mut heard).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_caller_that_goes_is_not_carried_and_a_lie_is_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let listener = listen(dir.path());
        let us = std::process::id();
        let mut caller = connect(dir.path(), us).await.unwrap();
        caller.write_all(b"something to read").await.unwrap();
        // A paused guest: no answer.
        let mut guest = asked(&listener).await;
        drop(caller);
        let mut end = [0];
        assert_eq!(guest.read(&mut end).await.unwrap(), 0);

        for lie in [&b"NO\n"[..], &[b'x'; 64]] {
            let mut caller = connect(dir.path(), us).await.unwrap();
            let mut guest = asked(&listener).await;
            guest.write_all(lie).await.unwrap();
            assert_eq!(caller.read(&mut end).await.unwrap(), 0);
        }
        // Another process listens there.
        assert!(connect(dir.path(), us + 1).await.is_err());
        drop(listener);
        assert!(connect(dir.path(), us).await.is_err());
    }
}
