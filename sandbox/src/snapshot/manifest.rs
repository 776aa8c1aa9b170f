//! What a snapshot is made of, and where it fits.

use minicbor::{Decode, Encode};

use super::{Incompatible, SnapshotError};
use crate::{
    Accel, SandboxId,
    chunks::{ChunkId, MAX_OBJECT_BYTES, PackId},
    driver::{DriverError, VmRequest, VmmDriver, tsc_khz},
};

/// Bytes of every chunk but the last of a map: large enough that a map stays small, small enough
/// that a page that changed does not make a mebibyte new.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Version of the manifest's encoding.
const VERSION: u32 = 1;
/// Largest file that a map describes, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 44;
/// Most disks of one guest.
const MAX_DISKS: usize = 16;
/// Longest text of a manifest, in bytes; the record is longer.
const MAX_TEXT_BYTES: usize = 1024;
const MAX_RECORD_BYTES: usize = 1024 * 1024;
const MAX_KERNEL_ARGS: usize = 64;
/// How far two hosts' counters may be apart, in millionths: what two measurements of one
/// counter differ by. A guest's clock is then off by at most a second in three hours, and the
/// node sets it again.
const TSC_TOLERANCE_PPM: u64 = 100;

/// A file as chunks of [`CHUNK_BYTES`]; what is zero has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Size of the file in bytes.
    pub size: u64,
    /// Its chunks in order; `None` is zero all through.
    pub chunks: Vec<Option<ChunkId>>,
}

/// A writable disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskMap {
    /// Number of the disk: its serial is `disk<number>`.
    pub number: u32,
    /// Name of its file in the VM's directory.
    pub name: String,
    /// Its content.
    pub map: Map,
}

/// What a guest is, apart from its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What the manager wrote down about it, in the manager's own words.
    pub record: String,
    /// The image's id.
    pub image_id: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Words that were added to the kernel's command line; the machine is made with the same.
    pub kernel_args: Vec<String>,
    /// The driver.
    pub driver: String,
    /// The monitor's name and version.
    pub vmm: String,
    /// The machine, in the driver's words.
    pub machine: String,
    /// How its instructions run.
    pub accel: Accel,
    /// The processor.
    pub cpu: String,
    /// Rate of the counter that its clock is built on, in kHz.
    pub tsc_khz: u64,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Protocol of the agent in it.
    pub protocol: u32,
    /// When it was stopped, in Unix milliseconds.
    pub taken_ms: u64,
    /// The snapshot that it was resumed from.
    pub parent: Option<PackId>,
}

impl About {
    /// Describes a guest that `driver` runs as `request`; `record`, `image_id`, `kernel` and
    /// `parent` are for the caller to fill in.
    ///
    /// # Errors
    /// When the driver does not know its version, or the host its counter.
    pub async fn of(driver: &dyn VmmDriver, request: &VmRequest) -> Result<Self, DriverError> {
        let host = HostFacts::of(driver, request.accel).await?;
        Ok(Self {
            sandbox: request.id,
            record: String::new(),
            image_id: String::new(),
            kernel: String::new(),
            kernel_args: request.kernel_args.clone(),
            driver: host.driver,
            vmm: host.vmm,
            machine: host.machine,
            accel: host.accel,
            cpu: host.cpu,
            tsc_khz: host.tsc_khz,
            memory_mib: request.memory_mib,
            vcpus: request.vcpus,
            protocol: host.protocol,
            taken_ms: crate::manager::now_ms(),
            parent: None,
        })
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// What it is.
    pub about: About,
    /// The memory.
    pub ram: Map,
    /// The writable disks, by number.
    pub disks: Vec<DiskMap>,
    /// The state of the devices.
    pub device: Map,
}

/// What a host runs guests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The driver.
    pub driver: String,
    /// The monitor's name and version.
    pub vmm: String,
    /// The machine, in the driver's words.
    pub machine: String,
    /// How instructions run.
    pub accel: Accel,
    /// The processor that guests get.
    pub cpu: String,
    /// Rate of the counter, in kHz.
    pub tsc_khz: u64,
    /// Memory that one guest may have, in MiB.
    pub max_memory_mib: u32,
    /// Protocol that the node speaks with agents.
    pub protocol: u32,
}

