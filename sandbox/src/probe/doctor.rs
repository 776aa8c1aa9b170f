//! The sandboxes' part of `rhizome doctor`: how each thing stands, and what mends it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CLOSED, decide, free_bytes};
use crate::{
    Accel, SandboxConfig,
    command::{find_program, package_of},
    driver::{VmmDriver, describe_limits, qemu::Qemu},
    image::ImageStore,
    kernel, silent,
};

/// Free bytes below which images and disks of guests are in danger.
const LOW_SPACE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Free bytes below which no sandbox can be made.
const NO_SPACE_BYTES: u64 = 256 * 1024 * 1024;

/// One line of `rhizome doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Stable short name: `qemu`, `kernel`, `acceleration`, `disk`, `mmdebstrap`, …
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// The command that mends it, where there is one.
    pub mend: Option<String>,
}

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, with less than it could have.
    Warn,
    /// Sandboxes cannot run.
    Fail,
}

/// Looks at everything sandboxes need; boots a kernel at most once per host boot, and only if the
/// kernel is there already.
pub async fn report(config: &SandboxConfig) -> Vec<Check> {
    let qemu = Qemu::new(config.qemu.clone());
    let mut checks = vec![qemu_check(&qemu).await];
    let has_qemu = checks[0].status == CheckStatus::Ok;
    for program in ["prlimit", "setpriv", "setsid", "unshare"] {
        let gravity = CheckStatus::Fail;
        checks.extend(missing(program, gravity, "confines the monitor"));
    }
    let kernel = kernel_check(config);
    let has_kernel = kernel.status == CheckStatus::Ok;
    checks.push(kernel);
    checks.push(acceleration_check(config, &qemu, has_qemu && has_kernel).await);
    checks.push(ok("limits", describe_limits()));
    checks.push(space_check(&config.images_dir));
    for (program, use_) in [
        ("apt-get", "fetches the kernel"),
        ("dpkg-deb", "unpacks the kernel"),
        ("mmdebstrap", "builds the `debian` image"),
        ("mkfs.erofs", "packs the `debian` image in half the space"),
        ("mkfs.ext4", "makes the writable disk of a `debian` sandbox"),
    ] {
        checks.push(helper_check(program, use_));
    }
    checks
}

async fn qemu_check(qemu: &Qemu) -> Check {
    match qemu.version().await {
        Ok(version) => ok("qemu", version),
        Err(error) => Check {
            name: "qemu".to_owned(),
            status: CheckStatus::Fail,
            found: error.to_string(),
            mend: Some("apt-get install qemu-system-x86".to_owned()),
        },
    }
}

fn kernel_check(config: &SandboxConfig) -> Check {
    match kernel::find(config) {
        Ok(Some(kernel)) => ok(
            "kernel",
            format!("Linux {} ({})", kernel.release, kernel.source),
        ),
        Ok(None) => Check {
            name: "kernel".to_owned(),
            status: CheckStatus::Warn,
            found: "not fetched yet; the first sandbox does it".to_owned(),
            mend: Some("rhizome image build minimal".to_owned()),
        },
        Err(error) => Check {
            name: "kernel".to_owned(),
            status: CheckStatus::Fail,
            found: error.to_string(),
            mend: error.hint(),
        },
    }
}

async fn acceleration_check(config: &SandboxConfig, qemu: &Qemu, can_boot: bool) -> Check {
    let name = "acceleration".to_owned();
    if !can_boot && config.accel != Accel::Tcg {
        return Check {
            name,
            status: CheckStatus::Warn,
            found: "not known before QEMU and a kernel are there".to_owned(),
            mend: None,
        };
    }
    let decided = match ImageStore::open(config) {
        Ok(images) => decide(config, &images, qemu, &silent()).await,
        Err(error) => Err(error.into()),
    };
    match decided {
        Ok(decision) if decision.accel == Accel::Kvm => {
            ok("acceleration", format!("kvm: {}", decision.reason))
        }
        Ok(decision) => Check {
            name,
            status: CheckStatus::Warn,
            found: format!("emulation, about 15 times slower: {}", decision.reason),
            mend: decision.reason.contains(CLOSED).then(|| {
                if rustix::process::geteuid().is_root() {
                    "groupadd -f kvm; chgrp kvm /dev/kvm; chmod 660 /dev/kvm".to_owned()
                } else {
                    "usermod -aG kvm $USER, then log in again".to_owned()
                }
            }),
        },
        Err(error) => Check {
            name,
            status: CheckStatus::Fail,
            found: chain(&error),
            mend: error.hint(),
        },
    }
}

fn space_check(dir: &Path) -> Check {
    let name = "disk".to_owned();
    match free_bytes(dir) {
        Ok(free) => Check {
            name,
            status: match free {
                0..NO_SPACE_BYTES => CheckStatus::Fail,
                NO_SPACE_BYTES..LOW_SPACE_BYTES => CheckStatus::Warn,
                _ => CheckStatus::Ok,
            },
            found: format!("{} MiB free for `{}`", free >> 20, dir.display()),
            mend: (free < LOW_SPACE_BYTES)
                .then(|| "put images elsewhere with `--images-dir`".to_owned()),
        },
        Err(error) => Check {
            name,
            status: CheckStatus::Fail,
            found: error.to_string(),
            mend: None,
        },
    }
}

fn helper_check(program: &str, purpose: &str) -> Check {
    missing(program, CheckStatus::Warn, purpose)
        .unwrap_or_else(|| ok(program, format!("found; it {purpose}")))
}

fn missing(program: &str, status: CheckStatus, purpose: &str) -> Option<Check> {
    find_program(program).is_none().then(|| Check {
        name: program.to_owned(),
        status,
        found: format!("not found; it {purpose}"),
        mend: package_of(program).map(|package| format!("apt-get install {package}")),
    })
}

fn ok(name: &str, found: String) -> Check {
    Check {
        name: name.to_owned(),
        status: CheckStatus::Ok,
        found,
        mend: None,
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_fault_names_what_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SandboxConfig::new(dir.path());
        config.qemu = Some("/no/such/qemu".into());
        let checks = report(&config).await;
        let qemu = checks.iter().find(|check| check.name == "qemu").unwrap();
        assert_eq!(qemu.status, CheckStatus::Fail);
        assert_eq!(
            qemu.mend.as_deref(),
            Some("apt-get install qemu-system-x86")
        );
        let kernel = checks.iter().find(|check| check.name == "kernel").unwrap();
        assert_eq!(kernel.status, CheckStatus::Warn);
        assert!(checks.iter().any(|check| check.name == "disk"));
        // Nothing was fetched or made just by looking.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
