//! How the keys of this node lie at rest.
use std::sync::Arc;

use axum::http::StatusCode;
use rhizome_identity::{KeyFileError, SecretKey, keyfile::KeyKind};

use super::node::{Node, blocking};
use crate::{
    api::types::{
        SCHEMA,
        keys::{KeysAtRest, ProtectBody},
    },
    error::{ApiError, is_disk_full},
    vault::{AtRest, VaultError},
};

impl Node {
    /// Tells how the keys lie.
    pub(crate) fn keys_at_rest(&self) -> KeysAtRest {
        KeysAtRest {
            schema: SCHEMA,
            with: self.vault.at_rest().as_str().to_owned(),
        }
    }

    /// Has the keys lie another way.
    pub(crate) async fn protect_keys(&self, body: ProtectBody) -> Result<KeysAtRest, ApiError> {
        let with = AtRest::parse(&body.with).ok_or_else(|| {
            ApiError::bad_request("keys lie `plain`, under a `passphrase` or in the `keyring`")
        })?;
        let vault = Arc::clone(&self.vault);
        // No key is made meanwhile that would be missed.
        let protected =
            self.between_records(move || vault.protect(with, body.passphrase.as_deref()));
        protected.await?.map_err(|error| failed(&error))?;
        Ok(self.keys_at_rest())
    }

    /// Loads a key of this node from its file.
    pub(crate) async fn load_key(
        &self,
        name: &str,
        kind: KeyKind,
    ) -> Result<Result<SecretKey, KeyFileError>, ApiError> {
        let (vault, path) = (Arc::clone(&self.vault), self.data.join(name));
        blocking(move || vault.load(&path, kind)).await
    }
}

fn failed(error: &VaultError) -> ApiError {
    let (status, code) = match error {
        VaultError::NoPassphrase => (StatusCode::BAD_REQUEST, "no_passphrase"),
        VaultError::NoKeyring { .. } | VaultError::Keyring { .. } => {
            (StatusCode::CONFLICT, "no_keyring")
        }
        _ if is_disk_full(error) => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "keys_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}
