//! QEMU's `microvm` machine.
//!
//! The machine has no BIOS options, no PCI, no network device: a serial console, one
//! virtio-serial port and the disks. What speaks for each word of the command line is in
//! `docs/sandbox.md`.
//!
//! QEMU's own seccomp filter forbids it to start processes or to gain rights; whatever else holds
//! it in is the same for every monitor (`driver/launch.rs`).

mod command_line;
mod monitor;

use std::{fs::File, path::PathBuf, time::Duration};

use futures::future::{BoxFuture, FutureExt};

use super::{
    Arriving, Capabilities, DriverError, GuestRam, Monitor, SavedState, Vm, VmRequest, VmmDriver,
    confine::Confinement,
    device_file,
    launch::{self, CONSOLE_SOCKET, CONTROL_SOCKET, Held, control, io_error},
    overlay::Overlay,
    program::{self, Program},
    qmp::Qmp,
    sockets,
};
use crate::Accel;
use command_line::Memory;
use monitor::QemuMonitor;

/// The program looked for on `PATH`.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// Time the monitor has to answer; it takes milliseconds on an idle host.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Starts QEMU microvms.
#[derive(Debug)]
pub struct Qemu {
    program: Program,
}

impl Qemu {
    /// Uses this program, or the one on `PATH`.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self {
            program: Program::new(program, PROGRAM),
        }
    }

    /// Returns the program, if it is there.
    ///
    /// # Errors
    /// [`DriverError::NotInstalled`].
    pub fn program(&self) -> Result<PathBuf, DriverError> {
        self.program.find()
    }

    /// Starts a monitor and lets its guest begin.
    async fn launch(
        &self,
        request: &VmRequest,
        ram: GuestRam,
        begin: Begin<'_>,
        behind: &[u32],
    ) -> Result<Vm, DriverError> {
        let program = self.program()?;
        let machine = self.describe(request).await?;
        launch::fits(&ram, request)?;
        let user = Confinement::choose(request);
        let disks = launch::prepare(request, &user)?;
        let incoming = matches!(begin, Begin::Load(_));
        let memory = match ram.is_template() {
            true => Memory::Template,
            false => Memory::Own,
        };
        let arguments = command_line::arguments(request, &disks, memory, incoming, behind)?;
        let largest = launch::largest_disk(request);
        let template = ram.try_clone().map_err(io_error(&request.dir))?;
        let held = launch::start(program, arguments, request, &user, &ram, largest)?;
        if !ram.is_template() {
            return hold(held, machine, ram, request, begin).await;
        }
        let overlay = Overlay {
            pid: held.pid,
            started: held.started,
        };
        let vm = hold(held, machine, ram.over(overlay), request, begin).await?;
        if let Err(error) = overlay.check(template.file()) {
            tracing::warn!(sandbox = %request.id, %error, "cannot read what a monitor keeps");
            // What cannot be saved later is not begun.
            vm.kill().await;
            return Err(DriverError::Unsupported {
                driver: self.name(),
                what: "copy on write here",
            });
        }
        Ok(vm)
    }

    async fn describe(&self, request: &VmRequest) -> Result<String, DriverError> {
        Ok(command_line::describe(request, &self.version().await?))
    }

    async fn take_over(
        &self,
        request: &VmRequest,
        pid: u32,
        started: u64,
    ) -> Result<Vm, DriverError> {
        let (held, ram) = launch::find(request, pid, started)?;
        let machine = self.describe(request).await?;
        hold(held, machine, ram, request, Begin::AsItIs).await
    }
}

