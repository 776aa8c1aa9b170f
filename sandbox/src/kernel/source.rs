//! Where kernels come from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{KernelError, release_of};
use crate::{Progress, apt::Apt, progress::step};

/// Kernel packages of Debian, the smallest first.
const DEBIAN: &[&str] = &["linux-image-cloud-amd64", "linux-image-amd64"];
/// Kernel packages of Ubuntu, the smallest first.
const UBUNTU: &[&str] = &[
    "linux-image-virtual",
    "linux-image-generic",
    "linux-image-kvm",
];
/// Package families that together make up one kernel: file and modules may come apart.
const FAMILIES: &[&str] = &[
    "linux-image-",
    "linux-modules-",
    "linux-binary-",
    "linux-base-",
];
/// Depth to which the families are followed.
const MAX_PACKAGES: usize = 8;

/// A kernel found outside the store.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) image: PathBuf,
    pub(super) release: String,
    pub(super) modules: Option<PathBuf>,
    pub(super) source: String,
}

/// Looks at a kernel that the user named.
pub(super) fn given(path: &Path, modules: Option<&Path>) -> Result<Found, KernelError> {
    let release = release_of(path)?;
    let modules = match modules {
        Some(dir) => Some(dir.to_owned()),
        None => [
            PathBuf::from("/lib/modules").join(&release),
            path.with_file_name("modules").join(&release),
        ]
        .into_iter()
        .find(|dir| dir.is_dir()),
    };
    Ok(Found {
        image: path.to_owned(),
        release,
        modules,
        source: path.display().to_string(),
    })
}

/// Downloads the distribution's kernel and unpacks it below `unpacked`.
pub(super) async fn package(
    store: &Path,
    unpacked: &Path,
    progress: &Progress,
) -> Result<Found, KernelError> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(KernelError::UnsupportedArch {
            arch: std::env::consts::ARCH,
        });
    }
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let candidates = candidates(&os_release)?;
    step(
        progress,
        "kernel",
        "fetching the distribution's kernel package",
    );
    let apt = Apt::refresh(&store.join(".apt"), progress).await?;
    let mut meta = None;
    for &name in &candidates {
        if let Some(depends) = apt.depends(name).await? {
            meta = Some((name, depends));
            break;
        }
    }
    let Some((meta, depends)) = meta else {
        return Err(apt.no_package(&candidates).into());
    };
    let mut wanted: Vec<String> = depends.into_iter().filter(|d| is_part(d)).collect();
    wanted.truncate(1);
    if wanted.is_empty() {
        // Not a meta package after all: it is the kernel itself.
        wanted.push(meta.to_owned());
    }
    let mut next = 0;
    while next < wanted.len() && wanted.len() < MAX_PACKAGES {
        for name in apt.depends(&wanted[next]).await?.unwrap_or_default() {
            if is_part(&name) && !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        next += 1;
    }
    apt.unpack(&wanted, unpacked, progress).await?;
    let boot = unpacked.join("boot");
    let image = fs::read_dir(&boot)
        .map_err(KernelError::io(&boot))?
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
        .map(|entry| entry.path())
        .ok_or_else(|| KernelError::EmptyPackage {
            package: wanted.join(", "),
        })?;
    let release = release_of(&image)?;
    let modules = ["lib/modules", "usr/lib/modules"]
        .map(|dir| unpacked.join(dir).join(&release))
        .into_iter()
        .find(|dir| dir.is_dir());
    Ok(Found {
        image,
        release,
        modules,
        source: wanted.swap_remove(0),
    })
}

/// Downloads a static busybox and returns its path below `unpacked`.
pub(crate) async fn fetch_busybox(
    store: &Path,
    unpacked: &Path,
    progress: &Progress,
) -> Result<PathBuf, crate::apt::AptError> {
    let apt = Apt::refresh(&store.join(".apt"), progress).await?;
    if apt.depends("busybox-static").await?.is_none() {
        return Err(apt.no_package(&["busybox-static"]));
    }
    apt.unpack(&["busybox-static".to_owned()], unpacked, progress)
        .await?;
    let paths = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
    let [first, second] = paths;
    Ok(if first.is_file() { first } else { second })
}

fn is_part(package: &str) -> bool {
    FAMILIES.iter().any(|family| package.starts_with(family))
        && package.bytes().any(|b| b.is_ascii_digit())
        && !package.starts_with("linux-image-extra")
}

fn candidates(os_release: &str) -> Result<Vec<&'static str>, KernelError> {
    let field = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches(['"', '\'']).to_owned())
            .unwrap_or_default()
    };
    let id = field("ID");
    let like = field("ID_LIKE");
    let is = |name: &str| id == name || like.split_whitespace().any(|l| l == name);
    // Ubuntu says that it is like Debian, but has kernels of its own.
    if is("ubuntu") {
        Ok(UBUNTU.iter().chain(DEBIAN).copied().collect())
    } else if is("debian") {
        Ok(DEBIAN.iter().chain(UBUNTU).copied().collect())
    } else {
        Err(KernelError::UnknownDistribution { id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_gets_its_own_packages() {
        let debian = candidates("NAME=x\nID=debian\n").unwrap();
        assert_eq!(debian[0], "linux-image-cloud-amd64");
        let ubuntu = candidates("ID=ubuntu\nID_LIKE=debian\n").unwrap();
        assert_eq!(ubuntu[0], "linux-image-virtual");
        let mint = candidates("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n").unwrap();
        assert_eq!(mint[0], "linux-image-virtual");
        let error = candidates("ID=fedora\n").unwrap_err();
        assert!(error.hint().unwrap().contains("--kernel"));
        assert!(matches!(error, KernelError::UnknownDistribution { id } if id == "fedora"));
    }

    #[test]
    fn only_parts_of_the_kernel_are_followed() {
        assert!(is_part("linux-image-6.1.0-57-cloud-amd64"));
        assert!(is_part("linux-modules-6.8.0-31-generic"));
        assert!(!is_part("linux-headers-6.8.0-31"));
        assert!(!is_part("initramfs-tools"));
    }
}
