//! The guest's network: a TUN device whose packets the host takes and gives.
//!
//! The device is made when the host first asks for it and stays for as long as the machine runs.
//! Without a host nobody takes its packets; what the kernel queues meanwhile is stale and is
//! thrown away when the next one comes.

mod netlink;
mod settings;

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    sync::{Arc, Mutex, mpsc},
};

use rhizome_guest::wire::{FailureCode, Frame, Kind, NetOpen};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{Agent, OnShutdown, failure::Failed, lock, stream::Stream};
use crate::sys;

/// The device's name.
const NAME: &str = "rz0";
/// Packets are gathered to about this many bytes before they are sent.
const BATCH_BYTES: usize = 48 * 1024;
/// A packet and its length.
const LENGTH_BYTES: usize = 2;

/// The device, and the stream that has it now.
static DEVICE: Mutex<Device> = Mutex::new(Device {
    tun: None,
    stream: None,
});

struct Device {
    tun: Option<Arc<File>>,
    stream: Option<Arc<Stream>>,
}

/// Carries packets between the device and the host until the stream ends.
pub(crate) fn run(agent: &Agent, stream: &Arc<Stream>, frame: &Frame) {
    if let Err(Failed(failure)) = try_run(agent, stream, frame) {
        stream.send(Kind::Failed, &failure);
    }
}

fn try_run(agent: &Agent, stream: &Arc<Stream>, frame: &Frame) -> Result<(), Failed> {
    let setup: NetOpen = frame.message()?;
    if agent.on_shutdown != OnShutdown::PowerOff {
        // An ordinary process has no network of its own to change.
        return Err(Failed::new(
            FailureCode::Unsupported,
            "this agent is not PID 1 of a machine",
        ));
    }
    let tun = take_over(&setup, stream)?;
    settings::write(Ipv4Addr::from(setup.gateway), &setup.authority)?;
    let wake = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
    );
    {
        let wake = Arc::clone(&wake);
        stream.on_reset(move |_| {
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        });
    }
    stream.send_empty(Kind::Started);
    let mtu = usize::from(setup.mtu);
    let (ends, outward) = mpsc::channel::<()>();
    {
        let (stream, tun, wake) = (Arc::clone(stream), Arc::clone(&tun), Arc::clone(&wake));
        agent.workers.run("net out", move || {
            to_host(&stream, &tun, &wake, mtu);
            drop(ends);
        })?;
    }
    to_guest(stream, &tun);
    let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
    // Nothing is ever sent: this is when the other end is dropped.
    let _ = outward.recv();
    if !stream.is_reset() {
        stream.send_empty(Kind::StreamReset);
    }
    Ok(())
}

/// Makes the device if it is not there, and gives it to `stream` alone.
fn take_over(setup: &NetOpen, stream: &Arc<Stream>) -> io::Result<Arc<File>> {
    let mut device = lock(&DEVICE);
    if let Some(before) = device.stream.replace(Arc::clone(stream)) {
        before.reset(super::stream::Cause::Session);
    }
    if let Some(tun) = &device.tun {
        drop_stale(tun);
        return Ok(Arc::clone(tun));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/net/tun")
        .map_err(|error| io::Error::new(error.kind(), format!("/dev/net/tun: {error}")))?;
    sys::make_tun(&file, NAME)?;
    // Only IPv4 is carried; without this the kernel would greet routers that are not there.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6"), "1");
    netlink::configure(
        NAME,
        Ipv4Addr::from(setup.address),
        setup.prefix,
        Ipv4Addr::from(setup.gateway),
        setup.mtu,
    )?;
    let tun = Arc::new(file);
    device.tun = Some(Arc::clone(&tun));
    Ok(tun)
}

fn drop_stale(mut tun: &File) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    // The kernel's queue has a bound, and programs fill it no faster than this empties it for long.
    for _ in 0..1024 {
        if tun.read(&mut buffer).is_err() {
            return;
        }
    }
}

fn to_host(stream: &Stream, mut tun: &File, wake: &OwnedFd, mtu: usize) {
    let mut batch = vec![0; BATCH_BYTES + LENGTH_BYTES + mtu];
    let mut len = 0;
    while !stream.is_reset() {
        let room = &mut batch[len + LENGTH_BYTES..][..mtu];
        match tun.read(room) {
            Ok(read) if read > 0 => {
                let length = u16::try_from(read).unwrap_or(u16::MAX).to_le_bytes();
                batch[len..len + LENGTH_BYTES].copy_from_slice(&length);
                len += LENGTH_BYTES + read;
                if len < BATCH_BYTES {
                    continue;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return stream.close_input(),
            _ if len == 0 => {
                let mut fds = [
                    PollFd::new(tun, PollFlags::IN),
                    PollFd::new(wake, PollFlags::IN),
                ];
                let _ = poll(&mut fds, None);
                if !fds[1].revents().is_empty() {
                    return;
                }
                continue;
            }
            _ => {}
        }
        if !stream.send_data(Kind::StreamData, &batch[..len]) {
            return;
        }
        len = 0;
    }
}

fn to_guest(stream: &Stream, mut tun: &File) {
    let mut bytes = Vec::new();
    while let Some(frame) = stream.next() {
        if frame.kind != Kind::StreamData {
            return;
        }
        bytes.extend_from_slice(&frame.payload);
        let mut rest = &bytes[..];
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some((packet, behind)) = behind.split_at_checked(length) else {
                break;
            };
            // What the kernel does not take is lost, as packets are.
            let _ = tun.write(packet);
            rest = behind;
        }
        let taken = bytes.len() - rest.len();
        bytes.drain(..taken);
    }
}
