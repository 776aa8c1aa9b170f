//! The data plane of one sandbox, as E2B's `envd` answers it: files, processes, changes in
//! directories.
//!
//! Nothing of it runs in the guest but our own agent: [`files`] moves bytes over the guest's
//! channel, [`process`] starts and reads programs there, [`filesystem`] asks about paths, [`watch`]
//! hears of changes. What a program says is read here once and handed to whoever listens
//! ([`processes`]), since several clients may read one program, and none of them may end it by going
//! away.
mod compose;
mod entry;
mod files;
mod filesystem;
mod process;
mod processes;
mod rpc;
pub(super) mod upload;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use rhizome_sandbox::{
    SandboxError,
    channel::{ExecError, FailureCode, FileError, GuestChannel},
};
use serde_json::json;

use super::{
    Access, Door, Target,
    connect::{Code, ConnectError},
    error::E2bError,
};
use crate::error::ApiError;

/// What is said of a sandbox that is gone or asleep. Clients look for the last words.
const GONE: &str = "The sandbox was not found";
/// Time in which a healthy guest answers; clients wait for five seconds.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(4);

/// What runs for clients of the data plane.
#[derive(Debug, Default)]
pub(crate) struct Live {
    processes: processes::Processes,
    watchers: watch::Watchers,
}

/// Returns the routes of `envd`; each request carries a [`Target`] among its extensions.
pub(crate) fn router() -> Router<Arc<Door>> {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/envs", get(envs))
        .route("/files", get(files::download).post(files::upload))
        .route("/files/compose", post(compose::compose))
        .merge(process::routes())
        .merge(filesystem::routes())
        .fallback(unknown)
        // Files stream, whatever their size; all else has bounds of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn(guard))
}

/// A signature opens one file, and nothing opens `/health` alone: all else wants the token.
async fn guard(
    Extension(target): Extension<Target>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let open = match target.access {
        Access::Token => true,
        Access::Signature => request.uri().path() == "/files",
        Access::Nothing => request.uri().path() == "/health",
    };
    if open {
        return next.run(request).await;
    }
    E2bError::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "the sandbox's access token is missing or wrong",
    )
    .into_response()
}

async fn unknown() -> Response {
    E2bError::not_found("there is nothing under this path").into_response()
}

/// Answers only if the guest does: a sandbox that hangs is not healthy.
async fn health(
    State(door): State<Arc<Door>>,
    Extension(target): Extension<Target>,
) -> Result<StatusCode, E2bError> {
    let guest = guest(&door, &target.sandbox)
        .await
        .map_err(|_| E2bError::gone(&target.sandbox))?;
    match tokio::time::timeout(HEALTH_TIMEOUT, guest.ping()).await {
        Ok(Ok(_)) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(_)) => Err(E2bError::gone(&target.sandbox)),
        // It is there and does not answer, which is not the same.
        Err(_) => Err(E2bError::new(
            StatusCode::BAD_GATEWAY,
            "guest_hangs",
            "the sandbox does not answer; its state is unknown",
        )),
    }
}

async fn metrics(
    State(door): State<Arc<Door>>,
    Extension(target): Extension<Target>,
) -> Result<Json<serde_json::Value>, E2bError> {
    let guest = guest(&door, &target.sandbox)
        .await
        .map_err(|_| E2bError::gone(&target.sandbox))?;
    let info = guest
        .info()
        .await
        .map_err(|_| E2bError::gone(&target.sandbox))?;
    let used = info.memory_total.saturating_sub(info.memory_available);
    let mebibytes = |bytes: u64| bytes / (1024 * 1024);
    Ok(Json(json!({
        "ts": rhizome_memory::now_ms() / 1000,
        "cpu_count": info.cpus,
        "mem_total": info.memory_total,
        "mem_used": used,
        "mem_total_mib": mebibytes(info.memory_total),
        "mem_used_mib": mebibytes(used),
        "uptime_ms": info.uptime_ms,
        "processes": info.execs,
    })))
}

async fn envs(Extension(target): Extension<Target>) -> Json<BTreeMap<String, String>> {
    Json(target.record.envs.clone())
}

/// Returns the session with a sandbox's guest.
pub(in crate::e2b) async fn guest(
    door: &Door,
    sandbox: &str,
) -> Result<GuestChannel, ConnectError> {
    let found = door.node.find_sandbox(sandbox).map_err(|_| gone())?;
    let sandboxes = door.node.sandboxes().map_err(of_api)?;
    sandboxes
        .channel(&found.id)
        .await
        .map_err(|error| of_sandbox(&error))
}

