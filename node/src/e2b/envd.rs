//! The data plane of one sandbox: files, processes, changes in directories.
use std::sync::Arc;

use axum::Router;

use super::Door;

/// Returns the routes of `envd`; each request carries a [`super::Target`] among its extensions.
pub(crate) fn router() -> Router<Arc<Door>> {
    Router::new()
}
