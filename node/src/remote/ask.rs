//! Questions of this node to another: one JSON request, one answer, in bounded time.
use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, Method, header},
};
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, Limited};
use hyper::{Response, body::Incoming};
use rhizome_identity::{Authority, NodeId};
use rhizome_mesh::net::PeerState;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};

use super::proxy;
use crate::{
    api::{
        serve::Patience,
        types::{Named, Progress, ProgressLine},
    },
    daemon::{names::Names, node::Node},
    error::ApiError,
};

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// The longest line of an answer that tells of its progress.
const MAX_LINE_BYTES: usize = 2 * 1024 * 1024;
/// A peer that works must say so this often.
const SILENCE: Duration = Duration::from_secs(120);

impl Node {
    /// Asks `peer` for `path`.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        peer: NodeId,
        path: &str,
        within: Duration,
    ) -> Result<T, ApiError> {
        self.ask_for(peer, Method::GET, path, Vec::new(), within)
            .await
    }

    /// Sends `body` to `path` at `peer`.
    pub(crate) async fn tell<T: DeserializeOwned>(
        &self,
        peer: NodeId,
        path: &str,
        body: &impl Serialize,
        within: Duration,
    ) -> Result<T, ApiError> {
        self.ask_for(peer, Method::POST, path, json(body), within)
            .await
    }

    async fn ask_for<T: DeserializeOwned>(
        &self,
        peer: NodeId,
        method: Method,
        path: &str,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<T, ApiError> {
        let name = Names(&self.replica.authority()).node(&peer);
        let asking = async {
            let answer = self.exchange(peer, &name, method, path, body).await?;
            let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
            let body = body.await.map_err(|_| broken_off(&name))?;
            serde_json::from_slice(&body.to_bytes()).map_err(|error| {
                proxy::broken(&name, "its answer is not understood").caused_by(Some(&error))
            })
        };
        match tokio::time::timeout(within, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                let what = format!("no answer within {} s", within.as_secs_f32());
                Err(proxy::broken(&name, &what))
            }
        }
    }

    /// Sends `body` to `path` at `peer`, which tells how far it is until it is done.
    pub(crate) async fn command<T: DeserializeOwned>(
        &self,
        peer: NodeId,
        path: &str,
        body: &impl Serialize,
        mut progress: impl FnMut(Progress),
    ) -> Result<T, ApiError> {
        let name = Names(&self.replica.authority()).node(&peer);
        let answer = self.exchange(peer, &name, Method::POST, path, json(body));
        let answer = tokio::time::timeout(SILENCE, answer).await;
        let answer = answer.map_err(|_| proxy::broken(&name, "it did not answer"))??;
        let data = BodyStream::new(answer.into_body()).filter_map(async |frame| match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(std::io::Error::other(error))),
        });
        let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
        let mut lines = FramedRead::new(StreamReader::new(Box::pin(data)), codec);
        loop {
            let line = tokio::time::timeout(SILENCE, lines.next()).await;
            let line = line.map_err(|_| proxy::broken(&name, "it went silent"))?;
            let line = line.and_then(Result::ok).ok_or_else(|| broken_off(&name))?;
            match serde_json::from_str(&line) {
                Ok(ProgressLine::Progress(step)) => progress(step),
                Ok(ProgressLine::Done(done)) => return Ok(done),
                Ok(ProgressLine::Failed(error)) => {
                    let said = format!("node `{name}`: {}", error.message);
                    let status = axum::http::StatusCode::BAD_GATEWAY;
                    return Err(ApiError::new(status, &error.code, said)
                        .with_causes(error.causes)
                        .maybe_hint(error.hint));
                }
                Err(error) => {
                    let error = proxy::broken(&name, "its answer is not understood")
                        .caused_by(Some(&error));
                    return Err(error);
                }
            }
        }
    }

    async fn exchange(
        &self,
        peer: NodeId,
        name: &Named,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ApiError> {
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "rhizome")
            .header(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )
            .body(Body::from(body))
            .map_err(|_| ApiError::internal("a request to a peer has no valid path"))?;
        let answer = proxy::send(self, peer, name, request, Patience::default()).await?;
        if answer.status().is_success() {
            Ok(answer)
        } else {
            Err(proxy::refused(name, answer).await)
        }
    }

    /// Returns the members that are connected now, in the order of their names.
    pub(crate) fn connected(&self) -> Vec<NodeId> {
        let mut peers: Vec<_> = self
            .mesh
            .peers()
            .into_iter()
            .filter(|peer| peer.state == PeerState::Connected)
            .map(|peer| (peer.name, peer.node))
            .collect();
        peers.sort();
        peers.into_iter().map(|(_, node)| node).collect()
    }
}

/// Returns the node that `wanted` names: by id, by name, or by a prefix of its id.
pub(crate) fn find_node(authority: &Authority, wanted: &str) -> Result<NodeId, ApiError> {
    let shown: String = wanted.chars().take(80).collect();
    if let Ok(id) = wanted.parse::<NodeId>()
        && authority.is_member(&id)
    {
        return Ok(id);
    }
    let pick = |found: Vec<NodeId>| match found[..] {
        [] => None,
        [one] => Some(Ok(one)),
        _ => Some(Err(ApiError::bad_request(format!(
            "several nodes are called `{shown}`"
        ))
        .hint("name the node by its id; `rhizome nodes` shows it"))),
    };
    let named = authority.members().filter(|member| member.name == wanted);
    if let Some(found) = pick(named.map(|member| member.node).collect()) {
        return found;
    }
    let prefixed = authority
        .members()
        .filter(|member| wanted.len() >= 4 && member.node.to_string().starts_with(wanted));
    pick(prefixed.map(|member| member.node).collect()).unwrap_or_else(|| {
        Err(ApiError::new(
            axum::http::StatusCode::NOT_FOUND,
            "unknown_node",
            format!("no node of the mesh is called `{shown}`"),
        )
        .hint("`rhizome nodes` shows the nodes"))
    })
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("requests are plain structs")
}

fn broken_off(name: &Named) -> ApiError {
    proxy::broken(name, "its answer broke off")
}
