//! Images: what a guest boots into, named by its content.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Progress, SandboxConfig};

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// BLAKE3 over the parts, as hex.
    pub id: String,
    /// `minimal` or `debian`.
    pub name: String,
    /// When it was built, in Unix milliseconds.
    pub created_ms: u64,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// What it was built from, in words: packages, suite, the image below it.
    pub lineage: Vec<String>,
}

/// The images of one node.
#[derive(Debug, Clone)]
pub struct ImageStore {
    config: SandboxConfig,
}

impl ImageStore {
    /// Opens the store under the configuration's directory.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(config: &SandboxConfig) -> Result<Self, ImageError> {
        Ok(Self {
            config: config.clone(),
        })
    }

    /// Returns the minimal image, built in seconds when it is not there.
    ///
    /// # Errors
    /// When the kernel or busybox cannot be had, or the disk refuses.
    pub async fn build_minimal(&self, progress: Progress) -> Result<ImageInfo, ImageError> {
        let _ = (&self.config, progress);
        todo!()
    }

    /// Returns the Debian image with `packages` beside the standard ones, built (about a minute)
    /// when it is not there.
    ///
    /// # Errors
    /// When a helper program is missing or the build fails; the error carries its last lines.
    pub async fn build_debian(
        &self,
        packages: &[String],
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        let _ = (packages, progress);
        todo!()
    }

    /// Returns every image in the store, the newest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> Result<Vec<ImageInfo>, ImageError> {
        todo!()
    }
}

/// Why an image cannot be used or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file could not be read or written.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ImageError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        None
    }
}
