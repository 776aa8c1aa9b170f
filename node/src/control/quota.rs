//! How much agents and spaces may use on this node.
//!
//! The rules are pure: what is used comes in, what is over goes out. They are this node's alone
//! (docs/adr/0021-usage-is-counted-where-it-is-used.md) and lie in one file, synced before a change is
//! answered.

mod amount;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use self::amount::{Per, Resource};
use super::usage::{
    journal::write_synced,
    ledger::{Account, Held, Ledger, Used},
};

/// Most quotas of one node.
pub(crate) const MAX_QUOTAS: usize = 1_024;
const VERSION: u32 = 1;
/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Whose use is limited.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Whose {
    /// One agent's, by its id.
    Agent(String),
    /// Each agent's that has no such quota of its own.
    EachAgent,
    /// One space's, by its id.
    Space(String),
    /// Each space's that has no such quota of its own.
    EachSpace,
}

/// What a quota is about; a node has at most one for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) whose: Whose,
    pub(crate) resource: Resource,
    pub(crate) per: Per,
}

/// The quotas of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Quotas(BTreeMap<Key, u64>);

/// A quota as it stands for one agent or one space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The quota.
    pub(crate) key: Key,
    /// The agent or the space that it is looked at for: what [`Whose::Agent`] or
    /// [`Whose::Space`] holds.
    pub(crate) of: Whose,
    /// In the resource's unit.
    pub(crate) limit: u64,
    pub(crate) used: u64,
}

impl Standing {
    /// Tells whether it is used up.
    pub(crate) fn is_over(&self) -> bool {
        self.used >= self.limit
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaFile {
    version: u32,
    quotas: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    key: Key,
    limit: u64,
}

/// Why the quotas cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The file cannot be read or written.
    #[error("cannot {what} the quotas at `{}`", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There are too many.
    #[error("a node has at most {MAX_QUOTAS} quotas")]
    TooMany,
}

impl QuotaError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Io {
                what: "read", path, ..
            } => Some(format!(
                "mend `{}`, or move it away and set the quotas anew with `rhizome quota set`",
                path.display()
            )),
            Self::Io { .. } => None,
            Self::TooMany => {
                Some("remove some; `--each-agent` and `--each-space` stand for many".to_owned())
            }
        }
    }
}

