//! Steps about a monitor: its directory, its start, its end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::time::timeout;
use tracing::debug;

use super::{
    Inner,
    act::Work,
    directory,
    entry::{Entry, Machine, MachineDisk, Monitor},
    watch,
};
use crate::{
    Accel, Progress, SandboxError, SandboxId, SandboxInfo,
    command::{Helper, find_program},
    driver::{Vm, end_process, monitors_in, process_start},
    fingerprint::{self, Tools},
    image::Image,
    life::{Action, Plan},
    probe::boot_id,
    progress::step,
    staging::make_private_dir,
};

/// Size of a guest's writable disk; the file is sparse and grows with what is written.
const UPPER_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// The file of that disk in the VM's directory.
const UPPER: &str = "upper";
/// Time a guest has to end once it was asked to shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);
/// Time a killed process has to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(10);
/// Makes the monitor's directory and the guest's disks, and writes down what they are.
pub(super) async fn prepare_disks(
    entry: &Entry,
    plan: &Plan,
    work: &Work,
) -> Result<(), SandboxError> {
    let image = work.image.as_ref().expect("what boots has an image");
    let dir = entry.vm_dir();
    make_private_dir(&dir).map_err(directory(&dir))?;
    // For as long as the sandbox is listed: one that sleeps needs it again.
    image.mark_used(&entry.dir).map_err(directory(&entry.dir))?;
    let had = entry
        .record()
        .run
        .machine
        .is_some_and(|machine| machine.disks.iter().any(|disk| disk.writable));
    let keeps = plan.action == Action::Start && had;
    if keeps && image.root_format.is_some() && !dir.join(UPPER).exists() {
        return Err(SandboxError::StateLost {
            id: entry.id,
            what: "its disk is gone".to_owned(),
        });
    }
    let hostname = hostname(&entry.info());
    let machine = lay_out(image, &dir, &entry.id, &hostname, keeps, &work.progress).await?;
    let written = entry.note(|run| run.machine = Some(machine));
    written.map_err(directory(&entry.dir))
}

/// Makes the disks of a guest in the monitor's directory and says what its machine is; with
/// `keeps`, the writable disk is there already.
pub(super) async fn lay_out(
    image: &Image,
    dir: &Path,
    id: &SandboxId,
    hostname: &str,
    keeps: bool,
    progress: &Progress,
) -> Result<Machine, SandboxError> {
    let number = u128::from_be_bytes(*id.as_bytes());
    let mut kernel_args = vec![
        format!("rhizome.hostname={hostname}"),
        format!("rhizome.machine_id={number:032x}"),
    ];
    let mut disks = Vec::new();
    if let Some(format) = &image.root_format {
        kernel_args.push("rhizome.root=disk0".to_owned());
        kernel_args.push(format!("rhizome.rootfstype={format}"));
        disks.push(MachineDisk {
            path: image.root(),
            writable: false,
        });
        let path = dir.join(UPPER);
        if keeps {
            // What the guest wrote before it was stopped.
        } else if find_program("mkfs.ext4").is_some() {
            step(progress, "disk", "making the writable disk");
            make_upper(&path).await?;
        }
        if path.exists() {
            disks.push(MachineDisk {
                path,
                writable: true,
            });
            kernel_args.push("rhizome.upper=disk1".to_owned());
            kernel_args.push("rhizome.upperfstype=ext4".to_owned());
        } else {
            // What is written then lives in the guest's memory.
            kernel_args.push("rhizome.upper=tmpfs".to_owned());
        }
    }
    Ok(Machine {
        kernel: image.kernel(),
        initramfs: image.initramfs(),
        disks,
        kernel_args,
    })
}

/// Makes a sparse file with an empty file system.
async fn make_upper(path: &Path) -> Result<(), SandboxError> {
    let file = fs::File::create(path).map_err(directory(path))?;
    file.set_len(UPPER_BYTES).map_err(directory(path))?;
    drop(file);
    Helper::new("mkfs.ext4")
        // No journal: a guest that ends uncleanly takes its disk with it. Tables are zero already
        // in a sparse file.
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal"])
        .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"])
        .arg(path)
        .run(|_| {})
        .await
        .map_err(crate::driver::DriverError::from)?;
    Ok(())
}

/// Starts a monitor that boots the guest.
pub(super) async fn start_monitor(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    work: &mut Work,
) -> Result<(), SandboxError> {
    let request = entry.request().expect("its disks were prepared");
    work.begun = Some(Instant::now());
    step(
        &work.progress,
        "boot",
        format_args!("booting {} ({})", entry.info().image, request.accel),
    );
    let vm = inner.driver_of(entry).start(&request).await?;
    hold(inner, entry, vm)
}

/// Makes a monitor the sandbox's own: written down, and watched.
pub(super) fn hold(inner: &Arc<Inner>, entry: &Arc<Entry>, vm: Vm) -> Result<(), SandboxError> {
    let monitor = Monitor {
        pid: vm.pid,
        started: vm.started,
        boot_id: boot_id(),
    };
    // Until it is written down nobody else would find it: dropped here, it is killed.
    entry
        .note(|run| run.monitor = Some(monitor))
        .map_err(directory(&entry.dir))?;
    let vm = Arc::new(vm);
    entry.set_vm(Some(Arc::clone(&vm)));
    inner.last_readings.began.notify_one();
    inner.tasks.spawn(watch::monitor(
        Arc::clone(inner),
        Arc::clone(entry),
        vm.ended.clone(),
        vm.pid,
    ));
    Ok(())
}

