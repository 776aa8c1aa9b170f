//! Volumes: directory trees of the node, mounted here.
//!
//! What a volume was when it was attached is a read-only FUSE file system, served by this agent
//! from what the node answers; nothing is fetched before it is read. One that may be changed has
//! an overlay on top whose upper directory is on the guest's own disk: what was changed since is
//! then what lies in that directory.
//!
//! A volume outlives the session that attached it. Reads wait for the next one.

mod fuse;
mod kernel;
mod mounts;
mod remote;
mod scan;
mod tree;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use rhizome_guest::wire::{
    FailureCode, Frame, Kind, VolumeAsk, VolumeClose, VolumeOpen, VolumeScan,
};

use super::{Agent, failure::Failed, lock, spawn, stream::Stream};
use mounts::Mounts;
use remote::Remote;

/// Where the disk that takes changes is mounted, if there is one.
pub(crate) const DISK: &str = "/run/rhizome/disk";
/// Most volumes of a guest.
const MAX_VOLUMES: usize = 16;

/// The volumes that are attached.
#[derive(Default)]
pub(crate) struct Volumes(Mutex<BTreeMap<[u8; 16], Arc<Volume>>>);

struct Volume {
    open: VolumeOpen,
    remote: Arc<Remote>,
    mounts: Mutex<Option<Mounts>>,
}

/// Answers one request.
pub(crate) fn answer(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) {
    let answered = match frame.kind {
        Kind::VolumeOpen => open(agent, stream, frame),
        Kind::VolumeScan => scan(agent, stream, frame),
        _ => close(agent, stream, frame),
    };
    if let Err(Failed(failure)) = answered {
        stream.send(Kind::Failed, &failure);
    }
}

/// Mounts a volume, unless it is, and serves it until the stream ends.
fn open(agent: &Arc<Agent>, stream: &Arc<Stream>, frame: &Frame) -> Result<(), Failed> {
    let open: VolumeOpen = frame.message()?;
    let (volume, is_new) = {
        let mut volumes = lock(&agent.volumes.0);
        match volumes.get(&open.volume) {
            Some(volume) if volume.open == open => (Arc::clone(volume), false),
            Some(_) => {
                let message = "the volume is attached already, and not like this";
                return Err(Failed::new(FailureCode::AlreadyExists, message));
            }
            None if volumes.len() >= MAX_VOLUMES => {
                return Err(Failed::new(FailureCode::TooMany, "too many volumes"));
            }
            None if volumes.values().any(|volume| volume.open.path == open.path) => {
                let message = "another volume is attached there";
                return Err(Failed::new(FailureCode::AlreadyExists, message));
            }
            None => {
                let volume = Arc::new(Volume {
                    open: open.clone(),
                    remote: Arc::default(),
                    mounts: Mutex::default(),
                });
                volumes.insert(open.volume, Arc::clone(&volume));
                (volume, true)
            }
        }
    };
    if !stream.send_empty(Kind::Connected) {
        if is_new {
            lock(&agent.volumes.0).remove(&open.volume);
        }
        return Ok(());
    }
    volume.remote.bind(stream);
    // Mounting asks for the root, and this thread takes the answers.
    let mounting = {
        let (agent, volume) = (Arc::clone(agent), Arc::clone(&volume));
        move || {
            let mounted = if is_new { mount(&volume) } else { Ok(()) };
            match mounted {
                Ok(()) => volume.remote.tell(&VolumeAsk::Mounted),
                Err(error) => {
                    lock(&agent.volumes.0).remove(&volume.open.volume);
                    let message = error.to_string();
                    volume.remote.tell(&VolumeAsk::Failed { message });
                }
            }
        }
    };
    match spawn("volume-mount", mounting) {
        Ok(_) => volume.remote.serve(stream),
        Err(error) => {
            lock(&agent.volumes.0).remove(&open.volume);
            let message = error.to_string();
            volume.remote.tell(&VolumeAsk::Failed { message });
        }
    }
    Ok(())
}

fn mount(volume: &Volume) -> io::Result<()> {
    let mut mounts = lock(&volume.mounts);
    *mounts = Some(Mounts::make(&volume.open, &volume.remote)?);
    Ok(())
}

/// Sends every change.
fn scan(agent: &Agent, stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let VolumeScan { volume } = frame.message()?;
    let volume = find(agent, &volume)?;
    let upper: PathBuf = {
        let mounts = lock(&volume.mounts);
        let upper = mounts.as_ref().and_then(Mounts::upper);
        upper.ok_or_else(|| Failed::new(FailureCode::ReadOnly, "the volume is read-only"))?
    };
    if scan::send(&upper, stream)? {
        stream.send_empty(Kind::Done);
    }
    Ok(())
}

fn close(agent: &Agent, stream: &Stream, frame: &Frame) -> Result<(), Failed> {
    let VolumeClose { volume, force } = frame.message()?;
    let found = find(agent, &volume)?;
    {
        let mut mounts = lock(&found.mounts);
        if let Some(all) = mounts.as_mut() {
            all.remove(force)?;
        }
        *mounts = None;
    }
    lock(&agent.volumes.0).remove(&volume);
    found.remote.end();
    stream.send_empty(Kind::Done);
    Ok(())
}

fn find(agent: &Agent, volume: &[u8; 16]) -> Result<Arc<Volume>, Failed> {
    let found = lock(&agent.volumes.0).get(volume).cloned();
    found.ok_or_else(|| Failed::new(FailureCode::NotFound, "no such volume is attached"))
}
