use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    Accel,
    chunks::{ChunkError, ChunkId, ChunkStore, PackId, StoreKey},
    driver::GuestRam,
    silent,
};

const MIB: u64 = 1024 * 1024;

fn about() -> About {
    About {
        record: "{\"name\":\"case\"}".into(),
        memory_mib: 128,
        ..super::fuzz::about()
    }
}

fn host() -> HostFacts {
    let about = about();
    HostFacts {
        driver: about.driver,
        vmm: about.vmm,
        machine: about.machine,
        accel: about.accel,
        cpu: about.cpu,
        tsc_khz: about.tsc_khz,
        max_memory_mib: 1024,
        protocol: about.protocol,
    }
}

/// A guest at rest with a little in its memory and on its disk.
fn frozen(dir: &Path) -> Frozen {
    let ram = GuestRam::create(128).unwrap();
    let noise: Vec<u8> = (0..3 * MIB)
        .map(|n| ((n * n) >> 7).to_le_bytes()[0])
        .collect();
    ram.file().write_all_at(&noise, 5 * MIB + 4096).unwrap();
    ram.file().write_all_at(b"the end", 128 * MIB - 7).unwrap();
    // Touched, and zero.
    ram.file().write_all_at(&[0; 1 << 20], 64 * MIB).unwrap();
    let path = dir.join("upper");
    let disk = super::freeze::create(&path).unwrap();
    // Not a whole number of chunks.
    let size = 40 * MIB + 1000;
    disk.set_len(size).unwrap();
    disk.write_all_at(&noise[..200_000], 10 * MIB).unwrap();
    disk.write_all_at(b"tail", size - 4).unwrap();
    let device = dir.join("device");
    fs::write(&device, &noise[..70_001]).unwrap();
    Frozen {
        device,
        ram,
        disks: vec![FrozenDisk {
            number: 1,
            name: "upper".into(),
            file: disk,
            size,
        }],
        pause: Duration::ZERO,
        copied: 0,
    }
}

fn content(file: &File) -> Vec<u8> {
    let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

struct Stored {
    dir: tempfile::TempDir,
    frozen: Frozen,
    store: ChunkStore,
    key: StoreKey,
    manifest: Manifest,
    packs: Vec<PackId>,
}

fn stored() -> Stored {
    let dir = tempfile::tempdir().unwrap();
    let frozen = frozen(dir.path());
    let store = ChunkStore::open(&dir.path().join("chunks")).unwrap();
    let key = StoreKey::from_bytes([5; 32]);
    let mut writer = store.writer(&key);
    let captured = capture(&frozen, about(), &mut writer, &silent()).unwrap();
    let (packs, stats) = writer.finish_with_stats().unwrap();
    assert_eq!(captured.bytes_new, stats.new_bytes);
    // Holes are not read: 128 MiB and 40 MiB have some 5 MiB in them.
    assert!(captured.bytes_read < 6 * MIB, "{}", captured.bytes_read);
    Stored {
        dir,
        frozen,
        store,
        key,
        manifest: captured.manifest,
        packs,
    }
}

#[test]
fn what_was_captured_is_made_again_byte_for_byte() {
    let stored = stored();
    let manifest = Manifest::parse(&stored.manifest.to_bytes()).unwrap();
    assert_eq!(manifest, stored.manifest);
    let reader = stored.store.reader(&stored.key, &stored.packs).unwrap();
    let to = stored.dir.path().join("new");
    fs::create_dir(&to).unwrap();
    let made = materialise(&manifest, &reader, &to, &silent()).unwrap();
    assert!(content(made.saved.ram.file()) == content(stored.frozen.ram.file()));
    assert!(made.saved.ram.resident().unwrap() < 6 * MIB);
    assert_eq!(made.disks, [(1, to.join("upper"))]);
    let disk = File::open(to.join("upper")).unwrap();
    assert!(content(&disk) == content(&stored.frozen.disks[0].file));
    assert!(disk.metadata().unwrap().blocks() * 512 < 2 * MIB);
    assert!(fs::read(&made.saved.device).unwrap() == fs::read(&stored.frozen.device).unwrap());
}

#[test]
fn a_second_snapshot_stores_what_changed_and_no_more() {
    let stored = stored();
    let ram = stored.frozen.ram.file();
    ram.write_all_at(b"changed", 6 * MIB).unwrap();
    let mut writer = stored.store.writer(&stored.key);
    let again = capture(&stored.frozen, about(), &mut writer, &silent()).unwrap();
    assert_eq!(again.bytes_new, CHUNK_BYTES as u64);
    let packs = writer.finish().unwrap();
    // The packs of both together hold the second.
    let reader = stored.store.reader(&stored.key, &packs).unwrap();
    assert!(again.manifest.chunks().all(|id| reader.contains(id)));
    let differ = again.manifest.ram.chunks.iter();
    let differ = differ.zip(&stored.manifest.ram.chunks);
    assert_eq!(differ.filter(|(a, b)| a != b).count(), 1);
}

#[test]
fn instances_share_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let frozen = frozen(dir.path());
    let made: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let to = dir.path().join(name);
            fs::create_dir(&to).unwrap();
            (frozen.instance(&to).unwrap(), to)
        })
        .collect();
    made[0].0.ram.file().write_all_at(b"mine", 0).unwrap();
    fs::write(made[0].1.join("upper"), "mine").unwrap();
    assert!(content(made[1].0.ram.file()) == content(frozen.ram.file()));
    let disk = File::open(made[1].1.join("upper")).unwrap();
    assert!(content(&disk) == content(&frozen.disks[0].file));
}

