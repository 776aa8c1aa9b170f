//! The first file system of every guest: the guest agent as `/init`, a busybox and the modules.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{ImageError, cpio::CpioWriter};
use crate::{
    Progress,
    command::{Helper, find_program},
    kernel::{Kernel, fetch_busybox},
    progress::step,
    staging::DirLock,
};

/// Largest busybox that is packed, in bytes.
const MAX_BUSYBOX_BYTES: u64 = 16 * 1024 * 1024;
/// Most applets that get a link.
const MAX_APPLETS: usize = 1024;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
/// Directories, each with its mode, parents first.
const DIRS: &[(&str, u32)] = &[
    ("bin", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("lib", 0o755),
    ("lib/rhizome", 0o755),
    ("lib/rhizome/modules", 0o755),
    ("mnt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sbin", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/bin", 0o755),
    ("usr/local", 0o755),
    ("usr/local/bin", 0o755),
    ("usr/sbin", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
];

/// A static busybox and the names it answers to.
#[derive(Debug)]
pub(super) struct Busybox {
    path: PathBuf,
    applets: Vec<String>,
}

impl Busybox {
    /// Takes the host's busybox where it is a static one, else the package's.
    pub(super) async fn find(images_dir: &Path, progress: &Progress) -> Result<Self, ImageError> {
        let path = match find_program("busybox").filter(|path| is_static(path)) {
            Some(path) => path,
            None => Self::fetch(images_dir, progress).await?,
        };
        let listed = Helper::new(&path.to_string_lossy())
            .arg("--list")
            .output()
            .await?;
        let applets = String::from_utf8_lossy(&listed)
            .lines()
            .filter(|name| !name.is_empty() && !name.contains('/') && *name != "busybox")
            .take(MAX_APPLETS)
            .map(str::to_owned)
            .collect();
        Ok(Self { path, applets })
    }

    async fn fetch(images_dir: &Path, progress: &Progress) -> Result<PathBuf, ImageError> {
        let dir = images_dir.join("tools");
        let kept = dir.join("busybox/busybox");
        if kept.is_file() {
            return Ok(kept);
        }
        let lock = DirLock::acquire(&dir, || {
            step(
                progress,
                "image",
                "waiting for another daemon that fetches busybox",
            );
        })
        .await
        .map_err(ImageError::io(&dir))?;
        if kept.is_file() {
            return Ok(kept);
        }
        step(progress, "image", "fetching a static busybox");
        let staging = lock.stage().map_err(ImageError::io(&dir))?;
        let unpacked = staging.path().join("unpacked");
        let found = fetch_busybox(&dir, &unpacked, progress).await?;
        std::fs::copy(&found, staging.path().join("busybox")).map_err(ImageError::io(&found))?;
        std::fs::remove_dir_all(&unpacked).map_err(ImageError::io(&unpacked))?;
        staging.commit("busybox").map_err(ImageError::io(&dir))?;
        Ok(kept)
    }
}

/// Writes the archive.
pub(super) fn build(kernel: &Kernel, busybox: &Busybox, guest: &[u8]) -> io::Result<Vec<u8>> {
    let mut cpio = CpioWriter::new(Vec::with_capacity(8 * 1024 * 1024));
    for (dir, mode) in DIRS {
        cpio.dir(dir, *mode)?;
    }
    cpio.char_device("dev/console", 0o600, (5, 1))?;
    cpio.file("etc/passwd", 0o644, PASSWD.as_bytes())?;
    cpio.file("etc/group", 0o644, GROUP.as_bytes())?;
    cpio.file("etc/hosts", 0o644, HOSTS.as_bytes())?;
    // A place for the number that each guest gets.
    cpio.file("etc/machine-id", 0o444, b"")?;
    cpio.file("init", 0o755, guest)?;
    cpio.link("bin/rhizome", "/init")?;
    cpio.copy("bin/busybox", 0o755, &busybox.path)?;
    for applet in &busybox.applets {
        cpio.link(&format!("bin/{applet}"), "busybox")?;
    }
    // `#!/usr/bin/env` is how most scripts begin.
    cpio.link("usr/bin/env", "/bin/busybox")?;
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        cpio.copy(&format!("lib/rhizome/modules/{name}"), 0o644, module)?;
    }
    cpio.finish()
}

/// Tells whether a file is an x86-64 program that needs no other file to run.
fn is_static(path: &Path) -> bool {
    let small = path
        .metadata()
        .is_ok_and(|meta| meta.len() <= MAX_BUSYBOX_BYTES);
    small && std::fs::read(path).is_ok_and(|bytes| has_no_interpreter(&bytes).unwrap_or(false))
}

/// Reads the program headers of a 64-bit little-endian ELF file (System V ABI, chapter 5).
fn has_no_interpreter(bytes: &[u8]) -> Option<bool> {
    const X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let offset = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    if half(18)? != X86_64 {
        return None;
    }
    let offset = usize::try_from(offset).ok()?;
    for number in 0..count {
        let at = offset.checked_add(number.checked_mul(size)?)?;
        let kind = bytes.get(at..at.checked_add(4)?)?;
        if u32::from_le_bytes(kind.try_into().ok()?) == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        assert!(!is_static(&std::env::current_exe().unwrap()));
        assert!(!is_static(Path::new("/etc/passwd")));
        assert!(!is_static(Path::new("/no/such/file")));
        assert_eq!(has_no_interpreter(b"\x7fELF\x02\x01"), None);
    }
}
