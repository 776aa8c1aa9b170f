//! QEMU's `microvm` machine.
//!
//! The machine has no BIOS options, no PCI, no network device: a serial console, one
//! virtio-serial port and the disks. What speaks for each word of the command line is in
//! `docs/sandbox.md`.
//!
//! How the monitor is held in:
//! - it works in a directory of its own and is given only names relative to it, so it needs no
//!   right to enter the data directory;
//! - where the daemon is root, it runs as a user of its own (one per sandbox, without a name or a
//!   password), without capabilities, in network, IPC and UTS namespaces of its own;
//! - QEMU's own seccomp filter forbids it to start processes or to gain rights;
//! - it dies with the daemon (`setpriv --pdeathsig`), and is in no process group of ours.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use tokio::{
    io::{AsyncReadExt, BufReader},
    net::{UnixListener, UnixStream},
    process::{Child, Command},
    sync::{OnceCell, watch},
};
use tokio_util::sync::CancellationToken;

use super::{
    Capabilities, Console, DriverError, SavedState, Vm, VmRequest, VmmDriver, host, process_start, qmp::Qmp, spawner,
};
use crate::{
    Accel,
    command::{CommandError, Helper, Lines, Tail, find_program},
    staging::link_or_copy,
};

/// The program looked for on `PATH`.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// Name of the guest's end of the channel, under `/sys/class/virtio-ports`.
const PORT_NAME: &str = "rhizome";
/// Time the monitor has to open the channel; it takes milliseconds on an idle host.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// First of the user ids that monitors run as: above what systemd and user namespaces hand out.
const FIRST_UID: u32 = 0x7000_0000;
/// How many there are.
const UIDS: u32 = 0x0fff_0000;
const CHANNEL_SOCKET: &str = "channel.sock";
const CONTROL_SOCKET: &str = "control.sock";

/// Starts QEMU microvms.
#[derive(Debug)]
pub struct Qemu {
    program: Option<PathBuf>,
    version: OnceCell<String>,
}

impl Qemu {
    /// Uses this program, or the one on `PATH`.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self {
            program,
            version: OnceCell::new(),
        }
    }

    /// Returns the program, if it is there.
    ///
    /// # Errors
    /// [`DriverError::NotInstalled`].
    pub fn program(&self) -> Result<PathBuf, DriverError> {
        let name = match &self.program {
            Some(path) => path.display().to_string(),
            None => PROGRAM.to_owned(),
        };
        find_program(&name).ok_or(DriverError::NotInstalled { program: name })
    }

    async fn read_version(&self) -> Result<String, DriverError> {
        let program = self.program()?;
        let said = Helper::new(&program.to_string_lossy())
            .arg("--version")
            .limit(Duration::from_secs(20))
            .output()
            .await?;
        let text = String::from_utf8_lossy(&said);
        let version = text
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("unknown");
        Ok(format!(
            "qemu {}",
            version.chars().take(32).collect::<String>()
        ))
    }

    async fn launch(&self, request: &VmRequest) -> Result<Vm, DriverError> {
        let program = self.program()?;
        let user = Confinement::choose(request);
        let disks = prepare(request, &user)?;
        let channel = listen(&request.dir, CHANNEL_SOCKET, &user)?;
        let control = listen(&request.dir, CONTROL_SOCKET, &user)?;
        let mut words = user.wrap()?;
        words.push(program.into_os_string());
        words.extend(arguments(request, &disks)?.into_iter().map(OsString::from));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&request.dir)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let console = Console::create(&request.console).map_err(io_error(&request.console))?;
        let child = spawner::spawn(command).await;
        let child = child.map_err(|source| DriverError::Spawn {
            program: words[0].to_string_lossy().into_owned(),
            source,
        })?;
        let pid = child.id().ok_or(DriverError::Host {
            what: "the monitor's process id",
        })?;
        let started = process_start(pid).unwrap_or_default();
        let kill = CancellationToken::new();
        let (told, ended) = watch::channel(None);
        tokio::spawn(watch_over(child, console, kill.clone(), told));
        let _ = (pid, started, ended, channel, control);
        todo!()
    }

    async fn accept(
        &self,
        channel: &UnixListener,
        control: &UnixListener,
        vm: &Vm,
    ) -> Result<(UnixStream, UnixStream), DriverError> {
        tokio::select! {
            accepted = async { tokio::try_join!(channel.accept(), control.accept()) } => {
                let ((channel, _), (control, _)) =
                    accepted.map_err(io_error(Path::new(CHANNEL_SOCKET)))?;
                Ok((channel, control))
            }
            how = vm.wait() => Err(DriverError::Ended { how }),
            () = tokio::time::sleep(OPEN_LIMIT) => Err(DriverError::NotReady {
                seconds: OPEN_LIMIT.as_secs(),
            }),
        }
    }
}