/// Returns whom a request is for: whom it names, or the sandbox's own user; root is nobody.
fn user_of(headers: &HeaderMap, target: &Target) -> Result<String, ConnectError> {
    let Some(said) = headers.get(header::AUTHORIZATION) else {
        return Ok(target.record.user.clone().unwrap_or_default());
    };
    let wrong = || {
        ConnectError::new(
            Code::Unauthenticated,
            "the `Authorization` header is no `Basic <user>:`",
        )
    };
    let said = said.to_str().map_err(|_| wrong())?;
    let (scheme, encoded) = said.split_once(' ').ok_or_else(wrong)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(wrong());
    }
    let decoded = data_encoding::BASE64
        .decode(encoded.trim().as_bytes())
        .map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    // It is no secret of anybody's: the sandbox's token is what opens the door.
    let user = decoded.split_once(':').map_or(&*decoded, |(user, _)| user);
    match user.is_empty() {
        true => Ok(target.record.user.clone().unwrap_or_default()),
        false => Ok(user.to_owned()),
    }
}

/// Returns an error as the routes that are plain HTTP tell it.
fn connect_to_http(error: ConnectError) -> E2bError {
    E2bError::new(error.code.status(), error.code.as_str(), error.message)
}

fn gone() -> ConnectError {
    ConnectError::new(Code::Unavailable, GONE)
}

fn of_api(error: ApiError) -> ConnectError {
    let code = match error.status() {
        StatusCode::NOT_FOUND | StatusCode::GONE => return gone(),
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        _ => Code::Internal,
    };
    ConnectError::new(code, &error.info().message)
}

fn of_sandbox(error: &SandboxError) -> ConnectError {
    match error {
        SandboxError::Exec { source, .. } => of_exec(source),
        SandboxError::File { source, .. } => of_file(source),
        // It is asleep, ends, or has ended.
        _ => gone(),
    }
}

pub(in crate::e2b) fn of_exec(error: &ExecError) -> ConnectError {
    let code = match error {
        ExecError::NoSuchProgram { .. }
        | ExecError::NotExecutable { .. }
        | ExecError::NoSuchCwd { .. }
        | ExecError::Invalid { .. }
        | ExecError::TooLarge { .. } => Code::InvalidArgument,
        ExecError::NoSuchUser { .. } => Code::Unauthenticated,
        ExecError::Busy | ExecError::AtRest => Code::ResourceExhausted,
        ExecError::NoSuchExec { .. } | ExecError::Ended => Code::NotFound,
        ExecError::SandboxGone { .. } => return gone(),
        _ => Code::Internal,
    };
    ConnectError::new(code, error)
}

fn of_file(error: &FileError) -> ConnectError {
    let code = match error {
        FileError::NotFound { .. } => Code::NotFound,
        FileError::InvalidPath { .. } | FileError::Source { .. } => Code::InvalidArgument,
        FileError::TooManyEntries { .. } => Code::ResourceExhausted,
        FileError::OldGuest { .. } => {
            let hint = error.hint().unwrap_or_default();
            return ConnectError::new(Code::Unimplemented, format!("{error}: {hint}"));
        }
        FileError::SandboxGone { .. } => return gone(),
        FileError::Guest { code, .. } => match code {
            FailureCode::PermissionDenied | FailureCode::ReadOnly => Code::PermissionDenied,
            FailureCode::AlreadyExists => Code::AlreadyExists,
            FailureCode::NotADirectory
            | FailureCode::IsADirectory
            | FailureCode::Invalid
            | FailureCode::NotEmpty => Code::InvalidArgument,
            FailureCode::TooMany | FailureCode::NoSpace => Code::ResourceExhausted,
            FailureCode::NoSuchUser => Code::Unauthenticated,
            FailureCode::Unsupported => Code::Unimplemented,
            _ => Code::Internal,
        },
        _ => Code::Internal,
    };
    ConnectError::new(code, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2b::registry::Record;

    fn target(user: Option<&str>) -> Target {
        Target {
            sandbox: "s".to_owned(),
            record: Arc::new(Record {
                user: user.map(str::to_owned),
                ..Record::default()
            }),
            access: Access::Token,
        }
    }

    fn asked(said: &str, default: Option<&str>) -> Result<String, ConnectError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, said.parse().unwrap());
        user_of(&headers, &target(default))
    }

    #[test]
    fn a_request_is_for_whom_it_names() {
        assert_eq!(user_of(&HeaderMap::new(), &target(None)).unwrap(), "");
        assert_eq!(
            user_of(&HeaderMap::new(), &target(Some("ann"))).unwrap(),
            "ann"
        );
        // base64("user:"), as the SDKs send it.
        assert_eq!(asked("Basic dXNlcjo=", Some("ann")).unwrap(), "user");
        assert_eq!(asked("basic Og==", Some("ann")).unwrap(), "ann");
        for wrong in ["Bearer x", "Basic ***", "Basic"] {
            let error = asked(wrong, None).unwrap_err();
            assert_eq!(error.code, Code::Unauthenticated, "{wrong}");
        }
    }
}