impl HostFacts {
    /// Asks a driver and its host. Memory is unlimited until the caller says otherwise.
    ///
    /// # Errors
    /// When the driver does not know its version, or the host its counter.
    pub async fn of(driver: &dyn VmmDriver, accel: Accel) -> Result<Self, DriverError> {
        Ok(Self {
            driver: driver.name().to_owned(),
            vmm: driver.version().await?,
            machine: driver.machine(accel),
            accel,
            cpu: match accel {
                // The guest has all that this processor has.
                Accel::Kvm => crate::driver::host_cpu().ok_or(DriverError::Host {
                    what: "the model of the processor",
                })?,
                Accel::Auto | Accel::Tcg => driver.cpu_model(accel).to_owned(),
            },
            tsc_khz: tsc_khz().ok_or(DriverError::Host {
                what: "the frequency of the time stamp counter",
            })?,
            max_memory_mib: u32::MAX,
            protocol: u32::from(rhizome_guest::wire::PROTOCOL_VERSION),
        })
    }
}

/// Tells whether a guest at rest can go on here.
///
/// Whether its image is here is for the caller to say: [`Incompatible::Image`].
///
/// # Errors
/// The first thing that differs.
pub fn compatible(manifest: &Manifest, host: &HostFacts) -> Result<(), Incompatible> {
    match differences(manifest, host).into_iter().next() {
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// Returns everything that keeps a guest at rest from going on here; nothing if it can.
#[must_use]
pub fn differences(manifest: &Manifest, host: &HostFacts) -> Vec<Incompatible> {
    let about = &manifest.about;
    let mut found = Vec::new();
    let mut differ = |a: &String, b: &String, what: fn(String, String) -> Incompatible| {
        if a != b {
            found.push(what(a.clone(), b.clone()));
        }
    };
    differ(&about.driver, &host.driver, |snapshot, host| {
        Incompatible::Driver { snapshot, host }
    });
    differ(&about.vmm, &host.vmm, |snapshot, host| Incompatible::Vmm {
        snapshot,
        host,
    });
    differ(&about.machine, &host.machine, |snapshot, host| {
        Incompatible::Machine { snapshot, host }
    });
    differ(&about.cpu, &host.cpu, |snapshot, host| Incompatible::Cpu {
        snapshot,
        host,
    });
    if about.accel != host.accel {
        found.push(Incompatible::Accel {
            snapshot: about.accel,
            host: host.accel,
        });
    }
    let apart = u128::from(about.tsc_khz.abs_diff(host.tsc_khz)) * 1_000_000;
    if apart > u128::from(about.tsc_khz) * u128::from(TSC_TOLERANCE_PPM) {
        found.push(Incompatible::Tsc {
            snapshot: about.tsc_khz,
            host: host.tsc_khz,
        });
    }
    if about.memory_mib > host.max_memory_mib {
        found.push(Incompatible::Memory {
            snapshot: about.memory_mib,
            host: host.max_memory_mib,
        });
    }
    if about.protocol != host.protocol {
        found.push(Incompatible::Protocol {
            snapshot: about.protocol,
            host: host.protocol,
        });
    }
    found
}

impl Map {
    /// Returns the bytes that are not zero, rounded up to whole chunks.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.chunks.iter().flatten().count() as u64 * CHUNK_BYTES as u64
    }
}

impl Manifest {
    /// Returns the one encoding that [`Self::parse`] accepts.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let wire = WireManifest::from(self);
        minicbor::to_vec(&wire).expect("a vector takes every write")
    }

    /// Reads a manifest: of this version, within bounds, in its one encoding.
    ///
    /// # Errors
    /// [`SnapshotError::Manifest`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(unusable("it is too large"));
        }
        let wire: WireManifest =
            minicbor::decode(bytes).map_err(|error| unusable(&error.to_string()))?;
        if wire.version != VERSION {
            return Err(unusable(&format!("it is of version {}", wire.version)));
        }
        let manifest = wire.check()?;
        if manifest.to_bytes() != bytes {
            return Err(unusable("it is not in its one encoding"));
        }
        Ok(manifest)
    }

    /// Returns every chunk that it names, those needed first in front; one may come twice.
    pub fn chunks(&self) -> impl Iterator<Item = &ChunkId> {
        let disks = self.disks.iter().map(|disk| &disk.map);
        [&self.device, &self.ram]
            .into_iter()
            .chain(disks)
            .flat_map(|map| map.chunks.iter().flatten())
    }
}

