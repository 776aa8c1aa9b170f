//! In what two runtimes differ.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Mount};

/// One thing that is not the same in two runtimes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Difference {
    /// What: `kernel`, `tool python3`, `mount /work`, …
    pub what: String,
    /// How it was in the first; `None` where it was not there.
    pub was: Option<String>,
    /// How it is in the second.
    pub is: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>| match side {
            Some(text) if text.is_empty() => "unknown".to_owned(),
            Some(text) => text.clone(),
            None => "absent".to_owned(),
        };
        write!(
            f,
            "{}: {} -> {}",
            self.what,
            side(&self.was),
            side(&self.is)
        )
    }
}

pub(super) fn between(was: &Fingerprint, is: &Fingerprint) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |what: String, was: Option<String>, is: Option<String>| {
        if was != is {
            found.push(Difference { what, was, is });
        }
    };
    let memory = |mib: u32| {
        if mib == 0 {
            String::new()
        } else {
            format!("{mib} MiB")
        }
    };
    for (what, a, b) in [
        ("kernel", &was.kernel, &is.kernel),
        ("arch", &was.arch, &is.arch),
        ("cpu", &was.cpu, &is.cpu),
        ("acceleration", &was.accel, &is.accel),
        ("driver", &was.driver, &is.driver),
        ("monitor", &was.vmm, &is.vmm),
        ("memory", &memory(was.memory_mib), &memory(is.memory_mib)),
        ("image", &was.image, &is.image),
        ("image id", &was.image_id, &is.image_id),
        ("locale", &was.locale, &is.locale),
        ("clock source", &was.clock_source, &is.clock_source),
        ("network", &was.network, &is.network),
    ] {
        compare(what.to_owned(), Some(a.clone()), Some(b.clone()));
    }
    for name in keys(was.tools.keys(), is.tools.keys()) {
        let of = |side: &Fingerprint| side.tools.get(name).cloned();
        compare(format!("tool {name}"), of(was), of(is));
    }
    for path in keys(was.mounts.keys(), is.mounts.keys()) {
        let of = |side: &Fingerprint| side.mounts.get(path).map(Mount::to_string);
        compare(format!("mount {path}"), of(was), of(is));
    }
    for (what, a, b) in [
        ("cpu feature", &was.cpu_features, &is.cpu_features),
        ("environment", &was.env, &is.env),
    ] {
        for name in a.symmetric_difference(b) {
            let side = |set: &BTreeSet<String>| set.contains(name).then(|| "present".to_owned());
            compare(format!("{what} {name}"), side(a), side(b));
        }
    }
    found
}

fn keys<'a>(
    a: impl Iterator<Item = &'a String>,
    b: impl Iterator<Item = &'a String>,
) -> BTreeSet<&'a String> {
    a.chain(b).collect()
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.writable { "rw" } else { "ro" };
        write!(f, "{} {access}", self.fs)?;
        match self.clean {
            Some(true) => f.write_str(" clean"),
            Some(false) => f.write_str(" changed"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_named_with_both_sides() {
        let mut was = Fingerprint {
            kernel: "6.1.0".into(),
            memory_mib: 256,
            ..Fingerprint::default()
        };
        was.tools.insert("git".into(), "2.39.5".into());
        was.tools.insert("gcc".into(), "12.2.0".into());
        was.cpu_features.insert("avx2".into());
        let mut is = was.clone();
        assert!(was.differences(&is).is_empty());
        is.memory_mib = 512;
        is.tools.remove("gcc");
        is.tools.insert("git".into(), "2.47.3".into());
        is.cpu_features.clear();
        is.mounts.insert(
            "/work".into(),
            Mount {
                fs: "ext4".into(),
                writable: true,
                clean: Some(false),
            },
        );
        let told: Vec<String> = was
            .differences(&is)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
            [
                "memory: 256 MiB -> 512 MiB",
                "tool gcc: 12.2.0 -> absent",
                "tool git: 2.39.5 -> 2.47.3",
                "mount /work: absent -> ext4 rw changed",
                "cpu feature avx2: present -> absent",
            ]
        );
    }
}
