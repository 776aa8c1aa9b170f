//! What a memory made in a sandbox depends on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// Acceleration: `kvm` or `tcg`.
    pub accel: String,
    /// Virtual machine monitor and its version.
    pub vmm: String,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// Versions of the tools found in the image.
    pub tools: BTreeMap<String, String>,
    /// The network the guest sees.
    pub network: String,
}

impl Fingerprint {
    /// Returns the BLAKE3 hash of [`Self::canonical_json`].
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.canonical_json().as_bytes()).as_bytes()
    }

    /// Returns the one JSON spelling that is hashed: keys sorted, no white space.
    pub fn canonical_json(&self) -> String {
        let tools: BTreeMap<_, _> = self.tools.iter().collect();
        let sorted = BTreeMap::from([
            ("accel", serde_json::Value::from(self.accel.as_str())),
            ("arch", self.arch.as_str().into()),
            ("cpu", self.cpu.as_str().into()),
            ("image", self.image.as_str().into()),
            ("image_id", self.image_id.as_str().into()),
            ("kernel", self.kernel.as_str().into()),
            ("network", self.network.as_str().into()),
            (
                "tools",
                tools
                    .into_iter()
                    .map(|(k, v)| (k.clone(), serde_json::Value::from(v.as_str())))
                    .collect(),
            ),
            ("vmm", self.vmm.as_str().into()),
        ]);
        serde_json::to_string(&sorted).expect("strings become JSON")
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
            ..Fingerprint::default()
        };
        let mut other = base.clone();
        assert_eq!(base.hash(), other.hash());
        other.tools.insert("gcc".into(), "12".into());
        assert_ne!(base.hash(), other.hash());
        let other = Fingerprint {
            network: "none".into(),
            ..base.clone()
        };
        assert_ne!(base.hash(), other.hash());
    }

    #[test]
    fn canonical_json_is_sorted_and_tight() {
        let json = Fingerprint::default().canonical_json();
        assert!(json.starts_with("{\"accel\":\"\",\"arch\":"), "{json}");
    }
}
