//! The kernel that guests boot.

use std::path::{Path, PathBuf};

use crate::{Progress, SandboxConfig};

/// A kernel on disk, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The bootable file.
    pub image: PathBuf,
    /// Its release, as in `/lib/modules/<release>`.
    pub release: String,
    /// Directory of its modules (`.../lib/modules/<release>`), where it has any.
    pub modules: Option<PathBuf>,
    /// BLAKE3 of the bootable file, as hex.
    pub hash: String,
}

/// Finds the configured kernel, or the cached one, or fetches the distribution's.
///
/// # Errors
/// A [`KernelError`] whose hint says what to install or configure.
pub async fn ensure(config: &SandboxConfig, progress: &Progress) -> Result<Kernel, KernelError> {
    let _ = (config, progress);
    todo!()
}

/// Returns the kernel if it is there already, without the network.
///
/// # Errors
/// When a configured kernel cannot be read.
pub fn find(config: &SandboxConfig) -> Result<Option<Kernel>, KernelError> {
    let _ = config;
    todo!()
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
        source: std::io::Error,
    },
}

impl KernelError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        None
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
