//! Which runtime something was learned in, and how that differs from the reader's.
//!
//! A memory names its runtime by the hash of its fingerprint. The fingerprint itself is published
//! once in each space as a document keyed by that hash; whoever reads it checks the one against
//! the other, so it does not matter who wrote it.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use rhizome_identity::{Hash, SpaceId};
use rhizome_memory::{Draft, Kind, ListQuery, PublishRequest, Replica, keyed_doc};
use rhizome_sandbox::{Contract, Fingerprint, SandboxInfo};
use tracing::debug;

use super::{
    caller::Caller,
    fail,
    memory::clip,
    node::{Node, blocking},
    sandbox::Bound,
};
use crate::{
    api::types::{
        SCHEMA,
        runtime::{Runtime, RuntimeDifferences, RuntimeLine, Runtimes as RuntimeList},
    },
    error::ApiError,
};

/// Fingerprints held in memory, and (space, fingerprint) pairs known to be published; both are
/// forgotten as a whole when full, which costs a look at the disk.
const CACHED: usize = 512;
/// Most runtimes that one list shows.
const MAX_LISTED: usize = 500;
/// Fewest digits of a hash that are looked up as a prefix.
const MIN_PREFIX: usize = 6;

/// What is known of runtimes without asking the disk.
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    known: Mutex<BTreeMap<Hash, Arc<Fingerprint>>>,
    published: Mutex<BTreeSet<(SpaceId, Hash)>>,
}

impl Runtimes {
    fn get(&self, hash: &Hash) -> Option<Arc<Fingerprint>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(hash).cloned()
    }

    fn keep(&self, fingerprint: Fingerprint) -> (Hash, Arc<Fingerprint>) {
        let hash = Hash::from_bytes(fingerprint.hash());
        let fingerprint = Arc::new(fingerprint);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHED {
            known.clear();
        }
        known.insert(hash, Arc::clone(&fingerprint));
        (hash, fingerprint)
    }

    /// Returns the fingerprint with this hash from memory or from one of the spaces.
    ///
    /// Reads the disk: call it where that holds nobody up.
    fn find(&self, replica: &Replica, spaces: &[SpaceId], hash: &Hash) -> Option<Arc<Fingerprint>> {
        if let Some(known) = self.get(hash) {
            return Some(known);
        }
        let key = hash.to_string();
        spaces.iter().find_map(|space| {
            let doc = keyed_doc(space, Kind::Runtime, &key);
            let item = replica.memory(space, &doc).ok()??;
            let read = checked(&item.text, hash)?;
            Some(self.keep(read).1)
        })
    }
}

