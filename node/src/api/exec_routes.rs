//! The routes of commands, of connections into a sandbox, and of changes in it.
use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rhizome_sandbox::channel::ExecHandle;
use tokio::io::copy_bidirectional_with_sizes;

use super::{
    exec_frame::PROTOCOL,
    exec_pump::{Start, pump},
    extract::{Events, JsonBody, Lines, Params, parse_json, read_body},
    serve::Patience,
    table::{COMMANDS, FILES, Table},
    types::{
        Done, SCHEMA,
        sandbox::{
            AttachBody, ExecAttached, ExecBody, ExecStarted, Execs, FileChange, ForwardParams,
            SignalBody, WatchParams,
        },
    },
};
use crate::{control::audit::layer::Detail, daemon::node::Node, error::ApiError};

/// The name in the `Upgrade` header of a connection into a sandbox: after it, bytes as they are.
pub const FORWARD_PROTOCOL: &str = "rhizome-forward/1";
/// The header that names a command.
const EXEC_HEADER: &str = "rhizome-exec";
/// Bytes of a forwarded connection that wait here in each direction.
const FORWARD_BUFFER_BYTES: usize = 32 * 1024;

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;
type Slow = Option<Extension<Patience>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            COMMANDS,
            Method::POST,
            "/v1/sandboxes/{sandbox}/exec",
            exec,
            "Run a command in it; with `detach`, without waiting",
        )
        .creates()
        .also(|operation| {
            operation.takes::<ExecBody>();
            operation.answers::<ExecStarted>();
            operation.upgrades(PROTOCOL);
        })
        .route(
            COMMANDS,
            Method::GET,
            "/v1/sandboxes/{sandbox}/execs",
            execs,
            "List its commands, newest first",
        )
        .lists("execs", "/id")
        .route(
            COMMANDS,
            Method::POST,
            "/v1/sandboxes/{sandbox}/execs/{exec}/attach",
            attach,
            "Follow a command that runs or ran",
        )
        .also(|operation| {
            operation.takes::<AttachBody>();
            operation.upgrades(PROTOCOL);
        })
        .route(
            COMMANDS,
            Method::POST,
            "/v1/sandboxes/{sandbox}/execs/{exec}/signal",
            signal,
            "Send a signal to a command",
        )
        .route(
            COMMANDS,
            Method::POST,
            "/v1/sandboxes/{sandbox}/forward",
            forward,
            "Connect to a port in it",
        )
        .also(|operation| operation.upgrades(FORWARD_PROTOCOL))
        .route(
            FILES,
            Method::GET,
            "/v1/sandboxes/{sandbox}/watch",
            watch,
            "Watch a directory in it",
        )
}

async fn exec(
    State(node): Shared,
    slow: Slow,
    Path(sandbox): Path<String>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = upgrade_of(&mut request, PROTOCOL);
    let body: ExecBody = parse_json(&read_body(request.into_body()).await?)?;
    let detail = Detail(body.argv.join(" "));
    if body.detach {
        let id = node.exec_detached(&sandbox, body).await?;
        let started = ExecStarted {
            schema: SCHEMA,
            id: id.to_string(),
        };
        return Ok((Extension(detail), Json(started)).into_response());
    }
    let upgrade = upgrade?;
    let stdin = body.stdin;
    let handle = node.exec(&sandbox, body).await?;
    let start = Start {
        stdin,
        attached: None,
    };
    let carried = carry(node, slow, upgrade, handle, start);
    Ok((Extension(detail), carried).into_response())
}

async fn execs(State(node): Shared, Path(sandbox): Path<String>) -> Answer<Execs> {
    node.execs(&sandbox).await.map(Json)
}

async fn attach(
    State(node): Shared,
    slow: Slow,
    Path((sandbox, exec)): Path<(String, String)>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = upgrade_of(&mut request, PROTOCOL)?;
    let body: AttachBody = parse_json(&read_body(request.into_body()).await?)?;
    let handle = node.attach(&sandbox, &exec, &body).await?;
    let shown = handle.attached();
    let start = Start {
        stdin: shown.stdin,
        attached: Some(ExecAttached {
            id: handle.id().to_string(),
            position: shown.position,
            gap: shown.gap,
            pty: shown.pty,
            stdin: shown.stdin,
        }),
    };
    Ok(carry(node, slow, upgrade, handle, start))
}

