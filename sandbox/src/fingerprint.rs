//! What a sandbox is made of, as a program in it can see.
//!
//! A finding made in one runtime may not hold in another: a [`Fingerprint`] says which runtime it
//! was, [`Fingerprint::differences`] in what two of them differ, and a
//! [`Contract`](crate::Contract) which of these differences matter. Memories and snapshots name a
//! fingerprint by its hash; the text is stored once.

mod differences;
mod probe;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use differences::Difference;
pub(crate) use probe::{Tools, probe};
pub use report::ReportError;

/// The runtime of one sandbox, in the terms that decide whether a finding made in one holds in
/// another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fingerprint {
    /// Kernel release, as the guest says.
    pub kernel: String,
    /// Machine architecture.
    pub arch: String,
    /// CPU model given to the guest.
    pub cpu: String,
    /// What the CPU can do, as the kernel names it (`avx2`, `sse4_2`).
    pub cpu_features: BTreeSet<String>,
    /// Acceleration: `kvm` or `tcg`.
    pub accel: String,
    /// The driver that runs it.
    pub driver: String,
    /// Virtual machine monitor and its version.
    pub vmm: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// Versions of the tools found on `PATH`.
    pub tools: BTreeMap<String, String>,
    /// What is mounted where, `/proc`, `/sys` and `/dev` aside.
    pub mounts: BTreeMap<String, Mount>,
    /// Names of the environment variables that every command gets; never their values.
    pub env: BTreeSet<String>,
    /// The locale of a command that sets none.
    pub locale: String,
    /// What the kernel tells the time by.
    pub clock_source: String,
    /// The network the guest sees.
    pub network: String,
}

/// A mounted file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// Its type (`overlay`, `tmpfs`).
    pub fs: String,
    /// Whether it can be written to.
    pub writable: bool,
    /// Whether it holds just what it began with; `None` where nobody keeps count.
    pub clean: Option<bool>,
}

impl Fingerprint {
    /// Returns the BLAKE3 hash of [`Self::canonical_json`].
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.canonical_json().as_bytes()).as_bytes()
    }

    /// Returns the one JSON spelling that is hashed: keys sorted, no white space.
    pub fn canonical_json(&self) -> String {
        // A `serde_json::Value` keeps its keys sorted, whatever the order of the fields above.
        let value = serde_json::to_value(self).expect("strings become JSON");
        serde_json::to_string(&value).expect("a value becomes text")
    }

    /// Returns in what `other` is not as this one; empty means that they are the same.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        differences::between(self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_covers_every_field() {
        let base = Fingerprint {
            kernel: "6.1".into(),
            tools: BTreeMap::from([("git".into(), "2.39".into())]),
            mounts: BTreeMap::from([("/".into(), Mount::default())]),
            ..Fingerprint::default()
        };
        assert_eq!(base.hash(), base.clone().hash());
        let value = serde_json::to_value(&base).unwrap();
        for (field, held) in value.as_object().unwrap() {
            let mut other = value.clone();
            other[field] = match held {
                serde_json::Value::String(text) => format!("{text}x").into(),
                serde_json::Value::Number(number) => (number.as_u64().unwrap() + 1).into(),
                serde_json::Value::Array(_) => serde_json::json!(["x"]),
                _ if field == "mounts" => serde_json::json!({"/": {"writable": true}}),
                _ => serde_json::json!({"x": "1"}),
            };
            let other: Fingerprint = serde_json::from_value(other).unwrap();
            assert_ne!(base.hash(), other.hash(), "{field}");
            assert!(!base.differences(&other).is_empty(), "{field}");
        }
    }

    #[test]
    fn canonical_json_is_sorted_and_tight() {
        let json = Fingerprint::default().canonical_json();
        assert!(
            json.starts_with("{\"accel\":\"\",\"arch\":\"\",\"clock_source\":"),
            "{json}"
        );
    }

    #[test]
    fn an_older_fingerprint_can_still_be_read() {
        let old = r#"{"kernel":"6.1","tools":{"git":"2.39"},"network":"none"}"#;
        let read: Fingerprint = serde_json::from_str(old).unwrap();
        assert_eq!(read.kernel, "6.1");
        assert!(read.mounts.is_empty());
    }
}