impl VmmDriver for Qemu {
    fn name(&self) -> &'static str {
        "qemu-microvm"
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        async {
            self.version
                .get_or_try_init(|| self.read_version())
                .await
                .cloned()
        }
        .boxed()
    }

    fn cpu_model(&self, accel: Accel) -> &'static str {
        match accel {
            Accel::Kvm => "host",
            // x86-64-v2 without the wide vectors that emulation makes slower, and with a source
            // of randomness for the guest's first key.
            Accel::Auto | Accel::Tcg => "Nehalem-v1,+rdrand",
        }
    }

    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        self.launch(request).boxed()
    }

    fn machine(&self, accel: Accel) -> String {
        let _ = accel;
        todo!()
    }

    fn capabilities(&self) -> Capabilities {
        todo!()
    }

    fn restore<'a>(
        &'a self,
        request: &'a VmRequest,
        saved: &'a SavedState,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        let _ = (request, saved);
        todo!()
    }

    fn attach<'a>(
        &'a self,
        request: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        let _ = (request, pid, started);
        todo!()
    }
}

/// Who the monitor runs as.
#[derive(Debug)]
struct Confinement {
    /// User and group, where the daemon may choose.
    uid: Option<u32>,
    /// A group it needs besides.
    group: Option<u32>,
}

impl Confinement {
    fn choose(request: &VmRequest) -> Self {
        let bytes = request.id.as_bytes();
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Self {
            uid: rustix::process::geteuid()
                .is_root()
                .then_some(FIRST_UID + number % UIDS),
            group: (request.accel == Accel::Kvm)
                .then(host::kvm_group)
                .flatten(),
        }
    }

    /// Returns the words before the monitor's own command line.
    fn wrap(&self) -> Result<Vec<OsString>, DriverError> {
        let find = |name: &str| {
            find_program(name)
                .map(PathBuf::into_os_string)
                .ok_or_else(|| {
                    DriverError::Command(CommandError::NotFound {
                        program: name.to_owned(),
                    })
                })
        };
        let mut words = Vec::new();
        if let Some(uid) = self.uid {
            words.push(find("unshare")?);
            words.extend(["--net", "--ipc", "--uts", "--"].map(OsString::from));
            words.push(find("setpriv")?);
            words.push(format!("--reuid={uid}").into());
            words.push(format!("--regid={uid}").into());
            words.push(match self.group {
                Some(group) => format!("--groups={group}").into(),
                None => "--clear-groups".into(),
            });
            words.extend(["--bounding-set=-all", "--inh-caps=-all"].map(OsString::from));
        } else {
            words.push(find("setpriv")?);
        }
        words.extend(["--no-new-privs", "--pdeathsig=KILL", "--"].map(OsString::from));
        Ok(words)
    }

    fn own(&self, path: &Path) -> Result<(), DriverError> {
        match self.uid {
            Some(uid) => {
                std::os::unix::fs::chown(path, Some(uid), Some(uid)).map_err(io_error(path))
            }
            None => Ok(()),
        }
    }
}

/// Puts everything the monitor opens into its directory; returns the disks' names there.
fn prepare(request: &VmRequest, user: &Confinement) -> Result<Vec<String>, DriverError> {
    let place = |from: &Path, name: &str| {
        let to = request.dir.join(name);
        // A second try finds the first one's link.
        let _ = fs::remove_file(&to);
        link_or_copy(from, &to).map_err(io_error(&to))
    };
    place(&request.kernel, "kernel")?;
    place(&request.initramfs, "initramfs")?;
    let mut names = Vec::new();
    for (number, disk) in request.disks.iter().enumerate() {
        if disk.writable {
            let name = disk.path.file_name().unwrap_or_default().to_string_lossy();
            user.own(&disk.path)?;
            names.push(name.into_owned());
        } else {
            let name = format!("disk{number}");
            place(&disk.path, &name)?;
            names.push(name);
        }
    }
    user.own(&request.dir)?;
    Ok(names)
}

/// Opens a socket for the monitor to connect to.
///
/// The path goes through the directory's descriptor: a data directory may lie deeper than the
/// 107 bytes that a socket path may have.
fn listen(dir: &Path, name: &str, user: &Confinement) -> Result<UnixListener, DriverError> {
    let socket = dir.join(name);
    let _ = fs::remove_file(&socket);
    let handle = File::open(dir).map_err(io_error(dir))?;
    let short = format!("/proc/self/fd/{}/{name}", handle.as_fd().as_raw_fd());
    let listener = UnixListener::bind(short).map_err(io_error(&socket))?;
    user.own(&socket)?;
    Ok(listener)
}

