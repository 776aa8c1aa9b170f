//! How a sandbox comes to be listed: checked, counted, with a directory and its first state.
//!
//! The directory is there before the first step of a plan, because the journal lies in it. One
//! without a state file is of a daemon that died in between: nothing ran yet, and the next daemon
//! removes it.

use std::{collections::BTreeMap, fs, sync::Arc};

use tracing::warn;

use super::{
    Inner,
    act::{Work, perform},
    entry::Entry,
    now_ms, pool,
};
use crate::{
    Accel, Contract, Fingerprint, Progress, SandboxError, SandboxId, SandboxInfo, SandboxSpec,
    SandboxState,
    image::Image,
    life::{Action, Plan},
    staging::make_private_dir,
};

/// Memory of a guest of the minimal image and of one with a userland, in MiB.
const DEFAULT_MEMORY_MIB: u32 = 256;
const DEFAULT_USERLAND_MEMORY_MIB: u32 = 512;
/// Less than this does not boot.
const MIN_MEMORY_MIB: u32 = 128;
/// Most environment variables and labels of one sandbox, and their longest name and value.
const MAX_PAIRS: usize = 256;
const MAX_KEY_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 32 * 1024;

/// Makes a sandbox from what was asked for to a guest that answers.
pub(super) async fn create(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    progress: &Progress,
) -> Result<SandboxInfo, SandboxError> {
    let env = spec.env.clone();
    let (info, image) = described(inner, spec, progress).await?;
    let env = image.environment(&env);
    let shape = pool::shape_of(inner, &info).await;
    if let Some(shape) = &shape
        && let Some(made) = pool::take(inner, shape, &info, &env, &image, progress).await?
    {
        return Ok(made);
    }
    let entry = list(inner, info, env)?;
    let mut work = Work::new(Arc::clone(progress));
    work.image = Some(image.clone());
    let made = perform(inner, &entry, Action::Create, &mut work).await;
    if let Err(error) = made {
        inner.prune();
        return Err(error);
    }
    let info = entry.info();
    if let Some(shape) = shape {
        pool::grow(inner, shape, image, info.clone());
    }
    Ok(info)
}

/// Returns what a sandbox will be, with its image.
pub(super) async fn described(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    progress: &Progress,
) -> Result<(SandboxInfo, Image), SandboxError> {
    check(&spec, inner)?;
    // Also when it is listed; but an image may take minutes to build.
    inner.pass_gate(&spec.labels)?;
    let image = inner.images.resolve(&spec.image, progress).await?;
    let decision = inner.accel(progress).await?;
    let info = describe(inner, spec, &image, decision.accel).await?;
    Ok((info, image))
}

/// Boots the guest of a stopped sandbox again.
pub(super) async fn start(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    progress: &Progress,
) -> Result<SandboxInfo, SandboxError> {
    let mut work = Work::new(Arc::clone(progress));
    let image = entry.info().image_id;
    work.image = Some(inner.images.resolve(&image, progress).await?);
    perform(inner, entry, Action::Start, &mut work).await?;
    Ok(entry.info())
}

/// Refuses what cannot be met.
fn check(spec: &SandboxSpec, inner: &Inner) -> Result<(), SandboxError> {
    let invalid = |what: String| Err(SandboxError::Invalid { what });
    if let Some(name) = &spec.name {
        check_name(name)?;
    }
    let limits = &inner.config.limits;
    if spec.memory_mib != 0 && spec.memory_mib < MIN_MEMORY_MIB {
        return invalid(format!(
            "a guest needs {MIN_MEMORY_MIB} MiB of memory; {} were asked for",
            spec.memory_mib
        ));
    }
    if spec.memory_mib > limits.max_memory_mib {
        return Err(SandboxError::LimitReached {
            what: "MiB of memory per sandbox",
            limit: limits.max_memory_mib.into(),
        });
    }
    if spec.vcpus > limits.max_vcpus {
        return Err(SandboxError::LimitReached {
            what: "virtual CPUs per sandbox",
            limit: limits.max_vcpus.into(),
        });
    }
    if let Some(lease) = &spec.lease {
        lease.clone().checked(now_ms())?;
    }
    super::network::check(&spec.secrets)?;
    check_pairs(&spec.labels, &spec.env)
}

