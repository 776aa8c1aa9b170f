//! The kernel that guests boot.
//!
//! It is a path that the user gives, or the kernel package of the host's distribution, downloaded
//! and unpacked into the image directory and never installed. Either way the store keeps the
//! bootable file and the few modules a guest needs, in load order, under a name made of the
//! release and the content's hash.

mod modules;
mod source;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub(crate) use source::fetch_busybox;

use crate::{
    Progress, SandboxConfig,
    apt::AptError,
    command::CommandError,
    progress::step,
    staging::{DirLock, hash_file, write_atomic},
};

/// Largest kernel file that is looked at, in bytes.
const MAX_KERNEL_BYTES: u64 = 256 * 1024 * 1024;
/// The description beside a stored kernel.
const MANIFEST: &str = "kernel.json";
/// Version of that description; another version is as good as no kernel. It moves with the modules
/// that are kept: 2 has `tun` and `fuse`, 3 has `virtio_balloon`, 4 has those of PCI and its sockets.
const MANIFEST_VERSION: u32 = 4;

/// A kernel on disk, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The bootable file.
    pub image: PathBuf,
    /// Its release, as in `uname -r`.
    pub release: String,
    /// The modules that a guest loads, uncompressed and in order.
    pub modules: Vec<PathBuf>,
    /// BLAKE3 of the bootable file, as hex.
    pub hash: String,
    /// Where it came from: a package with its version, or a path.
    pub source: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    release: String,
    hash: String,
    source: String,
    modules: Vec<String>,
    created_ms: u64,
    from_package: bool,
}

/// Finds the configured kernel, or the cached one, or fetches the distribution's.
///
/// # Errors
/// A [`KernelError`] whose hint says what to install or configure.
pub async fn ensure(config: &SandboxConfig, progress: &Progress) -> Result<Kernel, KernelError> {
    if let Some(kernel) = find(config)? {
        return Ok(kernel);
    }
    let dir = kernels_dir(config);
    let lock = DirLock::acquire(&dir, || {
        step(
            progress,
            "kernel",
            "waiting for another daemon that prepares the kernel",
        );
    })
    .await
    .map_err(KernelError::io(&dir))?;
    if let Some(kernel) = find(config)? {
        return Ok(kernel);
    }
    let staging = lock.stage().map_err(KernelError::io(&dir))?;
    let found = match &config.kernel {
        Some(path) => source::given(path, config.kernel_modules.as_deref())?,
        None => source::package(&dir, &staging.path().join("unpacked"), progress).await?,
    };
    step(
        progress,
        "kernel",
        format_args!("keeping Linux {}", found.release),
    );
    let image = staging.path().join("vmlinuz");
    fs::copy(&found.image, &image).map_err(KernelError::io(&found.image))?;
    let hash = hash_file(&image).map_err(KernelError::io(&image))?;
    let modules = match &found.modules {
        Some(tree) => modules::collect(tree, staging.path()).await?,
        None => Vec::new(),
    };
    let _ = fs::remove_dir_all(staging.path().join("unpacked"));
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        release: found.release,
        hash,
        source: found.source,
        modules,
        created_ms: crate::manager::now_ms(),
        from_package: config.kernel.is_none(),
    };
    let json = serde_json::to_vec_pretty(&manifest).expect("a manifest becomes JSON");
    write_atomic(&staging.path().join(MANIFEST), &json).map_err(KernelError::io(&dir))?;
    let name = entry_name(&manifest.release, &manifest.hash);
    let entry = staging.commit(&name).map_err(KernelError::io(&dir))?;
    Ok(kernel_of(&entry, manifest))
}

/// Returns the kernel if it is there already, without the network.
///
/// # Errors
/// When a configured kernel cannot be read.
pub fn find(config: &SandboxConfig) -> Result<Option<Kernel>, KernelError> {
    let dir = kernels_dir(config);
    if let Some(path) = &config.kernel {
        let release = release_of(path)?;
        let hash = hash_file(path).map_err(KernelError::io(path))?;
        let entry = dir.join(entry_name(&release, &hash));
        return Ok(read_manifest(&entry).map(|manifest| kernel_of(&entry, manifest)));
    }
    let Ok(entries) = fs::read_dir(&dir) else {
        return Ok(None);
    };
    let newest = entries
        .filter_map(Result::ok)
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|entry| Some((read_manifest(&entry.path())?, entry.path())))
        .filter(|(manifest, _)| manifest.from_package)
        .max_by_key(|(manifest, _)| manifest.created_ms);
    Ok(newest.map(|(manifest, entry)| kernel_of(&entry, manifest)))
}

