//! MCP over one connection: a JSON-RPC message a line, after an upgrade.
//!
//! `rhizome mcp` copies its standard streams here and back and understands nothing of it, so that the
//! server is the same, however old the command of a client's configuration is.
use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper_util::rt::TokioIo;
use rmcp::{RoleServer, service::serve_server_with_ct, transport::async_rw::AsyncRwTransport};

use super::{
    MAX_MESSAGE_BYTES, PIPE_PROTOCOL,
    server::Server,
    session::{Query, Session},
};
use crate::{
    api::{
        exec_routes::{be_patient, upgrade_of},
        extract::{Params, read_body},
        serve::Patience,
    },
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

/// Time between the upgrade and the client's `initialize`.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// `POST /v1/mcp/pipe`.
pub(super) async fn open(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    slow: Option<Extension<Patience>>,
    Params(query): Params<Query>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = upgrade_of(&mut request, PIPE_PROTOCOL)?;
    // What a client sends along would else be the beginning of its first message.
    read_body(request.into_body()).await?;
    let permit = caller.stream_permit(&node)?;
    let (session, profiles) = Session::open(Arc::clone(&node), caller, query).await?;
    be_patient(slow);
    let stop = node.stop.child_token();
    node.tasks.spawn(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => return tracing::debug!(%error, "a pipe was not upgraded"),
        };
        let (read, write) = tokio::io::split(TokioIo::new(connection));
        let transport = AsyncRwTransport::<RoleServer, _, _>::new(read, write)
            .with_max_line_length(MAX_MESSAGE_BYTES);
        let server = Server::new(session.clone(), profiles);
        let begun = serve_server_with_ct(server, transport, stop.clone());
        match tokio::time::timeout(INIT_TIMEOUT, begun).await {
            Ok(Ok(running)) => {
                // What is cancelled still ends in order.
                let revoked = async {
                    session.revoked().await;
                    stop.cancel();
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    ended = running.waiting() => if let Err(error) = ended {
                        tracing::debug!(%error, "a client of MCP ended");
                    },
                    () = revoked => {}
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "a client of MCP did not begin"),
            Err(_) => tracing::debug!("a client of MCP did not begin in time"),
        }
        drop(permit);
    });
    let headers = [
        (header::CONNECTION.as_str(), "upgrade"),
        (header::UPGRADE.as_str(), PIPE_PROTOCOL),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}
