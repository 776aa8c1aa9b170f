//! The virtio-serial port: finding it, and knowing when a host is there.

use std::{
    fs::{self, File, OpenOptions},
    io, thread,
    time::{Duration, Instant},
};

use rhizome_guest::wire::PORT_NAME;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// How long the kernel may take to find the port after its driver is loaded.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The kernel wakes us when a host connects; this is in case it does not.
const LOOK_AT_LEAST: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The virtio-serial port to the host.
pub(crate) struct VirtioPort {
    file: File,
    changes: rustix::fd::OwnedFd,
}

impl VirtioPort {
    /// Finds the port by its name and opens it.
    pub(crate) fn open() -> io::Result<Self> {
        let until = Instant::now() + APPEARS_WITHIN;
        let file = loop {
            if let Some(file) = find()? {
                break file;
            }
            if Instant::now() > until {
                return Err(io::Error::other(format!(
                    "no virtio port named `{PORT_NAME}`"
                )));
            }
            thread::sleep(LOOK_AGAIN);
        };
        let changes = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let any = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&changes, &file, epoll::EventData::new_u64(0), any)?;
        Ok(Self { file, changes })
    }

    /// Waits for a host and returns both directions; reads end when it is gone.
    pub(crate) fn connected(&self) -> io::Result<(File, File)> {
        // While no host is there a plain poll returns at once, so only changes are waited for.
        while !self.has_host()? {
            let mut events = Vec::with_capacity(1);
            match epoll::wait(
                &self.changes,
                rustix::buffer::spare_capacity(&mut events),
                Some(&LOOK_AT_LEAST),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((self.file.try_clone()?, self.file.try_clone()?))
    }

    fn has_host(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.file, PollFlags::IN | PollFlags::OUT)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )?;
        Ok(!fds[0].revents().contains(PollFlags::HUP))
    }
}

fn find() -> io::Result<Option<File>> {
    let open = |path: &std::path::Path| OpenOptions::new().read(true).write(true).open(path);
    let by_name = std::path::Path::new("/dev/virtio-ports").join(PORT_NAME);
    if by_name.exists() {
        return open(&by_name).map(Some);
    }
    for entry in fs::read_dir("/sys/class/virtio-ports")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        let device = std::path::Path::new("/dev").join(entry.file_name());
        if name.trim_end() == PORT_NAME && device.exists() {
            return open(&device).map(Some);
        }
    }
    Ok(None)
}
