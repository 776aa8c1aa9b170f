//! The root of the mesh, as far as its keys lie on this node.
use std::{fs, sync::Arc};

use axum::http::StatusCode;
use rhizome_identity::{KeyFileError, RootKey, issue, keyfile::KeyKind};

use super::{fail, node::Node};
use crate::{
    api::types::{SCHEMA, member::RootRotated},
    error::ApiError,
};

impl Node {
    /// Makes the key that was chosen in advance the root, and chooses the one after it.
    pub(crate) async fn rotate_root(&self) -> Result<RootRotated, ApiError> {
        self.need_mesh()?;
        let paths = ["root.key", "next-root.key", "next-root.key.new"];
        let paths = paths.map(|name| self.data.join(name));
        let shown = (
            paths[0].display().to_string(),
            paths[1].display().to_string(),
        );
        let vault = Arc::clone(&self.vault);
        let root = self
            .append(move |_, authority, now| {
                let [root, next, after] = &paths;
                let new: RootKey = vault
                    .load(next, KeyKind::Root)
                    .map(RootKey::from)
                    .map_err(missing)?;
                // Made before it is committed to, and found again after a crash.
                let chosen = vault
                    .load_or_make(after, KeyKind::Root)
                    .map_err(fail::key_file)?;
                let mut records = Vec::new();
                if authority.root() != Some(new.public()) {
                    let record = issue::rotate_root(&new, &chosen.public(), authority, now);
                    records.push(record.map_err(fail::issue)?);
                }
                Ok((
                    records,
                    (new.public(), [root.clone(), next.clone(), after.clone()]),
                ))
            })
            .await?;
        let (public, [root, next, after]) = root;
        super::node::blocking(move || -> std::io::Result<()> {
            fs::rename(&next, &root)?;
            fs::rename(&after, &next)
        })
        .await?
        .map_err(|error| {
            let message = "the root is rotated, but its key files could not be put in their places";
            ApiError::internal(message)
                .caused_by(Some(&error))
                .hint("run `rhizome root rotate` again")
        })?;
        Ok(RootRotated {
            schema: SCHEMA,
            root: public.to_string(),
            root_key: shown.0,
            next_root_key: shown.1,
        })
    }
}

fn missing(error: KeyFileError) -> ApiError {
    if matches!(error, KeyFileError::Missing { .. }) {
        let message = "the next root key is not on this node";
        return ApiError::new(StatusCode::CONFLICT, "no_root_key", message)
            .caused_by(Some(&error))
            .hint("`rhizome root import` brings it here");
    }
    fail::key_file(error)
}
