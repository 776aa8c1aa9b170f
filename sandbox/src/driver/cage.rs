//! How much of its host a monitor may take.
//!
//! A control group of its own bounds memory, processors and threads where the daemon may make
//! one: below the daemon's own group in the first version of control groups, so that what bounds
//! the daemon bounds its guests too; beside it in the second, where a group with processes cannot
//! have groups below that share out memory. Where neither can be made, the limits of a process
//! ([`rlimits`]) are all there is.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::process_start;

/// Memory of a monitor beside its guest's, in MiB: its program, copies of kernel and initial file
/// system, what it has translated in emulation ([`TRANSLATED_MIB`]), and room.
const OVERHEAD_MIB: u64 = 384;
/// What a monitor may keep of code that it has translated, in MiB.
pub(super) const TRANSLATED_MIB: u64 = 128;
/// Threads of a monitor beside its processors: QEMU starts up to 64 for its disks.
const THREADS: u32 = 128;
/// Length of the period in which processor time is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// Files and sockets that a monitor may have open.
const OPEN_FILES: u64 = 1024;
/// What one file of a monitor may have beside its largest disk, in bytes.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// What the names of all groups begin with.
const PREFIX: &str = "rhizome-";

/// How much one monitor may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) memory_mib: u32,
    pub(super) vcpus: u32,
    /// Of a guest on a template, what of that is not there yet: where the guest first touches it
    /// the kernel puts zeros into the template, for all, and counts them here, beside the page of
    /// the guest's own.
    pub(super) holes_bytes: u64,
}

impl Share {
    fn memory_bytes(self) -> u64 {
        ((u64::from(self.memory_mib) + OVERHEAD_MIB) << 20) + self.holes_bytes
    }

    /// One processor more than the guest's, for disks and channel.
    fn quota_us(self) -> u64 {
        (u64::from(self.vcpus) + 1) * PERIOD_US
    }

    fn threads(self) -> u64 {
        (THREADS + self.vcpus).into()
    }
}

/// The control groups of one monitor.
#[derive(Debug)]
pub(super) struct Cage {
    groups: Vec<PathBuf>,
}

impl Cage {
    /// Puts a process into groups of its own, as far as the host lets us. The name ends with a
    /// hyphen and the process id.
    pub(super) fn around(pid: u32, name: &str, share: Share) -> Self {
        let mut groups = Vec::new();
        for place in places() {
            place.sweep();
            let group = place.group(name);
            match place.make(&group, share) {
                Ok(()) if fs::write(group.join("cgroup.procs"), pid.to_string()).is_ok() => {
                    groups.push(group);
                }
                _ => {
                    let _ = fs::remove_dir(&group);
                }
            }
        }
        Self { groups }
    }

    /// Finds the groups that a former daemon made.
    pub(super) fn find(name: &str) -> Self {
        let groups = places().into_iter().map(|place| place.group(name));
        Self {
            groups: groups.filter(|group| group.is_dir()).collect(),
        }
    }

    /// Removes the groups, once the process has ended.
    pub(super) fn remove(&self) {
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Returns what a monitor is held to here, for people.
pub(crate) fn describe() -> String {
    let name = format!("probe-{}", std::process::id());
    let share = Share {
        memory_mib: 0,
        vcpus: 1,
        holes_bytes: 0,
    };
    let mut made = Vec::new();
    for place in places() {
        let group = place.group(&name);
        if place.make(&group, share).is_ok() {
            made.push(place.kind.name());
        }
        let _ = fs::remove_dir(&group);
    }
    match made.is_empty() {
        true => "limits of the process alone: no control group can be made here".to_owned(),
        false => format!("control groups: {}", made.join(", ")),
    }
}

/// Returns the words that give a process its own limits: no image of its memory on a disk, and no
/// file beyond its largest disk.
pub(super) fn rlimits(largest_disk: u64) -> [String; 4] {
    [
        "--core=0:0".to_owned(),
        format!("--nofile={OPEN_FILES}:{OPEN_FILES}"),
        format!("--fsize={0}:{0}", largest_disk.saturating_add(FILE_BYTES)),
        "--".to_owned(),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Cpu,
    Pids,
    /// All of them in one tree.
    Unified,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Unified => "memory, cpu and pids (second version)",
        }
    }
}

/// A group under which, or beside which, groups of monitors may be made.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    kind: Kind,
    parent: PathBuf,
}

impl Place {
    fn group(&self, name: &str) -> PathBuf {
        self.parent.join(format!("{PREFIX}{name}"))
    }