impl Quotas {
    /// Reads them; a file that is not there holds none.
    ///
    /// A file that cannot be read is an error: a node that forgot its quotas would let everything
    /// run.
    pub(crate) fn read(path: &Path) -> Result<Self, QuotaError> {
        let failed = |source| QuotaError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        };
        let size = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            found => found.map_err(failed)?.len(),
        };
        if size > MAX_FILE_BYTES {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        let text = fs::read(path).map_err(failed)?;
        let file: QuotaFile =
            serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        if file.version != VERSION {
            return Err(failed(io::Error::other("it is of another version")));
        }
        let quotas = file.quotas.into_iter().map(|line| (line.key, line.limit));
        Ok(Self(quotas.collect()))
    }

    /// Writes them; durable when this returns.
    pub(crate) fn write(&self, path: &Path) -> Result<(), QuotaError> {
        let quotas = self.0.iter().map(|(key, limit)| Line {
            key: key.clone(),
            limit: *limit,
        });
        let file = QuotaFile {
            version: VERSION,
            quotas: quotas.collect(),
        };
        let json = serde_json::to_vec_pretty(&file).expect("quotas become JSON");
        let draft = path.with_extension("new");
        write_synced(&draft, &json)
            .and_then(|()| fs::rename(&draft, path))
            .and_then(|()| match path.parent() {
                Some(dir) => fs::File::open(dir)?.sync_all(),
                None => Ok(()),
            })
            .map_err(|source| QuotaError::Io {
                what: "write",
                path: path.to_owned(),
                source,
            })
    }

    /// Sets one, in the place of what was there.
    pub(crate) fn set(&mut self, key: Key, limit: u64) -> Result<(), QuotaError> {
        if self.0.len() >= MAX_QUOTAS && !self.0.contains_key(&key) {
            return Err(QuotaError::TooMany);
        }
        self.0.insert(key, limit);
        Ok(())
    }

    /// Removes those that match; returns them.
    pub(crate) fn remove(&mut self, matches: impl Fn(&Key) -> bool) -> Vec<Key> {
        let gone: Vec<_> = self.0.keys().filter(|key| matches(key)).cloned().collect();
        for key in &gone {
            self.0.remove(key);
        }
        gone
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.0.iter().map(|(key, limit)| (key, *limit))
    }

    /// Returns how the quotas stand that count for a sandbox of this account.
    pub(crate) fn standing(
        &self,
        now_ms: u64,
        ledger: &Ledger,
        account: &Account,
    ) -> Vec<Standing> {
        let agent = account.agent.iter().cloned().map(Whose::Agent);
        let spaces = account.spaces.iter().cloned().map(Whose::Space);
        agent
            .chain(spaces)
            .flat_map(|of| self.standing_of(now_ms, ledger, &of))
            .collect()
    }

    /// Returns how the quotas stand that count for one agent or one space.
    pub(crate) fn standing_of(&self, now_ms: u64, ledger: &Ledger, of: &Whose) -> Vec<Standing> {
        let each = match of {
            Whose::Agent(_) | Whose::EachAgent => Whose::EachAgent,
            Whose::Space(_) | Whose::EachSpace => Whose::EachSpace,
        };
        let own = |key: &Key| Key {
            whose: of.clone(),
            ..key.clone()
        };
        self.iter()
            .filter(|(key, _)| {
                key.whose == *of || key.whose == each && !self.0.contains_key(&own(key))
            })
            .map(|(key, limit)| Standing {
                key: key.clone(),
                of: of.clone(),
                limit,
                used: used(now_ms, ledger, of, key),
            })
            .collect()
    }
}

/// Returns what one agent or one space has used of what a quota is about.
fn used(now_ms: u64, ledger: &Ledger, of: &Whose, key: &Key) -> u64 {
    if key.resource == Resource::Disk {
        let held = ledger.held().values();
        return held
            .filter(|held| is_of(&held.account, of))
            .map(|held: &Held| held.disk_bytes)
            .fold(0, u64::saturating_add);
    }
    let mut sum = Used::default();
    let mut add = |account: &Account, used: &Used| {
        if is_of(account, of) {
            sum.add(used);
        }
    };
    match key.per.began_ms(now_ms) {
        Some(from_ms) => ledger
            .rows(from_ms, u64::MAX)
            .for_each(|(account, used)| add(account, used)),
        None => ledger
            .ever()
            .iter()
            .for_each(|(account, used)| add(account, used)),
    }
    key.resource.of(&sum)
}

