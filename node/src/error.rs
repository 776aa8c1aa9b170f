//! Errors as the API tells them: a status, a stable code, a message, its causes, a hint.
use std::{error::Error, fmt};

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::{
    api::types::{ErrorBody, ErrorInfo},
    control::audit::layer::Refused,
};

/// How many causes an answer carries at most.
const MAX_CAUSES: usize = 8;
/// How long each may be, in bytes.
const MAX_CAUSE_BYTES: usize = 2_048;

/// Why a request failed.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    info: ErrorInfo,
}

impl ApiError {
    /// Returns an error with `status`, the stable `code` and what failed.
    pub fn new(status: StatusCode, code: &str, message: impl fmt::Display) -> Self {
        let info = ErrorInfo {
            code: code.to_owned(),
            message: bounded(message.to_string()),
            causes: Vec::new(),
            hint: None,
        };
        Self { status, info }
    }

    /// Returns an error that says `error` and, as causes, the chain below it.
    pub fn of(status: StatusCode, code: &str, error: &dyn Error) -> Self {
        Self::new(status, code, error).caused_by(error.source())
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// What was asked for is not here.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The caller may not do that.
    pub fn denied(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, "denied", message)
    }

    /// A bug of ours: the message names the broken assumption.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            .hint("this is a bug; the daemon's log may say more")
    }

    /// Adds what the reader can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.info.hint = Some(hint.into());
        self
    }

    /// Adds what the reader can do, if anything.
    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<impl Into<String>>) -> Self {
        if let Some(hint) = hint {
            self.info.hint = Some(hint.into());
        }
        self
    }

    /// Adds `cause` and the chain below it.
    #[must_use]
    pub fn caused_by(mut self, cause: Option<&(dyn Error + 'static)>) -> Self {
        let mut next = cause;
        while let Some(error) = next {
            if self.info.causes.len() == MAX_CAUSES {
                break;
            }
            let text = bounded(error.to_string());
            // Libraries that repeat their source in their message would make us stutter.
            let last = self.info.causes.last().unwrap_or(&self.info.message);
            if *last != text {
                self.info.causes.push(text);
            }
            next = error.source();
        }
        self
    }

    /// Adds causes that another node gave.
    #[must_use]
    pub fn with_causes(mut self, causes: Vec<String>) -> Self {
        let room = MAX_CAUSES.saturating_sub(self.info.causes.len());
        self.info
            .causes
            .extend(causes.into_iter().take(room).map(bounded));
        self
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the stable code.
    pub fn code(&self) -> &str {
        &self.info.code
    }

    /// Returns what the answer carries.
    pub fn info(&self) -> &ErrorInfo {
        &self.info
    }

    /// Returns what the answer carries.
    pub fn into_info(self) -> ErrorInfo {
        self.info
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.info.message)
    }
}

impl Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let refused = Refused::of(&self);
        let mut response = (self.status, Json(ErrorBody { error: self.info })).into_response();
        response.extensions_mut().insert(refused);
        response
    }
}

/// Returns whether the chain of `error` says that the disk is full or the quota used up.
pub(crate) fn is_disk_full(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        // A failed write fails every request of its group, which therefore share the error.
        let shared = || {
            error
                .downcast_ref::<std::sync::Arc<std::io::Error>>()
                .map(|io| &**io)
        };
        if let Some(io) = error.downcast_ref::<std::io::Error>().or_else(shared) {
            use std::io::ErrorKind::{QuotaExceeded, StorageFull};
            if matches!(io.kind(), StorageFull | QuotaExceeded) {
                return true;
            }
        }
        next = error.source();
    }
    false
}

fn bounded(mut text: String) -> String {
    if text.len() > MAX_CAUSE_BYTES {
        let mut end = MAX_CAUSE_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the segment")]
    struct Outer(#[source] io::Error);

    #[test]
    fn causes_come_from_the_chain_and_do_not_repeat() {
        let outer = Outer(io::Error::from(io::ErrorKind::StorageFull));
        let error = ApiError::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", &outer);
        assert_eq!(error.info.message, "cannot write the segment");
        assert_eq!(error.info.causes.len(), 1);
        assert!(is_disk_full(&outer));
        let repeated = ApiError::bad_request("same").caused_by(Some(&ApiError::not_found("same")));
        assert!(repeated.info.causes.is_empty());
    }

    #[test]
    fn a_foreign_message_is_bounded() {
        let error = ApiError::bad_request("ü".repeat(10_000));
        assert!(error.info.message.len() < MAX_CAUSE_BYTES + 8);
    }
}
