//! What is relied on in a runtime.
//!
//! A [`Contract`] is a list of requirements, each one line of text (`python3>=3.11`,
//! `memory>=512`, `mount:/work=rw`). It is checked against a
//! [`Fingerprint`](crate::Fingerprint) before the first program of a user runs, and what does not
//! hold is named.

mod requirement;
mod version;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use requirement::{Requirement, RequirementError};

use crate::Fingerprint;

/// Most requirements of one contract.
pub const MAX_REQUIREMENTS: usize = 128;

/// What somebody relies on, in the order it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Contract(Vec<Requirement>);

/// What somebody beside the sandbox itself relies on in its runtime: the work that is done in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reliance {
    /// Who, for people: `the context of the task `x``.
    pub by: String,
    /// On what.
    pub contract: Contract,
}

/// A requirement that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breach {
    /// The requirement, as it was written.
    pub requires: String,
    /// What is there instead; `None` where nothing is.
    pub found: Option<String>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(f, "`{}` does not hold: it is {found}", self.requires),
            None => write!(f, "`{}` does not hold: it is not there", self.requires),
        }
    }
}

impl Contract {
    /// Makes a contract of these requirements.
    ///
    /// # Errors
    /// [`RequirementError::TooMany`].
    pub fn new(requirements: Vec<Requirement>) -> Result<Self, RequirementError> {
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(RequirementError::TooMany {
                count: requirements.len(),
            });
        }
        Ok(Self(requirements))
    }

    /// Makes a contract of the lines that can be read. The others were written by a later release
    /// and are not held against anyone; how many there are is for the caller to bound.
    #[must_use]
    pub fn of_readable<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Self {
        let parsed = lines.into_iter();
        Self(
            parsed
                .filter_map(|line| line.as_ref().parse().ok())
                .collect(),
        )
    }

    /// Returns whether nothing is required.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the requirements.
    pub fn requirements(&self) -> &[Requirement] {
        &self.0
    }

    /// Returns every requirement that `runtime` does not meet, in the order they were written.
    pub fn check(&self, runtime: &Fingerprint) -> Vec<Breach> {
        self.0
            .iter()
            .filter_map(|requirement| requirement.check(runtime).err())
            .collect()
    }
}

impl TryFrom<Vec<String>> for Contract {
    type Error = RequirementError;

    fn try_from(lines: Vec<String>) -> Result<Self, RequirementError> {
        let parsed: Result<Vec<_>, _> = lines.iter().map(|line| line.parse()).collect();
        Self::new(parsed?)
    }
}

impl From<Contract> for Vec<String> {
    fn from(contract: Contract) -> Self {
        contract.0.iter().map(ToString::to_string).collect()
    }
}

/// Reads one requirement a line; empty lines and what follows a `#` are passed over.
impl FromStr for Contract {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim())
            .filter(|line| !line.is_empty());
        let parsed: Result<Vec<_>, _> = lines.map(str::parse).collect();
        Self::new(parsed?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Mount;

    fn runtime() -> Fingerprint {
        let mut runtime = Fingerprint {
            kernel: "6.1.0-57-cloud-amd64".into(),
            arch: "x86_64".into(),
            accel: "tcg".into(),
            driver: "qemu-microvm".into(),
            memory_mib: 512,
            locale: "C.UTF-8".into(),
            network: "none".into(),
            ..Fingerprint::default()
        };
        runtime.tools.insert("python3".into(), "3.11.2".into());
        runtime.tools.insert("gcc".into(), "12.2.0".into());
        runtime.cpu_features.insert("sse4_2".into());
        runtime.env.insert("HOME".into());
        let root = Mount {
            fs: "overlay".into(),
            writable: true,
            clean: Some(true),
        };
        runtime.mounts.insert("/".into(), root);
        runtime
    }

    #[test]
    fn what_holds_is_silent_and_what_does_not_is_named() {
        let contract: Contract = "
            # what the build needs
            python3 >= 3.11, < 4
            gcc = 12
            kernel >= 6.1
            memory >= 512
            cpu:sse4_2
            env:HOME
            mount:/ = rw
            mount:/ = clean
            arch = x86_64
            locale = C.UTF-8
            network = none
        "
        .parse()
        .unwrap();
        assert_eq!(contract.requirements().len(), 11);
        assert_eq!(contract.check(&runtime()), []);

        let broken: Contract = "python3>=3.12\ncmake\nmemory>=1024\ncpu:avx512f\nmount:/=ro"
            .parse()
            .unwrap();
        let told: Vec<String> = broken
            .check(&runtime())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
            [
                "`python3>=3.12` does not hold: it is 3.11.2",
                "`cmake` does not hold: it is not there",
                "`memory>=1024` does not hold: it is 512",
                "`cpu:avx512f` does not hold: it is not there",
                "`mount:/=ro` does not hold: it is overlay rw clean",
            ]
        );
    }

    #[test]
    fn a_contract_travels_as_a_list_of_lines() {
        let contract: Contract = "python3 >=3.11,<4\nenv:HOME".parse().unwrap();
        let json = serde_json::to_string(&contract).unwrap();
        assert_eq!(json, r#"["python3>=3.11,<4","env:HOME"]"#);
        assert_eq!(serde_json::from_str::<Contract>(&json).unwrap(), contract);
        assert!(serde_json::from_str::<Contract>(r#"["python3>>"]"#).is_err());
        let later = ["git", "quantum:entangled >> 3", "memory>=512"];
        let readable = Contract::of_readable(later);
        assert_eq!(readable.requirements().len(), 2);
        let many: Vec<String> = vec!["git".into(); MAX_REQUIREMENTS + 1];
        assert!(matches!(
            Contract::try_from(many),
            Err(RequirementError::TooMany { .. })
        ));
    }
}
