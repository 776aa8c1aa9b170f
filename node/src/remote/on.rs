//! `/v1/on/<node>/…`: a request of the owner, for another node.
//!
//! Whatever stands behind the node's name is passed on as it is, so every verb of the API works
//! elsewhere as far as the grants there allow. `any` and `label=…` choose a node, for requests
//! that make something; the next best is asked when one refuses.
use std::{collections::BTreeSet, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{Method, StatusCode, Uri, uri::PathAndQuery},
    middleware::Next,
    response::{IntoResponse, Response},
};
use rhizome_identity::NodeId;
use serde::Deserialize;

use super::{
    ask::find_node,
    asleep::ELSEWHERE,
    placement::{Need, Wish},
    proxy,
};
use crate::{
    api::{
        extract::{parse_json, read_body},
        types::sandbox::{Sandbox, SandboxBody},
    },
    daemon::node::Node,
    error::ApiError,
};

/// What such a path begins with.
const PREFIX: &str = "/v1/on/";
/// Fewest digits of a sandbox's id that are looked up as a prefix.
const MIN_PREFIX: usize = 4;
/// States in which a sandbox runs on no node.
const ENDED: [&str; 3] = ["killed", "failed", ELSEWHERE];

/// Passes on what is for another node, and answers the rest here.
pub(crate) async fn dispatch(
    State(node): State<Arc<Node>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some((target, path)) = split(request.uri()) else {
        return next.run(request).await;
    };
    let target = match target_of(&node, &target) {
        Ok(target) => target,
        Err(error) => return error.into_response(),
    };
    let passed = match target {
        Target::Here => {
            *request.uri_mut() = path.into();
            return next.run(request).await;
        }
        Target::Peer(peer) => proxy::forward(&node, peer, request, path).await,
        Target::Chosen(wish) => place(&node, wish, request, path, next).await,
    };
    passed.unwrap_or_else(IntoResponse::into_response)
}

enum Target {
    Here,
    Peer(NodeId),
    Chosen(Wish),
}

fn target_of(node: &Node, target: &str) -> Result<Target, ApiError> {
    if let Some(wish) = Wish::parse(target)? {
        return Ok(Target::Chosen(wish));
    }
    let authority = node.need_mesh()?;
    let found = find_node(&authority, target)?;
    Ok(if found == node.id() {
        Target::Here
    } else {
        Target::Peer(found)
    })
}

