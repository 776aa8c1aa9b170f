//! The meter and the quotas of a node together: who may begin to run, and who has to stop.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rhizome_memory::{Replica, now_ms};
use rhizome_sandbox::{Gate, OverQuota, SandboxId};

use super::{
    quota::{Key, Per, QuotaError, Quotas, Resource, Standing, Whose},
    usage::{Meter, UsageError, account_of, ledger::Account},
};
use crate::{api::types::Named, cli::utc, daemon::names::Names};

const USAGE: &str = "usage";
const QUOTAS: &str = "quotas.json";

/// What was used here, and how much may be.
///
/// Whoever locks both takes the quotas first, and the sums after them.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) meter: Meter,
    quotas: Mutex<Quotas>,
    path: PathBuf,
    /// Held while quotas are written down, which nobody who asks whether one is over waits for.
    changing: Mutex<()>,
    /// Whose names are known.
    replica: Replica,
    /// What those that are over were told last.
    pub(super) told: Mutex<BTreeMap<SandboxId, super::enforce::Told>>,
}

/// Why limits cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// What was used cannot be read.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The quotas cannot be read.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl LimitsError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage(_) => None,
            Self::Quota(error) => error.hint(),
        }
    }
}

impl Limits {
    /// Opens what a data directory holds of them.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub(crate) fn open(data: &Path, replica: Replica) -> Result<Self, LimitsError> {
        let path = data.join(QUOTAS);
        Ok(Self {
            quotas: Mutex::new(Quotas::read(&path)?),
            meter: Meter::open(&data.join(USAGE))?,
            path,
            changing: Mutex::default(),
            replica,
            told: Mutex::default(),
        })
    }

    pub(super) fn quotas(&self) -> MutexGuard<'_, Quotas> {
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the quotas and writes them down; nothing changes if that fails. Waits for the disk.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut Quotas) -> Result<T, QuotaError>,
    ) -> Result<T, QuotaError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.quotas().clone();
        let changed = change(&mut next)?;
        next.write(&self.path)?;
        *self.quotas() = next;
        Ok(changed)
    }

    /// Returns the quotas that are used up for a sandbox with these labels.
    pub(super) fn over(&self, labels: &BTreeMap<String, String>) -> Option<Standing> {
        let quotas = self.quotas();
        if quotas.is_empty() {
            return None;
        }
        let account = account_of(labels);
        let standing = quotas.standing(now_ms(), &self.meter.ledger(), &account);
        standing.into_iter().find(Standing::is_over)
    }

    /// Fails if a disk quota is used up of what is charged to this agent and space.
    pub(crate) fn may_store(&self, agent: Option<String>, space: String) -> Result<(), OverQuota> {
        let account = Account {
            agent,
            spaces: vec![space],
            ..Account::default()
        };
        let now_ms = now_ms();
        let standing = {
            let quotas = self.quotas();
            quotas.standing(now_ms, &self.meter.ledger(), &account)
        };
        let over = standing
            .iter()
            .find(|one| one.key.resource == Resource::Disk && one.is_over());
        match over {
            Some(over) => Err(self.explain(now_ms, over)),
            None => Ok(()),
        }
    }

    /// Returns the one that a quota is about, with the name it has here.
    pub(super) fn named(&self, whose: &Whose) -> Option<Named> {
        let authority = self.replica.authority();
        let names = Names(&authority);
        match whose {
            Whose::Agent(id) => id.parse().ok().map(|id| names.agent(&id)),
            Whose::Space(id) => id.parse().ok().map(|id| names.space(&id)),
            Whose::EachAgent | Whose::EachSpace => None,
        }
    }

    /// Says that a quota is used up, and how to go on.
    pub(super) fn explain(&self, now_ms: u64, over: &Standing) -> OverQuota {
        let Standing {
            key: Key { resource, per, .. },
            of,
            limit,
            used,
        } = over;
        let named = self.named(of).map(|named| named.to_string());
        let named = named.unwrap_or_default();
        let kind = match of {
            Whose::Agent(_) | Whose::EachAgent => "agent",
            Whose::Space(_) | Whose::EachSpace => "space",
        };
        let (used, limit) = (resource.show_amount(*used), resource.show_amount(*limit));
        let about = resource.about();
        let what = match (resource, per) {
            (Resource::Disk, _) => {
                format!("{kind} `{named}` holds {used} of {about}, and its quota is {limit}")
            }
            (_, Per::Ever) => {
                format!("{kind} `{named}` has used {used} of {about}, and its quota is {limit}")
            }
            (_, per) => format!(
                "{kind} `{named}` has used {used} of {about} this {per}, and its quota is {limit} a {per}"
            ),
        };
        let period = match (resource, per) {
            (Resource::Disk, _) => String::new(),
            (_, per) => format!(" --per {per}"),
        };
        let raise =
            format!("raise it with `rhizome quota set --{kind} {named} {resource}=<more>{period}`");
        let hint = match (resource, per.ends_ms(now_ms)) {
            (Resource::Disk, _) => {
                format!(
                    "end sandboxes, remove snapshots or forget versions of volumes that nobody \
                     needs, or {raise}"
                )
            }
            (_, Some(end_ms)) => format!("{raise}, or wait until {}", utc(end_ms)),
            (_, None) => raise,
        };
        OverQuota { what, hint }
    }
}

impl Gate for Limits {
    fn may_run(&self, labels: &BTreeMap<String, String>) -> Result<(), OverQuota> {
        match self.over(labels) {
            Some(over) => Err(self.explain(now_ms(), &over)),
            None => Ok(()),
        }
    }
}
