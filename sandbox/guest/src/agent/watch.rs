//! Changes in directories, as inotify tells them.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rhizome_guest::wire::{
    FailureCode, Frame, Kind, MAX_PAYLOAD, Payload, Watch, WatchEvent, WatchOp,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use super::{failure::Failed, reaper::Bell, stream::Stream};

/// Directories that one watch may reach.
const MAX_DIRECTORIES: usize = 8192;
/// Bytes of events read from the kernel at once.
const READ_BYTES: usize = 16 * 1024;
/// A frame of changes is sent when the next one might not fit.
const CHANGES_BYTES: usize = MAX_PAYLOAD - 8 * 1024;

const INTEREST: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// Watches until the host has enough, or the directory is gone.
pub(crate) fn run(stream: &Arc<Stream>, frame: &Frame) {
    if let Err(Failed(failure)) = try_run(stream, frame) {
        stream.send(Kind::Failed, &failure);
    }
}

struct Watched {
    inotify: OwnedFd,
    root: PathBuf,
    recursive: bool,
    /// Whether what is moved away is told apart.
    moves: bool,
    /// Paths below the root, by watch.
    directories: BTreeMap<i32, PathBuf>,
    changes: Vec<u8>,
    last: Option<WatchEvent>,
}

fn try_run(stream: &Arc<Stream>, frame: &Frame) -> Result<(), Failed> {
    let request: Watch = frame.message()?;
    let root = PathBuf::from(OsString::from_vec(request.path));
    // A link to a directory is fine as the root alone.
    let root = fs::canonicalize(root)?;
    let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
    let mut watched = Watched {
        inotify: inotify::init(flags).map_err(io::Error::from)?,
        root,
        recursive: request.recursive,
        moves: frame.kind == Kind::WatchMoves,
        directories: BTreeMap::new(),
        changes: Vec::new(),
        last: None,
    };
    watched.add(PathBuf::new(), false)?;
    let stop = Arc::new(Bell::new()?);
    {
        let stop = Arc::clone(&stop);
        stream.on_reset(move |_| stop.ring());
    }
    if !stream.send_empty(Kind::Started) {
        return Ok(());
    }
    // What was made while the tree was walked may be told twice, but not missed.
    while watched.wait(&stop)? {
        let gone = watched.read()?;
        if !stream.send_whole(Kind::WatchEvents, &std::mem::take(&mut watched.changes)) {
            return Ok(());
        }
        if gone {
            return Err(Failed::new(FailureCode::NotFound, "the directory is gone"));
        }
    }
    Ok(())
}

impl Watched {
    /// Waits for changes; returns false if the stream has ended.
    fn wait(&self, stop: &Bell) -> io::Result<bool> {
        loop {
            let mut fds = [
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) if !fds[1].revents().is_empty() => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes some changes from the kernel; returns whether the root is gone.
    fn read(&mut self) -> Result<bool, Failed> {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut events = Vec::new();
        {
            let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event
                            .file_name()
                            .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                        events.push((event.wd(), event.events(), name));
                    }
                    Err(Errno::WOULDBLOCK | Errno::INTR) => break,
                    Err(error) => return Err(io::Error::from(error).into()),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        let mut gone = false;
        for (wd, flags, name) in events {
            gone |= self.take(wd, flags, name)?;
        }
        Ok(gone)
    }

    fn take(&mut self, wd: i32, flags: ReadFlags, name: Option<OsString>) -> Result<bool, Failed> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.tell(WatchOp::Overflow, false, Path::new(""));
            return Ok(false);
        }
        let Some(directory) = self.directories.get(&wd).cloned() else {
            return Ok(false);
        };
        if flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            let is_root = directory.as_os_str().is_empty();
            if flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&wd);
            }
            // Of others the directory above tells.
            return Ok(is_root);
        }
        let path = match name {
            Some(name) => directory.join(name),
            None => directory,
        };
        let is_dir = flags.contains(ReadFlags::ISDIR);
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.tell(WatchOp::Created, is_dir, &path);
            if is_dir && self.recursive {
                // It may be gone again.
                let _ = self.add(path, true);
            }
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            let moved = self.moves && flags.contains(ReadFlags::MOVED_FROM);
            let op = if moved {
                WatchOp::Moved
            } else {
                WatchOp::Removed
            };
            self.tell(op, is_dir, &path);
            if is_dir && flags.contains(ReadFlags::MOVED_FROM) {
                self.forget(&path);
            }
        } else if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MODIFY) {
            self.tell(WatchOp::Changed, is_dir, &path);
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.tell(WatchOp::Touched, is_dir, &path);
        }
        Ok(false)
    }

    /// Watches a directory, and with `recursive` those in it; tells of what is there if it is new.
    fn add(&mut self, path: PathBuf, is_new: bool) -> Result<(), Failed> {
        let mut waiting = vec![path];
        while let Some(path) = waiting.pop() {
            if self.directories.len() >= MAX_DIRECTORIES {
                self.tell(WatchOp::Overflow, true, &path);
                return Ok(());
            }
            let whole = self.root.join(&path);
            let is_root = path.as_os_str().is_empty();
            match inotify::add_watch(&self.inotify, &whole, INTEREST) {
                Ok(wd) => {
                    self.directories.insert(wd, path.clone());
                }
                Err(Errno::NOSPC) => {
                    self.tell(WatchOp::Overflow, true, &path);
                    return Ok(());
                }
                Err(error) if is_root => return Err(io::Error::from(error).into()),
                // Gone again, or no directory any more.
                Err(_) => continue,
            }
            if !self.recursive {
                return Ok(());
            }
            for entry in fs::read_dir(&whole).into_iter().flatten().flatten() {
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let below = path.join(entry.file_name());
                if is_new {
                    self.tell(WatchOp::Created, is_dir, &below);
                }
                if is_dir {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    /// Stops watching what was moved away.
    fn forget(&mut self, path: &Path) {
        let moved: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, below)| below.starts_with(path))
            .map(|(wd, _)| *wd)
            .collect();
        for wd in moved {
            self.directories.remove(&wd);
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    fn tell(&mut self, op: WatchOp, directory: bool, path: &Path) {
        let event = WatchEvent {
            op,
            directory,
            path: path.as_os_str().as_bytes().to_vec(),
        };
        // A writer makes many changes of one.
        if self.last.as_ref() == Some(&event) && !self.changes.is_empty() {
            return;
        }
        if self.changes.len() > CHANGES_BYTES {
            // The host is slow, or the tree that came is large: it has to look again.
            let overflow = WatchEvent {
                op: WatchOp::Overflow,
                directory: true,
                path: Vec::new(),
            };
            if self.last.as_ref() != Some(&overflow) {
                self.changes.extend_from_slice(&overflow.to_payload());
                self.last = Some(overflow);
            }
            return;
        }
        self.changes.extend_from_slice(&event.to_payload());
        self.last = Some(event);
    }
}