#[derive(Encode, Decode)]
struct WireManifest {
    #[n(0)]
    version: u32,
    #[cbor(n(1), with = "minicbor::bytes")]
    sandbox: [u8; 16],
    #[n(2)]
    record: String,
    #[n(3)]
    image_id: String,
    #[n(4)]
    kernel: String,
    #[n(5)]
    kernel_args: Vec<String>,
    #[n(6)]
    driver: String,
    #[n(7)]
    vmm: String,
    #[n(8)]
    machine: String,
    #[n(9)]
    accel: String,
    #[n(10)]
    cpu: String,
    #[n(11)]
    tsc_khz: u64,
    #[n(12)]
    memory_mib: u32,
    #[n(13)]
    vcpus: u32,
    #[n(14)]
    protocol: u32,
    #[n(15)]
    taken_ms: u64,
    #[cbor(n(16), with = "minicbor::bytes")]
    parent: Option<[u8; 32]>,
    #[n(17)]
    ram: WireMap,
    #[n(18)]
    disks: Vec<WireDisk>,
    #[n(19)]
    device: WireMap,
}

#[derive(Encode, Decode)]
struct WireDisk {
    #[n(0)]
    number: u32,
    #[n(1)]
    name: String,
    #[n(2)]
    map: WireMap,
}

/// A bit for each chunk that is not zero, the lowest first, and the ids of those in a row.
#[derive(Encode, Decode)]
struct WireMap {
    #[n(0)]
    size: u64,
    #[cbor(n(1), with = "minicbor::bytes")]
    present: Vec<u8>,
    #[cbor(n(2), with = "minicbor::bytes")]
    ids: Vec<u8>,
}

impl From<&Map> for WireMap {
    fn from(map: &Map) -> Self {
        let mut present = vec![0; map.chunks.len().div_ceil(8)];
        let mut ids = Vec::new();
        for (number, id) in map.chunks.iter().enumerate() {
            if let Some(id) = id {
                present[number / 8] |= 1 << (number % 8);
                ids.extend_from_slice(id.as_bytes());
            }
        }
        Self {
            size: map.size,
            present,
            ids,
        }
    }
}

impl WireMap {
    fn check(&self) -> Result<Map, SnapshotError> {
        if self.size > MAX_FILE_BYTES {
            return Err(unusable("a file in it is too large"));
        }
        let count = usize::try_from(self.size.div_ceil(CHUNK_BYTES as u64))
            .map_err(|_| unusable("a file in it is too large"))?;
        let (ids, rest) = self.ids.as_chunks::<32>();
        let mut ids = ids.iter();
        if self.present.len() != count.div_ceil(8) || !rest.is_empty() {
            return Err(unusable("a map in it has another length than its file"));
        }
        let chunks = (0..count)
            .map(|number| {
                if self.present[number / 8] & (1 << (number % 8)) == 0 {
                    return Ok(None);
                }
                let id = ids.next();
                let id = id.ok_or_else(|| unusable("a map in it has too few chunks"))?;
                Ok::<_, SnapshotError>(Some(ChunkId::from_bytes(*id)))
            })
            .collect::<Result<_, SnapshotError>>()?;
        // What is left over, here or in the last bits, shows when it is encoded again.
        Ok(Map {
            size: self.size,
            chunks,
        })
    }
}

