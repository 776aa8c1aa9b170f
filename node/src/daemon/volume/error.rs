//! The errors of volumes, as the API tells them.

use axum::http::StatusCode;
use rhizome_sandbox::{chunks::ChunkError, volume::VolumeError};

use crate::error::{ApiError, is_disk_full};

/// The error of a volume's tree.
pub(super) fn volume(error: &VolumeError) -> ApiError {
    let (status, code) = match error {
        VolumeError::Chunks(chunks) => return stored(chunks),
        VolumeError::Folder { .. } | VolumeError::BadPath { .. } => {
            (StatusCode::BAD_REQUEST, "bad_path")
        }
        VolumeError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        VolumeError::NotFound { .. } | VolumeError::NotADirectory { .. } => {
            (StatusCode::NOT_FOUND, "no_such_file")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "volume_damaged"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}

/// The error of the chunk store.
pub(super) fn stored(error: &ChunkError) -> ApiError {
    let (status, code) = match error {
        _ if is_disk_full(error) => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
        ChunkError::MissingPacks { .. } | ChunkError::MissingChunk { .. } => {
            (StatusCode::NOT_FOUND, "packs_missing")
        }
        ChunkError::OtherKey { .. } => (StatusCode::FORBIDDEN, "no_key"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "store_failed"),
    };
    ApiError::of(status, code, error).maybe_hint(error.hint())
}
