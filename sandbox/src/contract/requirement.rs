//! One thing that is relied on.

use std::{fmt, str::FromStr};

use super::{Breach, version::Bound};
use crate::Fingerprint;

/// Longest requirement, in bytes.
const MAX_BYTES: usize = 256;
/// Most bounds on one version.
const MAX_BOUNDS: usize = 8;

/// Something that must hold in a runtime.
///
/// | text | holds if |
/// |---|---|
/// | `git` | the tool is on `PATH` |
/// | `python3>=3.11,<4` | its version is within the bounds; `=3.11` holds for 3.11.2 |
/// | `kernel>=6.1` | so is the kernel's |
/// | `memory>=512` | the guest has so many MiB |
/// | `cpu:avx2` | the CPU has the feature |
/// | `env:HOME` | every command gets the variable |
/// | `mount:/work`, `=rw`, `=ro`, `=clean` | something is mounted there, so |
/// | `arch=x86_64`, `accel=`, `driver=`, `image=`, `image_id=`, `locale=`, `clock=`, `network=` | it is that |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Tool {
        name: String,
        bounds: Vec<Bound>,
    },
    Kernel {
        bounds: Vec<Bound>,
    },
    Memory {
        mib: u32,
    },
    Cpu {
        feature: String,
    },
    Env {
        name: String,
    },
    Mount {
        path: String,
        access: Option<Access>,
    },
    Equal {
        field: Field,
        value: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadWrite,
    ReadOnly,
    Clean,
}

/// A field that is one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Arch,
    Accel,
    Driver,
    Image,
    ImageId,
    Locale,
    Clock,
    Network,
}

const FIELDS: [(&str, Field); 8] = [
    ("arch", Field::Arch),
    ("accel", Field::Accel),
    ("driver", Field::Driver),
    ("image", Field::Image),
    ("image_id", Field::ImageId),
    ("locale", Field::Locale),
    ("clock", Field::Clock),
    ("network", Field::Network),
];

/// Why a text is no requirement, or a list of them no contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequirementError {
    /// It says nothing that could be checked.
    #[error("`{text}` is not a requirement: {why}")]
    Invalid {
        /// The text, shortened.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There are more than anyone reads.
    #[error(
        "{count} requirements; a contract has at most {}",
        super::MAX_REQUIREMENTS
    )]
    TooMany {
        /// How many.
        count: usize,
    },
}

impl RequirementError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        matches!(self, Self::Invalid { .. }).then(|| {
            "write `git`, `python3>=3.11`, `kernel>=6.1`, `memory>=512`, `cpu:avx2`, `env:HOME`, \
             `mount:/work=rw` or `arch=x86_64`"
                .to_owned()
        })
    }
}

impl Requirement {
    /// Tells whether `runtime` meets this.
    ///
    /// # Errors
    /// The [`Breach`], with what is there instead.
    pub fn check(&self, runtime: &Fingerprint) -> Result<(), Breach> {
        let (holds, found) = match &self.0 {
            Kind::Tool { name, bounds } => {
                let found = runtime.tools.get(name).cloned();
                (within(found.as_deref(), bounds), found)
            }
            Kind::Kernel { bounds } => {
                let found = some(&runtime.kernel);
                (within(found.as_deref(), bounds), found)
            }
            Kind::Memory { mib } => {
                let found = runtime.memory_mib;
                (found >= *mib, Some(found.to_string()))
            }
            Kind::Cpu { feature } => (runtime.cpu_features.contains(feature), None),
            Kind::Env { name } => (runtime.env.contains(name), None),
            Kind::Mount { path, access } => {
                let mount = runtime.mounts.get(path);
                let holds = mount.is_some_and(|mount| match access {
                    None => true,
                    Some(Access::ReadWrite) => mount.writable,
                    Some(Access::ReadOnly) => !mount.writable,
                    Some(Access::Clean) => mount.clean == Some(true),
                });
                (holds, mount.map(ToString::to_string))
            }
            Kind::Equal { field, value } => {
                let found = field.of(runtime);
                (found == value, some(found))
            }
        };
        if holds {
            return Ok(());
        }
        Err(Breach {
            requires: self.to_string(),
            found,
        })
    }
}

