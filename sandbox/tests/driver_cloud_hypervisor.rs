//! Cloud Hypervisor itself, wherever it is found: on `PATH` or named by `RHIZOME_CLOUD_HYPERVISOR`.
//!
//! The guest is 35 bytes of machine code that counts in its memory, so these run also where KVM
//! opens and no Linux boots in it; what a Linux guest does is for the conformance suite.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "driver_conformance/confined.rs"]
mod confined;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, SandboxId,
    driver::{
        Disk, DriverError, GuestRam, SavedState, Vm, VmRequest, VmmDriver,
        cloud_hypervisor::CloudHypervisor, read_console,
    },
    probe,
};
use tempfile::TempDir;

const MEMORY_MIB: u32 = 64;
/// Where the guest counts.
const COUNT: u64 = 0x0020_0000;
/// What makes the guest reset itself when it is not zero.
const RESET: u64 = COUNT + 4;
/// Where the guest's code lies in its memory.
const CODE: u64 = 0x0010_0000;

/// Says `K`, counts, and resets itself when told to. 32 bits, no paging.
const GUEST: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xb0, b'K', //             mov al, 'K'
    0xee, //                   out dx, al
    0xff, 0x05, 0, 0, 0x20, 0, //    again: inc dword [0x200000]
    0xf3, 0x90, //                   pause
    0x83, 0x3d, 4, 0, 0x20, 0, 0, // cmp dword [0x200004], 0
    0x74, 0xef, //                   je again
    0xb0, 0xfe, // mov al, 0xfe
    0xe6, 0x64, // out 0x64, al
    0xf4, //       halt: hlt
    0xeb, 0xfd, // jmp halt
];