#[test]
fn a_damaged_or_missing_pack_makes_no_guest() {
    let stored = stored();
    let to = stored.dir.path().join("new");
    fs::create_dir(&to).unwrap();
    let pack = stored.store.path(&stored.packs[0]).unwrap();
    let whole = fs::read(&pack).unwrap();
    for at in [200, whole.len() / 2, whole.len() - 100] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        // Others may have it open, and its mode forbids writing: another file takes its place.
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, flipped).unwrap();
        let read = stored.store.reader(&stored.key, &stored.packs);
        let made = read
            .map_err(SnapshotError::from)
            .and_then(|reader| materialise(&stored.manifest, &reader, &to, &silent()));
        assert!(
            matches!(made, Err(SnapshotError::Chunks(ChunkError::Damaged { .. }))),
            "{at}: {made:?}"
        );
    }
    fs::remove_file(&pack).unwrap();
    let reader = stored.store.reader(&stored.key, &stored.packs);
    assert!(reader.is_err());
}

#[test]
fn a_chunk_of_another_size_does_not_take_a_place() {
    let mut stored = stored();
    let short = *stored.manifest.device.chunks.last().unwrap();
    stored.manifest.ram.chunks[0] = short;
    let reader = stored.store.reader(&stored.key, &stored.packs).unwrap();
    let to = stored.dir.path().join("new");
    fs::create_dir(&to).unwrap();
    let made = materialise(&stored.manifest, &reader, &to, &silent());
    assert!(
        matches!(made, Err(SnapshotError::Manifest { .. })),
        "{made:?}"
    );
}

#[test]
fn every_difference_has_a_name() {
    let manifest = Manifest {
        about: about(),
        ram: Map {
            size: 0,
            chunks: Vec::new(),
        },
        disks: Vec::new(),
        device: Map {
            size: 0,
            chunks: Vec::new(),
        },
    };
    assert_eq!(compatible(&manifest, &host()), Ok(()));
    let with = |change: fn(&mut HostFacts)| {
        let mut host = host();
        change(&mut host);
        differences(&manifest, &host)
    };
    // What two measurements of one counter differ by is no difference.
    assert!(with(|host| host.tsc_khz += 200).is_empty());
    assert!(matches!(
        with(|host| host.tsc_khz += 300)[..],
        [Incompatible::Tsc { .. }]
    ));
    assert!(matches!(
        with(|host| host.vmm = "qemu 8.0".into())[..],
        [Incompatible::Vmm { .. }]
    ));
    assert!(matches!(
        with(|host| host.max_memory_mib = 100)[..],
        [Incompatible::Memory { .. }]
    ));
    let other = with(|host| host.driver = crate::driver::CLOUD_HYPERVISOR.into());
    let [difference @ Incompatible::Driver { snapshot, host }] = &other[..] else {
        panic!("{other:?}");
    };
    assert_eq!(
        (snapshot.as_str(), host.as_str()),
        ("qemu-microvm", "cloud-hypervisor")
    );
    assert!(difference.hint().contains("qemu-microvm"));
    let all = with(|host| {
        host.accel = Accel::Kvm;
        host.cpu = "other".into();
        host.machine = "other".into();
        host.driver = "other".into();
        host.protocol = 9;
    });
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|one| !one.hint().is_empty()));
}

