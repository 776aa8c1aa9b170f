//! The file systems that every guest has.

use std::{
    ffi::CStr,
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::Path,
};

use rustix::mount::{MountFlags, mount};

use super::Warnings;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const CLOSED: MountFlags = PLAIN.union(MountFlags::NOEXEC);

/// Mounts what the agent itself needs.
pub(crate) fn basics(warnings: &mut Warnings) {
    let all: [(&str, &str, MountFlags, &CStr); 4] = [
        ("devtmpfs", "/dev", MountFlags::NOSUID, c"mode=0755"),
        ("proc", "/proc", CLOSED, c""),
        ("sysfs", "/sys", CLOSED, c""),
        ("tmpfs", "/run", PLAIN, c"mode=0755"),
    ];
    for (kind, target, flags, data) in all {
        warnings.note(target, mount_on(kind, kind, Path::new(target), flags, data));
    }
}

/// Mounts the rest, once the root is what it will be.
pub(crate) fn finish(warnings: &mut Warnings) {
    let all: [(&str, &str, MountFlags, &CStr); 3] = [
        ("cgroup2", "/sys/fs/cgroup", CLOSED, c""),
        (
            "devpts",
            "/dev/pts",
            MountFlags::NOSUID.union(MountFlags::NOEXEC),
            c"mode=0620,gid=5,ptmxmode=0666",
        ),
        ("tmpfs", "/dev/shm", PLAIN, c"mode=1777"),
    ];
    for (kind, target, flags, data) in all {
        warnings.note(target, mount_on(kind, kind, Path::new(target), flags, data));
    }
    // udev would make these.
    let links = [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ];
    for (target, link) in links {
        match symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                warnings.note(link, Err::<(), _>(error));
            }
            _ => {}
        }
    }
    warnings.note("/tmp", fs::create_dir_all("/tmp"));
    let open_to_all = fs::Permissions::from_mode(0o1777);
    warnings.note("/tmp", fs::set_permissions("/tmp", open_to_all));
}

/// Mounts on a directory that is made if missing. Already mounted is fine.
pub(crate) fn mount_on(
    kind: &str,
    source: &str,
    target: &Path,
    flags: MountFlags,
    data: &CStr,
) -> io::Result<()> {
    if !target.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(target)?;
    }
    match mount(source, target, kind, flags, data) {
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
