//! What snapshots and images are made of, offered to other nodes and brought here from them.
//!
//! A node offers a file when somebody asks for it: it is read once to check it, and then served by
//! its hash. Whoever fetches verifies every chunk, and the whole before it is kept.
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use futures::StreamExt;
use rhizome_identity::{Hash, NodeId};
use rhizome_mesh::net::FileError;
use rhizome_sandbox::{
    Progress, ProgressEvent,
    chunks::{ChunkStore, MAX_FILE_BYTES, PackId},
    image::ImageDescription,
};

use super::record::MAX_PACKS;
use crate::{
    api::types::{
        SCHEMA,
        remote::{OfferBody, Offered},
    },
    daemon::{
        fail,
        names::Names,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// Packs that one question is about: what is offered has to be read, so not too many at once.
const BATCH: usize = 16;
/// Packs that are fetched at the same time.
const PARALLEL: usize = 3;
/// How long a holder may take to offer a batch, or an image.
const OFFER_TIMEOUT: Duration = Duration::from_secs(120);

/// Files that are being fetched; two that want the same one take turns.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<Hash, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, hash: Hash) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(hash).or_default())
        };
        turn.lock_owned().await
    }
}

impl Node {
    /// Offers those of the packs, and the image, that are here.
    pub(crate) async fn offer(&self, body: OfferBody) -> Result<Offered, ApiError> {
        if body.packs.len() > MAX_PACKS {
            return Err(ApiError::bad_request("too many packs in one request"));
        }
        let sandboxes = self.sandboxes()?;
        let mut packs = Vec::new();
        for wanted in body.packs {
            let Some(path) = sandboxes.chunks().path(&wanted) else {
                continue;
            };
            match self.mesh.serve_file(hash_of(&wanted), &path).await {
                Ok(()) => packs.push(wanted),
                // Damaged here is as good as absent; another holder may have it whole.
                Err(error) => tracing::warn!(pack = %wanted, %error, "a pack cannot be offered"),
            }
        }
        let image = match body.image {
            Some(id) => self.offer_image(&id).await?,
            None => None,
        };
        Ok(Offered {
            schema: SCHEMA,
            packs,
            image,
        })
    }

    async fn offer_image(&self, id: &str) -> Result<Option<String>, ApiError> {
        let images = self.sandboxes()?.images().clone();
        let wanted = id.to_owned();
        let Some((text, files)) = blocking(move || images.describe(&wanted)).await? else {
            return Ok(None);
        };
        let description = ImageDescription::parse(&text).map_err(|error| fail::image(&error))?;
        for part in description.parts() {
            let Some(path) = files.get(&part.name) else {
                return Ok(None);
            };
            let served = self.mesh.serve_file(Hash::from_bytes(part.hash), path);
            served.await.map_err(|error| file(&error))?;
        }
        Ok(Some(text))
    }

    /// Brings those of `objects` here that are not, from `holders`; returns how many bytes came.
    ///
    /// They are not pinned by it: pin them before, so that nothing removes what has arrived. No more
    /// than `limit` bytes are taken.
    pub(crate) async fn bring(
        &self,
        objects: &[PackId],
        holders: &[NodeId],
        limit: u64,
        progress: &Progress,
    ) -> Result<u64, ApiError> {
        let store = self.sandboxes()?.chunks().clone();
        let missing = store.missing(objects);
        let total = missing.len() as u64;
        let (mut done, mut bytes) = (0, 0);
        for batch in missing.chunks(BATCH) {
            let mut wanted = batch.to_vec();
            let mut refusals = Vec::new();
            for holder in self.reachable_first(holders) {
                let asked = OfferBody {
                    packs: wanted.clone(),
                    image: None,
                };
                let offered: Result<Offered, ApiError> = self
                    .tell(holder, "/v1/remote/offer", &asked, OFFER_TIMEOUT)
                    .await;
                let offered = match offered {
                    Ok(offered) => offered.packs,
                    Err(error) => {
                        refusals.push(error);
                        continue;
                    }
                };
                let name = Names(&self.replica.authority()).node(&holder).to_string();
                let coming = offered.into_iter().filter(|pack| wanted.contains(pack));
                let coming: Vec<_> = coming.collect();
                let mut fetches = futures::stream::iter(coming)
                    .map(async |pack| (pack, self.fetch_pack(&store, pack, holder).await))
                    .buffer_unordered(PARALLEL);
                while let Some((pack, fetched)) = fetches.next().await {
                    match fetched {
                        Ok(came) => {
                            if bytes + came > limit {
                                let message = format!("it is larger than the {limit} bytes said");
                                return Err(ApiError::bad_request(message));
                            }
                            wanted.retain(|other| *other != pack);
                            done += 1;
                            bytes += came;
                            progress(ProgressEvent {
                                step: "fetch",
                                detail: &format!("packs from {name}"),
                                done,
                                total,
                            });
                        }
                        Err(error) => refusals.push(error),
                    }
                }
                if wanted.is_empty() {
                    break;
                }
            }
            if let Some(pack) = wanted.first() {
                let message = format!(
                    "{} of {total} packs could not be had from any holder, {pack} among them",
                    wanted.len()
                );
                let causes = refusals.iter().map(ToString::to_string).collect();
                return Err(
                    ApiError::new(StatusCode::BAD_GATEWAY, "packs_missing", message)
                        .with_causes(causes)
                        .hint(
                            "what has arrived is kept for a while; try again when a holder is up",
                        ),
                );
            }
        }
        Ok(bytes)
    }