/// Refuses a runtime that is not what the sandbox relies on.
pub(super) fn keeps_contract(info: &SandboxInfo) -> Result<(), SandboxError> {
    holds(info, None, &info.requires)
}

/// Refuses a runtime that is not what somebody relies on: the sandbox itself, if it is nobody else.
pub(super) fn holds(
    info: &SandboxInfo,
    by: Option<&str>,
    contract: &Contract,
) -> Result<(), SandboxError> {
    let breaches = contract.check(&info.fingerprint);
    match breaches.is_empty() {
        true => Ok(()),
        false => Err(SandboxError::Contract {
            id: info.id,
            by: by.map(str::to_owned),
            breaches,
        }),
    }
}

/// Refuses what is no name of a sandbox.
pub(super) fn check_name(name: &str) -> Result<(), SandboxError> {
    let invalid = |what: String| Err(SandboxError::Invalid { what });
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty()
        || name.len() > 64
        || !name.bytes().all(plain)
        || name.starts_with(['.', '-'])
    {
        return invalid(format!(
            "`{}` is not a sandbox name: 1 to 64 of a-z A-Z 0-9 . _ -, not beginning with . or -",
            name.escape_debug().take(64).collect::<String>()
        ));
    }
    if name.parse::<SandboxId>().is_ok() {
        return invalid(format!("`{name}` could be taken for a sandbox id"));
    }
    Ok(())
}

