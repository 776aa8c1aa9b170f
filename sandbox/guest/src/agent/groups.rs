//! Control groups: all that a program started, wherever it went, and all programs together.

use std::{
    fs::{self, File, OpenOptions},
    io,
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

/// The control groups of programs. Without them, process groups have to do.
pub(crate) struct Groups {
    branch: Option<PathBuf>,
    /// Groups whose program has ended and that something still runs in.
    left: Mutex<Vec<PathBuf>>,
}

/// The control group of one program.
pub(crate) struct Group {
    dir: PathBuf,
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
        let usable =
            Path::new(MOUNT).join("cgroup.procs").exists() && fs::create_dir_all(BRANCH).is_ok();
        Self {
            branch: usable.then(|| PathBuf::from(BRANCH)),
            left: Mutex::default(),
        }
    }

    /// Makes a group; `None` where there are none.
    pub(crate) fn make(&self, name: &str) -> Option<Group> {
        let branch = self.branch.as_ref()?;
        lock(&self.left).retain(|dir| fs::remove_dir(dir).is_err() && dir.exists());
        let dir = branch.join(name);
        match fs::create_dir(&dir) {
            Ok(()) => Some(Group { dir }),
            Err(_) => None,
        }
    }

    /// Removes the group of a program that has ended, once it is empty.
    pub(crate) fn leave(&self, group: &Group) {
        if fs::remove_dir(&group.dir).is_err() {
            lock(&self.left).push(group.dir.clone());
        }
    }

    /// Stops all programs, or lets them go on; returns whether none runs.
    pub(crate) fn freeze(&self, freeze: bool) -> io::Result<bool> {
        let Some(branch) = &self.branch else {
            return Ok(false);
        };
        fs::write(branch.join("cgroup.freeze"), if freeze { "1" } else { "0" })?;
        if !freeze {
            return Ok(false);
        }
        let until = Instant::now() + FREEZES_WITHIN;
        loop {
            let events = fs::read_to_string(branch.join("cgroup.events"))?;
            if events.lines().any(|line| line == "frozen 1") {
                return Ok(true);
            }
            if Instant::now() > until {
                return Err(io::Error::other("a program does not stop"));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Group {
    /// Returns the file that a process writes to join.
    pub(crate) fn door(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.procs"))
    }

    /// Kills all that is in the group.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.dir.join("cgroup.kill"), "1")
    }
}
