//! Control over what runs here: who did what, what it cost, how much is allowed.

mod answers;
pub(crate) mod audit;
pub(crate) mod enforce;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod quota;
pub(crate) mod usage;

use crate::{
    api::types::{
        SCHEMA,
        audit::{AuditPage, AuditParams},
    },
    daemon::node::{Node, blocking},
    error::ApiError,
};

/// Entries of the audit log that one answer holds, and the most it may.
const DEFAULT_ENTRIES: usize = 100;
const MAX_ENTRIES: usize = 1_000;

impl Node {
    /// Returns a part of the audit log.
    pub(crate) async fn audit_page(&self, params: AuditParams) -> Result<AuditPage, ApiError> {
        let limit = params
            .limit
            .unwrap_or(DEFAULT_ENTRIES)
            .clamp(1, MAX_ENTRIES);
        let log = self.audit.clone();
        let (page, next) = blocking(move || {
            let next = log.next()?;
            let newest = next.saturating_sub(limit as u64);
            Ok::<_, audit::AuditError>((log.read(params.after.unwrap_or(newest), limit)?, next))
        })
        .await?
        .map_err(|error| {
            ApiError::of(
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "audit",
                &error,
            )
        })?;
        Ok(AuditPage {
            schema: SCHEMA,
            entries: page.entries,
            broken_at: page.broken_at,
            next,
        })
    }
}