fn is_of(account: &Account, of: &Whose) -> bool {
    match of {
        Whose::Agent(agent) => account.agent.as_ref() == Some(agent),
        Whose::Space(space) => account.spaces.contains(space),
        Whose::EachAgent | Whose::EachSpace => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::usage::ledger::{Charge, DAY_MS, HOUR_MS};

    const NOON: u64 = 20_000 * DAY_MS + 12 * HOUR_MS;

    fn account(agent: &str, spaces: &[&str]) -> Account {
        Account {
            agent: Some(agent.to_owned()),
            spaces: spaces.iter().map(|space| (*space).to_owned()).collect(),
            sandbox: Some(format!("box of {agent}")),
            volume: None,
        }
    }

    fn charged(ledger: &mut Ledger, at_ms: u64, account: Account, used: Used) {
        ledger.apply(&Charge {
            at_ms,
            over_ms: 0,
            account,
            used,
            monitor: None,
            network: None,
            disk: None,
        });
    }

    fn cpu(seconds: u64) -> Used {
        Used {
            cpu_ms: seconds * 1_000,
            ..Used::default()
        }
    }

    fn key(whose: Whose, per: Per) -> Key {
        Key {
            whose,
            resource: Resource::Cpu,
            per,
        }
    }

    #[test]
    fn a_quota_counts_its_period_and_is_over_when_it_is_reached() {
        let (mut quotas, mut ledger) = (Quotas::default(), Ledger::default());
        let mender = Whose::Agent("mender".into());
        quotas.set(key(mender.clone(), Per::Day), 10).unwrap();
        quotas.set(key(mender.clone(), Per::Ever), 15).unwrap();
        let of = account("mender", &["findings"]);
        charged(&mut ledger, NOON - DAY_MS, of.clone(), cpu(7));
        charged(&mut ledger, NOON, of.clone(), cpu(9));
        charged(&mut ledger, NOON, account("other", &["findings"]), cpu(99));
        let standing = quotas.standing(NOON, &ledger, &of);
        let seen: Vec<_> = standing
            .iter()
            .map(|one| (one.key.per, one.used, one.is_over()))
            .collect();
        assert_eq!(seen, [(Per::Day, 9, false), (Per::Ever, 16, true)]);
        charged(&mut ledger, NOON, of.clone(), cpu(1));
        assert!(quotas.standing(NOON, &ledger, &of)[0].is_over());
        assert!(!quotas.standing(NOON + DAY_MS, &ledger, &of)[0].is_over());
    }

    #[test]
    fn a_space_is_charged_by_all_its_agents_and_each_stands_for_those_without_their_own() {
        let (mut quotas, mut ledger) = (Quotas::default(), Ledger::default());
        quotas.set(key(Whose::EachSpace, Per::Day), 100).unwrap();
        quotas.set(key(Whose::EachAgent, Per::Day), 5).unwrap();
        let special = Whose::Agent("special".into());
        quotas.set(key(special.clone(), Per::Day), 50).unwrap();
        charged(&mut ledger, NOON, account("one", &["a", "b"]), cpu(60));
        charged(&mut ledger, NOON, account("special", &["a"]), cpu(45));
        let of = |account: &Account| {
            let standing = quotas.standing(NOON, &ledger, account);
            let seen = standing
                .into_iter()
                .map(|one| (one.limit, one.used, one.is_over()));
            seen.collect::<Vec<_>>()
        };
        assert_eq!(
            of(&account("one", &["a", "b"])),
            [(5, 60, true), (100, 105, true), (100, 60, false)]
        );
        assert_eq!(
            of(&account("special", &["b"])),
            [(50, 45, false), (100, 60, false)]
        );
        // One that has never run has a quota of its own too.
        assert_eq!(of(&account("new", &[])), [(5, 0, false)]);
        assert_eq!(of(&Account::default()), []);
    }

    #[test]
    fn quotas_are_there_after_a_restart_and_a_damaged_file_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quotas.json");
        assert!(Quotas::read(&path).unwrap().is_empty());
        let mut quotas = Quotas::default();
        quotas.set(key(Whose::EachAgent, Per::Month), 7).unwrap();
        quotas
            .set(key(Whose::Space("s".into()), Per::Ever), 8)
            .unwrap();
        quotas.write(&path).unwrap();
        assert_eq!(Quotas::read(&path).unwrap(), quotas);
        assert_eq!(quotas.remove(|key| key.per == Per::Month).len(), 1);
        for hostile in [
            "",
            "{}",
            r#"{"version":2,"quotas":[]}"#,
            r#"{"version":1,"quotas":[{"limit":1}]}"#,
        ] {
            fs::write(&path, hostile).unwrap();
            assert!(matches!(
                Quotas::read(&path),
                Err(QuotaError::Io { what: "read", .. })
            ));
        }
    }

    #[test]
    fn there_are_not_more_than_the_limit() {
        let mut quotas = Quotas::default();
        for number in 0..MAX_QUOTAS {
            let whose = Whose::Agent(number.to_string());
            quotas.set(key(whose, Per::Day), 1).unwrap();
        }
        let one_more = quotas.set(key(Whose::EachAgent, Per::Day), 1);
        assert!(matches!(one_more, Err(QuotaError::TooMany)));
        quotas
            .set(key(Whose::Agent("0".into()), Per::Day), 2)
            .unwrap();
    }
}
