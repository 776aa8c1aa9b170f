//! Serves a tree to the kernel.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rhizome_guest::wire::{MAX_VOLUME_READ, VolumeKind};
use rustix::io::Errno;

use super::{
    super::spawn,
    kernel::{self, Op, Request},
    tree::{ROOT, Source, Tree},
};

/// Threads that answer the kernel: as many reads wait for the node at once.
const THREADS: usize = 4;
/// Room for a request. Ours are short: nothing is written.
const REQUEST_BYTES: usize = 64 * 1024;

/// Starts to answer what the kernel asks at `device`; ends when it is unmounted.
pub(super) fn serve<S: Source + 'static>(device: OwnedFd, source: Arc<S>) -> io::Result<()> {
    let server = Arc::new((device, Tree::new(source)));
    for _ in 0..THREADS {
        let server = Arc::clone(&server);
        spawn("volume-fuse", move || answer_all(&server.0, &server.1))?;
    }
    Ok(())
}

fn answer_all<S: Source>(device: &impl AsFd, tree: &Tree<S>) {
    let mut buffer = vec![0; REQUEST_BYTES];
    loop {
        let len = match rustix::io::read(device, &mut buffer[..]) {
            Ok(0) => return,
            Ok(len) => len,
            // Interrupted, or the one who asked is gone.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            // Unmounted.
            Err(_) => return,
        };
        let Some(request) = Request::parse(&buffer[..len]) else {
            continue;
        };
        let unique = request.unique;
        if let Some(result) = answer_one(tree, request) {
            // If the one who asked is gone, so is the answer's use.
            let _ = rustix::io::write(device, &kernel::answer(unique, result));
        }
    }
}

/// Returns `None` for what has no answer.
pub(super) fn answer_one<S: Source>(
    tree: &Tree<S>,
    request: Request,
) -> Option<Result<Vec<u8>, Errno>> {
    let node = request.node;
    Some(match request.op {
        Op::Forget { nodes } => {
            for (number, times) in nodes {
                tree.forget(number, times);
            }
            return None;
        }
        Op::Interrupt | Op::Destroy => return None,
        Op::Init {
            major,
            max_readahead,
            flags,
        } => match major {
            kernel::MAJOR => Ok(kernel::init(max_readahead, flags, MAX_VOLUME_READ)),
            _ => Err(Errno::PROTO),
        },
        Op::Lookup { name } => look_up(tree, node, &name),
        Op::GetAttr => {
            let found = tree.node(node).ok_or(Errno::NOENT);
            found.map(|entry| kernel::attr(node, &entry))
        }
        Op::ReadLink => match tree.node(node) {
            Some(entry) if entry.kind == VolumeKind::Symlink => Ok(entry.target),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::NOENT),
        },
        Op::Read { offset, size } => {
            let read = tree.read(node, offset, size.min(MAX_VOLUME_READ));
            read.map_err(|error| errno(&error)).map(|mut bytes| {
                // A node that sends more than was asked for is not believed.
                bytes.truncate(size as usize);
                bytes
            })
        }
        Op::StatFs => Ok(kernel::stat_fs()),
        Op::GetXattr { size, name } => tree.node(node).ok_or(Errno::NOENT).and_then(|entry| {
            let mut all = entry.attributes.unwrap_or_default().into_iter();
            let found = all.find(|(known, _)| *known == name);
            kernel::xattr(found.ok_or(Errno::NODATA)?.1, size)
        }),
        Op::ListXattr { size } => tree.node(node).ok_or(Errno::NOENT).and_then(|entry| {
            let names = entry.attributes.unwrap_or_default().into_iter();
            let names = names.flat_map(|(name, _)| name.into_iter().chain([0]));
            kernel::xattr(names.collect(), size)
        }),
        Op::ReadDir { offset, size } => read_dir(tree, node, offset, size as usize),
        Op::Change => Err(Errno::ROFS),
        Op::Other => Err(Errno::NOSYS),
    })
}

fn look_up<S: Source>(tree: &Tree<S>, dir: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let found = tree.look_up(dir, name).map_err(|error| errno(&error))?;
    let found = found.as_ref().map(|(number, entry)| (*number, entry));
    Ok(kernel::entry(found))
}

/// Offsets count entries; the first two are the directory itself and the one above, of which
/// the kernel knows better.
fn read_dir<S: Source>(
    tree: &Tree<S>,
    dir: u64,
    offset: u64,
    size: usize,
) -> Result<Vec<u8>, Errno> {
    let listing = tree.list(dir).map_err(|error| errno(&error))?;
    let mut out = Vec::new();
    let dots = [(dir, &b"."[..]), (ROOT, b"..")];
    let dots = dots.map(|(number, name)| (number, VolumeKind::Directory, name));
    let entries = listing
        .iter()
        .map(|(number, entry)| (*number, entry.kind, entry.path.as_slice()));
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let all = dots.into_iter().chain(entries).enumerate().skip(from);
    for (at, (number, kind, name)) in all {
        if !kernel::push_dirent(&mut out, size, number, at as u64 + 1, kind, name) {
            break;
        }
    }
    Ok(out)
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::NotFound => Errno::NOENT,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}
