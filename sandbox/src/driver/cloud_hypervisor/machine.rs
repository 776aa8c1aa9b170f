//! What Cloud Hypervisor is told to make. Every path is relative to the VM's directory, so what is
//! made for one guest fits another; every device has a name of ours, by which a saved state knows
//! it.

use cloud_hypervisor_client::models::{
    BalloonConfig, ConsoleConfig, ConsoleMode, CpusConfig, DiskConfig, ImageType, MemoryConfig,
    MemoryZoneConfig, PayloadConfig, RngConfig, SerialConfig, VmConfig, VsockConfig,
};

use super::{MEMORY, vsock::GUEST_PORT};
use crate::driver::{
    Disk, VmRequest,
    launch::{CHANNEL_SOCKET, CONSOLE_SOCKET, INITRAMFS, KERNEL},
};

/// The machine, in the words of the interface.
pub(super) type Config = VmConfig;

/// Number of the list of devices below: a change to it is a change to the machine.
const DEVICES: u32 = 1;
/// The guest's own number on its virtio socket; each guest has a socket of its own.
const GUEST_CID: i64 = 3;

/// Returns what a guest's machine is; a guest at rest needs an equal one.
pub(super) fn machine() -> String {
    format!("pci serial vsock balloon devices={DEVICES}")
}

/// Describes the machine of one guest, with all that a guest at rest depends on.
pub(super) fn describe(request: &VmRequest, version: &str) -> String {
    let disk = |disk: &Disk| if disk.writable { "rw" } else { "ro" };
    let disks: Vec<_> = request.disks.iter().map(disk).collect();
    format!(
        "{version}; {}; host; {} vcpus; {} MiB; disks {}",
        machine(),
        request.vcpus,
        request.memory_mib,
        disks.join(" "),
    )
}

/// Returns what is to be made.
pub(super) fn config(request: &VmRequest, disks: &[String]) -> Config {
    let vcpus = i32::try_from(request.vcpus).unwrap_or(i32::MAX);
    let mut payload = PayloadConfig::new();
    payload.kernel = Some(KERNEL.to_owned());
    payload.initramfs = Some(INITRAMFS.to_owned());
    payload.cmdline = Some(kernel_command_line(request));

    let mut zone = MemoryZoneConfig::new("ram".to_owned(), i64::from(request.memory_mib) << 20);
    zone.file = Some(MEMORY.to_owned());
    zone.shared = Some(true);
    let mut memory = MemoryConfig::new(0);
    memory.zones = Some(vec![zone]);

    let mut serial = SerialConfig::new(ConsoleMode::Socket);
    serial.socket = Some(CONSOLE_SOCKET.to_owned());
    let mut channel = VsockConfig::new(GUEST_CID, CHANNEL_SOCKET.to_owned());
    channel.id = Some("channel".to_owned());
    // What the guest has freed is a hole in its memory: neither copied nor stored, and the
    // host's to use.
    let mut balloon = BalloonConfig::new(0);
    balloon.free_page_reporting = Some(true);
    let disks = disks.iter().zip(&request.disks).enumerate();

    let mut config = VmConfig::new(payload);
    config.cpus = Some(CpusConfig::new(vcpus, vcpus));
    config.memory = Some(memory);
    config.disks = Some(
        disks
            .map(|(number, (name, disk))| disk_config(number, name, disk))
            .collect(),
    );
    config.rng = Some(RngConfig::new("/dev/urandom".to_owned()));
    config.balloon = Some(balloon);
    config.serial = Some(serial);
    config.console = Some(ConsoleConfig::new(ConsoleMode::Off));
    config.vsock = Some(channel);
    config
}

fn disk_config(number: usize, name: &str, disk: &Disk) -> DiskConfig {
    let mut config = DiskConfig::new();
    config.id = Some(format!("disk{number}"));
    // The guest tells disks apart by their serials.
    config.serial = Some(format!("disk{number}"));
    config.path = Some(name.to_owned());
    config.readonly = Some(!disk.writable);
    // Never guessed: the guest writes what a guess would be made from.
    config.image_type = Some(ImageType::Raw);
    config
}

fn kernel_command_line(request: &VmRequest) -> String {
    let mut words = vec![
        "console=ttyS0".to_owned(),
        "quiet".to_owned(),
        // A panic resets the machine, which ends the monitor.
        "panic=-1".to_owned(),
        "random.trust_cpu=on".to_owned(),
        "cryptomgr.notests".to_owned(),
        "8250.nr_uarts=1".to_owned(),
        format!("rhizome.channel=vsock:{GUEST_PORT}"),
    ];
    words.extend(request.kernel_args.iter().cloned());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accel, driver::qemu::test_request};

    #[test]
    fn a_guest_has_no_network_and_no_path_of_the_host() {
        let request = test_request(Accel::Kvm);
        let config = config(&request, &["disk0".into(), "upper".into()]);
        assert!(config.net.is_none() && config.fs.is_none() && config.devices.is_none());
        let disks = config.disks.as_ref().unwrap();
        assert_eq!(
            (disks[0].readonly, disks[1].readonly),
            (Some(true), Some(false))
        );
        let raw = Some(ImageType::Raw);
        assert!(disks.iter().all(|disk| disk.image_type == raw));
        let json = serde_json::to_string(&config).unwrap();
        // The two that are the host's, and no other.
        let rest = json.replace(MEMORY, "").replace("/dev/urandom", "");
        assert!(!rest.contains("\"/"), "{json}");
        assert!(json.contains("rhizome.root=disk0"), "{json}");
    }

    #[test]
    fn another_guest_of_the_same_kind_has_the_same_machine() {
        let request = test_request(Accel::Kvm);
        let disks = ["disk0".into(), "upper".into()];
        let mut sibling = request.clone();
        sibling.dir = "/elsewhere".into();
        assert_eq!(config(&request, &disks), config(&sibling, &disks));
        let mut larger = request.clone();
        larger.vcpus = 2;
        assert_ne!(describe(&request, "v"), describe(&larger, "v"));
    }
}