fn within(found: Option<&str>, bounds: &[Bound]) -> bool {
    found.is_some_and(|found| bounds.iter().all(|bound| bound.holds(found)))
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl Field {
    fn of(self, runtime: &Fingerprint) -> &str {
        match self {
            Self::Arch => &runtime.arch,
            Self::Accel => &runtime.accel,
            Self::Driver => &runtime.driver,
            Self::Image => &runtime.image,
            Self::ImageId => &runtime.image_id,
            Self::Locale => &runtime.locale,
            Self::Clock => &runtime.clock_source,
            Self::Network => &runtime.network,
        }
    }

    fn name(self) -> &'static str {
        let known = FIELDS.iter().find(|(_, field)| *field == self);
        known.expect("every field has a name").0
    }
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        let text = text.trim();
        let invalid = |why| RequirementError::Invalid {
            text: text.escape_debug().take(80).collect(),
            why,
        };
        if text.len() > MAX_BYTES {
            return Err(invalid("it is too long"));
        }
        let graphic = |c: char| c.is_ascii_graphic() || c == ' ';
        if text.is_empty() || !text.chars().all(graphic) {
            return Err(invalid(
                "it is empty or has characters that cannot be shown",
            ));
        }
        if let Some(feature) = text.strip_prefix("cpu:") {
            let feature = name_of(feature).ok_or_else(|| invalid("that names no CPU feature"))?;
            return Ok(Self(Kind::Cpu { feature }));
        }
        if let Some(variable) = text.strip_prefix("env:") {
            let name = name_of(variable).ok_or_else(|| invalid("that names no variable"))?;
            return Ok(Self(Kind::Env { name }));
        }
        if let Some(mount) = text.strip_prefix("mount:") {
            return mount_of(mount).map(Self).map_err(invalid);
        }
        let end = text.find(['<', '>', '=', '!']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let name = name_of(name).ok_or_else(|| invalid("it begins with no name"))?;
        let rest = rest.trim();
        if let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) {
            let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='));
            let value = value.map(str::trim).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| invalid("this can only be asked for with `=`"))?;
            return Ok(Self(Kind::Equal {
                field: *field,
                value: value.to_owned(),
            }));
        }
        if name == "memory" {
            let mib = rest.strip_prefix(">=").map(str::trim);
            let mib = mib.map(|text| text.trim_end_matches("MiB").trim_end());
            let mib = mib.and_then(|text| text.parse().ok());
            let mib = mib.ok_or_else(|| invalid("memory is asked for as `memory>=512`, in MiB"))?;
            return Ok(Self(Kind::Memory { mib }));
        }
        let bounds: Option<Vec<Bound>> = match rest {
            "" => Some(Vec::new()),
            rest => rest.split(',').map(Bound::parse).collect(),
        };
        let bounds = bounds.ok_or_else(|| invalid("that is no bound on a version"))?;
        if bounds.len() > MAX_BOUNDS {
            return Err(invalid("it has too many bounds"));
        }
        Ok(Self(match name.as_str() {
            "kernel" => Kind::Kernel { bounds },
            _ => Kind::Tool { name, bounds },
        }))
    }
}

fn name_of(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned())
}

fn mount_of(text: &str) -> Result<Kind, &'static str> {
    let (path, access) = match text.split_once('=') {
        None => (text, None),
        Some((path, access)) => {
            let access = match access.trim() {
                "rw" => Access::ReadWrite,
                "ro" => Access::ReadOnly,
                "clean" => Access::Clean,
                _ => return Err("a mount is `rw`, `ro` or `clean`"),
            };
            (path, Some(access))
        }
    };
    let path = path.trim();
    if !path.starts_with('/') {
        return Err("a mount is named by its path, which begins with `/`");
    }
    Ok(Kind::Mount {
        path: path.to_owned(),
        access,
    })
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounded = |f: &mut fmt::Formatter<'_>, name: &str, bounds: &[Bound]| {
            let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
            write!(f, "{name}{}", bounds.join(","))
        };
        match &self.0 {
            Kind::Tool { name, bounds } => bounded(f, name, bounds),
            Kind::Kernel { bounds } => bounded(f, "kernel", bounds),
            Kind::Memory { mib } => write!(f, "memory>={mib}"),
            Kind::Cpu { feature } => write!(f, "cpu:{feature}"),
            Kind::Env { name } => write!(f, "env:{name}"),
            Kind::Mount { path, access } => {
                let access = match access {
                    None => "",
                    Some(Access::ReadWrite) => "=rw",
                    Some(Access::ReadOnly) => "=ro",
                    Some(Access::Clean) => "=clean",
                };
                write!(f, "mount:{path}{access}")
            }
            Kind::Equal { field, value } => write!(f, "{}={value}", field.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_requirement_says_why() {
        for bad in [
            "",
            " ",
            ">=3",
            "python3>=",
            "python3~3",
            "memory",
            "memory>=lots",
            "arch",
            "arch=",
            "mount:work",
            "mount:/w=x",
            "cpu:",
            "env:a b",
            "kernel>=6.1,",
            "a\nb",
            "git\u{1b}",
        ] {
            let error = bad.parse::<Requirement>().unwrap_err();
            assert!(error.hint().is_some(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_what_is_read_is_written_the_same(text in ".{0,60}") {
            if let Ok(requirement) = text.parse::<Requirement>() {
                let again: Requirement = requirement.to_string().parse().unwrap();
                prop_assert_eq!(again, requirement);
            }
        }
    }
}
