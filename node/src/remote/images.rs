//! Images between nodes: found at a peer when one is lacking here, and pushed to a peer.
//!
//! An image is what its id says, whoever it comes from: the description is hashed to the id, and
//! every file to what the description says. A name is only a name: who asks by name gets what the
//! nodes that are connected call so, if they mean the same.
use std::collections::BTreeMap;

use axum::http::StatusCode;
use futures::future::join_all;
use rhizome_identity::{NodeId, Role};
use rhizome_sandbox::{Progress, ProgressEvent, image::ImageDescription};

use super::{
    ask::find_node,
    grants,
    placement::{self, Need},
};
use crate::{
    api::types::{
        self, Named, SCHEMA,
        image::{ImagePushed, PushBody},
        remote::{Facts, Held, TakeBody},
    },
    daemon::{
        fail,
        memory::clip,
        names::Names,
        node::{Node, blocking},
    },
    error::ApiError,
};

/// Fewest digits of an id that are looked up as a prefix.
const MIN_PREFIX: usize = 4;

impl Node {
    /// Sees to it that an image is here, from a peer if need be; returns by what it is found.
    ///
    /// # Errors
    /// `ambiguous_image` if several nodes mean different ones, `image_missing` if none gives it.
    pub(crate) async fn image_here(
        &self,
        wanted: String,
        progress: &Progress,
    ) -> Result<String, ApiError> {
        let images = self.sandboxes()?.images().clone();
        let asked = wanted.clone();
        let known = blocking(move || images.knows(&asked)).await?;
        // Where it is not known and nobody can be asked, the start says what is missing.
        if known || self.need_mesh().is_err() {
            return Ok(wanted);
        }
        let asking = self.connected().into_iter().map(async |peer| {
            let facts = self.facts_of(peer).await;
            facts.ok().map(|facts| (peer, facts))
        });
        let facts: Vec<_> = join_all(asking).await.into_iter().flatten().collect();
        match choose(&wanted, &facts)? {
            None => Ok(wanted),
            Some((id, holders)) => {
                self.bring_image(&id, &holders, progress).await?;
                Ok(id)
            }
        }
    }

    /// Has another node keep an image of this one.
    pub(crate) async fn push_image(
        &self,
        body: PushBody,
        progress: Progress,
    ) -> Result<ImagePushed, ApiError> {
        let authority = self.need_mesh()?;
        let target = find_node(&authority, &body.node)?;
        let images = self.sandboxes()?.images().clone();
        let wanted = body.image.clone();
        let found = blocking(move || images.show(&wanted)).await?;
        let info = found.map_err(|error| fail::image(&error))?.info;
        let node = Names(&authority).node(&target);
        let bytes = if target == self.id() {
            0
        } else {
            let take = TakeBody {
                id: info.id.clone(),
                bytes: info.size_bytes,
            };
            let told = |step: types::Progress| {
                progress(ProgressEvent {
                    step: "push",
                    detail: &format!("{node}: {}", step.detail),
                    done: step.done,
                    total: step.total,
                });
            };
            let held: Held = self
                .command(target, "/v1/remote/image", &take, told)
                .await?;
            held.bytes
        };
        Ok(ImagePushed {
            schema: SCHEMA,
            id: info.id,
            name: info.name,
            node,
            sent_bytes: bytes,
        })
    }

    /// Says whether this node keeps an image for `peer`: one that may write in a space of this
    /// node may fill its disk, as far as there is room.
    pub(crate) async fn accept_image(
        &self,
        peer: &NodeId,
        body: &TakeBody,
    ) -> Result<(), ApiError> {
        self.sandboxes()?;
        let is_id = body.id.len() == 64 && body.id.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id {
            return Err(ApiError::bad_request("`id` is malformed"));
        }
        let authority = self.need_mesh()?;
        let writes = authority.spaces().any(|space| {
            let reads = authority.role_in(&self.id(), &space.id);
            reads.is_some_and(Role::can_read)
                && grants::may(&authority, peer, &[space.id], Role::Writer).is_ok()
        });
        if !writes || !self.config.remote {
            let name = Names(&authority).node(peer);
            let message = format!("keeping images is not for node `{name}`");
            return Err(ApiError::denied(message)
                .hint("it takes the role writer in a space of this node, and a node that is not started with `--no-remote`"));
        }
        let need = Need {
            disk_mib: body.bytes >> 20,
            ..Need::default()
        };
        let facts = self.own_facts().await?;
        placement::fits(&facts, &need, true)
            .map_err(|unfit| ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_room", unfit))
    }

    /// Fetches an image from `peer`.
    pub(crate) async fn take_image(
        &self,
        peer: NodeId,
        body: TakeBody,
        progress: Progress,
    ) -> Result<Held, ApiError> {
        let bytes = self.bring_image(&body.id, &[peer], &progress).await?;
        Ok(Held {
            schema: SCHEMA,
            bytes,
        })
    }

    /// Fails unless what a holder describes has room here.
    pub(super) fn room_for(&self, description: &ImageDescription) -> Result<(), ApiError> {
        let sizes = description.parts().map(|part| part.size);
        let bytes = sizes.fold(0_u64, u64::saturating_add);
        let free = self.data.free_bytes().unwrap_or(u64::MAX);
        if bytes > free {
            let message = format!("the image takes {bytes} bytes; {free} are free here");
            return Err(ApiError::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "no_room",
                message,
            ));
        }
        Ok(())
    }
}

