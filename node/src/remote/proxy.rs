//! Passes one HTTP request on to another node, and its answer back, whatever either carries.
use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri::PathAndQuery},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use rhizome_identity::NodeId;
use rhizome_mesh::net::CtlError;
use rhizome_sandbox::clip;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tracing::debug;

use crate::{
    api::{
        serve::{Patience, STALL_TIMEOUT, StallGuard},
        types::{ErrorBody, Named},
    },
    daemon::{names::Names, node::Node},
    error::ApiError,
};

/// The largest error of another node that is read.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Most of its code that is passed on, in bytes.
const MAX_CODE_BYTES: usize = 64;
/// How long such an error may take to arrive.
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes on the way in each direction of an upgraded connection.
const PUMP_BYTES: usize = 64 * 1024;
/// Headers that speak of one connection, not of the request.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
];

/// Sends `request` to `peer` under `path` and returns the answer as it comes.
///
/// An error of the peer says whose it is. An answer that switches protocols is carried on, both
/// ways, by a task of the node.
pub(crate) async fn forward(
    node: &Arc<Node>,
    peer: NodeId,
    mut request: Request,
    path: PathAndQuery,
) -> Result<Response, ApiError> {
    let name = Names(&node.replica.authority()).node(&peer);
    let ours = request.extensions_mut().remove::<OnUpgrade>();
    let client = request.extensions_mut().remove::<Patience>();
    let (head, body) = request.into_parts();
    let mut outgoing = hyper::Request::builder().method(head.method).uri(path);
    if let Some(headers) = outgoing.headers_mut() {
        copy_headers(&head.headers, headers);
        headers.insert(header::HOST, HeaderValue::from_static("rhizome"));
        if let Some(protocol) = head.headers.get(header::UPGRADE).filter(|_| ours.is_some()) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, protocol.clone());
        }
    }
    let outgoing = outgoing
        .body(body)
        .map_err(|_| ApiError::bad_request("the request cannot be passed on"))?;
    let patience = Patience::default();
    let mut answer = send(node, peer, &name, outgoing, patience.clone()).await?;
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let ours = ours.ok_or_else(|| broken(&name, "it switched protocols unasked"))?;
        let theirs = hyper::upgrade::on(&mut answer);
        // A client that does not read, or a command that does not, holds up the other and nothing
        // else. Whether each still is there shows on the other direction, and the mesh ends the
        // stream of a peer that is gone.
        patience.without_end();
        if let Some(client) = client {
            client.without_end();
        }
        node.tasks.spawn(pump(ours, theirs, node.stop.clone()));
        let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = answer.headers().get(header::UPGRADE) {
            response
                .headers_mut()
                .insert(header::UPGRADE, protocol.clone());
        }
        return Ok(response);
    }
    if !status.is_success() {
        return Err(refused(&name, answer).await);
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status;
    copy_headers(&head.headers, response.headers_mut());
    Ok(response)
}

/// Sends a request on a control stream of its own and returns the head of the answer.
///
/// The peer has to read what it is sent, until `patience` has no end.
pub(crate) async fn send(
    node: &Node,
    peer: NodeId,
    name: &Named,
    request: hyper::Request<Body>,
    patience: Patience,
) -> Result<hyper::Response<Incoming>, ApiError> {
    let stream = node.mesh.open_ctl(peer).await;
    let stream = stream.map_err(|error| unreachable(name, &error))?;
    let io = TokioIo::new(StallGuard::new(stream, STALL_TIMEOUT).with(patience));
    let (mut sender, connection) = http1::handshake(io)
        .await
        .map_err(|error| broken(name, "the connection broke").caused_by(Some(&error)))?;
    // Ends with the answer, or with the connection that an upgrade makes of it.
    node.tasks.spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a request to another node broke off");
        }
    });
    sender
        .send_request(request)
        .await
        .map_err(|error| broken(name, "it did not answer").caused_by(Some(&error)))
}

/// Reads the error that a peer answered with, and says whose it is.
pub(crate) async fn refused(name: &Named, answer: hyper::Response<Incoming>) -> ApiError {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ERROR_BYTES).collect();
    let bytes = match tokio::time::timeout(ERROR_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => return broken(name, "its answer broke off"),
    };
    match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(ErrorBody { error }) => {
            let said = format!("node `{name}`: {}", error.message);
            let mut passed = ApiError::new(status, clip(&error.code, MAX_CODE_BYTES), said)
                .maybe_hint(error.hint);
            passed = passed.with_causes(error.causes);
            passed
        }
        Err(_) => broken(name, &format!("it answered {status}")),
    }
}

/// The peer cannot be spoken to.
pub(crate) fn unreachable(name: &Named, error: &CtlError) -> ApiError {
    let message = format!("node `{name}` cannot be reached");
    ApiError::new(StatusCode::BAD_GATEWAY, "node_unreachable", message)
        .caused_by(Some(error))
        .maybe_hint(error.hint())
}

/// The peer said something that no answer is.
pub(crate) fn broken(name: &Named, what: &str) -> ApiError {
    let message = format!("the request to node `{name}` failed: {what}");
    ApiError::new(StatusCode::BAD_GATEWAY, "node_failed", message)
        .hint("see whether it is still there with `rhizome peers`")
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (header, value) in from {
        if !HOP_BY_HOP.contains(header) && *header != header::HOST {
            to.append(header.clone(), value.clone());
        }
    }
}

/// Carries bytes both ways until one side ends or fails, or the node stops.
async fn pump(ours: OnUpgrade, theirs: OnUpgrade, stop: tokio_util::sync::CancellationToken) {
    let Ok((ours, theirs)) = tokio::try_join!(ours, theirs) else {
        debug!("a connection that was passed on was not upgraded");
        return;
    };
    let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
    let pumping = copy_bidirectional_with_sizes(&mut ours, &mut theirs, PUMP_BYTES, PUMP_BYTES);
    if let Some(Err(error)) = stop.run_until_cancelled(pumping).await {
        debug!(%error, "a connection that was passed on broke off");
    }
    let _ = ours.shutdown().await;
    let _ = theirs.shutdown().await;
}