async fn signal(
    State(node): Shared,
    Path((sandbox, exec)): Path<(String, String)>,
    JsonBody(body): JsonBody<SignalBody>,
) -> Answer<Done> {
    node.signal_exec(&sandbox, &exec, body.signal).await?;
    Ok(Json(Done::default()))
}

/// Answers the upgrade, and carries a command's streams over the connection.
fn carry(
    node: Arc<Node>,
    slow: Slow,
    upgrade: OnUpgrade,
    handle: ExecHandle,
    start: Start,
) -> Response {
    be_patient(slow);
    let id = handle.id().to_string();
    let stop = node.stop.clone();
    node.tasks.spawn(async move {
        match upgrade.await {
            Ok(connection) => pump(connection, handle, start, stop).await,
            // Dropping the handle ends the command, unless it is kept.
            Err(error) => tracing::debug!(%error, "an exec connection was not upgraded"),
        }
    });
    let headers = [
        (header::CONNECTION.as_str(), "upgrade"),
        (header::UPGRADE.as_str(), PROTOCOL),
        (EXEC_HEADER, &id),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

async fn forward(
    State(node): Shared,
    slow: Slow,
    Path(sandbox): Path<String>,
    Params(params): Params<ForwardParams>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = upgrade_of(&mut request, FORWARD_PROTOCOL)?;
    let mut guest = node.forward(&sandbox, params.port).await?;
    be_patient(slow);
    let stop = node.stop.clone();
    node.tasks.spawn(async move {
        let Ok(connection) = upgrade.await else {
            return;
        };
        let mut client = TokioIo::new(connection);
        let size = FORWARD_BUFFER_BYTES;
        // Each direction ends on its own; a failure of either ends both, as dropping them does.
        tokio::select! {
            () = stop.cancelled() => {}
            _ = copy_bidirectional_with_sizes(&mut client, &mut guest, size, size) => {}
        }
    });
    let headers = [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, FORWARD_PROTOCOL),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn watch(
    State(node): Shared,
    Path(sandbox): Path<String>,
    Params(params): Params<WatchParams>,
) -> Result<Events<FileChange>, ApiError> {
    let permit = Arc::clone(&node.streams).try_acquire_owned();
    let permit = permit.map_err(|_| {
        ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "busy",
            "as many streams are open as may be",
        )
    })?;
    let mut watch = node.watch_dir(&sandbox, &params).await?;
    let (lines, response) = Lines::answer();
    let stop = node.stop.clone();
    node.tasks.spawn(async move {
        let _permit = permit;
        loop {
            let told = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = lines.closed() => return,
                told = watch.changes.recv() => told,
            };
            let sent = match told {
                Some(Ok(changes)) => {
                    let mut sent = Ok(());
                    for change in changes {
                        sent = lines.send(&crate::daemon::file_change(change)).await;
                        if sent.is_err() {
                            break;
                        }
                    }
                    sent
                }
                Some(Err(error)) => {
                    let failed = crate::daemon::watch_failed(&error).into_info();
                    let _ = lines.send(&serde_json::json!({ "error": failed })).await;
                    return;
                }
                None => return,
            };
            if sent.is_err() {
                return;
            }
        }
    });
    Ok(Events::new(response))
}

/// From here on the client may read as slowly as it likes.
pub(crate) fn be_patient(slow: Slow) {
    if let Some(Extension(patience)) = slow {
        patience.without_end();
    }
}

/// Takes over the connection of a request that asks for `protocol`.
pub(crate) fn upgrade_of(request: &mut Request, protocol: &str) -> Result<OnUpgrade, ApiError> {
    if !asks_for_upgrade(request.headers(), protocol) {
        let message = "this runs over an upgraded connection";
        return Err(
            ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message).hint(format!(
                "send `Connection: upgrade` and `Upgrade: {protocol}`"
            )),
        );
    }
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    upgrade.ok_or_else(|| ApiError::bad_request("this connection cannot be upgraded"))
}

fn asks_for_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name, wanted: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(header::UPGRADE, "rhizome-exec/1".parse().unwrap());
        assert!(!asks_for_upgrade(&headers, PROTOCOL));
        headers.insert(header::CONNECTION, "keep-alive, Upgrade".parse().unwrap());
        assert!(asks_for_upgrade(&headers, PROTOCOL));
        assert!(!asks_for_upgrade(&headers, FORWARD_PROTOCOL));
        headers.insert(header::UPGRADE, "websocket".parse().unwrap());
        assert!(!asks_for_upgrade(&headers, PROTOCOL));
    }
}
