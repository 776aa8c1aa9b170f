//! The sandboxes' part of `rhizome doctor`: how each thing stands, and what mends it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CLOSED, decide, free_bytes, kvm_is_open};
use crate::{
    Accel, SandboxConfig,
    command::{find_program, package_of},
    driver::{
        self, CLOUD_HYPERVISOR, VmmDriver, cloud_hypervisor::CloudHypervisor, describe_limits,
        qemu::Qemu,
    },
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
    /// Stable short name: `qemu`, `cloud-hypervisor`, `kernel`, `acceleration`, `disk`, …
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
    let driver = driver::choose(config);
    let mut checks = vec![
        Check {
            name: "driver".to_owned(),
            status: CheckStatus::Ok,
            found: format!(
                "new sandboxes run under {} ({})",
                driver.name(),
                config.driver
            ),
            mend: None,
        },
        qemu_check(config, &*driver).await,
        cloud_hypervisor_check(config, &*driver).await,
    ];
    let has_driver = checks.iter().all(|check| check.status != CheckStatus::Fail);
    for program in ["prlimit", "setpriv", "setsid", "unshare"] {
        let gravity = CheckStatus::Fail;
        checks.extend(missing(program, gravity, "confines the monitor"));
    }
    let kernel = kernel_check(config);
    let has_kernel = kernel.status == CheckStatus::Ok;
    checks.push(kernel);
    checks.push(acceleration_check(config, &*driver, has_driver && has_kernel).await);
    checks.push(ok("limits", describe_limits()));
    checks.push(ok("copies", describe_copies(&*driver).to_owned()));
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

/// Says what a copy of a sandbox, also one from the pool, costs in memory here.
fn describe_copies(driver: &dyn VmmDriver) -> &'static str {
    match driver.capabilities() {
        can if can.copy_on_write => "share the memory of their sandbox until they write to it",
        can if can.fork => {
            "each has memory of its own: this daemon may not trace its monitors, or the driver cannot share it"
        }
        _ => "cannot be made with this driver",
    }
}

async fn qemu_check(config: &SandboxConfig, chosen: &dyn VmmDriver) -> Check {
    let qemu = Qemu::new(config.qemu.clone());
    match qemu.version().await {
        Ok(version) => ok("qemu", version),
        Err(error) => Check {
            name: "qemu".to_owned(),
            status: gravity(chosen.name() == qemu.name()),
            found: error.to_string(),
            mend: Some("apt-get install qemu-system-x86".to_owned()),
        },
    }
}

/// Says whether sandboxes could run under Cloud Hypervisor, or why not. That a kernel boots under
/// it is tried once it is what sandboxes run under.
async fn cloud_hypervisor_check(config: &SandboxConfig, chosen: &dyn VmmDriver) -> Check {
    let other = CloudHypervisor::new(config.cloud_hypervisor.clone());
    let is_chosen = chosen.name() == CLOUD_HYPERVISOR;
    let cannot = |found: String, mend: Option<String>| Check {
        name: CLOUD_HYPERVISOR.to_owned(),
        status: gravity(is_chosen),
        found,
        mend,
    };
    match other.version().await {
        Ok(version) => match kvm_is_open() {
            Ok(()) => ok(CLOUD_HYPERVISOR, version),
            Err(reason) => {
                let mend = open_kvm(&reason);
                cannot(format!("{version}, and it needs KVM: {reason}"), mend)
            }
        },
        Err(error) if config.cloud_hypervisor.is_none() && !is_chosen => {
            ok(CLOUD_HYPERVISOR, format!("not used: {error}"))
        }
        Err(error) => cannot(error.to_string(), error.hint()),
    }
}

/// How grave it is that a driver cannot run.
fn gravity(is_chosen: bool) -> CheckStatus {
    match is_chosen {
        true => CheckStatus::Fail,
        false => CheckStatus::Warn,
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

async fn acceleration_check(
    config: &SandboxConfig,
    driver: &dyn VmmDriver,
    can_boot: bool,
) -> Check {
    let name = "acceleration".to_owned();
    if !can_boot && config.accel != Accel::Tcg {
        return Check {
            name,
            status: CheckStatus::Warn,
            found: "not known before a driver and a kernel are there".to_owned(),
            mend: None,
        };
    }
    let decided = match ImageStore::open(config) {
        Ok(images) => decide(config, &images, driver, &silent()).await,
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
            mend: open_kvm(&decision.reason),
        },
        Err(error) => Check {
            name,
            status: CheckStatus::Fail,
            found: chain(&error),
            mend: error.hint(),
        },
    }
}

/// Returns the command that lets monitors use KVM, if that is what is wrong.
fn open_kvm(reason: &str) -> Option<String> {
    reason.contains(CLOSED).then(|| {
        if rustix::process::geteuid().is_root() {
            "groupadd -f kvm; chgrp kvm /dev/kvm; chmod 660 /dev/kvm".to_owned()
        } else {
            "usermod -aG kvm $USER, then log in again".to_owned()
        }
    })
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
    use crate::DriverChoice;

    #[tokio::test]
    async fn every_fault_names_what_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SandboxConfig::new(dir.path());
        config.qemu = Some("/no/such/qemu".into());
        config.driver = DriverChoice::Qemu;
        let checks = report(&config).await;
        assert!(checks[0].found.contains("qemu-microvm"), "{checks:?}");
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

    #[tokio::test]
    async fn a_driver_that_cannot_run_is_told_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SandboxConfig::new(dir.path());
        config.cloud_hypervisor = Some("/no/such/cloud-hypervisor".into());
        for (driver, status) in [
            (DriverChoice::Qemu, CheckStatus::Warn),
            (DriverChoice::CloudHypervisor, CheckStatus::Fail),
        ] {
            config.driver = driver;
            let checks = report(&config).await;
            let mut found = checks.iter().filter(|check| check.name == CLOUD_HYPERVISOR);
            let check = found.next().unwrap();
            assert_eq!(check.status, status);
            assert!(check.found.contains("/no/such/"), "{check:?}");
            assert!(check.mend.as_ref().unwrap().contains("--cloud-hypervisor"));
        }
    }
}
