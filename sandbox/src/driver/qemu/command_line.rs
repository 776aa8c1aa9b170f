//! What QEMU is told. What speaks for each word is in `docs/sandbox.md`.

use super::cpu_model;
use crate::{
    Accel,
    driver::{
        Disk, DriverError, VmRequest, cage, host,
        launch::{CHANNEL_SOCKET, CONSOLE_SOCKET, INITRAMFS, KERNEL, disk_socket},
    },
};

/// Name of the guest's end of the channel, under `/sys/class/virtio-ports`.
const PORT_NAME: &str = "rhizome";
const MACHINE: &str = "microvm,rtc=on,pit=off,pic=off,suppress-vmdesc=on";
const BIOS: &str = "qboot.rom";
/// Number of the list of devices below: a change to it is a change to the machine.
const DEVICES: u32 = 3;
/// Of the geometry of a disk: heads, and sectors of a track.
const HEADS: u64 = 16;
const SECTORS: u64 = 63;
/// For how many seconds a guest waits for a disk while nobody serves it; then it stands still.
const RECONNECT_S: u32 = 86_400;

/// Returns what a guest's machine is; a guest at rest needs an equal one.
pub(super) fn machine(accel: Accel) -> String {
    format!("{MACHINE} {BIOS} {} devices={DEVICES}", accel_words(accel))
}

/// Describes the machine of one guest, with all that a guest at rest depends on.
pub(super) fn describe(request: &VmRequest, version: &str) -> String {
    let disk = |disk: &Disk| if disk.writable { "rw" } else { "ro" };
    let disks: Vec<_> = request.disks.iter().map(disk).collect();
    format!(
        "{version}; {}; {}; {} vcpus; {} MiB; disks {}",
        machine(request.accel),
        cpu_model(request.accel),
        request.vcpus,
        request.memory_mib,
        disks.join(" "),
    )
}

fn accel_words(accel: Accel) -> String {
    match accel {
        Accel::Kvm => "kvm".to_owned(),
        Accel::Auto | Accel::Tcg => format!("tcg,thread=multi,tb-size={}", cage::TRANSLATED_MIB),
    }
}

/// What a guest does with the memory that its monitor is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It writes to it.
    Own,
    /// It reads it, and gets a page of its own where it writes.
    Template,
}

