//! Volumes: directory trees in a space that outlive every sandbox and node.
//!
//! What is known of them lies in the memory of the space, so every member knows it; the trees lie
//! in chunk stores, of this node and of those that hold copies. Versions are never changed: who
//! writes makes a new one, and two who did not know of each other leave two.

mod attach;
mod commit;
mod content;
mod error;
mod forget;
mod keep;
mod known;
mod mend;
mod peer;
mod record;
mod repack;
mod show;
mod usage;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::StatusCode;
use rhizome_identity::{Hash, NodeId, SpaceId};
use rhizome_memory::{PublishRequest, now_ms};
use rhizome_sandbox::{
    Progress, ProgressEvent,
    chunks::{ChunkStore, StoreKey},
    volume::{
        ConflictKind, Content, Draft, Merged, Side, Trees, VersionId, VolumeError, copy, diff,
        export, history, import, merge,
    },
};

pub(crate) use attach::{Volumes, keep_volumes};
use commit::New;
pub(crate) use content::{Change, Found, Ownership, VolumeFile};
use error::{stored, volume};
pub(crate) use keep::spread_volumes;
pub(crate) use known::Known;
use record::{
    AttachedRecord, MAX_MESSAGE, MAX_NAME, PackedRecord, Record, VersionRecord, VolumeId,
    VolumeRecord,
};

use super::{
    caller::Caller,
    fail,
    names::Names,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        SCHEMA,
        volume::{
            VolumeBody, VolumeChange, VolumeCommitted, VolumeConflict, VolumeDiff, VolumeLog,
            VolumeShown, VolumeVersionBody, Volumes as VolumeList,
        },
    },
    error::ApiError,
    remote::ask::find_node,
};

/// Most documents of one space that are looked through, the newest first.
const MAX_RECORDS: usize = 10_000;
/// Fewest digits of an id that are looked up as a prefix.
const MIN_PREFIX: usize = 4;
/// Most changes that one answer names.
const MAX_CHANGES: usize = 10_000;
/// Most nodes that are asked for the packs of a version.
const MAX_HOLDERS: usize = 64;
/// Most bytes that are fetched for one version.
const MAX_VERSION_BYTES: u64 = 1 << 40;

/// A version whose packs are here, under the space's present key.
struct Tree {
    root: Content,
    packs: Vec<rhizome_sandbox::chunks::PackId>,
}

