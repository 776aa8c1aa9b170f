//! What a fuzzer calls of a snapshot's formats.

use super::{About, CHUNK_BYTES, DiskMap, Manifest, Map};
use crate::{
    Accel, SandboxId,
    chunks::{ChunkId, PackId},
};

/// A manifest has one encoding, and its maps have a chunk for each piece of their files.
pub(crate) fn manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes) else {
        return;
    };
    assert_eq!(
        manifest.to_bytes(),
        bytes,
        "a second spelling of a manifest"
    );
    let disks = manifest.disks.iter().map(|disk| &disk.map);
    for map in disks.chain([&manifest.ram, &manifest.device]) {
        let pieces = map.size.div_ceil(CHUNK_BYTES as u64);
        assert_eq!(map.chunks.len() as u64, pieces, "a map with holes");
    }
}

/// Returns what a manifest says of a sandbox.
pub(crate) fn about() -> About {
    About {
        sandbox: SandboxId::from_bytes([3; 16]),
        record: "{}".into(),
        image_id: "8b756393397f6aa9".into(),
        kernel: "6.1.0".into(),
        kernel_args: vec!["rhizome.hostname=case".into()],
        driver: "qemu-microvm".into(),
        vmm: "qemu 7.2.22".into(),
        machine: "microvm".into(),
        accel: Accel::Tcg,
        cpu: "Nehalem".into(),
        tsc_khz: 2_596_130,
        memory_mib: 1,
        vcpus: 1,
        protocol: 2,
        taken_ms: 1,
        parent: Some(PackId::from_bytes([9; 32])),
    }
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let map = |size: u64| Map {
        size,
        chunks: (0..size.div_ceil(CHUNK_BYTES as u64))
            .map(|n| (n % 2 == 0).then(|| ChunkId::from_bytes([7; 32])))
            .collect(),
    };
    let disk = DiskMap {
        number: 1,
        name: "upper".into(),
        map: map(200_000),
    };
    let manifest = Manifest {
        about: about(),
        ram: map(1 << 20),
        disks: vec![disk],
        device: map(3000),
    };
    vec![manifest.to_bytes()]
}