impl VmmDriver for Qemu {
    fn name(&self) -> &'static str {
        super::QEMU_MICROVM
    }

    fn version(&self) -> BoxFuture<'_, Result<String, DriverError>> {
        let read = |said: &str| {
            let mut words = said.split_whitespace();
            let version = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            Ok(format!(
                "qemu {}",
                program::clipped(version.unwrap_or("unknown"))
            ))
        };
        self.program.version(read).boxed()
    }

    fn cpu_model(&self, accel: Accel) -> &'static str {
        cpu_model(accel)
    }

    fn machine(&self, accel: Accel) -> String {
        command_line::machine(accel)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            snapshot: true,
            fork: true,
            reattach: true,
            copy_on_write: Overlay::can_be_read(),
            disks_behind: true,
        }
    }

    fn start<'a>(&'a self, request: &'a VmRequest) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            let ram = GuestRam::create(request.memory_mib).map_err(io_error(&request.dir))?;
            self.launch(request, ram, Begin::Boot, &[]).await
        }
        .boxed()
    }

    fn restore<'a>(
        &'a self,
        request: &'a VmRequest,
        saved: &'a SavedState,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            // A state that is of no use starts no monitor.
            let machine = self.describe(request).await?;
            let state = device_file::read(&saved.device, &machine)?;
            let ram = saved.ram.try_clone().map_err(io_error(&request.dir))?;
            let begin = Begin::Load(async { Ok(state) }.boxed());
            self.launch(request, ram, begin, &[]).await
        }
        .boxed()
    }

    fn restore_arriving<'a>(
        &'a self,
        request: &'a VmRequest,
        arriving: Arriving<'a>,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        async {
            let machine = self.describe(request).await?;
            let Arriving { ram, whole, behind } = arriving;
            let state = async move { device_file::read(&whole.await?, &machine) };
            let begin = Begin::Load(state.boxed());
            self.launch(request, ram, begin, &behind).await
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        request: &'a VmRequest,
        pid: u32,
        started: u64,
    ) -> BoxFuture<'a, Result<Vm, DriverError>> {
        self.take_over(request, pid, started).boxed()
    }
}

fn cpu_model(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "host",
        // x86-64-v2 without the wide vectors that emulation makes slower, and with a source of
        // randomness for the guest's first key.
        Accel::Auto | Accel::Tcg => "Nehalem-v1,+rdrand",
    }
}

/// How the guest of a monitor begins.
enum Begin<'a> {
    Boot,
    /// From the state of its devices, which may be on its way; it stays paused.
    Load(BoxFuture<'a, Result<File, DriverError>>),
    AsItIs,
}

/// Opens what a monitor offers and lets its guest begin.
async fn hold(
    held: Held,
    machine: String,
    ram: GuestRam,
    request: &VmRequest,
    begin: Begin<'_>,
) -> Result<Vm, DriverError> {
    let pid = held.pid;
    launch::hold(held, "qemu", |said| async move {
        let open = async {
            let stream = sockets::connect(&request.dir, CONTROL_SOCKET, None).await?;
            Qmp::open(stream).await.map_err(control("greet"))
        };
        let qmp = tokio::time::timeout(OPEN_LIMIT, open).await;
        let qmp = qmp.unwrap_or(Err(DriverError::NotReady {
            seconds: OPEN_LIMIT.as_secs(),
        }))?;
        let stream = sockets::connect(&request.dir, CONSOLE_SOCKET, Some(pid)).await?;
        let _ = said.send(stream);
        let monitor = QemuMonitor::new(request.dir.clone(), pid, machine, ram, qmp).await?;
        match begin {
            Begin::Boot => monitor.resume().await?,
            Begin::Load(state) => monitor.load(&state.await?).await?,
            Begin::AsItIs => {}
        }
        Ok(Box::new(monitor) as Box<dyn Monitor>)
    })
    .await
}

#[cfg(test)]
pub(super) use command_line::tests::request as test_request;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_program_is_told_with_the_package() {
        let qemu = Qemu::new(Some("/no/such/qemu".into()));
        let error = qemu.version().await.unwrap_err();
        assert!(matches!(error, DriverError::NotInstalled { .. }));
        assert!(error.hint().unwrap().contains("qemu-system-x86"));
    }
}
