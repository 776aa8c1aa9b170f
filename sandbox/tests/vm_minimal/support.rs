//! What the microVM tests share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{path::Path, time::Duration};

use rhizome_sandbox::{
    Accel, DoorConnection, Progress, SandboxConfig, SandboxInfo, Sandboxes,
    channel::{ExecError, ExecEvent, ExecHandle, ExecRequest, ExitStatus},
    driver::qemu::Qemu,
};
use tokio::sync::mpsc;

/// Tells, and prints, that a test cannot run here.
pub(crate) fn skipped(test: &str) -> bool {
    let missing = Qemu::new(None).program().is_err();
    if missing {
        eprintln!(
            "skipped: {test}: qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)"
        );
    }
    missing
}

/// Opens a node's sandboxes; kernel and images are shared by all tests and kept between runs.
pub(crate) async fn open(home: &Path) -> (Sandboxes, mpsc::Receiver<DoorConnection>) {
    let mut config = SandboxConfig::new(home);
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    config.accel = Accel::Auto;
    Sandboxes::open(config).await.unwrap()
}

pub(crate) fn progress() -> Progress {
    std::sync::Arc::new(|event| eprintln!("{}: {}", event.step, event.detail))
}

pub(crate) fn sh(script: &str) -> ExecRequest {
    ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    }
}

/// Reads a command to its end and counts its output.
pub(crate) async fn collect(mut handle: ExecHandle) -> Result<(usize, ExitStatus), ExecError> {
    let mut bytes = 0;
    while let Some(event) = handle.events.recv().await {
        match event? {
            ExecEvent::Stdout(piece) => bytes += piece.len(),
            ExecEvent::Stderr(_) => {}
            ExecEvent::Exit(status) => return Ok((bytes, status)),
        }
    }
    panic!("the command ended without a status")
}

pub(crate) fn vm_dir(home: &Path, info: &SandboxInfo) -> std::path::PathBuf {
    home.join(info.id.to_string()).join("vm")
}

pub(crate) fn monitor_pid(home: &Path, info: &SandboxInfo) -> u32 {
    monitor_pid_of(home, &info.id.to_string())
}

pub(crate) fn monitor_pid_of(home: &Path, id: &str) -> u32 {
    let state = home.join(id).join("state.json");
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    state["monitor"]["pid"]
        .as_u64()
        .unwrap()
        .try_into()
        .unwrap()
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Tells whether a process runs; a zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) async fn process_ends(pid: u32) {
    wait_for("the process to end", || (!is_alive(pid)).then_some(())).await;
}

pub(crate) async fn file_appears(path: &Path) -> String {
    wait_for("the file to appear", || {
        std::fs::read_to_string(path)
            .ok()
            .filter(|text| !text.is_empty())
    })
    .await
}

/// Waits for something another process does; nothing tells us, so it is looked at.
async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    found.unwrap_or_else(|_| panic!("waited too long for {what}"))
}