/// Makes an ELF file with the note by which a monitor finds where a guest begins.
fn kernel() -> Vec<u8> {
    const CODE_AT: u64 = 0x1000;
    let (headers, note_at) = (64_u64, 64 + 2 * 56_u64);
    let mut note = Vec::new();
    for word in [4_u32, 8, 18] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"Xen\0");
    note.extend(CODE.to_le_bytes());
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([2_u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    file.extend(1_u32.to_le_bytes());
    for word in [CODE, headers, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    file.extend(
        [64_u16, 56, 2, 64, 0, 0]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    let (code, notes) = (GUEST.len() as u64, note.len() as u64);
    for (kind, at, address, size) in [(1_u32, CODE_AT, CODE, code), (4, note_at, 0, notes)] {
        file.extend(kind.to_le_bytes());
        file.extend(7_u32.to_le_bytes());
        for word in [at, address, address, size, size, 0] {
            file.extend(word.to_le_bytes());
        }
    }
    file.extend(note);
    file.resize(usize::try_from(CODE_AT).unwrap(), 0);
    file.extend(GUEST);
    file
}

struct Machine {
    home: TempDir,
    request: VmRequest,
}

impl Machine {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("kernel"), kernel()).unwrap();
        fs::write(home.path().join("initramfs"), [0; 512]).unwrap();
        let request = request(home.path(), 0);
        Self { home, request }
    }
}

fn request(home: &Path, number: u8) -> VmRequest {
    let dir = home.join(format!("vm{number}"));
    fs::create_dir(&dir).unwrap();
    let disk = dir.join("data");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    VmRequest {
        id: SandboxId::from_bytes([9 + number; 16]),
        console: home.join(format!("console-{number}.log")),
        kernel: home.join("kernel"),
        initramfs: home.join("initramfs"),
        disks: vec![Disk {
            path: disk,
            writable: true,
        }],
        memory_mib: MEMORY_MIB,
        vcpus: 1,
        accel: Accel::Kvm,
        kernel_args: Vec::new(),
        dir,
    }
}

/// Returns the driver, or prints why a test is skipped.
async fn driver(test: &str) -> Option<CloudHypervisor> {
    let program = std::env::var_os("RHIZOME_CLOUD_HYPERVISOR").map(PathBuf::from);
    let driver = CloudHypervisor::new(program);
    let missing = match driver.version().await {
        Ok(version) => match probe::kvm_is_open() {
            Ok(()) => {
                eprintln!("{test}: {version}");
                return Some(driver);
            }
            Err(reason) => reason,
        },
        Err(error) => format!("{error} ({})", error.hint().unwrap_or_default()),
    };
    eprintln!("skipped: {test}: cloud-hypervisor: {missing}");
    None
}

fn count(ram: &GuestRam) -> u32 {
    let mut count = [0; 4];
    ram.file().read_exact_at(&mut count, COUNT).unwrap();
    u32::from_le_bytes(count)
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn goes_on(vm: &Vm) {
    let ram = vm.ram().unwrap();
    let before = count(&ram);
    until("the guest counts", || count(&ram) != before).await;
}

async fn stands(vm: &Vm) -> u32 {
    let ram = vm.ram().unwrap();
    let now = count(&ram);
    // The guest counts millions a second.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(count(&ram), now);
    now
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_runs_stands_and_is_taken_over() {
    let Some(driver) = driver("life").await else {
        return;
    };
    let machine = Machine::new();
    let request = &machine.request;
    let vm = driver.start(request).await.unwrap();
    assert_eq!(vm.status().await.as_deref(), Some("running"));
    goes_on(&vm).await;
    until("the console is heard", || {
        read_console(&request.console).unwrap().contains('K')
    })
    .await;
    confined::check(vm.pid, request, machine.home.path());

    vm.pause().await.unwrap();
    vm.pause().await.unwrap();
    assert_eq!(vm.status().await.as_deref(), Some("paused"));
    stands(&vm).await;
    vm.resume().await.unwrap();
    vm.resume().await.unwrap();
    goes_on(&vm).await;

    // Nobody listens in this guest, and that is no error of the monitor's.
    let mut stream = vm.connect().await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"hello")
        .await
        .unwrap();
    drop(stream);

    // Another daemon, to which it was paused.
    vm.pause().await.unwrap();
    let counted = stands(&vm).await;
    let (pid, started) = (vm.pid, vm.started);
    vm.release();
    drop(vm);
    let gone = driver.attach(request, pid, started + 1).await;
    assert!(matches!(gone, Err(DriverError::Gone { .. })), "{gone:?}");
    let vm = driver.attach(request, pid, started).await.unwrap();
    assert_eq!((vm.pid, vm.started), (pid, started));
    assert_eq!(vm.status().await.as_deref(), Some("paused"));
    assert_eq!(stands(&vm).await, counted);
    vm.resume().await.unwrap();
    goes_on(&vm).await;

    vm.kill().await;
    let gone = driver.attach(request, pid, started).await;
    assert!(matches!(gone, Err(DriverError::Gone { .. })), "{gone:?}");
    assert!(vm.pause().await.is_err());
    assert!(vm.connect().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_resets_itself_is_not_started_anew() {
    let Some(driver) = driver("reset").await else {
        return;
    };
    let machine = Machine::new();
    let vm = driver.start(&machine.request).await.unwrap();
    goes_on(&vm).await;
    let ram = vm.ram().unwrap();
    ram.file().write_all_at(&[1], RESET).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), vm.wait()).await;
    let how = ended.expect("the monitor ends with its guest");
    assert!(!how.is_empty());
    eprintln!("{how}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_guest_goes_on_where_it_was() {
    let Some(driver) = driver("save").await else {
        return;
    };
    let machine = Machine::new();
    let request = &machine.request;
    let vm = driver.start(request).await.unwrap();
    goes_on(&vm).await;
    let device = machine.home.path().join("device");
    let running = vm.save_device(&device).await;
    assert!(
        matches!(running, Err(DriverError::Control { .. })),
        "{running:?}"
    );
    vm.pause().await.unwrap();
    match vm.save_device(&device).await {
        Err(DriverError::Control { source, .. })
            if source.to_string().contains("GetNestedState") =>
        {
            // Nothing of the attempt is left, and the guest goes on.
            assert!(!request.dir.join("save").exists() && !device.exists());
            vm.resume().await.unwrap();
            goes_on(&vm).await;
            eprintln!("skipped: save: cloud-hypervisor: this host's KVM gives no state: {source}");
            return;
        }
        saved => saved.unwrap(),
    }
    let counted = stands(&vm).await;
    let first = fs::read(&device).unwrap();
    vm.save_device(&device).await.unwrap();
    assert!(fs::read(&device).unwrap() == first);
    assert!(!request.dir.join("save").exists());
    let ram = vm.ram().unwrap().copy().unwrap();
    let resident = ram.resident().unwrap();
    vm.resume().await.unwrap();
    goes_on(&vm).await;

    // Elsewhere, twice, while the first goes on.
    for number in 1..=2 {
        let elsewhere = self::request(machine.home.path(), number);
        let saved = SavedState {
            device: device.clone(),
            ram: ram.copy().unwrap(),
        };
        let begun = Instant::now();
        let vm = driver.restore(&elsewhere, &saved).await.unwrap();
        eprintln!("restored after {:?}", begun.elapsed());
        assert_eq!(vm.status().await.as_deref(), Some("paused"));
        assert_eq!(stands(&vm).await, counted);
        // Reading its memory onto itself fills no hole.
        let now = vm.ram().unwrap().resident().unwrap();
        assert!(now < resident + (1 << 20), "{now} of {resident}");
        assert!(!elsewhere.dir.join("load").exists());
        vm.resume().await.unwrap();
        goes_on(&vm).await;
        confined::check(vm.pid, &elsewhere, machine.home.path());
        // It can be saved again.
        vm.pause().await.unwrap();
        vm.save_device(&machine.home.path().join("again"))
            .await
            .unwrap();
        vm.kill().await;
    }
    // A reset ends it too, though another started it.
    let elsewhere = self::request(machine.home.path(), 3);
    let saved = SavedState {
        device: device.clone(),
        ram,
    };
    let again = driver.restore(&elsewhere, &saved).await.unwrap();
    again.resume().await.unwrap();
    let ram = again.ram().unwrap();
    ram.file().write_all_at(&[1], RESET).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), again.wait()).await;
    ended.expect("the monitor ends with its guest");

    // What is not whole, or of another machine, starts nothing.
    let mut larger = self::request(machine.home.path(), 4);
    larger.vcpus = 2;
    let error = driver.restore(&larger, &saved).await.unwrap_err();
    assert!(matches!(error, DriverError::Saved { .. }), "{error:?}");
    let whole = fs::read(&device).unwrap();
    fs::write(&device, &whole[..whole.len() - 1]).unwrap();
    let error = driver.restore(&elsewhere, &saved).await.unwrap_err();
    assert!(matches!(error, DriverError::Saved { .. }), "{error:?}");
    vm.kill().await;
}