/// Returns whom a request is for, and its path there.
fn split(uri: &Uri) -> Option<(String, PathAndQuery)> {
    let rest = uri.path().strip_prefix(PREFIX)?;
    let (target, rest) = rest.split_once('/')?;
    let query = uri.query().map(|query| format!("?{query}"));
    let path = format!("/{rest}{}", query.unwrap_or_default());
    Some((decode(target)?, path.parse().ok()?))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Asks the nodes that fit, the best first, until one does not refuse.
async fn place(
    node: &Arc<Node>,
    wish: Wish,
    request: Request,
    path: PathAndQuery,
    next: Next,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let is_made = head.method == Method::POST && path.path() == "/v1/sandboxes";
    if !is_made && !is_of_a_volume(&head.method, path.path()) {
        return Err(
            ApiError::bad_request("only what is made can be made on a node of our choice").hint(
                "name the node with `--on`; `rhizome sandbox list --all` shows what runs where",
            ),
        );
    }
    let bytes = read_body(body).await?;
    let need = match is_made {
        true => Need::of_sandbox(&parse_json::<SandboxBody>(&bytes)?),
        false => Need::default(),
    };
    let mut chosen = node.candidates(&wish, &need).await?;
    if !is_made {
        let InSandbox { sandbox } = serde_json::from_slice(&bytes).map_err(|_| {
            ApiError::bad_request("which sandbox is it about?").hint("name one with `--sandbox`")
        })?;
        let runs_on = node.where_it_runs(&sandbox).await?;
        chosen.retain(|candidate| runs_on.contains(&candidate.node));
        if chosen.is_empty() {
            return Err(nowhere(&sandbox));
        }
    }
    let mut refusals = Vec::new();
    for candidate in chosen {
        let mut again = Request::new(Body::from(bytes.clone()));
        *again.method_mut() = head.method.clone();
        *again.headers_mut() = head.headers.clone();
        if candidate.node == node.id() {
            *again.uri_mut() = path.clone().into();
            return Ok(next.run(again).await);
        }
        match proxy::forward(node, candidate.node, again, path.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => refusals.push(error),
        }
    }
    Err(super::placement::nobody(&refusals))
}

/// What a request about a volume in a sandbox says of the sandbox.
#[derive(Debug, Deserialize)]
struct InSandbox {
    sandbox: String,
}

/// Whether it is about a volume in a sandbox: then the node is the one that runs it.
fn is_of_a_volume(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let verbs = ["attach", "detach", "checkpoint"];
    method == Method::POST
        && matches!(parts[..], ["", "v1", "volumes", _, verb] if verbs.contains(&verb))
}

fn nowhere(sandbox: &str) -> ApiError {
    let shown = crate::daemon::memory::clip(sandbox);
    let message = format!("no node that would do runs a sandbox `{shown}`");
    ApiError::new(StatusCode::NOT_FOUND, "unknown_sandbox", message)
        .hint("`rhizome sandbox list --all` shows what runs where")
}

impl Node {
    /// Returns the nodes that run the sandbox `wanted`: one, or an error.
    async fn where_it_runs(&self, wanted: &str) -> Result<Vec<NodeId>, ApiError> {
        let all = self.sandboxes_everywhere().await?.sandboxes;
        let by_id = |one: &&Sandbox| one.id == wanted;
        let by_name = |one: &&Sandbox| one.name.as_deref() == Some(wanted);
        let by_prefix = |one: &&Sandbox| wanted.len() >= MIN_PREFIX && one.id.starts_with(wanted);
        let matches: [&dyn Fn(&&Sandbox) -> bool; 3] = [&by_id, &by_name, &by_prefix];
        let runs = |one: &&Sandbox| !ENDED.contains(&one.state.as_str());
        for named in matches {
            let found = all.iter().filter(runs).filter(|one| named(one));
            let nodes = found.filter_map(|one| one.node.as_ref()?.id.parse().ok());
            let nodes: BTreeSet<NodeId> = nodes.collect();
            match nodes.len() {
                0 => {}
                1 => return Ok(nodes.into_iter().collect()),
                _ => {
                    let message = "several nodes run a sandbox of that name";
                    return Err(ApiError::bad_request(message)
                        .hint("name it by its id; `rhizome sandbox list --all` shows it"));
                }
            }
        }
        Err(nowhere(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_a_volume_in_a_sandbox_is_told() {
        let of = |method: Method, path: &str| is_of_a_volume(&method, path);
        assert!(of(Method::POST, "/v1/volumes/work/attach"));
        assert!(of(Method::POST, "/v1/volumes/work/checkpoint"));
        assert!(!of(Method::GET, "/v1/volumes/work/attach"));
        assert!(!of(Method::POST, "/v1/volumes/work/import"));
        assert!(!of(Method::POST, "/v1/volumes/a/b/attach"));
        assert!(!of(Method::POST, "/v1/volumes"));
    }

    #[test]
    fn a_path_names_its_node_and_the_rest_is_passed_on() {
        let uri: Uri = "/v1/on/label%3Dgpu/v1/sandboxes/b/file?path=/a%2Fb"
            .parse()
            .unwrap();
        let (target, path) = split(&uri).unwrap();
        assert_eq!(target, "label=gpu");
        assert_eq!(path, "/v1/sandboxes/b/file?path=/a%2Fb");
        for other in [
            "/v1/on/cloud",
            "/v1/sandboxes",
            "/v1/on/%f/v1/status",
            "/v1/on/%ff/v1/x",
        ] {
            assert!(split(&other.parse().unwrap()).is_none(), "{other}");
        }
    }
}
