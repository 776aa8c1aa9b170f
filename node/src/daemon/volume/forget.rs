//! Versions that nobody needs any more.
//!
//! A version is forgotten by saying so in its record, so every node that holds it lets go of it by
//! itself; its packs go where nothing else names them. What is the newest, or what an attachment
//! goes on from, is never forgotten.
use std::collections::BTreeSet;

use axum::http::StatusCode;
use rhizome_sandbox::volume::VersionId;

use super::{AttachedRecord, Known, Node, Record, VolumeRecord, blocking, commit::pin_of, now_ms};
use crate::{
    api::types::{
        SCHEMA,
        volume::{VolumeForgetBody, VolumeForgotten},
    },
    daemon::{caller::Caller, fail},
    error::ApiError,
};

impl Known {
    /// Returns the versions that have to stay: the newest, and what is attached or goes on from.
    fn needed(&self) -> BTreeSet<VersionId> {
        let mut needed: BTreeSet<_> = self.heads().into_iter().collect();
        for record in self.attached.iter().filter(|record| record.attached) {
            needed.insert(record.base);
            needed.extend(record.last);
        }
        needed
    }

    /// Returns the versions but the newest `keep`, and but those that have to stay.
    fn beyond(&self, keep: usize) -> Vec<VersionId> {
        let needed = self.needed();
        let mut versions: Vec<_> = self.versions.values().collect();
        versions.sort_by_key(|version| std::cmp::Reverse((version.at_ms, version.version)));
        let old = versions
            .into_iter()
            .skip(keep)
            .map(|version| version.version);
        old.filter(|version| !needed.contains(version)).collect()
    }
}

impl Node {
    /// Forgets versions of a volume: those that are named, or all but the newest so many.
    pub(crate) async fn forget_versions(
        &self,
        wanted: &str,
        body: VolumeForgetBody,
    ) -> Result<VolumeForgotten, ApiError> {
        // One at a time with what attaches: what is about to be attached has to stay.
        let _one_at_a_time = self.volumes.changing.lock().await;
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let name = &known.volume.name;
        if known.heads().len() > 1 {
            // What they have in common is what they are brought together from.
            let message = format!("the volume `{name}` has several newest versions");
            return Err(
                ApiError::new(StatusCode::CONFLICT, "volume_forked", message).hint(format!(
                    "bring them together first: `rhizome volume merge {name}`"
                )),
            );
        }
        let versions = match (body.keep, &body.versions[..]) {
            (Some(0), _) => return Err(ApiError::bad_request("the newest version is always kept")),
            (Some(keep), []) => known.beyond(keep),
            (None, [_, ..]) => {
                let needed = known.needed();
                let mut versions = Vec::new();
                for wanted in &body.versions {
                    let version = known.choose(Some(wanted), false)?.version;
                    if needed.contains(&version) {
                        let message = format!(
                            "version {version} is the newest, or a sandbox goes on from it"
                        );
                        return Err(
                            ApiError::new(StatusCode::CONFLICT, "version_needed", message)
                                .hint("detach the volume, or make another version first"),
                        );
                    }
                    versions.push(version);
                }
                versions
            }
            _ => {
                return Err(ApiError::bad_request(
                    "name versions, or say how many to keep",
                ));
            }
        };
        for version in &versions {
            let mut record = known.versions[version].clone();
            record.forgotten = true;
            self.publish_volume(known.space, &Record::Version(record))
                .await?;
        }
        self.let_go_of_versions(&versions).await?;
        Ok(VolumeForgotten {
            schema: SCHEMA,
            forgotten: versions.iter().map(ToString::to_string).collect(),
            kept: known.versions.len() - versions.len(),
        })
    }

