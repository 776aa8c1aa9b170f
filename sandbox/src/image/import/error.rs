//! Why something is not imported.

use std::{io, path::PathBuf};

use super::oci::clip;

/// Why an image of somebody else is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read or written.
    #[error("cannot use `{}`", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An archive is damaged, cut off or too large.
    #[error("an archive in it cannot be read")]
    Archive {
        /// What is wrong with it.
        source: io::Error,
    },
    /// A description is no JSON, or other JSON.
    #[error("its {what} cannot be read")]
    Json {
        /// Which description.
        what: String,
        /// Where it breaks off.
        source: serde_json::Error,
    },
    /// A description says what cannot be.
    #[error("it is malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// There is neither an OCI layout nor what `docker save` writes.
    #[error("it holds no image: neither index.json nor manifest.json is there")]
    NoImage,
    /// A file that the image names is missing.
    #[error("`{file}` is missing")]
    Missing {
        /// Its name.
        file: String,
    },
    /// A file is not the one that the image names.
    #[error("`{file}` is damaged or was exchanged: its content is {found}")]
    Digest {
        /// The file.
        file: String,
        /// The digest found.
        found: String,
    },
    /// An entry of a layer would leave the image or break it.
    #[error("the entry `{entry}` {why}")]
    Hostile {
        /// Its path.
        entry: String,
        /// What it does.
        why: &'static str,
    },
    /// It has more entries than an image may have.
    #[error("it has more than {limit} entries")]
    TooMany {
        /// How many it may have.
        limit: u64,
    },
    /// It holds something that is not supported.
    #[error("it holds {what}, which is not supported")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// It holds more than one image.
    #[error("it holds {found} images")]
    Several {
        /// How many.
        found: usize,
    },
    /// None of its images runs here, or none has the name.
    #[error("it holds no image of this name for linux on {architecture}")]
    NoneFits {
        /// What guests run on.
        architecture: &'static str,
    },
    /// It has no name of its own, and none was given.
    #[error("it does not say what it is called")]
    NoName,
    /// The disk has no room for it.
    #[error("it needs {} MiB; {} MiB are free", needed >> 20, free >> 20)]
    NoSpace {
        /// Needed bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// It changed while it was read.
    #[error("it changed while it was read")]
    Changed,
}

impl ImportError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoImage => "give an OCI layout or an archive made by `docker save`; what `docker export` makes is imported with `--rootfs`",
            Self::Several { .. } => "say which one with `--reference`",
            Self::NoName => "name it with `--name`",
            Self::NoneFits { .. } => "pull it with `--platform linux/amd64` first",
            Self::Changed => "import a copy that nobody writes to",
            Self::NoSpace { .. } => "make room, or put images elsewhere with `--images-dir`",
            Self::Digest { .. } | Self::Missing { .. } => "fetch it again",
            _ => return None,
        }
        .to_owned())
    }

    pub(super) fn hostile(entry: &[u8], why: &'static str) -> Self {
        Self::Hostile {
            entry: clip(&String::from_utf8_lossy(entry)),
            why,
        }
    }

    pub(super) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }

    pub(super) fn missing(file: &str) -> Self {
        Self::Missing { file: clip(file) }
    }
}