impl Node {
    /// Makes a volume, empty or from a directory of this machine.
    pub(crate) async fn create_volume(
        self: Arc<Self>,
        body: VolumeBody,
        progress: Progress,
    ) -> Result<VolumeShown, ApiError> {
        let space = Caller::Owner.space(&self, body.space.as_deref())?;
        let name = body.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
            return Err(ApiError::bad_request(format!(
                "a volume's name has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
            )));
        }
        let others = self.known_volumes(vec![space]).await?;
        if others.iter().any(|known| known.volume.name == name) {
            let message = format!("the space has a volume `{name}` already");
            return Err(ApiError::new(StatusCode::CONFLICT, "name_taken", message));
        }
        self.may_store(&space, None).await?;
        let created_ms = now_ms();
        let seed = format!("{} {space} {name} {created_ms}", self.id());
        let hash = Hash::keyed("rhizome volume id 1", seed.as_bytes());
        let volume = VolumeId(*hash.as_bytes().first_chunk().expect("16 of 32 bytes"));
        let record = VolumeRecord {
            volume,
            name,
            created_ms,
            removed: false,
        };
        let known = Known::new(space, record);
        let (root, packs, pin) = match body.from {
            Some(folder) => {
                let taken = self.take_folder(&known, &folder, &progress).await?;
                (taken.0.root, taken.1, taken.2)
            }
            None => {
                self.store_tree(&known, |_, writer| Draft::empty().store(writer))
                    .await?
            }
        };
        let new = New {
            root,
            packs,
            parents: Vec::new(),
            message: "made".to_owned(),
            replicas: None,
            pin,
            bytes_stored: 0,
            agent: None,
        };
        // The version first: a volume that is known has one.
        let version = self.commit_version(&known, new, &progress).await?;
        self.publish_volume(space, &Record::Volume(known.volume.clone()))
            .await?;
        let mut known = known;
        known.versions.insert(version.version, version);
        Ok(VolumeShown {
            schema: SCHEMA,
            volume: self.volume_shown(&known),
        })
    }

    /// Lists the volumes of the spaces that the caller may read, or of one; those alone of which a
    /// node holds a version, if one is named.
    pub(crate) async fn list_volumes(
        &self,
        caller: &Caller,
        space: Option<&str>,
        held_by: Option<&str>,
    ) -> Result<VolumeList, ApiError> {
        let scope = caller.readable(self, space)?;
        let holder = self.holder(held_by)?;
        let mut all = self.known_volumes(scope.0).await?;
        all.retain(|known| {
            let mut versions = known.versions.values();
            holder.is_none_or(|holder| versions.any(|one| one.holders.contains(&holder)))
        });
        Ok(VolumeList {
            schema: SCHEMA,
            volumes: all.iter().map(|known| self.volume_shown(known)).collect(),
        })
    }

    /// Returns the versions of a volume, each before what it was made from; those alone that a
    /// node holds, if one is named.
    pub(crate) async fn volume_log(
        &self,
        wanted: &str,
        held_by: Option<&str>,
    ) -> Result<VolumeLog, ApiError> {
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let holder = self.holder(held_by)?;
        let log = history::log(&known.history(), &known.heads());
        let versions = log.iter().filter_map(|id| known.versions.get(id));
        let versions = versions
            .filter(|version| holder.is_none_or(|holder| version.holders.contains(&holder)));
        Ok(VolumeLog {
            schema: SCHEMA,
            versions: versions
                .map(|version| self.version_shown(version))
                .collect(),
        })
    }

    /// Compares two versions; without a name, the newest with what it was made from.
    pub(crate) async fn volume_diff(
        &self,
        wanted: &str,
        from: Option<&str>,
        to: Option<&str>,
        progress: &Progress,
    ) -> Result<VolumeDiff, ApiError> {
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let to = known.choose(to, true)?;
        let from = match from {
            Some(from) => Some(known.choose(Some(from), true)?),
            None => to
                .parents
                .iter()
                .find_map(|parent| known.versions.get(parent)),
        };
        let new = self.tree_of(&known, to, progress).await?;
        let old = match from {
            Some(from) => Some(self.tree_of(&known, from, progress).await?),
            None => None,
        };
        let (key, _) = self.store_key(&known.space)?;
        let store = self.volume_store()?;
        let (from_id, to_id) = (from.map(|from| from.version), to.version);
        let (changes, more) = blocking(move || {
            let mut packs = new.packs;
            packs.extend(old.iter().flat_map(|old| &old.packs));
            let chunks = store.reader(&key, &packs)?;
            let trees = Trees::new(&chunks);
            let mut writer = store.writer(&key);
            let empty = Draft::empty().store(&mut writer)?;
            let (mut changes, mut more) = (Vec::new(), false);
            // Nothing at all is what the first version came from.
            if let Some(old) = old {
                diff(trees, &old.root, &new.root, &mut |change| {
                    more |= changes.len() == MAX_CHANGES;
                    if !more {
                        changes.push(show::change(&change));
                    }
                    Ok(())
                })?;
            } else if new.root != empty {
                trees.walk(&new.root, &mut |path, entry| {
                    more |= changes.len() == MAX_CHANGES;
                    if !more {
                        changes.push(VolumeChange {
                            path: path.to_string(),
                            kind: "added".to_owned(),
                            old_bytes: None,
                            new_bytes: show::bytes(Some(entry)),
                        });
                    }
                    Ok(())
                })?;
            }
            Ok::<_, VolumeError>((changes, more))
        })
        .await?
        .map_err(|error| volume(&error))?;
        Ok(VolumeDiff {
            schema: SCHEMA,
            from: from_id.map(|id| id.to_string()).unwrap_or_default(),
            to: to_id.to_string(),
            changes,
            more,
        })
    }

    /// Makes what a version was the newest, on top of all there is.
    pub(crate) async fn volume_restore(
        self: Arc<Self>,
        wanted: String,
        body: VolumeVersionBody,
        progress: Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        let Some(version) = &body.version else {
            return Err(ApiError::bad_request("which version is to be restored?"));
        };
        let version = known.choose(Some(version), true)?;
        let tree = self.tree_of(&known, version, &progress).await?;
        let message = match body.message.as_str() {
            "" => format!("restored {}", &version.version.to_string()[..10]),
            message => message.to_owned(),
        };
        let new = New {
            root: tree.root,
            packs: tree.packs,
            parents: known.heads(),
            message,
            replicas: None,
            pin: None,
            bytes_stored: 0,
            agent: None,
        };
        let version = self.commit_version(&known, new, &progress).await?;
        Ok(self.committed(&known, &version, true))
    }

    /// Brings all newest versions together.
    pub(crate) async fn volume_merge(
        self: Arc<Self>,
        wanted: String,
        body: VolumeVersionBody,
        progress: Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let mut known = self.find_volume(&Caller::Owner, &wanted).await?;
        let mut conflicts = Vec::new();
        let mut changed = false;
        loop {
            let heads = known.heads();
            let [ours, theirs, ..] = heads[..] else {
                let version = known.choose(None, true)?.clone();
                let mut committed = self.committed(&known, &version, changed);
                committed.conflicts = conflicts;
                return Ok(committed);
            };
            let base = history::common(&known.history(), &ours, &theirs);
            // One that was forgotten is as good as none: nothing counts as removed then.
            let base = base.filter(|base| known.versions.contains_key(base));
            let version = |id: &VersionId| &known.versions[id];
            let (ours, theirs) = (version(&ours), version(&theirs));
            let base = match base {
                Some(base) => Some(self.tree_of(&known, version(&base), &progress).await?),
                None => None,
            };
            let (our_tree, their_tree) = (
                self.tree_of(&known, ours, &progress).await?,
                self.tree_of(&known, theirs, &progress).await?,
            );
            let label =
                |of: &VersionRecord| format!("{}-{}", of.author, &of.version.to_string()[..8]);
            let (our_label, their_label) = (label(ours), label(theirs));
            let mut message = match body.message.as_str() {
                "" => format!("merged {our_label} and {their_label}"),
                message => message.to_owned(),
            };
            let parents = vec![ours.version, theirs.version];
            let mut packs: Vec<_> = our_tree
                .packs
                .iter()
                .chain(&their_tree.packs)
                .copied()
                .collect();
            packs.extend(base.iter().flat_map(|base| &base.packs));
            let (merged, packs, pin) = self
                .store_with(&known, packs, move |trees, writer| {
                    let side = |root, label| Side { root, label };
                    let base = base.as_ref().map(|base| &base.root);
                    let ours = side(&our_tree.root, our_label.as_str());
                    let theirs = side(&their_tree.root, their_label.as_str());
                    merge(trees, base, ours, theirs, writer)
                })
                .await?;
            let Merged {
                root,
                conflicts: found,
            } = merged;
            if !found.is_empty() {
                // Whoever looks at the version later finds them named, as far as there is room.
                let paths: Vec<String> = found.iter().map(|one| one.path.to_string()).collect();
                message.push_str(&format!("; conflicts: {}", paths.join(", ")));
            }
            conflicts.extend(found.iter().map(show::conflict));
            let new = New {
                root,
                packs,
                parents,
                message,
                replicas: None,
                pin,
                bytes_stored: 0,
                agent: None,
            };
            let version = self.commit_version(&known, new, &progress).await?;
            known.versions.insert(version.version, version);
            changed = true;
        }
    }

    /// Writes a version to a new directory of this machine.
    pub(crate) async fn volume_export(
        self: Arc<Self>,
        wanted: String,
        body: VolumeVersionBody,
        progress: Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        let version = known.choose(body.version.as_deref(), false)?;
        let to = host_path(body.path.as_deref())?;
        let tree = self.tree_of(&known, version, &progress).await?;
        let (key, _) = self.store_key(&known.space)?;
        let store = self.volume_store()?;
        let told = Arc::clone(&progress);
        blocking(move || {
            let chunks = store.reader(&key, &tree.packs)?;
            let mut done = 0;
            export(Trees::new(&chunks), &tree.root, &to, &mut |bytes| {
                done += bytes;
                tell(&told, "export", done);
            })
        })
        .await?
        .map_err(|error| volume(&error))?;
        Ok(self.committed(&known, version, false))
    }

    /// Makes a directory of this machine the newest version.
    pub(crate) async fn volume_import(
        self: Arc<Self>,
        wanted: String,
        body: VolumeVersionBody,
        progress: Progress,
    ) -> Result<VolumeCommitted, ApiError> {
        let known = self.find_volume(&Caller::Owner, &wanted).await?;
        self.may_store(&known.space, None).await?;
        let parent = known.choose(body.version.as_deref(), false)?;
        let folder = body.path.unwrap_or_default();
        let (taken, packs, pin) = self.take_folder(&known, &folder, &progress).await?;
        let message = match body.message.as_str() {
            "" => "imported".to_owned(),
            message => message.to_owned(),
        };
        let new = New {
            root: taken.root,
            packs,
            parents: vec![parent.version],
            message,
            replicas: None,
            pin,
            bytes_stored: 0,
            agent: None,
        };
        let version = self.commit_version(&known, new, &progress).await?;
        let mut committed = self.committed(&known, &version, true);
        (committed.skipped, committed.files_read) = (taken.skipped, taken.entries);
        Ok(committed)
    }

    /// Returns a version whose packs are all here; what was sealed in an earlier epoch of the
    /// space's key is stored anew, so that all is under one key.
    async fn tree_of(
        &self,
        known: &Known,
        record: &VersionRecord,
        progress: &Progress,
    ) -> Result<Tree, ApiError> {
        let version = self.bring_version(known, record, progress).await?;
        let (key, epoch) = self.store_key(&known.space)?;
        if record.epoch == epoch {
            return Ok(Tree {
                root: version.root,
                packs: version.packs,
            });
        }
        let old = self.store_key_of(&known.space, record.epoch)?;
        let store = self.volume_store()?;
        let stored = blocking(move || {
            let chunks = store.reader(&old, &version.packs)?;
            let mut writer = store.writer(&key);
            let root = copy(Trees::new(&chunks), &version.root, &mut writer)?;
            let packs = writer.finish()?;
            Ok::<_, VolumeError>(Tree { root, packs })
        });
        stored.await?.map_err(|error| volume(&error))
    }

    /// Stores a tree made from nothing.
    async fn store_tree<T: Send + 'static>(
        &self,
        known: &Known,
        make: impl FnOnce(Trees<'_>, &mut rhizome_sandbox::chunks::PackWriter) -> Result<T, VolumeError>
        + Send
        + 'static,
    ) -> Result<(T, Vec<rhizome_sandbox::chunks::PackId>, Option<String>), ApiError> {
        self.store_with(known, Vec::new(), make).await
    }

    /// Stores a tree made from others, whose packs are named; returns all packs, pinned.
    async fn store_with<T: Send + 'static>(
        &self,
        known: &Known,
        packs: Vec<rhizome_sandbox::chunks::PackId>,
        make: impl FnOnce(Trees<'_>, &mut rhizome_sandbox::chunks::PackWriter) -> Result<T, VolumeError>
        + Send
        + 'static,
    ) -> Result<(T, Vec<rhizome_sandbox::chunks::PackId>, Option<String>), ApiError> {
        let (key, _) = self.store_key(&known.space)?;
        let store = self.volume_store()?;
        // Several may be stored at once, of one volume too.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pin = format!("volume-new-{}-{}-{number}", known.volume.volume, now_ms());
        blocking(move || store_pinned(&store, &key, packs, pin, make))
            .await?
            .map_err(|error| volume(&error))
    }

    async fn take_folder(
        &self,
        known: &Known,
        folder: &str,
        progress: &Progress,
    ) -> Result<
        (
            rhizome_sandbox::volume::Imported,
            Vec<rhizome_sandbox::chunks::PackId>,
            Option<String>,
        ),
        ApiError,
    > {
        let folder = host_path(Some(folder))?;
        let told = Arc::clone(progress);
        self.store_tree(known, move |_, writer| {
            let mut done = 0;
            import(&folder, writer, &mut |bytes| {
                done += bytes;
                tell(&told, "import", done);
            })
        })
        .await
    }

    /// Returns the node that something has to be held by.
    fn holder(&self, held_by: Option<&str>) -> Result<Option<NodeId>, ApiError> {
        let authority = self.need_mesh()?;
        held_by
            .map(|wanted| find_node(&authority, wanted))
            .transpose()
    }

    fn volume_store(&self) -> Result<ChunkStore, ApiError> {
        Ok(self.sandboxes()?.chunks().clone())
    }

    async fn publish_volume(&self, space: SpaceId, record: &Record) -> Result<(), ApiError> {
        let agent = self.default_agent().await?;
        let request = PublishRequest {
            space,
            draft: record.draft(),
            fingerprint: self.host_fingerprint,
        };
        let replica = self.replica.clone();
        let published = blocking(move || replica.publish(&agent.key, request)).await?;
        published.map(drop).map_err(fail::publish)
    }

    fn committed(&self, known: &Known, version: &VersionRecord, changed: bool) -> VolumeCommitted {
        VolumeCommitted {
            schema: SCHEMA,
            volume: known.volume.volume.to_string(),
            version: self.version_shown(version),
            changed,
            files_read: 0,
            skipped: 0,
            unsettled: Vec::new(),
            conflicts: Vec::new(),
        }
    }
}

