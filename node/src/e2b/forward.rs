//! Every other port of a sandbox: HTTP that its programs speak, upgrades included.
use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode, header, uri::PathAndQuery},
    response::Response,
};
use hyper::{client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tracing::debug;

use super::{
    Door,
    error::{Answer, E2bError},
    registry::Record,
};
use crate::api::serve::Patience;

/// Time a program in a sandbox has to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes on the way in each direction of an upgraded connection.
const PUMP_BYTES: usize = 32 * 1024;
/// Headers that are for this door, not for what is behind it.
const OURS: [&str; 4] = [
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "e2b-traffic-access-token",
    "x-api-key",
];
/// Headers that speak of one connection; an upgrade puts its own back.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
];

/// Sends a request to a port of a sandbox, and returns the answer as it comes.
pub(super) async fn forward(
    door: &Arc<Door>,
    record: &Record,
    port: u16,
    mut request: Request,
) -> Answer {
    let node = &door.node;
    let guest = match node.forward(&record.id, port).await {
        Ok(guest) => guest,
        Err(error) if error.code() == "port_refused" => {
            return Err(E2bError::port_closed(&record.id, port));
        }
        Err(error) if error.status() == StatusCode::GONE => return Err(E2bError::gone(&record.id)),
        Err(error) => return Err(error.into()),
    };
    let broken = |what: &str| E2bError::new(StatusCode::BAD_GATEWAY, "guest_failed", what);
    let (mut sender, connection) = http1::handshake(TokioIo::new(guest))
        .await
        .map_err(|_| broken("the port does not take a request"))?;
    let stop = node.stop.clone();
    node.tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            ended = connection.with_upgrades() => if let Err(error) = ended {
                debug!(%error, "a connection into a sandbox failed");
            }
        }
    });
    let ours = request.extensions_mut().remove::<OnUpgrade>();
    let patience = request.extensions_mut().remove::<Patience>();
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().cloned();
    head.uri = path
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
        .into();
    let protocol = head
        .headers
        .get(header::UPGRADE)
        .filter(|_| ours.is_some())
        .cloned();
    for name in OURS {
        head.headers.remove(name);
    }
    for name in HOP_BY_HOP {
        head.headers.remove(name);
    }
    if let Some(protocol) = &protocol {
        let upgrade = HeaderValue::from_static("upgrade");
        head.headers.insert(header::CONNECTION, upgrade);
        head.headers.insert(header::UPGRADE, protocol.clone());
    }
    let mask = record
        .network
        .as_ref()
        .and_then(|network| network["maskRequestHost"].as_str())
        .map(|mask| mask.replace("${PORT}", &port.to_string()));
    if let Some(mask) = mask.and_then(|mask| HeaderValue::from_str(&mask).ok()) {
        head.headers.insert(header::HOST, mask);
    }
    let sent = sender.send_request(Request::from_parts(head, body));
    let mut answer = match tokio::time::timeout(ANSWER_TIMEOUT, sent).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            debug!(%error, "a program in a sandbox did not answer");
            return Err(broken("the program behind the port ended the connection"));
        }
        Err(_) => {
            let message = "the program behind the port did not answer in time";
            return Err(E2bError::new(
                StatusCode::GATEWAY_TIMEOUT,
                "timeout",
                message,
            ));
        }
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(ours) = ours.filter(|_| protocol.is_some()) else {
            return Err(broken("the program switched protocols unasked"));
        };
        // A client that does not read holds up nothing but what it asked for.
        if let Some(patience) = patience {
            patience.without_end();
        }
        let theirs = hyper::upgrade::on(&mut answer);
        let stop = node.stop.clone();
        node.tasks.spawn(async move {
            let (Ok(client), Ok(guest)) = tokio::join!(ours, theirs) else {
                return;
            };
            let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
            tokio::select! {
                () = stop.cancelled() => {}
                _ = copy_bidirectional_with_sizes(&mut client, &mut guest, PUMP_BYTES, PUMP_BYTES) => {}
            }
        });
        let (head, _) = answer.into_parts();
        return Ok(Response::from_parts(head, Body::empty()));
    }
    let (mut head, body) = answer.into_parts();
    for name in HOP_BY_HOP {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Body::new(body)))
}