/// Returns QEMU's arguments; every path is relative to the VM's directory. Its standard input is
/// the guest's memory, its standard output the listening control socket.
pub(super) fn arguments(
    request: &VmRequest,
    disks: &[String],
    memory: Memory,
    incoming: bool,
    behind: &[u32],
) -> Result<Vec<String>, DriverError> {
    let accel = accel_words(request.accel);
    let mut words: Vec<String> = [
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        // Nothing runs before the daemon listens to what it says.
        "-S",
        "-bios",
        BIOS,
        "-accel",
        &accel,
        "-cpu",
        cpu_model(request.accel),
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-device",
    ]
    .map(str::to_owned)
    .to_vec();
    let size = request.memory_mib;
    let share = match memory {
        Memory::Own => "on",
        Memory::Template => "off",
    };
    words.extend([
        "-M".to_owned(),
        format!("{MACHINE},memory-backend=ram"),
        // A saved state is that of the devices alone, without a word on what else it should hold.
        "-global".to_owned(),
        "migration.send-configuration=off".to_owned(),
        "-object".to_owned(),
        format!("memory-backend-file,id=ram,size={size}M,mem-path=/proc/self/fd/0,share={share}"),
        "-m".to_owned(),
        size.to_string(),
        "-smp".to_owned(),
        request.vcpus.to_string(),
        "-chardev".to_owned(),
        format!("socket,id=console,path={CONSOLE_SOCKET},server=on,wait=off"),
        "-chardev".to_owned(),
        format!("socket,id=channel,path={CHANNEL_SOCKET},server=on,wait=off"),
        "-device".to_owned(),
        format!("virtserialport,chardev=channel,name={PORT_NAME}"),
        // The guest says which memory it has freed, and that is then a hole: neither copied nor
        // stored, and the host's to use.
        "-device".to_owned(),
        "virtio-balloon-device,free-page-reporting=on".to_owned(),
        // The last: when the monitor answers there, the other two listen.
        "-chardev".to_owned(),
        "socket,id=control,fd=1,server=on,wait=off".to_owned(),
        "-mon".to_owned(),
        "chardev=control,mode=control".to_owned(),
    ]);
    // The guest tells disks apart by their serials; which is vda depends on QEMU and the kernel.
    for (number, (disk, asked)) in (0_u32..).zip(disks.iter().zip(&request.disks)) {
        if behind.contains(&number) {
            let size = std::fs::metadata(&asked.path).map_or(0, |meta| meta.len());
            words.extend(served(number, size));
            continue;
        }
        let read_only = if asked.writable { "off" } else { "on" };
        words.push("-drive".to_owned());
        // A disk does not outlive its guest but in a snapshot, which is synced by itself: what
        // the guest flushes need not reach the host's disk.
        words.push(format!(
            "id=disk{number},file={disk},format=raw,if=none,read-only={read_only},discard=unmap,cache=unsafe"
        ));
        words.push("-device".to_owned());
        words.push(format!(
            "virtio-blk-device,drive=disk{number},serial=disk{number}"
        ));
    }
    if incoming {
        // It booted once, and what it booted is in its memory: QEMU need not read it again.
        words.extend(["-incoming", "defer"].map(str::to_owned));
    } else {
        words.extend(["-kernel", KERNEL, "-initrd", INITRAMFS, "-append"].map(str::to_owned));
        words.push(kernel_command_line(request)?);
    }
    Ok(words)
}

/// Returns the name of the block node that a disk's device reads.
pub(super) fn node(number: u32) -> String {
    format!("disk{number}")
}

/// Returns the name of the node below it while the disk is served.
pub(super) fn served_node(number: u32) -> String {
    format!("disk{number}-served")
}

/// A disk that is on its way. The guest sees the same device; what it asks for in vain stops it
/// instead of being told to it, and is asked again when it goes on.
///
/// Its geometry is the one that QEMU comes to for a disk without partitions. It would read the
/// first sector to find out that there are none, and wait for that before it answers anybody.
fn served(number: u32, size: u64) -> [String; 6] {
    let cylinders = (size / 512 / (HEADS * SECTORS)).clamp(2, 16_383);
    let (node, below) = (node(number), served_node(number));
    let socket = disk_socket(number);
    [
        "-blockdev".to_owned(),
        // Whoever serves it may go and come back: the next daemon.
        format!(
            "driver=nbd,node-name={below},server.type=unix,server.path={socket},export={node},reconnect-delay={RECONNECT_S},discard=unmap,cache.no-flush=on"
        ),
        "-blockdev".to_owned(),
        format!("driver=raw,node-name={node},file={below},discard=unmap,cache.no-flush=on"),
        "-device".to_owned(),
        format!(
            "virtio-blk-device,drive={node},serial={node},cyls={cylinders},heads={HEADS},secs={SECTORS},rerror=stop,werror=stop"
        ),
    ]
}

fn kernel_command_line(request: &VmRequest) -> Result<String, DriverError> {
    let mut words = vec![
        "console=ttyS0".to_owned(),
        "quiet".to_owned(),
        // A panic ends the monitor (`-no-reboot`), which is how we learn of it.
        "panic=-1".to_owned(),
        "reboot=t".to_owned(),
        "no_timer_check".to_owned(),
        "random.trust_cpu=on".to_owned(),
        "cryptomgr.notests".to_owned(),
        "8250.nr_uarts=1".to_owned(),
    ];
    if request.accel != Accel::Kvm {
        let khz = host::tsc_khz().ok_or(DriverError::Host {
            what: "the frequency of the time stamp counter",
        })?;
        // Without these the guest measures its counter against a timer that a busy host starves;
        // it then calls the counter unstable and never gets a tick again.
        words.push(format!("tsc_early_khz={khz}"));
        words.push("tsc=reliable".to_owned());
        // They guard against leaks between a processor's real units, which emulation has not.
        words.push("mitigations=off".to_owned());
        words.push("nokaslr".to_owned());
    }
    words.extend(request.kernel_args.iter().cloned());
    Ok(words.join(" "))
}