    /// Removes a volume: nobody is shown it any more, and all of its versions are forgotten.
    ///
    /// # Errors
    /// `volume_busy` while a sandbox has it.
    pub(crate) async fn remove_volume(&self, wanted: &str) -> Result<(), ApiError> {
        let _one_at_a_time = self.volumes.changing.lock().await;
        let known = self.find_volume(&Caller::Owner, wanted).await?;
        let now = now_ms();
        let has = |one: &&AttachedRecord| one.attached && one.until_ms > now;
        if let Some(holder) = known.attached.iter().find(has) {
            let message = format!(
                "the volume `{}` is in the sandbox {}",
                known.volume.name, holder.sandbox
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "volume_busy", message)
                .hint(format!("`rhizome volume detach {}`", known.volume.name)));
        }
        let removed = VolumeRecord {
            removed: true,
            ..known.volume.clone()
        };
        self.publish_volume(known.space, &Record::Volume(removed))
            .await?;
        let versions: Vec<_> = known.versions.into_keys().collect();
        self.let_go_of_versions(&versions).await.map(drop)
    }

    /// Unpins versions; the collector takes their packs where nothing else names them. Returns how
    /// many lay here.
    async fn let_go_of_versions(&self, versions: &[VersionId]) -> Result<u64, ApiError> {
        let store = self.volume_store()?;
        let pins: Vec<_> = versions.iter().map(pin_of).collect();
        let unpinned = blocking(move || {
            let unpin = |gone: u64, pin: &String| Ok(gone + u64::from(store.unpin(pin)?));
            pins.iter().try_fold(0, unpin)
        });
        unpinned.await?.map_err(|error| fail::chunks(&error))
    }

    /// Lets go of what others have forgotten; returns how many versions went.
    pub(crate) async fn let_go_of_forgotten(&self) -> Result<u64, ApiError> {
        let mut gone = 0;
        let authority = self.replica.authority();
        let spaces = Caller::Owner.spaces(self, &authority)?;
        for known in self.all_volumes(spaces).await? {
            // Who attached it meanwhile did not know that it was forgotten.
            let needed = known.needed();
            let forgotten = known.forgotten.keys().filter(|one| !needed.contains(*one));
            let forgotten: Vec<_> = forgotten.copied().collect();
            gone += self.let_go_of_versions(&forgotten).await?;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use rhizome_identity::{NodeId, SpaceId};
    use rhizome_sandbox::SandboxId;

    use super::*;
    use crate::daemon::volume::record::{AttachedRecord, VersionRecord, VolumeId, VolumeRecord};

    fn id(byte: u8) -> VersionId {
        VersionId::from_bytes([byte; 32])
    }

    /// Five versions in a line; a sandbox has the second.
    fn known() -> Known {
        let volume = VolumeId([1; 16]);
        let version = |n: u8| VersionRecord {
            volume,
            version: id(n),
            parents: (n > 1).then(|| id(n - 1)).into_iter().collect(),
            tree: String::new(),
            epoch: 0,
            holders: Vec::new(),
            bytes_stored: 0,
            author: String::new(),
            at_ms: n.into(),
            message: String::new(),
            forgotten: false,
            agent: None,
        };
        let attached = AttachedRecord {
            volume,
            sandbox: SandboxId::from_bytes([1; 16]),
            node: NodeId::from_bytes([1; 32]),
            path: "/work".to_owned(),
            writable: true,
            base: id(2),
            last: None,
            every_secs: 0,
            until_ms: 0,
            attached: true,
        };
        let record = VolumeRecord {
            volume,
            name: "work".to_owned(),
            created_ms: 0,
            removed: false,
        };
        let mut known = Known::new(SpaceId::from_bytes([1; 32]), record);
        known.versions = (1..=5).map(|n| (id(n), version(n))).collect();
        known.attached.push(attached);
        known
    }

    #[test]
    fn the_newest_and_what_is_attached_stay() {
        let mut known = known();
        assert_eq!(known.beyond(1), [id(4), id(3), id(1)]);
        assert_eq!(known.beyond(3), [id(1)]);
        assert!(known.beyond(9).is_empty());
        known.attached[0].attached = false;
        assert_eq!(known.beyond(3), [id(2), id(1)]);
        // A line with a gap still has one end.
        let gone = known.versions.remove(&id(3)).unwrap();
        known.forgotten.insert(id(3), gone);
        assert_eq!(known.heads(), [id(5)]);
    }
}
