//! From the initramfs to the root that the host asks for.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{MountFlags, mount_move},
    process::{chdir, chroot},
};

use super::{Warnings, cmdline::Words, mounts::mount_on, say};

const LOWER: &str = "/.rhizome/lower";
const UPPER: &str = "/.rhizome/upper";
const ROOT: &str = "/.rhizome/root";
/// Where the command goes, below the new root.
const COMMAND: &str = "usr/local/bin/rhizome";
/// How long the kernel may take to find a disk after its driver is loaded.
const DISK_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The root that the kernel's command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    lower: Disk,
    /// None for memory.
    upper: Option<Disk>,
}

#[derive(Debug, PartialEq, Eq)]
struct Disk {
    device: String,
    kind: String,
}

impl Plan {
    /// Returns None if we stay in the initramfs.
    pub(crate) fn from_words(words: &Words) -> Option<Self> {
        let kind = |word, default: &str| words.get(word).unwrap_or(default).to_owned();
        let lower = Disk {
            device: words.get("root")?.to_owned(),
            kind: kind("rootfstype", "erofs"),
        };
        let upper = words
            .get("upper")
            .filter(|device| *device != "tmpfs")
            .map(|device| Disk {
                device: device.to_owned(),
                kind: kind("upperfstype", "ext4"),
            });
        Some(Self { lower, upper })
    }
}

/// Makes the planned root the root. What is in the initramfs is given back to memory.
///
/// Returns the disk that takes what is written, if it is one: no path leads there afterwards.
pub(crate) fn switch(plan: &Plan, warnings: &mut Warnings) -> io::Result<Option<File>> {
    mount_disk(&plan.lower, LOWER, MountFlags::RDONLY)?;
    match &plan.upper {
        Some(disk) => mount_disk(disk, UPPER, MountFlags::NOATIME)?,
        None => mount_on(
            "tmpfs",
            "tmpfs",
            Path::new(UPPER),
            MountFlags::empty(),
            c"mode=0755",
        )
        .map_err(|error| because("tmpfs", &error))?,
    }
    let upper = plan.upper.as_ref().map(|_| File::open(UPPER)).transpose()?;
    for dir in ["data", "work"] {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(Path::new(UPPER).join(dir))?;
    }
    let options = format!("lowerdir={LOWER},upperdir={UPPER}/data,workdir={UPPER}/work");
    let options = CString::new(options).map_err(io::Error::other)?;
    let root = Path::new(ROOT);
    mount_on("overlay", "overlay", root, MountFlags::empty(), &options)
        .map_err(|error| because("overlay", &error))?;
    warnings.note("the rhizome command", install_command(root));
    // The overlay keeps its own hold on the disk; volumes need one to put their changes there.
    warnings.note("the disk for volumes", keep_disk());
    for dir in ["dev", "proc", "sys", "run"] {
        let target = root.join(dir);
        fs::create_dir_all(&target)?;
        mount_move(Path::new("/").join(dir), &target)?;
    }
    forget_initramfs();
    chdir(root)?;
    mount_move(".", "/")?;
    chroot(".")?;
    chdir("/")?;
    Ok(upper)
}

fn keep_disk() -> io::Result<()> {
    let place = Path::new(crate::agent::VOLUME_DISK);
    let above = place.parent().unwrap_or(place);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(above)?;
    fs::create_dir_all(place)?;
    Ok(mount_move(UPPER, place)?)
}

fn mount_disk(disk: &Disk, target: &str, flags: MountFlags) -> io::Result<()> {
    let until = Instant::now() + DISK_WITHIN;
    let device = loop {
        if let Some(device) = find_device(&disk.device) {
            break device;
        }
        if Instant::now() > until {
            return Err(io::Error::other(format!(
                "there is no disk {}",
                disk.device
            )));
        }
        thread::sleep(LOOK_AGAIN);
    };
    mount_on(&disk.kind, &device, Path::new(target), flags, c"")
        .map_err(|error| because(&disk.device, &error))
}

/// Returns the device of a path, or of a disk's serial: which disk is found first depends on the
/// machine and the kernel.
fn find_device(wanted: &str) -> Option<String> {
    if wanted.starts_with('/') {
        return Path::new(wanted).exists().then(|| wanted.to_owned());
    }
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    for disk in disks {
        let serial = fs::read_to_string(disk.path().join("serial")).unwrap_or_default();
        let device = format!("/dev/{}", disk.file_name().to_string_lossy());
        if serial.trim_end() == wanted && Path::new(&device).exists() {
            return Some(device);
        }
    }
    None
}

/// The image need not hold the command, and need not be built again when it changes.
fn install_command(root: &Path) -> io::Result<()> {
    let target = root.join(COMMAND);
    if let Some(dir) = target.parent() {
        fs::create_dir_all(dir)?;
    }
    let draft = target.with_file_name(".rhizome-new");
    fs::copy("/proc/self/exe", &draft)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    fs::rename(draft, target)
}

/// Removes what the kernel unpacked; it lives in memory and nobody can reach it any more.
fn forget_initramfs() {
    let root = Path::new("/");
    if let Ok(metadata) = fs::metadata(root) {
        clear(root, metadata.dev());
    }
}

fn clear(dir: &Path, device: u64) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match fs::symlink_metadata(&path) {
            // Something is mounted there.
            Ok(metadata) if metadata.dev() != device => {}
            Ok(metadata) if metadata.is_dir() => {
                clear(&path, device);
                // Not empty if something is mounted below it.
                let _ = fs::remove_dir(&path);
            }
            _ => {
                if let Err(error) = fs::remove_file(&path) {
                    say(&format!("{}: {error}", path.display()));
                }
            }
        }
    }
}

fn because(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot mount {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_make_a_plan() {
        assert_eq!(
            Plan::from_words(&Words::parse("quiet rhizome.upper=/dev/vdb")),
            None
        );
        let plan = Plan::from_words(&Words::parse("rhizome.root=/dev/vda rhizome.upper=tmpfs"));
        let lower = Disk {
            device: "/dev/vda".to_owned(),
            kind: "erofs".to_owned(),
        };
        assert_eq!(plan, Some(Plan { lower, upper: None }));
        let plan = Plan::from_words(&Words::parse(
            "rhizome.root=/dev/vda rhizome.rootfstype=ext4 rhizome.upper=/dev/vdb",
        ));
        let ext4 = |device: &str| Disk {
            device: device.to_owned(),
            kind: "ext4".to_owned(),
        };
        assert_eq!(
            plan,
            Some(Plan {
                lower: ext4("/dev/vda"),
                upper: Some(ext4("/dev/vdb"))
            })
        );
    }
}