#[cfg(test)]
pub(in crate::driver) mod tests {
    use super::*;
    use crate::SandboxId;

    pub(in crate::driver) fn request(accel: Accel) -> VmRequest {
        VmRequest {
            id: SandboxId::from_bytes([0xff; 16]),
            dir: "/x".into(),
            console: "/y".into(),
            kernel: "/k".into(),
            initramfs: "/i".into(),
            disks: vec![
                Disk {
                    path: "/r".into(),
                    writable: false,
                },
                Disk {
                    path: "/x/upper".into(),
                    writable: true,
                },
            ],
            memory_mib: 256,
            vcpus: 1,
            accel,
            kernel_args: vec!["rhizome.root=disk0".into()],
        }
    }

    #[test]
    fn a_guest_has_no_network_device_and_no_path_of_the_host() {
        let disks = ["disk0".into(), "upper".into()];
        let words = arguments(&request(Accel::Tcg), &disks, Memory::Own, false, &[]).unwrap();
        let line = words.join(" ");
        assert!(!line.contains("net"), "{line}");
        assert!(words.iter().all(|word| !word.starts_with('/')), "{line}");
        assert!(line.contains("spawn=deny"));
        assert!(line.contains("tsc_early_khz="));
        assert!(line.contains("rhizome.root=disk0"));
        assert!(!line.contains("-incoming"));
    }

    #[test]
    fn a_restored_guest_has_the_same_machine() {
        let disks = ["disk0".into(), "upper".into()];
        let cold = arguments(&request(Accel::Tcg), &disks, Memory::Own, false, &[]).unwrap();
        let warm = arguments(&request(Accel::Tcg), &disks, Memory::Own, true, &[]).unwrap();
        let booting = cold.iter().position(|word| word == "-kernel").unwrap();
        assert_eq!(warm[..booting], cold[..booting]);
        // Nothing is booted, so nothing is read that would be.
        assert_eq!(warm[booting..], ["-incoming", "defer"]);
        let forked = arguments(&request(Accel::Tcg), &disks, Memory::Template, true, &[]).unwrap();
        let differ: Vec<_> = warm.iter().zip(&forked).filter(|(a, b)| a != b).collect();
        assert_eq!(differ.len(), 1);
        assert!(differ[0].1.ends_with("share=off"), "{differ:?}");
    }

    #[test]
    fn a_disk_on_its_way_is_the_same_device() {
        let disks = ["disk0".into(), "upper".into()];
        let request = request(Accel::Tcg);
        let whole = arguments(&request, &disks, Memory::Own, true, &[]).unwrap();
        let late = arguments(&request, &disks, Memory::Own, true, &[1]).unwrap();
        let devices = |words: &[String]| -> Vec<String> {
            let all = words.iter().filter(|word| word.starts_with("virtio-blk"));
            all.map(|word| word.split(",cyls").next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(devices(&whole), devices(&late));
        let line = late.join(" ");
        assert!(line.contains("server.path=disk1.sock"), "{line}");
        assert!(!line.contains("file=upper"), "{line}");
        assert!(line.contains("file=disk0,"), "{line}");
    }

    #[test]
    fn a_real_processor_keeps_its_mitigations() {
        let line = kernel_command_line(&request(Accel::Kvm)).unwrap();
        assert!(!line.contains("mitigations=off"), "{line}");
        assert!(!line.contains("tsc"), "{line}");
    }
}