fn map(size: u64) -> impl Strategy<Value = Map> {
    let count = usize::try_from(size.div_ceil(CHUNK_BYTES as u64)).unwrap();
    let chunk = prop::option::of(any::<[u8; 32]>().prop_map(ChunkId::from_bytes));
    prop::collection::vec(chunk, count).prop_map(move |chunks| Map { size, chunks })
}

fn manifest() -> impl Strategy<Value = Manifest> {
    (map(2 * MIB), map(300_000), map(70_000), any::<bool>()).prop_map(|(ram, disk, device, has)| {
        let mut about = about();
        about.memory_mib = 2;
        about.parent = has.then(|| PackId::from_bytes([1; 32]));
        let disk = DiskMap {
            number: 1,
            name: "upper".into(),
            map: disk,
        };
        Manifest {
            about,
            ram,
            disks: Vec::from_iter(has.then_some(disk)),
            device,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_manifest_has_one_encoding(manifest in manifest(), at in any::<usize>(), bit in 0..8_u32) {
        let bytes = manifest.to_bytes();
        prop_assert_eq!(&Manifest::parse(&bytes).unwrap(), &manifest);
        let mut changed = bytes.clone();
        let at = at % bytes.len();
        changed[at] ^= 1 << bit;
        // Another manifest, or none; never the same one, and never a panic.
        if let Ok(other) = Manifest::parse(&changed) {
            prop_assert_ne!(&other, &manifest);
            prop_assert_eq!(other.to_bytes(), changed);
        }
        prop_assert!(Manifest::parse(&bytes[..at]).is_err());
        changed = bytes;
        changed.push(0);
        prop_assert!(Manifest::parse(&changed).is_err());
    }

    #[test]
    fn noise_is_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Manifest::parse(&bytes).is_err());
    }
}

#[test]
fn a_manifest_that_reaches_out_of_its_place_is_refused() {
    let refused = |change: fn(&mut Manifest)| {
        let mut manifest = Manifest {
            about: About {
                memory_mib: 1,
                ..about()
            },
            ram: Map {
                size: MIB,
                chunks: vec![None; 16],
            },
            disks: vec![DiskMap {
                number: 1,
                name: "upper".into(),
                map: Map {
                    size: 1,
                    chunks: vec![None],
                },
            }],
            device: Map {
                size: 0,
                chunks: Vec::new(),
            },
        };
        assert!(Manifest::parse(&manifest.to_bytes()).is_ok());
        change(&mut manifest);
        let parsed = Manifest::parse(&manifest.to_bytes());
        assert!(
            matches!(parsed, Err(SnapshotError::Manifest { .. })),
            "{manifest:?}"
        );
    };
    for change in [
        (|m| m.disks[0].name = "../upper".into()) as fn(&mut Manifest),
        |m| m.disks[0].name = String::new(),
        |m| m.disks[0].name = "kernel".into(),
        |m| m.disks[0].name = "disk0".into(),
        |m| m.disks[0].name = "control.sock".into(),
        |m| m.disks.push(m.disks[0].clone()),
        |m| m.about.memory_mib = 2,
        |m| m.about.memory_mib = 0,
        |m| m.about.vcpus = 0,
        |m| m.about.accel = Accel::Auto,
        |m| m.about.vmm = "x".repeat(2000),
        |m| m.about.cpu = "a\u{1b}[31m".into(),
        |m| m.about.record = "x".repeat(2 << 20),
        |m| m.device.size = u64::MAX,
        |m| m.device.size = 1,
        |m| m.ram.chunks.truncate(7),
    ] {
        refused(change);
    }
}