impl From<&Manifest> for WireManifest {
    fn from(manifest: &Manifest) -> Self {
        let about = &manifest.about;
        Self {
            version: VERSION,
            sandbox: *about.sandbox.as_bytes(),
            record: about.record.clone(),
            image_id: about.image_id.clone(),
            kernel: about.kernel.clone(),
            kernel_args: about.kernel_args.clone(),
            driver: about.driver.clone(),
            vmm: about.vmm.clone(),
            machine: about.machine.clone(),
            accel: about.accel.to_string(),
            cpu: about.cpu.clone(),
            tsc_khz: about.tsc_khz,
            memory_mib: about.memory_mib,
            vcpus: about.vcpus,
            protocol: about.protocol,
            taken_ms: about.taken_ms,
            parent: about.parent.map(|id| *id.as_bytes()),
            ram: (&manifest.ram).into(),
            disks: manifest
                .disks
                .iter()
                .map(|disk| WireDisk {
                    number: disk.number,
                    name: disk.name.clone(),
                    map: (&disk.map).into(),
                })
                .collect(),
            device: (&manifest.device).into(),
        }
    }
}

impl WireManifest {
    fn check(self) -> Result<Manifest, SnapshotError> {
        let texts = [
            &self.image_id,
            &self.kernel,
            &self.driver,
            &self.vmm,
            &self.machine,
            &self.accel,
            &self.cpu,
        ];
        let too_long = texts
            .into_iter()
            .chain(&self.kernel_args)
            .any(|text| text.len() > MAX_TEXT_BYTES || text.contains(char::is_control));
        if too_long
            || self.record.len() > MAX_RECORD_BYTES
            || self.kernel_args.len() > MAX_KERNEL_ARGS
            || self.disks.len() > MAX_DISKS
        {
            return Err(unusable("a part of it is too long"));
        }
        let Ok(accel @ (Accel::Kvm | Accel::Tcg)) = self.accel.parse::<Accel>() else {
            return Err(unusable("it names no acceleration"));
        };
        if self.memory_mib == 0 || self.ram.size != u64::from(self.memory_mib) << 20 {
            return Err(unusable("its memory has another size than its guest"));
        }
        if self.tsc_khz == 0 || self.vcpus == 0 {
            return Err(unusable("it describes no guest"));
        }
        let mut disks: Vec<DiskMap> = Vec::with_capacity(self.disks.len());
        for disk in &self.disks {
            let known = |other: &DiskMap| other.name == disk.name || other.number >= disk.number;
            if !is_disk_name(&disk.name) || disks.iter().any(known) {
                return Err(unusable("its disks have no proper names"));
            }
            disks.push(DiskMap {
                number: disk.number,
                name: disk.name.clone(),
                map: disk.map.check()?,
            });
        }
        Ok(Manifest {
            ram: self.ram.check()?,
            device: self.device.check()?,
            disks,
            about: About {
                sandbox: SandboxId::from_bytes(self.sandbox),
                record: self.record,
                image_id: self.image_id,
                kernel: self.kernel,
                kernel_args: self.kernel_args,
                driver: self.driver,
                vmm: self.vmm,
                machine: self.machine,
                accel,
                cpu: self.cpu,
                tsc_khz: self.tsc_khz,
                memory_mib: self.memory_mib,
                vcpus: self.vcpus,
                protocol: self.protocol,
                taken_ms: self.taken_ms,
                parent: self.parent.map(PackId::from_bytes),
            },
        })
    }
}

/// A name that stands for a file in a directory, and for no other file that a VM has there.
pub(super) fn is_disk_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let taken = ["kernel", "initramfs", "run", "device"].contains(&name)
        || name
            .strip_prefix("disk")
            .is_some_and(|rest| rest.parse::<u32>().is_ok());
    !name.is_empty() && name.len() <= 32 && name.bytes().all(plain) && !taken
}

fn unusable(what: &str) -> SnapshotError {
    SnapshotError::Manifest {
        what: what.chars().take(200).collect(),
    }
}
