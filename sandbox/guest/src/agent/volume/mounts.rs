//! Where a volume is mounted, and how that is undone.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, symlink},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rhizome_guest::wire::VolumeOpen;
use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use super::{DISK, fuse, remote::Remote};

/// Where the parts of volumes are.
const PLACE: &str = "/run/rhizome/volumes";

/// The mounts of one volume. They stay when this is dropped.
pub(super) struct Mounts {
    /// In the order they were made.
    mounted: Vec<PathBuf>,
    place: PathBuf,
    /// Directories that go with the volume.
    changes: Option<PathBuf>,
}

impl Mounts {
    pub(super) fn make(open: &VolumeOpen, remote: &Arc<Remote>) -> io::Result<Self> {
        let name: String = open
            .volume
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let target = PathBuf::from(std::ffi::OsStr::from_bytes(&open.path));
        let mut mounts = Self {
            mounted: Vec::new(),
            place: Path::new(PLACE).join(&name),
            changes: None,
        };
        let made = mounts.try_make(open, remote, &name, &target);
        if made.is_err() {
            // The first error is the one to tell.
            let _ = mounts.remove(true);
        }
        made.map(|()| mounts)
    }

    fn try_make(
        &mut self,
        open: &VolumeOpen,
        remote: &Arc<Remote>,
        name: &str,
        target: &Path,
    ) -> io::Result<()> {
        private_dir(Path::new(PLACE))?;
        if self.place.exists() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        private_dir(&self.place)?;
        fs::create_dir_all(target)?;
        if !open.writable {
            return self.mount_fuse(remote, target);
        }
        let lower = self.place.join("lower");
        private_dir(&lower)?;
        self.mount_fuse(remote, &lower)?;
        let disk = Path::new(DISK);
        let link = self.place.join("changes");
        let room = if disk.is_dir() {
            let room = disk.join("volumes").join(name);
            symlink(&room, &link)?;
            room
        } else {
            // A guest without a disk keeps all in memory.
            link
        };
        make_room(&room, &open.base)?;
        symlink(room.join("upper"), self.place.join("upper"))?;
        // Without redirects and the like, the upper directory says all by itself.
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off,metacopy=off,index=off",
            lower.display(),
            room.join("upper").display(),
            room.join("work").display()
        );
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let options = CString::new(options).map_err(io::Error::other)?;
        mount(
            "rhizome-volume",
            target,
            "overlay",
            flags,
            options.as_c_str(),
        )
        .map_err(|error| because("overlay", error))?;
        self.mounted.push(target.to_owned());
        // Only now: what was kept from before stays if it cannot be mounted this time.
        self.changes = Some(room);
        Ok(())
    }

    fn mount_fuse(&mut self, remote: &Arc<Remote>, target: &Path) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device: OwnedFd = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|error| because("/dev/fuse", error))?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            device.as_raw_fd()
        );
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let options = CString::new(options).map_err(io::Error::other)?;
        mount(
            "rhizome-volume",
            target,
            "fuse.rhizome",
            flags,
            options.as_c_str(),
        )
        .map_err(|error| because("fuse", error))?;
        self.mounted.push(target.to_owned());
        fuse::serve(device, Arc::clone(remote))
    }

    /// Where what was changed lies.
    pub(super) fn upper(&self) -> Option<PathBuf> {
        self.changes.as_ref().map(|room| room.join("upper"))
    }

    /// Unmounts; with `force` also what is in use, which then goes when it is not any more.
    pub(super) fn remove(&mut self, force: bool) -> io::Result<()> {
        let flags = if force {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        while let Some(top) = self.mounted.last() {
            unmount(top, flags)?;
            self.mounted.pop();
        }
        for dir in self.changes.take().iter().chain([&self.place]) {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes the directories for changes to the tree `base`. Those that lie there from before the
/// guest was stopped are kept if they are changes to the same tree, with their mark.
fn make_room(room: &Path, base: &[u8; 32]) -> io::Result<()> {
    let of = room.join("base");
    if fs::read(&of).is_ok_and(|kept| kept == base) {
        return Ok(());
    }
    if room.exists() {
        fs::remove_dir_all(room)?;
    }
    private_dir(room)?;
    for (part, mode) in [("upper", 0o755), ("work", 0o700)] {
        fs::DirBuilder::new().mode(mode).create(room.join(part))?;
    }
    // Last: without it the rest counts as nothing.
    fs::write(of, base)
}

fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

fn because(what: &str, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("cannot mount {what}: {error}"))
}
