//! Errors as clients of E2B read them: `{"code", "message", "error_code"?}`, and whether to try again.
use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{control::audit::layer::Refused, error::ApiError};

/// What is said of a sandbox that is not there or sleeps. Their clients look for these very words.
const NOT_FOUND: &str = "The sandbox was not found";
/// What is said of a port that nobody listens on.
const NOT_OPEN: &str = "The sandbox is running but port is not open";
const SHOULD_RETRY: &str = "should-retry";

/// Why a client of E2B does not get what it asked for.
#[derive(Debug, Clone)]
pub(crate) struct E2bError {
    status: StatusCode,
    message: String,
    /// One of theirs.
    error_code: Option<&'static str>,
    /// Ours, for the log and for who looks at headers.
    own_code: String,
    retry: Retry,
    sandbox: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Never,
    After(Duration),
}

pub(crate) type Answer<T = Response> = Result<T, E2bError>;

impl E2bError {
    /// Returns an error that trying again does not mend.
    pub(crate) fn new(status: StatusCode, own_code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            error_code: None,
            own_code: own_code.to_owned(),
            retry: Retry::Never,
            sandbox: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// There is no such sandbox, snapshot or template.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn no_sandbox(id: &str) -> Self {
        let id = crate::daemon::memory::clip(id);
        let mut error = Self::not_found(format!("sandbox \"{id}\" was not found"));
        error.sandbox = Some(id);
        error
    }

    /// What this node does not do; asking again changes nothing.
    pub(crate) fn unsupported(what: impl std::fmt::Display) -> Self {
        let message = format!("this node does not support {what}");
        Self::new(StatusCode::BAD_REQUEST, "unsupported", message)
    }

    /// The data plane of a sandbox that is gone or sleeps.
    pub(crate) fn gone(id: &str) -> Self {
        let mut error = Self::new(StatusCode::BAD_GATEWAY, "sandbox_gone", NOT_FOUND);
        error.sandbox = Some(crate::daemon::memory::clip(id));
        error
    }

    /// A port of a living sandbox that nobody listens on.
    pub(crate) fn port_closed(id: &str, port: u16) -> Self {
        let message = format!("{NOT_OPEN}: {port}");
        let mut error = Self::new(StatusCode::BAD_GATEWAY, "port_refused", message);
        error.sandbox = Some(id.to_owned());
        error
    }

    /// Adds one of the codes that their clients know.
    #[must_use]
    pub(crate) fn error_code(mut self, code: &'static str) -> Self {
        self.error_code = Some(code);
        self
    }

    /// It may work when tried again.
    #[must_use]
    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        self.retry = Retry::After(pause);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<ApiError> for E2bError {
    fn from(error: ApiError) -> Self {
        let info = error.info();
        let mut message = info.message.clone();
        for cause in &info.causes {
            message.push_str(": ");
            message.push_str(cause);
        }
        if let Some(hint) = &info.hint {
            message.push_str(" (");
            message.push_str(hint);
            message.push(')');
        }
        let error_code = match error.code() {
            "limit_reached" | "quota_exceeded" | "disk_full" => {
                Some("sandbox_capacity_unavailable")
            }
            "no_sandboxes" => Some("sandbox_no_compatible_node"),
            "internal" => Some("internal_server_error"),
            _ => None,
        };
        let retry = match (error.status(), error.code()) {
            (StatusCode::SERVICE_UNAVAILABLE, "no_sandboxes") => Retry::Never,
            (StatusCode::SERVICE_UNAVAILABLE, _) | (_, "busy") => {
                Retry::After(Duration::from_secs(1))
            }
            _ => Retry::Never,
        };
        // 410 says the same as 404 here, and their clients know the latter.
        let status = match error.status() {
            StatusCode::GONE => StatusCode::NOT_FOUND,
            status => status,
        };
        Self {
            status,
            message,
            error_code,
            own_code: error.code().to_owned(),
            retry,
            sandbox: None,
        }
    }
}

impl IntoResponse for E2bError {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.status.as_u16(), "message": self.message });
        if let Some(code) = self.error_code {
            body["error_code"] = code.into();
        }
        if let Some(sandbox) = self.sandbox {
            body["sandboxId"] = sandbox.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.retry {
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::After(pause) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
                headers.insert(header::RETRY_AFTER, pause.as_secs().max(1).into());
            }
        }
        if let Ok(code) = HeaderValue::from_str(&self.own_code) {
            headers.insert("rhizome-error", code);
        }
        response.extensions_mut().insert(Refused(self.own_code));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn terminal_errors_say_so_and_others_say_when() {
        let gone = E2bError::gone("abc").into_response();
        assert_eq!(gone.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(gone.headers()[SHOULD_RETRY], "false");
        let body = axum::body::to_bytes(gone.into_body(), 4096).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["sandboxId"], "abc");
        assert_eq!(body["code"], 502);
        assert!(body["message"].as_str().unwrap().contains("was not found"));

        let full = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", "full");
        let full = E2bError::from(full.hint("end one")).into_response();
        assert_eq!(full.headers()[SHOULD_RETRY], "false");
        let busy = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "stopping");
        let busy = E2bError::from(busy).into_response();
        assert_eq!(busy.headers()[header::RETRY_AFTER], "1");
    }
}
