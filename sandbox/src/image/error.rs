//! Why an image cannot be used or made.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::ImportError;
use crate::{SandboxError, apt::AptError, command::CommandError, kernel::KernelError};

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
        source: io::Error,
    },
    /// Its kernel cannot be used or fetched.
    #[error("cannot make the kernel ready")]
    Kernel(#[from] KernelError),
    /// A package could not be fetched.
    #[error("cannot fetch a package for the image")]
    Apt(#[from] AptError),
    /// A helper program is missing or failed.
    #[error("a helper program failed")]
    Command(#[from] CommandError),
    /// A root file system could not be made.
    #[error("cannot make the root file system")]
    Bootstrap(#[source] CommandError),
    /// The image is known but was not built here.
    #[error("the image `{name}` has not been built on this machine")]
    NotBuilt {
        /// Its name.
        name: String,
    },
    /// Nothing in the store has this name or id.
    #[error("no image is called `{wanted}`")]
    Unknown {
        /// What was asked for.
        wanted: String,
    },
    /// More than one image has this prefix.
    #[error("`{wanted}` could be any of {matches} images")]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// How many it could be.
        matches: usize,
    },
    /// An image of somebody else is refused.
    #[error("cannot import `{}`", path.display())]
    Import {
        /// What was to be imported.
        path: PathBuf,
        /// Why it is refused.
        source: Box<ImportError>,
    },
    /// A sandbox that was needed on the way failed.
    #[error("a sandbox that the image needs failed")]
    Sandbox(#[source] Box<SandboxError>),
    /// What a guest sent cannot become an image.
    #[error("the files of the guest cannot be taken: {what}")]
    Guest {
        /// Why.
        what: String,
    },
    /// A step of a recipe failed.
    #[error("the step on line {line} ended with {ended}: {tail}")]
    Step {
        /// Its line in the recipe.
        line: usize,
        /// How it ended.
        ended: String,
        /// The last of what it said.
        tail: String,
    },
    /// What the image starts does not become ready.
    #[error("the sandbox runs, but what its image starts is not ready: {what}")]
    NotReady {
        /// What failed, with its last words.
        what: String,
    },
    /// Something cannot be copied into an image.
    #[error("`{}` {what}", path.display())]
    Copy {
        /// Its path.
        path: PathBuf,
        /// Why.
        what: &'static str,
    },
    /// A name is not one.
    #[error("`{name}` is not an image name")]
    BadName {
        /// What was given.
        name: String,
    },
    /// Something needs the image.
    #[error("the image `{wanted}` is in use by {user}")]
    InUse {
        /// The image.
        wanted: String,
        /// Who needs it.
        user: String,
    },
    /// A package name is not one.
    #[error("`{name}` is not a package name")]
    BadPackage {
        /// What was given.
        name: String,
    },
    /// The description of an image is not what it should be.
    #[error("the description of the image does not hold: {what}")]
    Description {
        /// What is wrong with it.
        what: String,
    },
    /// Debian's signing keys are not on this machine.
    #[error("the keys that sign Debian's packages are not installed")]
    NoKeyring,
    /// The disk has no room for the build.
    #[error("`{}` has {} MiB free; the build needs {} MiB", path.display(), free >> 20, needed >> 20)]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Needed bytes.
        needed: u64,
    },
}

impl ImageError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel(error) => error.hint(),
            Self::Apt(error) => error.hint(),
            Self::Command(error) => error.hint(),
            Self::Bootstrap(error) => error.hint().or_else(|| {
                Some(if rustix::process::geteuid().is_root() {
                    "check the network and the package names".to_owned()
                } else {
                    "build as root, or install `uidmap`, allow user namespaces and give this user a range in /etc/subuid".to_owned()
                })
            }),
            Self::NotBuilt { name } => Some(format!("build it with `rhizome image build {name}`")),
            Self::Unknown { .. } => Some("`rhizome image list` shows the images; `minimal` and `debian` can be built".to_owned()),
            Self::Ambiguous { .. } => Some("give more characters of the id".to_owned()),
            Self::Description { .. } => Some("fetch the image from another node, or build it".to_owned()),
            Self::NoKeyring => Some("install them with `apt-get install debian-archive-keyring`".to_owned()),
            Self::NoSpace { .. } => Some("make room, or put images elsewhere with `--images-dir`".to_owned()),
            Self::Import { source, .. } => source.hint(),
            Self::BadName { .. } => Some("use 1 to 64 of a-z A-Z 0-9 . _ : - and begin with a letter or digit; `minimal` and `debian` are taken".to_owned()),
            Self::InUse { .. } => Some("end what uses it first".to_owned()),
            Self::Sandbox(source) => source.hint(),
            Self::Step { .. } => Some("the steps before it are kept; a sandbox has no network unless its policy allows one".to_owned()),
            Self::NotReady { .. } => Some("look into the sandbox with `rhizome sandbox exec`, or end it".to_owned()),
            Self::Guest { .. } => Some("the image needs `sh` and `tar` for its files to be taken".to_owned()),
            Self::Io { .. } | Self::BadPackage { .. } | Self::Copy { .. } => None,
        }
    }

    pub(super) fn sandbox(source: SandboxError) -> Self {
        Self::Sandbox(Box::new(source))
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
