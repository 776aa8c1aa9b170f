//! Packages of the host's distribution, fetched without root and without touching the host.
//!
//! apt gets package lists, cache and locks of its own below one private directory; sources, keys
//! and proxies are the host's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Progress,
    command::{CommandError, Helper},
    progress::step,
    staging::make_private_dir,
};

/// Longest time one apt command may take.
const APT_LIMIT: Duration = Duration::from_secs(300);

/// Longest time the lists may take; without a network the resolver alone takes half a minute.
const UPDATE_LIMIT: Duration = Duration::from_secs(90);

/// Why a package could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AptError {
    /// A helper program is missing or failed.
    #[error("cannot ask the package system")]
    Command(#[from] CommandError),
    /// Its private directory cannot be used.
    #[error("cannot use `{}`", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The package lists could not be fetched, and without them the package is not known.
    #[error("cannot fetch the package lists: {said}")]
    NoLists {
        /// What apt said first.
        said: String,
    },
    /// No source of the host has the package.
    #[error("none of the host's package sources has {wanted}")]
    NoPackage {
        /// The names tried.
        wanted: String,
    },
}

impl AptError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Command(error) => error
                .hint()
                .or_else(|| Some("check the network and `apt-get update`".to_owned())),
            Self::NoLists { .. } => Some("check the network and `apt-get update`".to_owned()),
            Self::NoPackage { .. } => {
                Some("check the sources in /etc/apt/sources.list.d".to_owned())
            }
            Self::Io { .. } => None,
        }
    }
}

/// apt with a state of its own.
#[derive(Debug)]
pub(crate) struct Apt {
    dir: PathBuf,
    update_failure: Option<String>,
}

impl Apt {
    /// Refreshes the package lists below `dir`. A failure is kept and told when a package cannot
    /// be found: one dead third-party source must not stop us.
    pub(crate) async fn refresh(dir: &Path, progress: &Progress) -> Result<Self, AptError> {
        for sub in ["lists/partial", "cache/archives/partial", "packages"] {
            let path = dir.join(sub);
            make_private_dir(&path).map_err(|source| AptError::Io { path, source })?;
        }
        let mut apt = Self {
            dir: dir.to_owned(),
            update_failure: None,
        };
        step(progress, "packages", "refreshing package lists");
        // Without the first option a list that could not be fetched is a warning.
        let update = apt
            .helper("apt-get")
            .args(["-oAPT::Update::Error-Mode=any", "-oAcquire::Retries=0"])
            .arg("update")
            .limit(UPDATE_LIMIT);
        let mut complaint = None;
        let updated = update
            .run(|line| {
                if let Some(said) = line.strip_prefix("E: ") {
                    complaint.get_or_insert_with(|| said.to_owned());
                }
            })
            .await;
        match updated {
            Ok(()) => {}
            Err(missing @ CommandError::NotFound { .. }) => return Err(missing.into()),
            Err(error) => apt.update_failure = Some(complaint.unwrap_or(error.to_string())),
        }
        Ok(apt)
    }

    /// Returns the packages that the first known name of `names` depends on, or an empty list.
    pub(crate) async fn depends(&self, name: &str) -> Result<Option<Vec<String>>, AptError> {
        let shown = self
            .helper("apt-cache")
            .args(["show", "--no-all-versions", "--", name])
            .output()
            .await;
        match shown {
            Ok(bytes) if !bytes.is_empty() => {
                Ok(Some(parse_depends(&String::from_utf8_lossy(&bytes))))
            }
            Ok(_) | Err(CommandError::Failed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns why none of these packages is known.
    pub(crate) fn no_package(&self, names: &[&str]) -> AptError {
        match &self.update_failure {
            Some(said) => AptError::NoLists { said: said.clone() },
            None => AptError::NoPackage {
                wanted: names
                    .iter()
                    .map(|name| format!("`{name}`"))
                    .collect::<Vec<_>>()
                    .join(" or "),
            },
        }
    }

    /// Downloads packages and unpacks them below `into`. A download that a crash cut off is taken
    /// up again; one that is complete is not fetched twice.
    pub(crate) async fn unpack(
        &self,
        names: &[String],
        into: &Path,
        progress: &Progress,
    ) -> Result<(), AptError> {
        let packages = self.dir.join("packages");
        let io = |source| AptError::Io {
            path: packages.clone(),
            source,
        };
        step(
            progress,
            "packages",
            format_args!("downloading {}", names.join(", ")),
        );
        self.helper("apt-get")
            .args(["download", "--"])
            .args(names)
            .cwd(&packages)
            .run(|_| {})
            .await?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&packages).map_err(io)? {
            let entry = entry.map_err(io)?;
            let file = entry.file_name().to_string_lossy().into_owned();
            // apt names files `name_version_arch.deb`.
            let name = file.split('_').next().unwrap_or_default();
            if file.ends_with(".deb") && names.iter().any(|wanted| wanted == name) {
                files.push(entry.path());
            }
        }
        for file in &files {
            step(
                progress,
                "packages",
                format_args!(
                    "unpacking {}",
                    file.file_name().unwrap_or_default().to_string_lossy()
                ),
            );
            Helper::new("dpkg-deb")
                .arg("-x")
                .arg(file)
                .arg(into)
                .run(|_| {})
                .await?;
        }
        for file in &files {
            fs::remove_file(file).map_err(io)?;
        }
        Ok(())
    }

    fn helper(&self, program: &str) -> Helper {
        let dir = self.dir.display();
        Helper::new(program).limit(APT_LIMIT).args([
            "-q".to_owned(),
            format!("-oDir::State::lists={dir}/lists"),
            format!("-oDir::Cache={dir}/cache"),
            // As root apt would download as another user, who cannot enter our directory.
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oAcquire::Languages=none".to_owned(),
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "-oAcquire::Retries=1".to_owned(),
            "-oAcquire::http::Timeout=15".to_owned(),
            "-oAcquire::https::Timeout=15".to_owned(),
        ])
    }
}

/// Reads the package names out of `Depends` and `Pre-Depends` fields.
fn parse_depends(shown: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in shown.lines() {
        let Some((_, list)) = line.split_once("Depends: ") else {
            continue;
        };
        for alternative in list.split([',', '|']) {
            let name = alternative.split_whitespace().next().unwrap_or_default();
            let name = name.split(':').next().unwrap_or_default();
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_a_record() {
        let shown = "Package: linux-image-cloud-amd64\nPre-Depends: a:any\nDepends: linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3), kmod | b\nDescription: Depends on nothing\n";
        assert_eq!(
            parse_depends(shown),
            ["a", "linux-image-6.1.0-57-cloud-amd64", "kmod", "b"]
        );
    }
}
