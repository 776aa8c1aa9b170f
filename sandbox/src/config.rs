//! What a node decides about its sandboxes.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::manager::Gate;

/// How a guest's instructions run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where a real kernel boots in it, else emulation.
    #[default]
    Auto,
    /// KVM; a host on which it does not work is an error.
    Kvm,
    /// Software emulation; works everywhere, about 15 times slower.
    Tcg,
}

impl Accel {
    /// Returns the name used in configuration, state files and on QEMU's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Accel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            other => Err(format!(
                "unknown acceleration `{other}`: use auto, kvm or tcg"
            )),
        }
    }
}

/// What new sandboxes run under.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverChoice {
    /// QEMU where it is installed, else Cloud Hypervisor.
    #[default]
    Auto,
    /// QEMU's `microvm`, with KVM or emulation.
    #[serde(rename = "qemu-microvm")]
    Qemu,
    /// Cloud Hypervisor, with KVM.
    CloudHypervisor,
}

impl DriverChoice {
    /// Returns the name used in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Qemu => crate::driver::QEMU_MICROVM,
            Self::CloudHypervisor => crate::driver::CLOUD_HYPERVISOR,
        }
    }
}

impl fmt::Display for DriverChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DriverChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Qemu, Self::CloudHypervisor]
            .into_iter()
            .find(|choice| choice.as_str() == text)
            .ok_or_else(|| {
                format!("unknown driver `{text}`: use auto, qemu-microvm or cloud-hypervisor")
            })
    }
}

/// How much one node gives to its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sandboxes that may run at once.
    pub max_running: usize,
    /// Memory of all running guests together, in MiB.
    pub max_total_memory_mib: u32,
    /// Memory of one guest, in MiB.
    pub max_memory_mib: u32,
    /// Virtual CPUs of one guest.
    pub max_vcpus: u32,
    /// Guests that have booted already and wait, one for each image and size; the least used go
    /// beyond it, and at 0 every sandbox is booted.
    pub max_waiting: usize,
    /// Memory of all that wait together, in MiB.
    pub max_waiting_mib: u32,
    /// Sandboxes that ended and are still listed; the oldest are removed beyond it.
    pub max_ended: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_running: 16,
            max_total_memory_mib: 16 * 1024,
            max_memory_mib: 8 * 1024,
            max_vcpus: 8,
            max_waiting: 0,
            max_waiting_mib: 1024,
            max_ended: 64,
        }
    }
}

/// Where sandboxes live and what they run on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SandboxConfig {
    /// Directory of this node's sandboxes, one directory each.
    pub dir: PathBuf,
    /// Directory of kernels, images and probe results; daemons of one machine may share it.
    pub images_dir: PathBuf,
    /// Directory of the chunk store that snapshots go to.
    pub chunks_dir: PathBuf,
    /// A kernel to boot instead of the distribution's.
    pub kernel: Option<PathBuf>,
    /// The modules of `kernel` (a directory as under `/lib/modules/<release>`); without it the
    /// kernel needs virtio built in.
    pub kernel_modules: Option<PathBuf>,
    /// The QEMU binary; found on `PATH` when absent.
    pub qemu: Option<PathBuf>,
    /// The Cloud Hypervisor binary; found on `PATH` when absent.
    pub cloud_hypervisor: Option<PathBuf>,
    /// What new sandboxes run under.
    pub driver: DriverChoice,
    /// How guests run.
    pub accel: Accel,
    /// Directory of the secrets that sandboxes may use without seeing them.
    pub secrets_dir: PathBuf,
    /// How much may be used.
    pub limits: Limits,
    /// Who is asked before a sandbox runs; nobody, if absent.
    pub gate: Option<Arc<dyn Gate>>,
}

impl SandboxConfig {
    /// Returns the defaults for a data directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self {
            images_dir: dir.join("images"),
            secrets_dir: dir.join(".secrets"),
            chunks_dir: dir.join("chunks"),
            dir,
            kernel: None,
            kernel_modules: None,
            qemu: None,
            cloud_hypervisor: None,
            driver: DriverChoice::Auto,
            accel: Accel::Auto,
            limits: Limits::default(),
            gate: None,
        }
    }
}
