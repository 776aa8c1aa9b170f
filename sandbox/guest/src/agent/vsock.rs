//! The virtio socket, where a machine has one in the virtio-serial port's place: the host connects
//! to a port of ours, each session anew.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, acceptfrom_with, bind, listen, shutdown,
    socket_with,
};

use super::{lock, spawn};
use crate::sys::{self, VMADDR_CID_ANY, VMADDR_CID_HOST, VsockAddr};

/// Hosts that may wait for the one before them to be let go.
const BACKLOG: i32 = 8;
/// How long to wait after a connection could not be taken.
const RETRY: Duration = Duration::from_millis(500);

/// The port that hosts connect to.
pub(crate) struct VsockPort {
    hosts: Mutex<Receiver<File>>,
}

impl VsockPort {
    /// Listens on a port.
    pub(crate) fn open(port: u32) -> io::Result<Self> {
        let listener = socket_with(
            AddressFamily::VSOCK,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let address = VsockAddr {
            cid: VMADDR_CID_ANY,
            port,
        };
        bind(&listener, &address)?;
        listen(&listener, BACKLOG)?;
        let (found, hosts) = sync_channel(1);
        spawn("accept", move || accept(&listener, &found))?;
        Ok(Self {
            hosts: Mutex::new(hosts),
        })
    }

    /// Waits for a host and returns both directions; reads end when it is gone.
    pub(crate) fn connected(&self) -> io::Result<(File, File)> {
        let host = lock(&self.hosts).recv().map_err(io::Error::other)?;
        Ok((host.try_clone()?, host))
    }
}

/// Takes one host after the other, letting go of the one before: a machine that was saved and goes
/// on elsewhere has a host still that never hangs up, since nobody told it that it is gone.
fn accept(listener: &OwnedFd, found: &SyncSender<File>) {
    let mut last: Option<File> = None;
    loop {
        let (host, from) = match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
            Ok(accepted) => accepted,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => {
                thread::sleep(RETRY);
                continue;
            }
        };
        // A program in here is no host, whoever it runs as.
        if from.as_ref().and_then(sys::vsock_cid) != Some(VMADDR_CID_HOST) {
            continue;
        }
        if let Some(last) = last.take() {
            // It is over already, more often than not.
            let _ = shutdown(&last, Shutdown::Both);
        }
        let host = File::from(host);
        last = host.try_clone().ok();
        if found.send(host).is_err() {
            return;
        }
    }
}