/// Sets the guest's clock and learns what the guest is.
pub(super) async fn greet(entry: &Entry, work: &mut Work) -> Result<(), SandboxError> {
    let guest = |source| SandboxError::Guest {
        id: entry.id,
        source,
    };
    let channel = entry.session().ok_or_else(|| super::session::none(entry))?;
    channel.set_time(SystemTime::now()).await.map_err(guest)?;
    let image = work.image.as_ref().expect("what boots has an image");
    let boot_ms = work.begun.map_or(0, |begun| {
        u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    });
    let record = entry.record();
    let mut fingerprint = record.info.fingerprint;
    let tools = match image.tools() {
        Some(tools) => {
            fingerprint.tools = tools;
            Tools::Keep
        }
        None => {
            step(&work.progress, "boot", "asking the guest for its tools");
            Tools::Ask
        }
    };
    fingerprint::probe(&channel, &record.env, tools, &mut fingerprint).await;
    if tools == Tools::Ask
        && let Err(error) = image.keep_tools(&fingerprint.tools)
    {
        debug!(%error, "the tools of an image cannot be kept");
    }
    let cpu = match entry.info().accel {
        Accel::Kvm => Some(channel.info().await.map_err(guest)?.cpu),
        Accel::Auto | Accel::Tcg => None,
    };
    step(
        &work.progress,
        "ready",
        format_args!("the guest answered after {boot_ms} ms"),
    );
    // The commit that follows writes it down.
    entry.show(|record| {
        record.info.boot_ms = Some(boot_ms);
        record.info.fingerprint = fingerprint;
        if let Some(cpu) = cpu {
            record.info.fingerprint.cpu = format!("host: {cpu}");
        }
    });
    super::create::keeps_contract(&entry.info())
}

/// Asks the guest to shut down and waits until its monitor ends; one that does not is ended by
/// the next step.
pub(super) async fn shut_down(entry: &Entry) -> Result<(), SandboxError> {
    entry.set_open(false);
    let (Some(vm), Some(channel)) = (entry.vm(), entry.session()) else {
        return Ok(());
    };
    if let Err(error) = channel.shutdown().await {
        debug!(sandbox = %entry.id, %error, "the guest cannot be asked to shut down");
    }
    if timeout(SHUTDOWN_LIMIT, vm.wait()).await.is_err() {
        debug!(sandbox = %entry.id, "the guest does not shut down");
    }
    Ok(())
}

/// Ends the monitor, held or not, and waits until it is gone.
pub(super) async fn end_monitor(entry: &Entry) -> Result<(), SandboxError> {
    if let Some(vm) = entry.set_vm(None) {
        vm.kill().await;
    }
    if let Some(behind) = entry.set_behind(None) {
        behind.stop();
    }
    let known = entry.record().run.monitor;
    // One that was started and not yet written down is there too.
    for monitor in monitors_of(&entry.vm_dir(), known.clone()) {
        end_recorded(&monitor).await;
    }
    if known.is_none() {
        return Ok(());
    }
    let written = entry.note(|run| run.monitor = None);
    written.map_err(directory(&entry.dir))
}

/// Ends a monitor that is known by what was written down alone.
pub(super) async fn end_recorded(monitor: &Monitor) {
    if !is_alive(monitor) || !end_process(monitor.pid, monitor.started) {
        return;
    }
    // It is nobody's child here, so nothing tells of its end.
    let gone = async {
        while is_alive(monitor) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = timeout(GONE_LIMIT, gone).await;
}

/// Returns the monitors that run for a sandbox: the one that was written down, and those that
/// work in its directory all the same.
pub(super) fn monitors_of(vm_dir: &Path, known: Option<Monitor>) -> Vec<Monitor> {
    let mut found: Vec<_> = monitors_in(vm_dir)
        .into_iter()
        .map(|(pid, started)| Monitor {
            pid,
            started,
            boot_id: boot_id(),
        })
        .collect();
    found.extend(known.filter(is_alive));
    found.sort_by_key(|monitor| monitor.pid);
    found.dedup();
    found
}

/// Whether a monitor that was written down runs.
pub(super) fn is_alive(monitor: &Monitor) -> bool {
    monitor.boot_id == boot_id() && process_start(monitor.pid) == Some(monitor.started)
}

/// Removes a directory; one that is not there is fine.
pub(super) fn remove(_entry: &Entry, dir: &Path) -> Result<(), SandboxError> {
    remove_dir(dir)
}

pub(super) fn remove_dir(dir: &Path) -> Result<(), SandboxError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(directory(dir)(error)),
        _ => Ok(()),
    }
}

/// Removes everything of the monitor's directory but the writable disks.
pub(super) fn keep_disk(entry: &Entry) -> Result<(), SandboxError> {
    let dir = entry.vm_dir();
    let disks: Vec<PathBuf> = entry
        .record()
        .run
        .machine
        .map(|machine| machine.disks)
        .unwrap_or_default()
        .into_iter()
        .filter(|disk| disk.writable)
        .map(|disk| disk.path)
        .collect();
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(directory(&dir)(error)),
    };
    for found in entries {
        let found = found.map_err(directory(&dir))?;
        let path = found.path();
        if disks.contains(&path) {
            continue;
        }
        let removed = match found.file_type().map_err(directory(&path))?.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(directory(&path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn hostname(info: &SandboxInfo) -> String {
    match &info.name {
        // A host name has no dots or underscores; a sandbox's name may.
        Some(name) => name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect(),
        None => format!("sandbox-{}", info.id.fmt_short()),
    }
}
