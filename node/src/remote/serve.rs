//! Answers what other nodes ask on their control streams.
//!
//! A request is judged before it reaches a route, and a sandbox that it names is replaced by its
//! full id, so that what was judged is what is then worked on.
use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{Uri, uri::PathAndQuery},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use rhizome_identity::{NodeId, Role, SpaceId};
use rhizome_mesh::net::CtlStream;
use tokio::sync::mpsc;
use tracing::debug;

use super::grants::{self, Need};
use crate::{
    api::{
        routes,
        serve::{STALL_TIMEOUT, serve},
    },
    daemon::{caller::Caller, names::Names, node::Node, sandbox::Bound},
    error::ApiError,
};

/// Serves the streams of other nodes until this one stops.
pub(crate) async fn serve_peers(node: Arc<Node>, mut streams: mpsc::Receiver<CtlStream>) {
    let routes = routes::peer(Arc::clone(&node));
    loop {
        let stream = tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            stream = streams.recv() => stream,
        };
        // The mesh bounds how many there are, of one peer and in all.
        let Some(stream) = stream else { return };
        let router = peer_router(routes.clone(), Arc::clone(&node), stream.peer());
        let serving = serve(stream, router, STALL_TIMEOUT, node.stop.clone());
        node.tasks.spawn(serving);
    }
}

/// Every route that some peer may use, behind the judge of each request.
fn peer_router(routes: Router, node: Arc<Node>, peer: NodeId) -> Router {
    let judge = middleware::from_fn_with_state((node, peer), judge);
    // Before routing: a route sees the path as the judge leaves it.
    routes::asked_by(Caller::Peer(peer), routes).layer(judge)
}

async fn judge(
    State((node, peer)): State<(Arc<Node>, NodeId)>,
    mut request: Request,
    next: Next,
) -> Response {
    match judged(&node, &peer, &request) {
        Ok(None) => {}
        Ok(Some(uri)) => *request.uri_mut() = uri,
        Err(error) => {
            debug!(peer = %peer.fmt_short(), path = request.uri().path(), %error, "a peer was refused");
            return error.into_response();
        }
    }
    next.run(request).await
}

/// Says whether the request may pass, and under which path.
fn judged(node: &Node, peer: &NodeId, request: &Request) -> Result<Option<Uri>, ApiError> {
    let path = request.uri().path();
    match grants::need(request.method(), path) {
        Need::Member | Need::Body => Ok(None),
        Need::Never => Err(ApiError::denied(
            "only the owner of a node may ask that of it",
        )),
        Need::Sandbox(wanted, role) => {
            let info = node.find_sandbox(wanted)?;
            node.peer_may(
                peer,
                &Bound::of(&info).spaces,
                role,
                &format!("the sandbox `{wanted}`"),
            )?;
            let id = info.id.to_string();
            Ok(Some(renamed(request.uri(), wanted, &id)?))
        }
    }
}

/// Returns `uri` with the sandbox `wanted` called by its id.
pub(crate) fn renamed(uri: &Uri, wanted: &str, id: &str) -> Result<Uri, ApiError> {
    let prefix = "/v1/sandboxes/";
    let rest = &uri.path()[prefix.len() + wanted.len()..];
    let query = uri.query().map(|query| format!("?{query}"));
    let text = format!("{prefix}{id}{rest}{}", query.unwrap_or_default());
    let path: PathAndQuery = text
        .parse()
        .map_err(|_| ApiError::bad_request("the path of the request is none"))?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| ApiError::bad_request("the path of the request is none"))
}

impl Node {
    /// Fails unless `peer` has the role `wanted` in every one of `spaces`; `what` they hold.
    pub(crate) fn peer_may(
        &self,
        peer: &NodeId,
        spaces: &[SpaceId],
        wanted: Role,
        what: &str,
    ) -> Result<(), ApiError> {
        let authority = self.replica.authority();
        grants::may(&authority, peer, spaces, wanted).map_err(|denied| {
            let name = Names(&authority).node(peer);
            ApiError::denied(format!("{what} is not for node `{name}`"))
                .caused_by(Some(&denied))
                .hint("an admin of the space can grant the role")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_renamed_and_nothing_else() {
        let uri: Uri = "/v1/sandboxes/bench/file?path=/v1/sandboxes/bench"
            .parse()
            .unwrap();
        assert_eq!(
            renamed(&uri, "bench", "abc").unwrap(),
            "/v1/sandboxes/abc/file?path=/v1/sandboxes/bench"
        );
        let uri: Uri = "/v1/sandboxes/b".parse().unwrap();
        assert_eq!(renamed(&uri, "b", "abc").unwrap(), "/v1/sandboxes/abc");
    }
}