fn store_pinned<T>(
    store: &ChunkStore,
    key: &StoreKey,
    mut packs: Vec<rhizome_sandbox::chunks::PackId>,
    pin: String,
    make: impl FnOnce(Trees<'_>, &mut rhizome_sandbox::chunks::PackWriter) -> Result<T, VolumeError>,
) -> Result<(T, Vec<rhizome_sandbox::chunks::PackId>, Option<String>), VolumeError> {
    let chunks = store.reader(key, &packs)?;
    let mut writer = store.writer(key);
    let made = make(Trees::new(&chunks), &mut writer)?;
    packs.extend(writer.finish()?);
    packs.sort_unstable();
    packs.dedup();
    store.pin(&pin, &packs)?;
    Ok((made, packs, Some(pin)))
}

fn tell(progress: &Progress, step: &str, done: u64) {
    progress(ProgressEvent {
        step,
        detail: &format!("{} MiB", done >> 20),
        done,
        total: 0,
    });
}

fn host_path(path: Option<&str>) -> Result<PathBuf, ApiError> {
    match path {
        Some(path) if Path::new(path).is_absolute() => Ok(PathBuf::from(path)),
        _ => Err(ApiError::bad_request(
            "a directory of this machine is named by its absolute path",
        )),
    }
}

/// Returns a text of at most `limit` bytes.
fn clipped(text: &str, limit: usize) -> String {
    text[..text.floor_char_boundary(limit)].to_owned()
}
