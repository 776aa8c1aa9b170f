//! What an earlier daemon left behind.
//!
//! A monitor outlives its daemon. It is found by the process id *and* the start time in its state
//! file, and ended.

use std::{fs, io, path::Path};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::entry::{Entry, Record};
use crate::{SandboxId, SandboxState, driver::{end_process, monitors_in}, probe::boot_id};

/// What becomes of a sandbox whose daemon died.
pub(super) const LOST: &str = "lost when the daemon stopped";

/// Reads every sandbox of the directory, and ends those that were not ended.
pub(super) fn read(dir: &Path) -> io::Result<Vec<Entry>> {
    let boot_id = boot_id();
    let mut entries = Vec::new();
    for found in fs::read_dir(dir)? {
        let path = found?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(id) = name.parse::<SandboxId>() else {
            continue;
        };
        let record = match Record::read(&path) {
            Ok(record) if record.info.id == id => record,
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A crash between making the directory and its first state: nothing ran yet.
                let _ = fs::remove_dir_all(&path);
                continue;
            }
            Err(error) => {
                warn!(sandbox = %id, %error, "a sandbox's state file cannot be used; it is left alone");
                continue;
            }
        };
        let mut info = record.info;
        let was_running = !info.state.has_ended();
        if was_running {
            if let Some(monitor) = record.monitor.filter(|monitor| monitor.boot_id == boot_id)
                && end_process(monitor.pid, monitor.started)
            {
                info!(sandbox = %id, pid = monitor.pid, "ended the monitor of a lost sandbox");
            }
            // One that was started and not yet written down.
            for (pid, started) in monitors_in(&path.join("vm")) {
                end_process(pid, started);
            }
            info.state = SandboxState::Failed {
                reason: LOST.to_owned(),
            };
        }
        let entry = Entry::new(path, info, record.env, CancellationToken::new());
        if was_running {
            entry.end(entry.info().state);
        }
        entries.push(entry);
    }
    Ok(entries)
}
