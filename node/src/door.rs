//! The door: how what runs in a sandbox reaches its node.
//!
//! A guest's connections arrive over its channel, and each speaks HTTP/1.1 with a few of the API's
//! routes. Whose sandbox it is, for which agent it works and which spaces it may use was written down
//! by the node when the sandbox was made. Nothing a guest sends can change that, and its requests are
//! limited in size, rate and number.

pub(crate) mod limit;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use rhizome_identity::Hash;
use rhizome_sandbox::{DoorConnection, SandboxId, SandboxInfo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use self::limit::Limits;
use crate::{
    api::{
        routes,
        serve::{STALL_TIMEOUT, serve},
    },
    daemon::{
        caller::{Caller, Guest},
        node::Node,
        sandbox::{Bound, is_alive},
    },
    error::ApiError,
};

/// Time for one request, its body included; `watch` answers at once and then streams.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Time to wait for one's turn behind other requests of the same sandbox.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the guests' connections until the node stops.
pub(crate) async fn serve_doors(node: Arc<Node>, mut doors: mpsc::Receiver<DoorConnection>) {
    let mut limits: BTreeMap<SandboxId, Arc<Limits>> = BTreeMap::new();
    let routes = routes::guest(Arc::clone(&node));
    loop {
        let connection = tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            connection = doors.recv() => connection,
        };
        let Some(DoorConnection { sandbox, stream }) = connection else {
            return;
        };
        let info = node
            .sandboxes()
            .and_then(|all| all.get(&sandbox.to_string()).map_err(ApiError::not_found));
        let Ok(info) = info else { continue };
        if !is_alive(&info) {
            continue;
        }
        if !limits.contains_key(&sandbox) {
            // As many entries as sandboxes live, give or take those that ended since the last look.
            let list = node
                .sandboxes()
                .map(rhizome_sandbox::Sandboxes::list)
                .unwrap_or_default();
            limits.retain(|id, _| list.iter().any(|info| info.id == *id && is_alive(info)));
        }
        let limits = limits
            .entry(sandbox)
            .or_insert_with(|| Arc::new(Limits::new(Instant::now())));
        let guest = guest_of(&info, Arc::clone(limits));
        // A connection over the limit is closed unanswered: an answer would cost what is limited.
        let (routes, stop) = (routes.clone(), node.stop.clone());
        node.tasks
            .spawn(serve_guest(routes, guest, stream, STALL_TIMEOUT, stop));
    }
}

fn guest_of(info: &SandboxInfo, limits: Arc<Limits>) -> Guest {
    let bound = Bound::of(info);
    Guest {
        sandbox: info.id.to_string(),
        image: info.image.clone(),
        agent: bound.agent,
        spaces: bound.spaces,
        fingerprint: Hash::from_bytes(info.fingerprint.hash()),
        limits,
    }
}

/// Serves `routes` on one connection of `guest`, if it may have one more.
pub(crate) async fn serve_guest<S>(
    routes: Router,
    guest: Guest,
    stream: S,
    stall: Duration,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let limits = Arc::clone(&guest.limits);
    let Some(permit) = limits.connect() else {
        return;
    };
    let router = routes::asked_by(Caller::Guest(Arc::new(guest)), routes)
        .layer(middleware::from_fn_with_state(limits, take_turn));
    serve(stream, router, stall, stop).await;
    drop(permit);
}

/// Lets a request through when its sandbox has budget and a free place, within its time.
async fn take_turn(State(limits): State<Arc<Limits>>, request: Request, next: Next) -> Response {
    take_turn_of(&limits, "this sandbox", request, next).await
}

/// As [`take_turn`], for whoever `limits` are of; `who` is what an error calls that one.
pub(crate) async fn take_turn_of(
    limits: &Limits,
    who: &str,
    request: Request,
    next: Next,
) -> Response {
    if let Err(wait) = limits.take(Instant::now()) {
        let error = ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limited",
            format!("{who} asks faster than it may"),
        )
        .hint(format!(
            "at most {} requests a second for long",
            limit::REQUESTS_PER_SECOND
        ));
        let mut response = error.into_response();
        let seconds = HeaderValue::from(wait.as_secs() + 1);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
        return response;
    }
    let turn = Arc::clone(&limits.in_flight).acquire_owned();
    let Ok(Ok(turn)) = tokio::time::timeout(TURN_TIMEOUT, turn).await else {
        let message = format!("too many requests of {who} are being worked on");
        return ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", message).into_response();
    };
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    drop(turn);
    answered.unwrap_or_else(|_| {
        let message = format!(
            "the request took longer than {} s",
            REQUEST_TIMEOUT.as_secs()
        );
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message).into_response()
    })
}