/// Refuses labels and variables that are too many, too long or no such thing.
pub(super) fn check_pairs(
    labels: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Result<(), SandboxError> {
    for (what, pairs) in [("environment", env), ("labels", labels)] {
        let too_large = pairs.len() > MAX_PAIRS
            || pairs.iter().any(|(key, value)| {
                key.is_empty()
                    || key.len() > MAX_KEY_BYTES
                    || value.len() > MAX_VALUE_BYTES
                    || key.contains(['=', '\0'])
                    || value.contains('\0')
            });
        if too_large {
            return Err(SandboxError::Invalid {
                what: format!(
                    "the {what} may have {MAX_PAIRS} entries, with names of up to {MAX_KEY_BYTES} and values of up to {MAX_VALUE_BYTES} bytes, without `=` in a name or a zero byte"
                ),
            });
        }
    }
    Ok(())
}

async fn describe(
    inner: &Arc<Inner>,
    spec: SandboxSpec,
    image: &Image,
    accel: Accel,
) -> Result<SandboxInfo, SandboxError> {
    let memory_mib = match (spec.memory_mib, &image.root_format) {
        (0, None) => DEFAULT_MEMORY_MIB,
        (0, Some(_)) => DEFAULT_USERLAND_MEMORY_MIB,
        (asked, _) => asked,
    };
    Ok(SandboxInfo {
        id: new_id(inner)?,
        name: spec.name,
        image: image.info.name.clone(),
        image_id: image.info.id.clone(),
        state: SandboxState::Creating,
        driver: inner.driver.name().to_owned(),
        accel,
        memory_mib,
        vcpus: spec.vcpus.max(1),
        created_ms: now_ms(),
        boot_ms: None,
        labels: spec.labels,
        network: spec.network.clone(),
        secrets: spec.secrets,
        fingerprint: Fingerprint {
            kernel: image.info.kernel.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            cpu: inner.driver.cpu_model(accel).to_owned(),
            accel: accel.to_string(),
            driver: inner.driver.name().to_owned(),
            vmm: inner.driver.version().await?,
            memory_mib,
            image: image.info.name.clone(),
            image_id: image.info.id.clone(),
            network: spec.network.to_string(),
            ..Fingerprint::default()
        },
        requires: spec.requires,
        lease: spec.lease,
        snapshot: None,
        parent: None,
        arriving: None,
    })
}

pub(super) fn new_id(inner: &Inner) -> Result<SandboxId, SandboxError> {
    SandboxId::random().map_err(|error| SandboxError::Directory {
        path: inner.dir.clone(),
        source: error.into(),
    })
}

/// Lists a new sandbox if the limits and the others' names allow it, and makes its directory.
pub(super) fn list(
    inner: &Inner,
    info: SandboxInfo,
    env: BTreeMap<String, String>,
) -> Result<Arc<Entry>, SandboxError> {
    let id = info.id;
    let lease = info.lease.clone();
    inner.pass_gate(&info.labels)?;
    let entry = Arc::new(Entry::new(
        inner.dir.join(id.to_string()),
        info.clone(),
        env,
    ));
    let mut entries = inner.entries();
    let others: Vec<_> = entries.values().map(|entry| entry.info()).collect();
    if let Some(other) = others
        .iter()
        .find(|other| !other.state.has_ended() && other.name.is_some() && other.name == info.name)
    {
        return Err(SandboxError::NameTaken {
            name: other.name.clone().unwrap_or_default(),
            id: other.id,
        });
    }
    room(inner, &others, &info)?;
    entries.insert(id, Arc::clone(&entry));
    drop(entries);
    let written = make_private_dir(&entry.dir).and_then(|()| entry.found());
    if let Err(source) = written {
        inner.entries().remove(&id);
        let _ = fs::remove_dir_all(&entry.dir);
        return Err(SandboxError::Directory {
            path: entry.dir.clone(),
            source,
        });
    }
    if let Some(lease) = lease {
        inner.leases_mut(|leases| leases.set(id, lease));
    }
    Ok(entry)
}

/// Fails if there is no room for one more sandbox of this size.
pub(super) fn has_room(inner: &Inner, new: &SandboxInfo) -> Result<(), SandboxError> {
    let others: Vec<_> = inner.entries().values().map(|entry| entry.info()).collect();
    room(inner, &others, new)
}

/// Fails if there is no room for one more sandbox beside those that run.
fn room(inner: &Inner, others: &[SandboxInfo], new: &SandboxInfo) -> Result<(), SandboxError> {
    let limits = &inner.config.limits;
    let running = || {
        others
            .iter()
            .filter(|info| info.state.is_running() && info.id != new.id)
    };
    if running().count() >= limits.max_running {
        return Err(SandboxError::LimitReached {
            what: "running sandboxes",
            limit: limits.max_running as u64,
        });
    }
    let memory: u64 = running().map(|info| u64::from(info.memory_mib)).sum();
    if memory + u64::from(new.memory_mib) > u64::from(limits.max_total_memory_mib) {
        return Err(SandboxError::LimitReached {
            what: "MiB of memory for all sandboxes",
            limit: limits.max_total_memory_mib.into(),
        });
    }
    Ok(())
}

impl Inner {
    /// Lets others see that an action begins; one that makes a sandbox run needs room.
    pub(super) fn admit(&self, entry: &Arc<Entry>, plan: &Plan) -> Result<(), SandboxError> {
        let begins = !plan.from.is_running() && plan.to.is_running();
        if begins {
            self.pass_gate(&entry.info().labels)?;
        }
        let entries = self.entries();
        if begins {
            let others: Vec<_> = entries.values().map(|entry| entry.info()).collect();
            room(self, &others, &entry.info())?;
        }
        if !plan.via.is_passing() {
            return Ok(());
        }
        // Under the lock, so that two that begin at once count each other.
        let state = match plan.via {
            crate::life::Phase::Booting => SandboxState::Booting,
            crate::life::Phase::Snapshotting => SandboxState::Snapshotting,
            crate::life::Phase::Hibernating => SandboxState::Hibernating,
            crate::life::Phase::Restoring => SandboxState::Restoring,
            crate::life::Phase::Stopping => SandboxState::Stopping,
            _ => SandboxState::Creating,
        };
        let journal = plan.steps().next().map(|step| crate::life::Journal {
            action: plan.action,
            from: plan.from,
            step,
        });
        entry.show(|record| record.info.state = state);
        let written = entry.note(|run| run.journal = journal);
        drop(entries);
        if let Err(source) = written {
            warn!(sandbox = %entry.id, %source, "cannot write down that an action begins");
            return Err(SandboxError::Directory {
                path: entry.dir.clone(),
                source,
            });
        }
        Ok(())
    }
}
