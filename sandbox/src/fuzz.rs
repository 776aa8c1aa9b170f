//! What a fuzzer calls: one function for each parser of foreign bytes in this crate.
//!
//! A target panics when a promise is broken, and never otherwise. `fuzz/` and `tests/fuzz.rs` both
//! drive them (`docs/howto/fuzz.md`); nothing else should.

use crate::{image::import::fuzz as import, snapshot, volume};

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("image_layers", import::layers, import::layer_samples),
    (
        "image_descriptions",
        import::descriptions,
        import::description_samples,
    ),
    (
        "snapshot_manifest",
        snapshot::fuzz::manifest,
        snapshot::fuzz::manifests,
    ),
    (
        "volume_manifest",
        volume::fuzz::manifest,
        volume::fuzz::manifests,
    ),
];
