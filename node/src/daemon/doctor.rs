//! What this node needs from its machine, each thing looked at by trying it.
use std::{
    net::{SocketAddr, UdpSocket},
    time::{SystemTime, UNIX_EPOCH},
};

use rhizome_sandbox::{
    SandboxConfig,
    probe::{Check as SandboxCheck, CheckStatus as SandboxStatus},
};

use super::{
    node::{Node, blocking},
    sandbox_config,
    status::recovery_notes,
};
use crate::{
    api::types::{
        SCHEMA,
        node::{Check, CheckStatus, Doctor},
    },
    config::Config,
    error::ApiError,
};

/// Below this the disk is nearly full for the memory half, in bytes.
const LOW_DISK_BYTES: u64 = 256 * 1024 * 1024;
/// Below this there is no room to build an image, in bytes.
const IMAGE_DISK_BYTES: u64 = 3 * 1024 * 1024 * 1024;
/// A clock before this stands wrong, in Unix seconds: the day this release was made.
const EARLIEST_CLOCK: u64 = 1_764_000_000;

impl Node {
    /// Checks everything; with `probe` KVM is tried again, whatever an earlier try found.
    pub(crate) async fn doctor(&self, probe: bool) -> Result<Doctor, ApiError> {
        let mut checks = vec![self.check_data_dir(), self.check_disk()];
        let config = self.config.clone();
        let bound = self.mesh.local_addrs();
        checks.extend(blocking(move || vec![check_port(&config, &bound), check_clock()]).await?);
        checks.push(self.check_recovery());
        if self.config.sandboxes {
            let config: SandboxConfig = sandbox_config(&self.config);
            if probe {
                // The kept answer of an earlier boot; without it the report boots again.
                let _ = std::fs::remove_file(config.images_dir.join("probe/kvm.json"));
            }
            checks.extend(
                rhizome_sandbox::probe::report(&config)
                    .await
                    .into_iter()
                    .map(from_sandbox),
            );
        } else {
            checks.push(warn(
                "sandboxes",
                "switched off (`--no-sandboxes`)",
                "rhizome down && rhizome up",
            ));
        }
        if let Err(error) = self.sandboxes()
            && self.config.sandboxes
        {
            let mut seen = error.to_string();
            for cause in &error.info().causes {
                seen = format!("{seen}: {cause}");
            }
            checks.push(Check {
                name: "sandboxes".to_owned(),
                status: CheckStatus::Fail,
                seen,
                mend: Some("rhizome down && rhizome up".to_owned()),
            });
        }
        Ok(Doctor {
            schema: SCHEMA,
            checks,
        })
    }

    fn check_data_dir(&self) -> Check {
        let dir = self.data.path();
        // Trying is the only answer that counts on every kind of filesystem.
        let probe = self.data.join(".probe");
        let written = std::fs::write(&probe, b"probe").and_then(|()| std::fs::remove_file(&probe));
        match written {
            Ok(()) => ok(
                "data directory",
                format!("{} can be written", dir.display()),
            ),
            Err(error) => fail(
                "data directory",
                format!("cannot write in {}: {error}", dir.display()),
                format!(
                    "chown -R \"$(id -un)\" '{}' && df -h '{}'",
                    dir.display(),
                    dir.display()
                ),
            ),
        }
    }

    fn check_disk(&self) -> Check {
        let name = "disk space";
        let mend = format!("df -h '{}'", self.data.path().display());
        match self.data.free_bytes() {
            Err(error) => fail(name, error.to_string(), mend),
            Ok(free) if free < LOW_DISK_BYTES => fail(
                name,
                format!("{} MiB free: too little to go on for long", free >> 20),
                mend,
            ),
            Ok(free) if self.config.sandboxes && free < IMAGE_DISK_BYTES => warn(
                name,
                format!("{} MiB free: too little to build images", free >> 20),
                mend,
            ),
            Ok(free) => ok(name, format!("{} MiB free", free >> 20)),
        }
    }

    fn check_recovery(&self) -> Check {
        let report = self.replica.recovery();
        if report.is_clean() {
            return ok("store", "opened without anything to repair");
        }
        warn(
            "store",
            format!("opened after repair: {}", recovery_notes(report).join("; ")),
            "rhizome status",
        )
    }
}

fn check_port(config: &Config, bound: &[SocketAddr]) -> Check {
    let name = "UDP port";
    let port = bound.first().map_or(config.bind.port(), SocketAddr::port);
    // The daemon holds its own port, so what is tried is whether the system lets us bind at all.
    let other = SocketAddr::new(config.bind.ip(), 0);
    match UdpSocket::bind(other) {
        Err(error) => fail(
            name,
            format!("cannot bind UDP on {}: {error}", config.bind.ip()),
            "ip addr".to_owned(),
        ),
        Ok(_) if bound.iter().all(|addr| addr.ip().is_loopback()) => warn(
            name,
            format!("port {port} is bound on loopback alone: no other machine can reach it"),
            "rhizome down && rhizome up --bind 0.0.0.0:4580",
        ),
        Ok(_) => {
            let addrs: Vec<_> = bound.iter().map(ToString::to_string).collect();
            ok(name, format!("bound; others can try {}", addrs.join(", ")))
        }
    }
}

fn check_clock() -> Check {
    let name = "clock";
    let mend = "timedatectl set-ntp true";
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else {
        return fail(name, "the clock stands before 1970", mend);
    };
    if now.as_secs() < EARLIEST_CLOCK {
        return fail(
            name,
            format!("the clock stands at {} s after 1970", now.as_secs()),
            mend,
        );
    }
    let data = std::path::Path::new("/run/systemd/timesync/synchronized");
    let kept = if data.exists() {
        " and kept in step"
    } else {
        ""
    };
    ok(name, format!("plausible{kept}"))
}

fn from_sandbox(check: SandboxCheck) -> Check {
    Check {
        name: check.name,
        status: match check.status {
            SandboxStatus::Ok => CheckStatus::Ok,
            SandboxStatus::Warn => CheckStatus::Warn,
            SandboxStatus::Fail => CheckStatus::Fail,
        },
        seen: check.found,
        mend: check.mend,
    }
}

fn ok(name: &str, seen: impl Into<String>) -> Check {
    Check {
        name: name.to_owned(),
        status: CheckStatus::Ok,
        seen: seen.into(),
        mend: None,
    }
}

fn warn(name: &str, seen: impl Into<String>, mend: impl Into<String>) -> Check {
    let (seen, mend) = (seen.into(), Some(mend.into()));
    Check {
        name: name.to_owned(),
        status: CheckStatus::Warn,
        seen,
        mend,
    }
}

fn fail(name: &str, seen: impl Into<String>, mend: impl Into<String>) -> Check {
    let (seen, mend) = (seen.into(), Some(mend.into()));
    Check {
        name: name.to_owned(),
        status: CheckStatus::Fail,
        seen,
        mend,
    }
}