    async fn fetch_pack(
        &self,
        store: &ChunkStore,
        pack: PackId,
        holder: NodeId,
    ) -> Result<u64, ApiError> {
        let hash = hash_of(&pack);
        let _turn = self.turns.take(hash).await;
        if store.has(&pack) {
            return Ok(0);
        }
        let to = self.incoming()?.join(pack.to_string());
        let limit = MAX_FILE_BYTES;
        let from = [holder];
        let fetched = self.mesh.fetch_file(hash, &from, &to, limit, &|_, _| {});
        let bytes = fetched.await.map_err(|error| file(&error))?;
        let store = store.clone();
        blocking(move || {
            let imported = store.import(&pack, &to);
            let _ = std::fs::remove_file(&to);
            imported
        })
        .await?
        .map_err(|error| fail::chunks(&error))?;
        Ok(bytes)
    }

    /// Brings the image with this id here unless it is, from `holders`; returns how many bytes
    /// came.
    pub(crate) async fn bring_image(
        &self,
        id: &str,
        holders: &[NodeId],
        progress: &Progress,
    ) -> Result<u64, ApiError> {
        let images = self.sandboxes()?.images().clone();
        if images.has(id) {
            return Ok(0);
        }
        let key = Hash::keyed("rhizome image turn 1", id.as_bytes());
        let _turn = self.turns.take(key).await;
        if images.has(id) {
            return Ok(0);
        }
        let mut refusals = Vec::new();
        for holder in self.reachable_first(holders) {
            match self.image_from(id, holder, progress).await {
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) => {}
                Err(error) => refusals.push(error),
            }
        }
        let short: String = id.chars().take(16).collect();
        let message = format!("the image {short} is not here and no holder could give it");
        let causes = refusals.iter().map(ToString::to_string).collect();
        Err(
            ApiError::new(StatusCode::BAD_GATEWAY, "image_missing", message)
                .with_causes(causes)
                .hint("build the image here, or try again when a holder is up"),
        )
    }

    async fn image_from(
        &self,
        id: &str,
        holder: NodeId,
        progress: &Progress,
    ) -> Result<Option<u64>, ApiError> {
        let asked = OfferBody {
            packs: Vec::new(),
            image: Some(id.to_owned()),
        };
        let offered: Offered = self
            .tell(holder, "/v1/remote/offer", &asked, OFFER_TIMEOUT)
            .await?;
        let Some(text) = offered.image else {
            return Ok(None);
        };
        let description = ImageDescription::parse(&text).map_err(|error| fail::image(&error))?;
        if description.id() != id {
            return Err(ApiError::bad_request("the holder describes another image"));
        }
        self.room_for(&description)?;
        let dir = self.incoming()?.join(format!("image-{}", &id[..16]));
        std::fs::create_dir_all(&dir).map_err(|error| io(&dir, &error))?;
        let mut bytes = 0;
        for part in description.parts() {
            let to = dir.join(&part.name);
            if to.exists() {
                // Of an earlier try; it is hashed with the others when the image is made.
                continue;
            }
            let telling = |done, total| {
                progress(ProgressEvent {
                    step: "image",
                    detail: &part.name,
                    done,
                    total,
                });
            };
            let (hash, from) = (Hash::from_bytes(part.hash), [holder]);
            let fetched = self.mesh.fetch_file(hash, &from, &to, part.size, &telling);
            bytes += fetched.await.map_err(|error| file(&error))?;
        }
        let images = self.sandboxes()?.images().clone();
        let adopted = images.adopt(&description, &dir, Arc::clone(progress)).await;
        // Whether it is an image now or not what it should be: the files are of no more use.
        let _ = std::fs::remove_dir_all(&dir);
        adopted.map_err(|error| fail::image(&error))?;
        Ok(Some(bytes))
    }

    /// Returns the others of `nodes`, those that are connected first.
    pub(crate) fn reachable_first(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let connected = self.connected();
        let mut others: Vec<_> = nodes
            .iter()
            .filter(|node| **node != self.id())
            .copied()
            .collect();
        others.sort_by_key(|node| !connected.contains(node));
        others
    }

    fn incoming(&self) -> Result<PathBuf, ApiError> {
        let dir = self.data.join("net").join("incoming");
        std::fs::create_dir_all(&dir).map_err(|error| io(&dir, &error))?;
        Ok(dir)
    }
}

fn hash_of(pack: &PackId) -> Hash {
    Hash::from_bytes(*pack.as_bytes())
}

fn file(error: &FileError) -> ApiError {
    ApiError::of(StatusCode::BAD_GATEWAY, "fetch_failed", error).maybe_hint(error.hint())
}

fn io(path: &std::path::Path, error: &std::io::Error) -> ApiError {
    let message = format!("cannot use `{}`", path.display());
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", message).caused_by(Some(error))
}
