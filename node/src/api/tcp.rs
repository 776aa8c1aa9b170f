//! The API over TCP: for those who have a token, on this machine.
//!
//! Web pages can send requests to loopback too. A page elsewhere is told apart by its `Origin`, and
//! one whose name was made to point here by its `Host`; both are refused before the token is looked
//! at. A token's requests are limited as a guest's are, and it sees nothing outside its spaces.
#[cfg(test)]
mod tests;

use std::{net::IpAddr, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use rhizome_memory::now_ms;

use super::{routes, token::Holder};
use crate::{
    daemon::{caller::Caller, node::Node},
    door::take_turn_of,
    error::ApiError,
    remote::serve::renamed,
};

/// Every route that some token may use, behind the judge of each request.
pub(crate) fn router(node: Arc<Node>) -> Router {
    let admit = middleware::from_fn_with_state(Arc::clone(&node), admit);
    // Before routing: a route sees the path as the judge leaves it.
    Router::new()
        .fallback_service(routes::token(node))
        .layer(admit)
}

/// Lets a request through if it comes from this machine with a token that reaches that far.
async fn admit(State(node): State<Arc<Node>>, mut request: Request, next: Next) -> Response {
    let holder = match admitted(&node, &mut request) {
        Ok(holder) => holder,
        Err(error) => {
            let unknown = error.status() == StatusCode::UNAUTHORIZED;
            let mut response = error.into_response();
            if unknown {
                let scheme = HeaderValue::from_static("Bearer");
                let headers = response.headers_mut();
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            return response;
        }
    };
    let caller = Caller::Token(Arc::clone(&holder));
    request.extensions_mut().insert(caller);
    let response = take_turn_of(&holder.limits, "this token", request, next).await;
    until_revoked(response, &holder)
}

/// Ends a stream once the token that asked for it is revoked.
fn until_revoked(response: Response, holder: &Holder) -> Response {
    let streams = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind == "application/x-ndjson" || kind == "text/event-stream");
    if !streams {
        return response;
    }
    let (parts, body) = response.into_parts();
    let revoked = holder.revoked.clone().cancelled_owned();
    let body = body.into_data_stream().take_until(revoked);
    Response::from_parts(parts, Body::from_stream(body))
}

fn admitted(node: &Node, request: &mut Request) -> Result<Arc<Holder>, ApiError> {
    is_local(request.headers(), request.uri())?;
    let sent = bearer(request.headers())?;
    let holder = node.tokens.holder(sent, now_ms()).ok_or_else(|| {
        let message = "the token is unknown here, was revoked, or has ended";
        ApiError::new(StatusCode::UNAUTHORIZED, "bad_token", message)
            .hint("`rhizome token create` makes one; `rhizome token list` shows those that hold")
    })?;
    if let Some(uri) = judged(node, &holder, request)? {
        *request.uri_mut() = uri;
    }
    Ok(holder)
}

/// Refuses what a web page of another place sends.
fn is_local(headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let denied = |what: &str| {
        let status = StatusCode::FORBIDDEN;
        let message = format!("the request's `{what}` is not an address of this machine");
        ApiError::new(status, "not_local", message)
            .hint("ask `127.0.0.1` or `localhost`; web pages of other places may not ask at all")
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map_err(|_| denied("Host"))?,
        _ => return Err(denied("Host")),
    };
    if !is_loopback(host) || uri.authority().is_some_and(|a| !is_loopback(a.as_str())) {
        return Err(denied("Host"));
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let host = ["http://", "https://"]
            .iter()
            .find_map(|scheme| origin.strip_prefix(scheme));
        if !host.is_some_and(is_loopback) {
            return Err(denied("Origin"));
        }
    }
    Ok(())
}

/// Whether `authority`, a host with or without a port, names this machine.
pub(crate) fn is_loopback(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) => (
                host,
                rest.strip_prefix(':').or(rest.is_empty().then_some("0")),
            ),
            None => return false,
        },
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("0")),
        },
    };
    if port.is_none_or(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
}

/// Returns the token that the request carries.
fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let missing = || {
        let message = "the request carries no token";
        ApiError::new(StatusCode::UNAUTHORIZED, "no_token", message)
            .hint("send `Authorization: Bearer <token>`; `rhizome token create` makes one")
    };
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(missing());
    };
    let text = value.to_str().map_err(|_| missing())?;
    let (scheme, token) = text.split_once(' ').ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(missing());
    }
    Ok(token.trim())
}

/// Says whether the token reaches that far, and under which path the request goes on.
fn judged(node: &Node, holder: &Arc<Holder>, request: &Request) -> Result<Option<Uri>, ApiError> {
    let path = request.uri().path();
    let mut parts = path.split('/').skip(1);
    if (parts.next(), parts.next()) != (Some("v1"), Some("sandboxes")) {
        return Ok(None);
    }
    if !holder.may_sandbox {
        return Err(ApiError::denied("this token opens no sandboxes")
            .hint("make one with `rhizome token create --sandboxes`"));
    }
    let Some(wanted) = parts.next().filter(|wanted| !wanted.is_empty()) else {
        return Ok(None);
    };
    let name = percent_encoding::percent_decode_str(wanted).decode_utf8_lossy();
    let caller = Caller::Token(Arc::clone(holder));
    let info = node.find_sandbox_for(&caller, &name)?;
    renamed(request.uri(), wanted, &info.id.to_string()).map(Some)
}