/// Returns the fingerprint that `text` spells, if it is the one that `hash` names.
fn checked(text: &str, hash: &Hash) -> Option<Fingerprint> {
    if Hash::of(text.as_bytes()) != *hash {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// What a memory's runtime means to the one who reads it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// In what its runtime differs from the reader's.
    pub(crate) differs: Vec<String>,
    /// What it relies on and the reader's runtime does not have.
    pub(crate) breaks: Vec<String>,
}

/// The reader's own runtime, and those met so far.
#[derive(Debug)]
pub(crate) struct Reader {
    own: Fingerprint,
    spaces: Vec<SpaceId>,
    met: BTreeMap<Hash, Vec<String>>,
}

impl Reader {
    /// Makes one of a runtime that is at hand.
    pub(crate) fn of(own: Fingerprint, spaces: Vec<SpaceId>) -> Self {
        Self {
            own,
            spaces,
            met: BTreeMap::new(),
        }
    }

    /// Says how what was learned in the runtime `hash`, relying on `requires`, stands here.
    pub(crate) fn standing(
        &mut self,
        runtimes: &Runtimes,
        replica: &Replica,
        hash: &Hash,
        requires: &[String],
    ) -> Standing {
        let (own, spaces) = (&self.own, &self.spaces);
        let differs = self.met.entry(*hash).or_insert_with(|| {
            let was = runtimes.find(replica, spaces, hash);
            let differences = was.map(|was| was.differences(own)).unwrap_or_default();
            differences.iter().map(ToString::to_string).collect()
        });
        let contract = Contract::of_readable(requires);
        Standing {
            differs: differs.clone(),
            breaks: contract
                .check(own)
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }
}

impl Node {
    /// Returns what compares memories with the caller's runtime, if the caller is in one.
    pub(crate) fn reader(&self, caller: &Caller, spaces: Vec<SpaceId>) -> Option<Reader> {
        let guest = caller.guest()?;
        let info = self.sandboxes().ok()?.get(&guest.sandbox).ok()?;
        Some(Reader::of(info.fingerprint, spaces))
    }

    /// Publishes what a sandbox is made of in each of its spaces that does not know it yet.
    ///
    /// Nothing depends on it being there: a reader that does not find it names no differences.
    pub(crate) async fn announce_runtime(&self, info: &SandboxInfo) {
        let (hash, fingerprint) = self.runtimes.keep(info.fingerprint.clone());
        for space in Bound::of(info).spaces {
            if let Err(error) = self.publish_runtime(space, hash, &fingerprint).await {
                debug!(%error, runtime = %hash.fmt_short(), "a runtime was not published");
            }
        }
    }

    async fn publish_runtime(
        &self,
        space: SpaceId,
        hash: Hash,
        fingerprint: &Fingerprint,
    ) -> Result<(), ApiError> {
        let pair = (space, hash);
        let published = || {
            let published = &self.runtimes.published;
            published.lock().unwrap_or_else(PoisonError::into_inner)
        };
        if published().contains(&pair) {
            return Ok(());
        }
        let replica = self.replica.clone();
        let doc = keyed_doc(&space, Kind::Runtime, &hash.to_string());
        let there = blocking(move || replica.memory(&space, &doc))
            .await?
            .map_err(fail::replica)?;
        if there.is_none_or(|item| checked(&item.text, &hash).is_none()) {
            let agent = self.default_agent().await?;
            let mut draft = Draft::new(
                Kind::Runtime,
                headline(fingerprint),
                fingerprint.canonical_json(),
            );
            draft.key = Some(hash.to_string());
            let request = PublishRequest {
                space,
                draft,
                fingerprint: self.host_fingerprint,
            };
            let replica = self.replica.clone();
            blocking(move || replica.publish(&agent.key, request))
                .await?
                .map_err(fail::publish)?;
        }
        let mut published = published();
        if published.len() >= CACHED {
            published.clear();
        }
        published.insert(pair);
        Ok(())
    }

    /// Lists the runtimes that the spaces of this node name, newest first.
    pub(crate) async fn list_runtimes(&self) -> Result<RuntimeList, ApiError> {
        let spaces = Caller::Owner.readable(self, None)?.0;
        let replica = self.replica.clone();
        let query = ListQuery {
            spaces: Some(spaces),
            kind: Some(Kind::Runtime),
            limit: MAX_LISTED,
            ..ListQuery::default()
        };
        let items = blocking(move || replica.list(&query))
            .await?
            .map_err(fail::replica)?;
        let mut seen = BTreeSet::new();
        let runtimes = items
            .into_iter()
            .filter_map(|item| {
                let hash: Hash = item.key?.parse().ok()?;
                let fingerprint = checked(&item.text, &hash)?;
                seen.insert(hash).then(|| RuntimeLine {
                    hash: hash.to_string(),
                    about: headline(&fingerprint),
                    at_ms: item.at_ms,
                })
            })
            .take(MAX_LISTED)
            .collect();
        Ok(RuntimeList {
            schema: SCHEMA,
            runtimes,
        })
    }

    /// Shows a runtime by its hash, a unique prefix of it, or the sandbox that has it.
    pub(crate) async fn show_runtime(&self, wanted: &str) -> Result<Runtime, ApiError> {
        let fingerprint = self.find_runtime(wanted).await?;
        Ok(Runtime {
            schema: SCHEMA,
            hash: Hash::from_bytes(fingerprint.hash()).to_string(),
            fingerprint: serde_json::to_value(&*fingerprint).unwrap_or_default(),
        })
    }

    /// Says in what two runtimes differ.
    pub(crate) async fn diff_runtimes(
        &self,
        was: &str,
        is: &str,
    ) -> Result<RuntimeDifferences, ApiError> {
        let (was, is) = (self.find_runtime(was).await?, self.find_runtime(is).await?);
        Ok(RuntimeDifferences {
            schema: SCHEMA,
            was: Hash::from_bytes(was.hash()).to_string(),
            is: Hash::from_bytes(is.hash()).to_string(),
            differences: was.differences(&is),
        })
    }

    async fn find_runtime(&self, wanted: &str) -> Result<Arc<Fingerprint>, ApiError> {
        if let Ok(info) = self.find_sandbox(wanted) {
            return Ok(Arc::new(info.fingerprint));
        }
        let unknown = || {
            let message = format!("no runtime and no sandbox `{}` is known here", clip(wanted));
            ApiError::not_found(message)
                .hint("`rhizome runtime list` and `rhizome sandbox list` show what is")
        };
        let hash: Hash = match wanted.parse() {
            Ok(hash) => hash,
            Err(_) if wanted.len() >= MIN_PREFIX => {
                let list = self.list_runtimes().await?.runtimes;
                let mut found = list.iter().filter(|line| line.hash.starts_with(wanted));
                match (found.next(), found.next()) {
                    (Some(one), None) => one.hash.parse().map_err(|_| unknown())?,
                    _ => return Err(unknown()),
                }
            }
            Err(_) => return Err(unknown()),
        };
        let spaces = Caller::Owner.readable(self, None)?.0;
        let (replica, runtimes) = (self.replica.clone(), Arc::clone(&self.runtimes));
        let found = blocking(move || runtimes.find(&replica, &spaces, &hash)).await?;
        found.ok_or_else(unknown)
    }
}

fn headline(fingerprint: &Fingerprint) -> String {
    let of = |text: &str| clip(text);
    format!(
        "{} on {} ({}), kernel {}, {} MiB",
        of(&fingerprint.image),
        of(&fingerprint.driver),
        of(&fingerprint.accel),
        of(&fingerprint.kernel),
        fingerprint.memory_mib
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_taken_only_under_its_own_hash() {
        let fingerprint = Fingerprint {
            kernel: "6.1".into(),
            ..Fingerprint::default()
        };
        let text = fingerprint.canonical_json();
        let hash = Hash::from_bytes(fingerprint.hash());
        assert_eq!(checked(&text, &hash), Some(fingerprint));
        assert_eq!(checked(&text.replace("6.1", "6.2"), &hash), None);
        assert_eq!(checked("{}", &Hash::of(b"[]")), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let runtimes = Runtimes::default();
        for number in 0..2 * CACHED {
            runtimes.keep(Fingerprint {
                kernel: number.to_string(),
                ..Fingerprint::default()
            });
        }
        assert!(runtimes.known.lock().unwrap().len() <= CACHED);
    }
}