/// Returns QEMU's arguments; every path is relative to the VM's directory.
fn arguments(request: &VmRequest, disks: &[String]) -> Result<Vec<String>, DriverError> {
    let cpu = Qemu::new(None).cpu_model(request.accel);
    let accel = match request.accel {
        Accel::Kvm => "kvm",
        Accel::Auto | Accel::Tcg => "tcg,thread=multi",
    };
    let mut words: Vec<String> = [
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-M",
        "microvm,rtc=on,pit=off,pic=off",
        "-bios",
        "qboot.rom",
        "-accel",
        accel,
        "-cpu",
        cpu,
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-chardev",
        "stdio,id=console,signal=off",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-device",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend([
        "-smp".to_owned(),
        request.vcpus.to_string(),
        "-m".to_owned(),
        request.memory_mib.to_string(),
        "-kernel".to_owned(),
        "kernel".to_owned(),
        "-initrd".to_owned(),
        "initramfs".to_owned(),
        "-append".to_owned(),
        kernel_command_line(request)?,
        "-chardev".to_owned(),
        format!("socket,id=channel,path={CHANNEL_SOCKET},server=off"),
        "-device".to_owned(),
        format!("virtserialport,chardev=channel,name={PORT_NAME}"),
        "-chardev".to_owned(),
        format!("socket,id=control,path={CONTROL_SOCKET},server=off"),
        "-mon".to_owned(),
        "chardev=control,mode=control".to_owned(),
    ]);
    // The guest tells disks apart by their serials; which is vda depends on QEMU and the kernel.
    for (number, (disk, asked)) in disks.iter().zip(&request.disks).enumerate() {
        let read_only = if asked.writable { "off" } else { "on" };
        words.push("-drive".to_owned());
        words.push(format!(
            "id=disk{number},file={disk},format=raw,if=none,read-only={read_only},discard=unmap"
        ));
        words.push("-device".to_owned());
        words.push(format!(
            "virtio-blk-device,drive=disk{number},serial=disk{number}"
        ));
    }
    Ok(words)
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

/// Owns the process: drains its output, ends it when told, says how it ended.
async fn watch_over(
    mut child: Child,
    mut console: Console,
    kill: CancellationToken,
    told: watch::Sender<Option<String>>,
) {
    let mut out = child.stdout.take().expect("stdout is piped");
    let mut err = Lines::new(BufReader::new(
        child.stderr.take().expect("stderr is piped"),
    ));
    let mut tail = Tail::default();
    let mut buffer = vec![0; 16 * 1024];
    let mut out_open = true;
    let status = loop {
        tokio::select! {
            biased;
            () = kill.cancelled() => {
                let _ = child.start_kill();
                break child.wait().await;
            }
            read = out.read(&mut buffer), if out_open => match read {
                Ok(size) if size > 0 => console.push(&buffer[..size]),
                _ => out_open = false,
            },
            line = err.next(), if !err.done => if let Some(line) = line {
                console.push(format!("[qemu] {line}\n").as_bytes());
                tail.push(&line);
            },
            status = child.wait(), if !out_open && err.done => break status,
        }
    };
    let how = match status {
        Ok(status) if tail.text().is_empty() => status.to_string(),
        Ok(status) => format!("{status}: {}", tail.text()),
        Err(error) => error.to_string(),
    };
    let _ = told.send(Some(how));
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DriverError + '_ {
    move |source| DriverError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SandboxId;

    fn request(accel: Accel) -> VmRequest {
        VmRequest {
            id: SandboxId::from_bytes([0xff; 16]),
            dir: "/x".into(),
            console: "/y".into(),
            kernel: "/k".into(),
            initramfs: "/i".into(),
            disks: vec![
                super::super::Disk {
                    path: "/r".into(),
                    writable: false,
                },
                super::super::Disk {
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
        let words = arguments(&request(Accel::Tcg), &["disk0".into(), "upper".into()]).unwrap();
        let line = words.join(" ");
        assert!(!line.contains("net"), "{line}");
        assert!(words.iter().all(|word| !word.starts_with('/')), "{line}");
        assert!(line.contains("spawn=deny"));
        assert!(line.contains("tsc_early_khz="));
        assert!(line.contains("rhizome.root=disk0"));
    }

    #[test]
    fn a_real_processor_keeps_its_mitigations() {
        let line = kernel_command_line(&request(Accel::Kvm)).unwrap();
        assert!(!line.contains("mitigations=off"), "{line}");
        assert!(!line.contains("tsc"), "{line}");
    }

    #[test]
    fn every_sandbox_has_a_user_of_its_own_above_the_hosts() {
        let uid = Confinement::choose(&request(Accel::Tcg)).uid;
        if let Some(uid) = uid {
            assert!((FIRST_UID..FIRST_UID + UIDS).contains(&uid));
        }
    }

    #[tokio::test]
    async fn a_missing_program_is_told_with_the_package() {
        let qemu = Qemu::new(Some("/no/such/qemu".into()));
        let error = qemu.version().await.unwrap_err();
        assert!(matches!(error, DriverError::NotInstalled { .. }));
        assert!(error.hint().unwrap().contains("qemu-system-x86"));
    }
}
