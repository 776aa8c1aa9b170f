//! What every case needs: the drivers, a machine to start, and a guest to talk to.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, DriverChoice, SandboxConfig, SandboxId, Sandboxes,
    channel::{ChannelLimits, DoorStream, ExecRequest, ExitStatus, GuestChannel},
    driver::{Disk, Vm, VmRequest, VmmDriver, cloud_hypervisor::CloudHypervisor, qemu::Qemu},
    image::ImageStore,
    silent,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Bytes of the writable disk.
pub(crate) const DISK_BYTES: u64 = 16 * 1024 * 1024;
const MEMORY_MIB: u32 = 256;

/// A driver on one way to run instructions, or why it cannot run here.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) driver: Arc<dyn VmmDriver>,
    pub(crate) accel: Accel,
    missing: Option<String>,
}

/// Names a Cloud Hypervisor that is not on `PATH`.
const CLOUD_HYPERVISOR: &str = "RHIZOME_CLOUD_HYPERVISOR";

fn config(home: &Path, accel: Accel) -> SandboxConfig {
    let mut config = SandboxConfig::new(home);
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    config.accel = accel;
    config.cloud_hypervisor = std::env::var_os(CLOUD_HYPERVISOR).map(PathBuf::from);
    config
}

async fn candidates() -> Vec<Candidate> {
    let qemu: Arc<dyn VmmDriver> = Arc::new(Qemu::new(None));
    let installed = match Qemu::new(None).program() {
        Ok(_) => None,
        Err(error) => Some(format!("{error} ({})", error.hint().unwrap_or_default())),
    };
    let kvm = match &installed {
        Some(missing) => Some(missing.clone()),
        None => no_kvm(DriverChoice::Qemu).await,
    };
    let other = CloudHypervisor::new(std::env::var_os(CLOUD_HYPERVISOR).map(PathBuf::from));
    let no_other = match other.version().await {
        Ok(_) => no_kvm(DriverChoice::CloudHypervisor).await,
        Err(error) => Some(format!("{error} ({})", error.hint().unwrap_or_default())),
    };
    vec![
        Candidate {
            name: "qemu-microvm, emulation",
            driver: Arc::clone(&qemu),
            accel: Accel::Tcg,
            missing: installed,
        },
        Candidate {
            name: "qemu-microvm, KVM",
            driver: qemu,
            accel: Accel::Kvm,
            missing: kvm,
        },
        Candidate {
            name: "cloud-hypervisor",
            driver: Arc::new(other),
            accel: Accel::Kvm,
            missing: no_other,
        },
    ]
}

/// Returns why no guest runs under KVM here.
async fn no_kvm(driver: DriverChoice) -> Option<String> {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(home.path(), Accel::Kvm);
    config.driver = driver;
    let (sandboxes, _doors) = Sandboxes::open(config).await.unwrap();
    match sandboxes.accel().await {
        Ok(_) => None,
        Err(error) => {
            let source = std::error::Error::source(&error);
            Some(source.map_or_else(|| error.to_string(), ToString::to_string))
        }
    }
}

/// Runs a case on every driver that runs here, and prints the others with the reason.
pub(crate) async fn on_every_driver<F>(case: &str, run: impl Fn(Arc<Candidate>) -> F)
where
    F: Future<Output = ()>,
{
    for candidate in candidates().await {
        if let Some(missing) = &candidate.missing {
            eprintln!("skipped: {case}: {}: {missing}", candidate.name);
            continue;
        }
        eprintln!("{case}: {}", candidate.name);
        run(Arc::new(candidate)).await;
    }
}

/// A machine of the minimal image, with one writable disk.
pub(crate) struct Machine {
    pub(crate) home: TempDir,
    pub(crate) request: VmRequest,
}

impl Machine {
    pub(crate) async fn new(candidate: &Candidate) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = config(home.path(), candidate.accel);
        let store = ImageStore::open(&config).unwrap();
        let image = store.build_minimal(silent()).await.unwrap();
        let parts = config.images_dir.join("images").join(&image.id[..16]);
        let dir = vm_dir(home.path(), 0);
        let disk = dir.join("data");
        fs::File::create(&disk)
            .unwrap()
            .set_len(DISK_BYTES)
            .unwrap();
        let request = VmRequest {
            id: SandboxId::from_bytes([7; 16]),
            console: home.path().join("console.log"),
            kernel: parts.join("vmlinuz"),
            initramfs: parts.join("initramfs"),
            disks: vec![Disk {
                path: disk,
                writable: true,
            }],
            memory_mib: MEMORY_MIB,
            vcpus: 1,
            accel: candidate.accel,
            kernel_args: vec!["rhizome.hostname=case".into()],
            dir,
        };
        Self { home, request }
    }

    /// Returns the request of another guest of the same machine; its disk is not there yet.
    pub(crate) fn sibling(&self, number: u8) -> VmRequest {
        let dir = vm_dir(self.home.path(), number);
        VmRequest {
            id: SandboxId::from_bytes([7 + number; 16]),
            console: self.home.path().join(format!("console-{number}.log")),
            disks: vec![Disk {
                path: dir.join("data"),
                writable: true,
            }],
            dir,
            ..self.request.clone()
        }
    }
}

fn vm_dir(home: &Path, number: u8) -> PathBuf {
    let dir = home.join(format!("vm{number}"));
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Opens a session with the guest; the last one has to be closed.
pub(crate) async fn talk(vm: &Vm) -> (GuestChannel, mpsc::Receiver<DoorStream>) {
    let stream = vm.connect().await.unwrap();
    match GuestChannel::start(stream, ChannelLimits::default()).await {
        Ok(session) => session,
        Err(error) => panic!("{error}; the guest is {:?}", vm.status().await),
    }
}

/// Runs a script to its end and returns what it wrote.
pub(crate) async fn sh(channel: &GuestChannel, script: &str) -> String {
    let request = ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let handle = channel.exec(request).await.unwrap();
    let output = handle.output(1024 * 1024).await.unwrap();
    assert_eq!(output.status, ExitStatus::Code(0), "{script}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a program that counts in memory and tells where it is in `/tmp/count`.
pub(crate) async fn start_counter(channel: &GuestChannel) {
    let script = "setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; \
        mv /tmp/count.new /tmp/count; sleep 0.05; done' </dev/null >/dev/null 2>&1 & echo $! > /tmp/counter";
    sh(channel, script).await;
    counter_passes(channel, 0).await;
}

pub(crate) async fn count(channel: &GuestChannel) -> u64 {
    let text = sh(channel, "cat /tmp/count 2>/dev/null || echo 0").await;
    text.parse().unwrap()
}

/// Waits until the counter is beyond `value`.
pub(crate) async fn counter_passes(channel: &GuestChannel, value: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let now = count(channel).await;
        if now > value {
            return now;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the counter stays at {now}"
        );
    }
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Tells whether a process runs; a zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