/// Why there is no kernel to boot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A file could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file given is not a Linux kernel for this machine.
    #[error("`{}` is not a bootable x86-64 Linux kernel", path.display())]
    NotAKernel {
        /// The file.
        path: PathBuf,
    },
    /// A module that a guest cannot do without is missing.
    #[error("Linux {release} has no module `{module}`, and it is not built in")]
    NoModule {
        /// The kernel's release.
        release: String,
        /// The module.
        module: String,
    },
    /// The host's distribution is not one whose kernel packages are known.
    #[error("no kernel package is known for the distribution `{id}`")]
    UnknownDistribution {
        /// `ID` of `/etc/os-release`.
        id: String,
    },
    /// The host's processor cannot run the guests built here.
    #[error("sandboxes need an x86-64 host; this one is {arch}")]
    UnsupportedArch {
        /// The host's architecture.
        arch: &'static str,
    },
    /// The package unpacked to something without a kernel.
    #[error("the package `{package}` has no kernel in it")]
    EmptyPackage {
        /// The package.
        package: String,
    },
    /// The package could not be fetched.
    #[error("cannot fetch the kernel package")]
    Apt(#[from] AptError),
    /// A helper program is missing or failed.
    #[error("cannot unpack a kernel module")]
    Command(#[from] CommandError),
}

impl KernelError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        const OPTION: &str = "or give a kernel of your own with `--kernel /path/to/vmlinuz`";
        match self {
            Self::Apt(error) => Some(match error.hint() {
                Some(hint) => format!("{hint}, {OPTION}"),
                None => OPTION.to_owned(),
            }),
            Self::Command(error) => error.hint(),
            Self::UnknownDistribution { .. } | Self::EmptyPackage { .. } => Some(
                "give a kernel with `--kernel /path/to/vmlinuz`; Debian's `linux-image-cloud-amd64` is known to work"
                    .to_owned(),
            ),
            Self::NotAKernel { .. } => {
                Some("give a `vmlinuz` or `vmlinux` file, as in /boot".to_owned())
            }
            Self::NoModule { .. } => Some(
                "give the directory of its modules, or a kernel with virtio built in".to_owned(),
            ),
            Self::Io { .. } | Self::UnsupportedArch { .. } => None,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

fn kernels_dir(config: &SandboxConfig) -> PathBuf {
    config.images_dir.join("kernels")
}

fn entry_name(release: &str, hash: &str) -> String {
    // A release comes out of a file that the user named: keep it from being a path.
    let release: String = release
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._+-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .take(96)
        .collect();
    // Other modules are another entry: one that stands is never changed.
    format!("linux-{release}-{}-{MANIFEST_VERSION}", &hash[..12])
}

fn read_manifest(entry: &Path) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_slice(&fs::read(entry.join(MANIFEST)).ok()?).ok()?;
    (manifest.version == MANIFEST_VERSION && entry.join("vmlinuz").is_file()).then_some(manifest)
}

fn kernel_of(entry: &Path, manifest: Manifest) -> Kernel {
    Kernel {
        image: entry.join("vmlinuz"),
        release: manifest.release,
        modules: manifest
            .modules
            .iter()
            .map(|name| entry.join(name))
            .collect(),
        hash: manifest.hash,
        source: manifest.source,
    }
}

/// Reads the release out of a kernel file: the boot header of a `bzImage`, or the banner in an
/// uncompressed `vmlinux`.
fn release_of(path: &Path) -> Result<String, KernelError> {
    let size = fs::metadata(path).map_err(KernelError::io(path))?.len();
    if size > MAX_KERNEL_BYTES {
        return Err(KernelError::NotAKernel {
            path: path.to_owned(),
        });
    }
    let bytes = fs::read(path).map_err(KernelError::io(path))?;
    release_in(&bytes).ok_or_else(|| KernelError::NotAKernel {
        path: path.to_owned(),
    })
}

fn release_in(bytes: &[u8]) -> Option<String> {
    let banner = if bytes.get(0x202..0x206) == Some(b"HdrS") {
        // Documentation/arch/x86/boot.rst: a pointer, less 0x200, to a NUL-terminated banner.
        let at = usize::from(u16::from_le_bytes(
            bytes.get(0x20e..0x210)?.try_into().ok()?,
        ));
        bytes.get(at + 0x200..)?
    } else if bytes.starts_with(b"\x7fELF") {
        const BANNER: &[u8] = b"Linux version ";
        let at = bytes.windows(BANNER.len()).position(|w| w == BANNER)?;
        &bytes[at + BANNER.len()..]
    } else {
        return None;
    };
    let end = banner.iter().take(128).position(|&b| b == b' ' || b == 0)?;
    let release = std::str::from_utf8(&banner[..end]).ok()?;
    (!release.is_empty()).then(|| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot_sector(release: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        bytes[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        bytes
    }

    #[test]
    fn the_release_is_read_from_both_kinds_of_kernel() {
        let bytes = boot_sector("6.1.0-57-cloud-amd64 (debian)");
        assert_eq!(release_in(&bytes).as_deref(), Some("6.1.0-57-cloud-amd64"));
        let elf = b"\x7fELF....Linux version 6.8.0-31-generic (buildd)";
        assert_eq!(release_in(elf).as_deref(), Some("6.8.0-31-generic"));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(release_in(b""), None);
        assert_eq!(release_in(b"#!/bin/sh\n"), None);
        assert_eq!(release_in(&boot_sector("")), None);
        let mut cut = boot_sector("6.1");
        cut[0x20e..0x210].copy_from_slice(&0xffff_u16.to_le_bytes());
        assert_eq!(release_in(&cut), None);
    }

    #[test]
    fn a_release_cannot_name_another_directory() {
        let name = entry_name("../../etc", &"0".repeat(64));
        assert!(!name.contains('/'), "{name}");
    }
}