/// Picks the image that `wanted` means among those of others, and who has it.
fn choose(
    wanted: &str,
    facts: &[(NodeId, Facts)],
) -> Result<Option<(String, Vec<NodeId>)>, ApiError> {
    let means = |image: &Named| {
        image.name == wanted || (wanted.len() >= MIN_PREFIX && image.id.starts_with(wanted))
    };
    let mut held: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
    for (node, facts) in facts {
        // A node that has several of a name means the one that it would start.
        let named = facts.images.iter().find(|image| image.name == wanted);
        let by_id = facts.images.iter().filter(|image| image.name != wanted);
        for image in named.into_iter().chain(by_id).filter(|image| means(image)) {
            let holders = held.entry(&image.id).or_default();
            if !holders.contains(node) {
                holders.push(*node);
            }
        }
    }
    // Who else has it is of use too.
    for (node, facts) in facts {
        for image in &facts.images {
            if let Some(holders) = held.get_mut(&image.id[..])
                && !holders.contains(node)
            {
                holders.push(*node);
            }
        }
    }
    let mut found = held.into_iter();
    let Some((id, holders)) = found.next() else {
        return Ok(None);
    };
    let others: Vec<_> = found.map(|(id, _)| id).collect();
    if !others.is_empty() {
        let message = format!(
            "`{}` is not here, and other nodes mean {} images by it",
            clip(wanted),
            others.len() + 1
        );
        let ids: Vec<_> = [id].into_iter().chain(others).map(clip).collect();
        return Err(
            ApiError::new(StatusCode::BAD_REQUEST, "ambiguous_image", message)
                .hint(format!("name it by its id, one of: {}", ids.join(", "))),
        );
    }
    Ok(Some((id.to_owned(), holders)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn facts(images: &[(&str, &str)]) -> Facts {
        Facts {
            images: images
                .iter()
                .map(|(id, name)| Named {
                    id: id.repeat(32),
                    name: (*name).into(),
                })
                .collect(),
            ..super::super::placement::tests::facts()
        }
    }

    #[test]
    fn an_image_is_found_by_name_id_and_prefix_with_all_who_have_it() {
        let all = [
            (node(1), facts(&[("ab", "tools"), ("cd", "other")])),
            (node(2), facts(&[("ab", "renamed")])),
            (node(3), facts(&[])),
        ];
        let (id, holders) = choose("tools", &all).unwrap().unwrap();
        assert_eq!(
            (&id[..], &holders[..]),
            (&"ab".repeat(32)[..], &[node(1), node(2)][..])
        );
        let (by_prefix, _) = choose("cdcd", &all).unwrap().unwrap();
        assert_eq!(by_prefix, "cd".repeat(32));
        assert_eq!(choose("cd", &all).unwrap(), None, "too short for a prefix");
        assert_eq!(choose("nothing", &all).unwrap(), None);
        assert_eq!(choose("", &all).unwrap(), None);
    }

    #[test]
    fn a_name_by_which_nodes_mean_different_images_is_refused() {
        let all = [
            (node(1), facts(&[("ab", "tools")])),
            (node(2), facts(&[("cd", "tools")])),
        ];
        let refused = choose("tools", &all).unwrap_err();
        assert_eq!(refused.code(), "ambiguous_image");
        assert!(refused.info().hint.as_ref().unwrap().contains("cdcd"));
        // A node that rebuilt it means its newest, which is listed first.
        let all = [(node(1), facts(&[("ab", "tools"), ("cd", "tools")]))];
        let (id, _) = choose("tools", &all).unwrap().unwrap();
        assert_eq!(id, "ab".repeat(32));
    }
}
