//! Control groups: all that a program started, wherever it went, and all programs together.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use super::lock;

/// Where the second version of control groups is mounted, and our branch of it.
const MOUNT: &str = "/sys/fs/cgroup";
const BRANCH: &str = "/sys/fs/cgroup/rhizome";
/// How long programs may take until none of them runs. They stop at their next step, but one in
/// the middle of a disk's work has to finish that.
const FREEZES_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Groups without a program of ours, before those that are empty are removed.
const MAX_LEFT: usize = 8;
/// Longest text of the kernel's about a group, in bytes.
const EVENTS_BYTES: usize = 128;

/// The control groups of programs. Without them, process groups have to do.
pub(crate) struct Groups {
    branch: Option<Branch>,
    left: Mutex<Left>,
}

/// The group that all of them are below. Its files are held open: right after a resume, when
/// nothing is in any cache, finding them costs more than writing to them.
struct Branch {
    freeze: File,
    events: File,
}

/// Groups without a program of ours.
#[derive(Default)]
struct Left {
    /// What their programs left running may still be in them.
    groups: Vec<Group>,
    /// Number of the last one that was made.
    last: u64,
}

/// The control group of one program.
pub(crate) struct Group {
    path: PathBuf,
    dir: File,
    events: File,
}

impl Groups {
    pub(crate) fn none() -> Self {
        Self {
            branch: None,
            left: Mutex::default(),
        }
    }

    /// Uses the control groups of this machine, which is ours alone.
    pub(crate) fn of_machine() -> Self {
        let groups = Self {
            branch: Branch::make().ok(),
            left: Mutex::default(),
        };
        // The first program finds its group made.
        if let Some(group) = groups.make() {
            groups.leave(group);
        }
        groups
    }

    /// Returns an empty group; `None` where there are none.
    ///
    /// One that a program before had is used again: making and removing a group is a good part
    /// of what a short command takes.
    pub(crate) fn make(&self) -> Option<Group> {
        self.branch.as_ref()?;
        let mut left = lock(&self.left);
        let Left { groups, last } = &mut *left;
        if let Some(found) = groups.iter().position(Group::is_empty) {
            let group = groups.swap_remove(found);
            if groups.len() > MAX_LEFT {
                groups.retain(|group| !group.is_empty() || fs::remove_dir(&group.path).is_err());
            }
            return Some(group);
        }
        *last += 1;
        Group::make(Path::new(BRANCH).join(last.to_string())).ok()
    }

    /// Takes back the group of a program that has ended.
    pub(crate) fn leave(&self, group: Group) {
        lock(&self.left).groups.push(group);
    }

    /// Stops all programs, or lets them go on; returns whether none runs.
    pub(crate) fn freeze(&self, freeze: bool) -> io::Result<bool> {
        let Some(branch) = &self.branch else {
            return Ok(false);
        };
        branch
            .freeze
            .write_all_at(if freeze { b"1" } else { b"0" }, 0)?;
        if !freeze {
            return Ok(false);
        }
        let until = Instant::now() + FREEZES_WITHIN;
        loop {
            if says(&branch.events, "frozen 1")? {
                return Ok(true);
            }
            if Instant::now() > until {
                return Err(io::Error::other("a program does not stop"));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Branch {
    fn make() -> io::Result<Self> {
        fs::metadata(Path::new(MOUNT).join("cgroup.procs"))?;
        fs::create_dir_all(BRANCH)?;
        let branch = Path::new(BRANCH);
        Ok(Self {
            freeze: OpenOptions::new()
                .write(true)
                .open(branch.join("cgroup.freeze"))?,
            events: File::open(branch.join("cgroup.events"))?,
        })
    }
}

impl Group {
    fn make(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let opened = || Ok((File::open(&path)?, File::open(path.join("cgroup.events"))?));
        match opened() {
            Ok((dir, events)) => Ok(Self { path, dir, events }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    fn is_empty(&self) -> bool {
        says(&self.events, "populated 0").unwrap_or(false)
    }

    /// Returns its directory, which a program can be born into.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Kills all that is in the group.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }
}

/// Whether a line of a group's `cgroup.events` is this one, now.
fn says(events: &File, wanted: &str) -> io::Result<bool> {
    let mut text = [0; EVENTS_BYTES];
    let len = events.read_at(&mut text, 0)?;
    Ok(text[..len]
        .split(|byte| *byte == b'\n')
        .any(|line| line == wanted.as_bytes()))
}
