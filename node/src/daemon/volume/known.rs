//! What is known of volumes: all that the memory of their spaces says.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use rhizome_identity::{NodeId, SpaceId};
use rhizome_memory::{Kind, ListQuery};
use rhizome_sandbox::{
    chunks::PackId,
    volume::{VersionId, history},
};

use super::{
    MAX_HOLDERS, MAX_RECORDS, MIN_PREFIX,
    record::{AttachedRecord, Record, VersionRecord, VolumeId, VolumeRecord},
};
use crate::{
    daemon::{
        caller::Caller,
        fail,
        memory::clip,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// What is known of a volume.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) space: SpaceId,
    pub(crate) volume: VolumeRecord,
    pub(crate) versions: BTreeMap<VersionId, VersionRecord>,
    /// Versions that were forgotten, and may still lie somewhere.
    pub(crate) forgotten: BTreeMap<VersionId, VersionRecord>,
    /// The objects that say where versions lie that were repacked.
    pub(crate) packed: BTreeMap<VersionId, PackId>,
    pub(crate) attached: Vec<AttachedRecord>,
}

impl Known {
    /// A volume of which nothing else is known yet.
    pub(super) fn new(space: SpaceId, volume: VolumeRecord) -> Self {
        Self {
            space,
            volume,
            versions: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            packed: BTreeMap::new(),
            attached: Vec::new(),
        }
    }

    /// Returns who may have the packs of a version: those who said that they hold it, and then
    /// the holders of others, which share most of theirs with it; the newest first.
    pub(super) fn holders_of(&self, record: &VersionRecord) -> Vec<NodeId> {
        let mut others: Vec<&VersionRecord> = self.versions.values().collect();
        others.sort_by_key(|version| std::cmp::Reverse(version.at_ms));
        let mut holders = record.holders.clone();
        for holder in others.iter().flat_map(|version| &version.holders) {
            if !holders.contains(holder) {
                holders.push(*holder);
            }
        }
        holders.truncate(MAX_HOLDERS);
        holders
    }

    pub(super) fn history(&self) -> history::Versions {
        let line = |record: &VersionRecord| history::Line {
            parents: record.parents.clone(),
            at_ms: record.at_ms,
        };
        // One that was forgotten still says which came before which.
        let versions = self.versions.iter().chain(&self.forgotten);
        versions.map(|(id, record)| (*id, line(record))).collect()
    }

    /// Returns the versions that no other was made from, the newest first.
    pub(crate) fn heads(&self) -> Vec<VersionId> {
        let mut heads = history::heads(&self.history());
        heads.retain(|head| self.versions.contains_key(head));
        heads
    }

    /// Returns the version that `wanted` names, or the newest; where there are several, `newest`
    /// must be meant.
    pub(super) fn choose(
        &self,
        wanted: Option<&str>,
        newest: bool,
    ) -> Result<&VersionRecord, ApiError> {
        let record = |id: &VersionId| {
            let found = self.versions.get(id);
            found.ok_or_else(|| ApiError::internal("a head is no version"))
        };
        let Some(wanted) = wanted else {
            let heads = self.heads();
            return match &heads[..] {
                [] => Err(ApiError::not_found(format!(
                    "no version of the volume `{}` is known here",
                    self.volume.name
                ))),
                [first, _, ..] if !newest => {
                    let first = record(first)?;
                    Err(ApiError::new(
                        StatusCode::CONFLICT,
                        "volume_forked",
                        format!(
                            "the volume `{}` has {} newest versions whose writers did not know of \
                             each other; the last is of `{}`",
                            self.volume.name,
                            heads.len(),
                            first.author
                        ),
                    )
                    .hint(format!(
                        "bring them together with `rhizome volume merge {0}`, or choose one that \
                         `rhizome volume log {0}` shows with `--version`, or take the last with \
                         `--newest`",
                        self.volume.name
                    )))
                }
                [first, ..] => record(first),
            };
        };
        let digits = wanted.to_ascii_lowercase();
        let mut found = (self.versions.values()).filter(|version| {
            digits.len() >= MIN_PREFIX && version.version.to_string().starts_with(&digits)
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(ApiError::not_found(format!(
                "the volume `{}` has no version `{}` here",
                self.volume.name,
                clip(wanted)
            ))
            .hint(format!(
                "`rhizome volume log {}` shows them",
                self.volume.name
            ))),
            (Some(_), Some(_)) => Err(ApiError::bad_request("several versions begin so")),
        }
    }
}

impl Node {
    /// Returns every volume of the spaces given, but those that were removed.
    pub(crate) async fn known_volumes(&self, spaces: Vec<SpaceId>) -> Result<Vec<Known>, ApiError> {
        let mut all = self.all_volumes(spaces).await?;
        all.retain(|known| !known.volume.removed);
        Ok(all)
    }

    /// Returns every volume of the spaces given; of one that was removed, all versions are
    /// forgotten.
    pub(super) async fn all_volumes(&self, spaces: Vec<SpaceId>) -> Result<Vec<Known>, ApiError> {
        let replica = self.replica.clone();
        blocking(move || {
            let mut all = Vec::new();
            for space in spaces {
                let query = ListQuery {
                    spaces: Some(vec![space]),
                    kind: Some(Kind::Volume),
                    task: None,
                    limit: MAX_RECORDS,
                    ..ListQuery::default()
                };
                let items = replica.list(&query).map_err(fail::replica)?;
                let mut volumes: BTreeMap<VolumeId, Known> = BTreeMap::new();
                let records: Vec<Record> = items.iter().filter_map(Record::of).collect();
                for record in &records {
                    if let Record::Volume(volume) = record {
                        volumes.insert(volume.volume, Known::new(space, volume.clone()));
                    }
                }
                for record in records {
                    match record {
                        Record::Version(version) => {
                            if let Some(known) = volumes.get_mut(&version.volume) {
                                if version.forgotten || known.volume.removed {
                                    known.forgotten.insert(version.version, version);
                                } else {
                                    known.versions.insert(version.version, version);
                                }
                            }
                        }
                        Record::Packed(packed) => {
                            if let Some(known) = volumes.get_mut(&packed.volume) {
                                known.packed.insert(packed.version, packed.packs);
                            }
                        }
                        Record::Attached(attached) => {
                            if let Some(known) = volumes.get_mut(&attached.volume) {
                                known.attached.push(attached);
                            }
                        }
                        Record::Volume(_) => {}
                    }
                }
                all.extend(volumes.into_values());
            }
            all.sort_by(|a, b| {
                (&a.volume.name, a.volume.volume).cmp(&(&b.volume.name, b.volume.volume))
            });
            Ok(all)
        })
        .await?
    }

    /// Returns the volume that `wanted` names: by id, by name, or by a prefix of its id.
    pub(crate) async fn find_volume(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Known, ApiError> {
        let scope = caller.readable(self, None)?;
        let all = self.known_volumes(scope.0).await?;
        let shown = clip(wanted);
        let matches: [&dyn Fn(&Known) -> bool; 3] = [
            &|known| known.volume.volume.to_string() == wanted,
            &|known| known.volume.name == wanted,
            &|known| {
                wanted.len() >= MIN_PREFIX && known.volume.volume.to_string().starts_with(wanted)
            },
        ];
        for named in matches {
            let mut found = all.iter().filter(|known| named(known));
            match (found.next(), found.next()) {
                (None, _) => {}
                (Some(one), None) => return Ok(one.clone()),
                (Some(_), Some(_)) => {
                    let message = format!("`{shown}` could be any of several volumes");
                    return Err(ApiError::bad_request(message)
                        .hint("name it by its id; `rhizome volume list --json` shows it"));
                }
            }
        }
        let message = format!("no volume is called `{shown}`");
        Err(
            ApiError::new(StatusCode::NOT_FOUND, "unknown_volume", message)
                .hint("`rhizome volume list` shows the volumes that this node knows of"),
        )
    }
}
