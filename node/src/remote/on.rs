//! `/v1/on/<node>/…`: a request of the owner, for another node.
//!
//! Whatever stands behind the node's name is passed on as it is, so every verb of the API works
//! elsewhere as far as the grants there allow. `any` and `label=…` choose a node, for requests
//! that make something; the next best is asked when one refuses.
use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{Method, Uri, uri::PathAndQuery},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{ask::find_node, placement::Wish, proxy};
use crate::{
    api::{
        extract::{parse_json, read_body},
        types::sandbox::SandboxBody,
    },
    daemon::node::Node,
    error::ApiError,
};

/// What such a path begins with.
const PREFIX: &str = "/v1/on/";

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
    Peer(rhizome_identity::NodeId),
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
    if head.method != Method::POST || path.path() != "/v1/sandboxes" {
        return Err(
            ApiError::bad_request("only what is made can be made on a node of our choice").hint(
                "name the node with `--on`; `rhizome sandbox list --all` shows what runs where",
            ),
        );
    }
    let bytes = read_body(body).await?;
    let body: SandboxBody = parse_json(&bytes)?;
    let need = super::placement::Need::of_sandbox(&body);
    let chosen = node.candidates(&wish, &need).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