    /// Removes the groups of monitors that ended while no daemon looked.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.parent).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.rsplit_once('-'))
                .and_then(|(_, pid)| pid.parse().ok());
            if pid.is_some_and(|pid| process_start(pid).is_none()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    fn make(&self, group: &Path, share: Share) -> io::Result<()> {
        if self.kind == Kind::Unified {
            // Refused where somebody else shares out; then they are on already, or stay off.
            let _ = fs::write(
                self.parent.join("cgroup.subtree_control"),
                "+memory +cpu +pids",
            );
        }
        match fs::create_dir(group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let set = |file: &str, value: String| fs::write(group.join(file), value);
        match self.kind {
            Kind::Memory => set("memory.limit_in_bytes", share.memory_bytes().to_string()),
            Kind::Cpu => {
                set("cpu.cfs_period_us", PERIOD_US.to_string())?;
                set("cpu.cfs_quota_us", share.quota_us().to_string())
            }
            Kind::Pids => set("pids.max", share.threads().to_string()),
            Kind::Unified => {
                set("memory.max", share.memory_bytes().to_string())?;
                set("pids.max", share.threads().to_string())?;
                set("cpu.max", format!("{} {PERIOD_US}", share.quota_us()))
            }
        }
    }
}

fn places() -> Vec<Place> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    find_places(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

/// Finds where the daemon is, in every tree that there is.
fn find_places(mounts: &str, own: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let kinds: Vec<_> = match controllers {
            "" => vec![Kind::Unified],
            some => [Kind::Memory, Kind::Cpu, Kind::Pids]
                .into_iter()
                .filter(|kind| some.split(',').any(|one| one == kind.name()))
                .collect(),
        };
        for kind in kinds {
            let Some((root, at)) = mount_of(mounts, kind) else {
                continue;
            };
            // A container sees its own part of the tree, and the path from the whole one.
            let Ok(below) = Path::new(path).strip_prefix(root) else {
                continue;
            };
            let here = Path::new(at).join(below);
            let parent = match (kind, here.parent()) {
                (Kind::Unified, Some(parent)) if !below.as_os_str().is_empty() => parent.to_owned(),
                _ => here,
            };
            places.push(Place { kind, parent });
        }
    }
    places
}

/// Returns the root within its tree, and the mount point, of a tree's mount.
fn mount_of(mounts: &str, kind: Kind) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (system, _, options) = (right.next()?, right.next()?, right.next()?);
        let fits = match kind {
            Kind::Unified => system == "cgroup2",
            _ => system == "cgroup" && options.split(',').any(|one| one == kind.name()),
        };
        fits.then_some((root, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_in_both_versions() {
        let mounts = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
broken";
        let own =
            "4:memory:/service/x\n3:cpu,cpuacct:/\n0::/system.slice/rhizome.service\nbroken\n9:";
        let place = |kind, parent: &str| Place {
            kind,
            parent: parent.into(),
        };
        assert_eq!(
            find_places(mounts, own),
            [
                place(Kind::Memory, "/sys/fs/cgroup/memory/service/x"),
                place(Kind::Cpu, "/sys/fs/cgroup/cpu,cpuacct/"),
                place(Kind::Unified, "/sys/fs/cgroup/unified/system.slice"),
            ]
        );
        let container = "35 31 0:32 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup rw";
        assert_eq!(
            find_places(container, "0::/docker/a"),
            [place(Kind::Unified, "/sys/fs/cgroup")]
        );
        assert!(find_places(container, "0::/elsewhere").is_empty());
        assert!(find_places("", "").is_empty());
    }

    #[test]
    fn what_a_guest_puts_into_a_template_is_counted_beside_its_own() {
        let share = Share {
            memory_mib: 512,
            vcpus: 1,
            holes_bytes: 400 << 20,
        };
        assert_eq!(share.memory_bytes(), (512 + OVERHEAD_MIB + 400) << 20);
    }

    #[test]
    fn a_process_is_put_in_and_its_groups_go_with_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let name = format!("test-{}", child.id());
        let share = Share {
            memory_mib: 256,
            vcpus: 1,
            holes_bytes: 0,
        };
        let cage = Cage::around(child.id(), &name, share);
        for group in &cage.groups {
            let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
            assert_eq!(inside.trim(), child.id().to_string());
        }
        assert_eq!(Cage::find(&name).groups, cage.groups);
        eprintln!("{}: {:?}", describe(), cage.groups);
        child.kill().unwrap();
        child.wait().unwrap();
        cage.remove();
        assert!(Cage::find(&name).groups.is_empty());

        // What nobody removed goes when the next monitor starts.
        for place in places() {
            let group = place.group(&name);
            let _ = fs::create_dir(&group);
            place.sweep();
            assert!(!group.exists());
        }
    }
}
