//! A copy of a guest that waits, started ahead of whoever will ask for it.
//!
//! What a copy costs is not its memory but its first steps: its monitor starts, and emulation
//! translates the kernel's code and the agent's anew before the first command ends. One copy of
//! each guest that waits does all of that before it is asked for, and then stands still: it takes
//! no processor, and what was translated stays with its monitor. Whoever takes it gets it as any
//! copy, with a clock, randomness and a name of its own (ADR 0031).

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use super::{
    VM, Waiting, open, request_of,
    waiting::{Claim, Scratch},
};
use crate::{
    SandboxError, SandboxId, SandboxInfo,
    channel::{ChannelError, ExecRequest, GuestChannel},
    driver::{Vm, VmRequest},
    manager::{Inner, directory, entry::Machine, network::Nowhere, restore},
    staging::make_private_dir,
};

/// Bytes of a page of memory.
const PAGE_BYTES: u64 = 4096;
/// Time that the guest's first program may take.
const WARM_LIMIT: Duration = Duration::from_secs(20);
/// Time in which the guest sees that nobody talks to it any more.
const HANG_UP: Duration = Duration::from_millis(100);

/// A copy that stands still, in the directory of the sandbox that it will be.
#[derive(Debug)]
pub(in crate::manager) struct Ready {
    pub(in crate::manager) id: SandboxId,
    pub(in crate::manager) machine: Machine,
    /// Gone once somebody has taken it.
    vm: Mutex<Option<Vm>>,
    scratch: Scratch,
    _claim: Claim,
}

impl Ready {
    /// Starts a copy of `waiting` and lets it do once what every copy does. `info` is a sandbox's
    /// of the shape.
    pub(super) async fn make(
        inner: &Arc<Inner>,
        waiting: &Waiting,
        info: &SandboxInfo,
    ) -> Result<Self, SandboxError> {
        let id = crate::manager::create::new_id(inner)?;
        let path = inner.dir.join(id.to_string());
        // Whoever removes what belongs to nothing knows of it from its first moment.
        let claim = inner.pool.claim(id);
        let scratch = Scratch::make(path.clone()).map_err(directory(&path))?;
        let vm_dir = path.join(VM);
        make_private_dir(&vm_dir).map_err(directory(&vm_dir))?;
        let machine = restore::moved(waiting.machine.clone(), &vm_dir);
        let request = request_of(&machine, info, id, &path);
        let vm = waiting.frozen.fork(&*inner.driver, &request).await?;
        warm(inner, &vm, &request).await?;
        vm.pause().await?;
        Ok(Self {
            id,
            machine,
            vm: Mutex::new(Some(vm)),
            scratch,
            _claim: claim,
        })
    }

    /// Whether its monitor still runs.
    pub(super) fn is_alive(&self) -> bool {
        let vm = self.vm.lock().unwrap_or_else(PoisonError::into_inner);
        vm.as_ref().is_some_and(|vm| vm.ended.borrow().is_none())
    }

    /// Bytes that its monitor has for itself.
    pub(super) fn bytes(&self) -> u64 {
        let vm = self.vm.lock().unwrap_or_else(PoisonError::into_inner);
        vm.as_ref().map_or(0, |vm| own_bytes(vm.pid).unwrap_or(0))
    }

    /// Ends its monitor, and waits until that is gone.
    pub(super) async fn end(&self) {
        let vm = self
            .vm
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(vm) = vm {
            vm.kill().await;
        }
    }

    /// Returns its monitor to the first who asks; the directory is theirs then.
    pub(in crate::manager) fn take(&self) -> Option<Vm> {
        let vm = self
            .vm
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.scratch.keep();
        vm
    }
}

/// Returns the bytes that a process shares with no file: of a monitor on a template, all that is
/// its own.
fn own_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * PAGE_BYTES)
}

/// Does in a copy what every copy does: a session, its network, a clock, a program.
async fn warm(inner: &Arc<Inner>, vm: &Vm, request: &VmRequest) -> Result<(), SandboxError> {
    let stream = vm.connect().await?;
    vm.resume().await?;
    let channel = open(stream, request).await?;
    let guest = |source| SandboxError::Guest {
        id: request.id,
        source,
    };
    {
        let _nowhere = Nowhere::attach(inner, request.id, &channel).await;
        channel.set_time(SystemTime::now()).await.map_err(guest)?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| directory(&request.dir)(error.into()))?;
        channel.reseed(seed).await.map_err(guest)?;
        channel.thaw().await.map_err(guest)?;
        // An image without such a program is as warm as it gets.
        let ran = tokio::time::timeout(WARM_LIMIT, first_program(&channel)).await;
        tracing::debug!(sandbox = %request.id, ?ran, "a guest that waits is warm");
    }
    channel.close();
    tokio::time::sleep(HANG_UP).await;
    Ok(())
}

async fn first_program(channel: &GuestChannel) -> Result<(), ChannelError> {
    let request = ExecRequest {
        argv: vec!["true".to_owned()],
        ..ExecRequest::default()
    };
    let Ok(program) = channel.exec(request).await else {
        return Ok(());
    };
    let _ = program.output(1024).await;
    Ok(())
}
