//! Answers a request that carries a key: anew, as before, or with why not.
use std::{collections::BTreeSet, convert::Infallible, sync::Arc};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use rhizome_memory::now_ms;
use serde_json::Value;
use tokio::sync::mpsc;

use super::store::{Answer, Found, Id, IdempotencyError, MAX_ANSWER_BYTES, hash};
use crate::{
    api::{
        extract::{STREAM_QUEUE_LINES, read_body},
        table::{Described, is_for},
    },
    daemon::{caller::Caller, node::Node, node::blocking},
    error::ApiError,
};

/// The header that carries a key.
const HEADER: &str = "idempotency-key";
/// The header of an answer that was given before.
const REPLAYED: &str = "idempotency-replayed";
/// The longest key.
const MAX_KEY: usize = 255;
/// The largest plain answer of a route that makes something.
const MAX_PLAIN_BYTES: usize = 16 * 1024 * 1024;
/// What a stream of progress says when it came to nothing for now: worth another try.
const FOR_NOW: [&str; 8] = [
    "busy",
    "limit_reached",
    "quota_exceeded",
    "disk_full",
    "no_room",
    "stopping",
    "rate_limited",
    "no_sandboxes",
];

/// Routes by method and path.
type Routes = BTreeSet<(String, &'static str)>;

/// What the layer works with: the node, and the routes that make something.
#[derive(Debug, Clone)]
pub(crate) struct Keyed {
    node: Arc<Node>,
    creates: Arc<Routes>,
    untold: Arc<Routes>,
}

impl Keyed {
    pub(crate) fn new(node: Arc<Node>, described: &[Described]) -> Self {
        let of = |wanted: fn(&Described) -> bool| {
            let routes = described.iter().filter(|route| wanted(route));
            let names = routes.map(|route| (route.method.to_string(), route.path));
            Arc::new(names.collect::<Routes>())
        };
        Self {
            node,
            creates: of(|route| route.creates),
            untold: of(|route| route.untold),
        }
    }
}

/// Answers a request with a key once; others pass.
pub(crate) async fn layer(
    State(keyed): State<Keyed>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if route_of(&keyed.creates, &request).is_none() {
        return next.run(request).await;
    }
    if !request.headers().contains_key(HEADER) || request.headers().contains_key(header::UPGRADE) {
        return next.run(request).await;
    }
    match once(keyed, &caller, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

/// Returns the route among `routes` that the request is for.
fn route_of(routes: &Routes, request: &Request) -> Option<&'static str> {
    let method = request.method().as_str();
    let path = request.uri().path();
    let found = routes
        .iter()
        .find(|(of, template)| of == method && is_for(template, path));
    found.map(|(_, template)| *template)
}

async fn once(
    keyed: Keyed,
    caller: &Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let key = key_of(request.headers())?;
    let untold = route_of(&keyed.untold, &request).is_some();
    let (head, body) = request.into_parts();
    let body = read_body(body).await?;
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let asked = hash(&[head.method.as_str().as_bytes(), path.as_bytes(), &body]);
    let (node, whose) = (Arc::clone(&keyed.node), name_of(caller));
    let found = blocking(move || node.keys.begin(&whose, &key, asked, now_ms())).await??;
    let conflict = |code, message: &str, hint: &str| {
        ApiError::new(StatusCode::CONFLICT, code, message).hint(hint)
    };
    let id = match found {
        Found::New(id) => id,
        Found::Answered(answer) => return again(&answer),
        Found::Mismatch => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            let message = "this idempotency key was used for another request";
            return Err(ApiError::new(status, "idempotency_mismatch", message)
                .hint("draw a new key for every new request"));
        }
        Found::Working => {
            return Err(conflict(
                "idempotency_in_progress",
                "the first request with this idempotency key is still being worked on",
                "ask again in a moment with the same key: its answer will be told then",
            ));
        }
        Found::Interrupted => {
            return Err(conflict(
                "idempotency_interrupted",
                "the daemon ended while it worked on the first request with this idempotency key",
                "look whether it was done, and use another key if not",
            ));
        }
    };
    let request = Request::from_parts(head, Body::from(body));
    let node = Arc::clone(&keyed.node);
    // In a task of its own: the work and its answer outlive a client that goes away.
    let work = keyed.node.tasks.spawn(async move {
        let response = next.run(request).await;
        if is_stream(&response) {
            return Ok(relayed(node, id, response));
        }
        kept(&node, id, response, untold).await
    });
    match work.await {
        Ok(answered) => answered,
        Err(error) => {
            keyed.node.keys.interrupt(id);
            Err(ApiError::internal("the work ended in a panic").caused_by(Some(&error)))
        }
    }
}

fn key_of(headers: &HeaderMap) -> Result<String, ApiError> {
    let mut values = headers.get_all(HEADER).iter();
    let key = match (values.next(), values.next()) {
        (Some(key), None) => key.to_str().ok(),
        _ => None,
    };
    let fits = |key: &&str| {
        (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    key.filter(fits).map(str::to_owned).ok_or_else(|| {
        let message = "the idempotency key is not 1 to 255 visible ASCII characters";
        ApiError::new(StatusCode::BAD_REQUEST, "bad_idempotency_key", message)
            .hint("send one `Idempotency-Key`, such as a UUID")
    })
}

fn name_of(caller: &Caller) -> String {
    match caller {
        Caller::Owner => "owner".to_owned(),
        Caller::Guest(guest) => format!("sandbox {}", guest.sandbox),
        Caller::Token(holder) => format!("token {} {}", holder.name, holder.agent),
        Caller::Peer(peer) => format!("node {peer}"),
    }
}

fn again(answer: &Answer) -> Result<Response, ApiError> {
    let Some(body) = &answer.body else {
        let message = "what was asked for with this idempotency key was done, and its answer is not told twice";
        return Err(
            ApiError::new(StatusCode::CONFLICT, "idempotency_told", message)
                .hint("remove what was made, and make it anew with another key"),
        );
    };
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut response = (status, body.clone()).into_response();
    let headers = response.headers_mut();
    if let Ok(kind) = HeaderValue::from_str(&answer.kind) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

fn kind_of(response: &Response) -> String {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.unwrap_or("application/json").to_owned()
}

fn is_stream(response: &Response) -> bool {
    response.status().is_success() && kind_of(response) == "application/x-ndjson"
}

/// Keeps a plain answer, then gives it.
async fn kept(
    node: &Arc<Node>,
    id: Id,
    response: Response,
    untold: bool,
) -> Result<Response, ApiError> {
    let kind = kind_of(&response);
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, MAX_PLAIN_BYTES).await;
    let bytes = bytes.map_err(|_| ApiError::internal("an answer is too large to be kept"))?;
    let for_now = matches!(
        parts.status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::INSUFFICIENT_STORAGE
    );
    let tell = !untold || !parts.status.is_success();
    let answer = (!for_now).then(|| answer_of(parts.status, kind, &bytes, tell));
    keep(node, id, answer).await?;
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn answer_of(status: StatusCode, kind: String, bytes: &[u8], tell: bool) -> Answer {
    let text = std::str::from_utf8(bytes).ok();
    let text = text.filter(|text| tell && text.len() <= MAX_ANSWER_BYTES);
    Answer {
        status: status.as_u16(),
        kind,
        body: text.map(str::to_owned),
    }
}

/// Writes down how a request ended; `None` if it came to nothing for now.
async fn keep(node: &Arc<Node>, id: Id, answer: Option<Answer>) -> Result<(), ApiError> {
    let node = Arc::clone(node);
    blocking(move || match answer {
        Some(answer) => node.keys.finish(id, answer),
        None => node.keys.forget(id),
    })
    .await?
    .map_err(ApiError::from)
}

/// Passes a stream of progress on; its last line is kept before it is told.
fn relayed(node: Arc<Node>, id: Id, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let (sender, mut lines) = mpsc::channel::<Bytes>(STREAM_QUEUE_LINES);
    let tasks = node.tasks.clone();
    tasks.spawn(async move {
        let mut body = body.into_data_stream();
        let mut pending = Vec::new();
        let mut ended = false;
        while let Some(Ok(chunk)) = body.next().await {
            pending.extend_from_slice(&chunk);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                if let Some(last) = last_line(&line) {
                    ended = true;
                    if let Err(error) = keep(&node, id, last).await {
                        tracing::warn!(%error, "an answer to an idempotency key was not kept");
                        node.keys.interrupt(id);
                    }
                }
                // A client that is gone holds nothing up.
                let _ = sender.send(line.into()).await;
            }
        }
        if !ended {
            node.keys.interrupt(id);
        }
    });
    let stream = futures::stream::poll_fn(move |context| {
        let polled = lines.poll_recv(context);
        polled.map(|line| line.map(Ok::<_, Infallible>))
    });
    Response::from_parts(parts, Body::from_stream(stream))
}

/// Returns what to keep of a line, if it is the last one.
#[expect(
    clippy::option_option,
    reason = "no last line, or one of which nothing is kept"
)]
fn last_line(line: &[u8]) -> Option<Option<Answer>> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let kind = "application/x-ndjson".to_owned();
    if value.get("done").is_some() {
        return Some(Some(answer_of(StatusCode::OK, kind, line, true)));
    }
    let code = value.get("error")?["code"].as_str().unwrap_or_default();
    let for_now = FOR_NOW.contains(&code);
    Some((!for_now).then(|| answer_of(StatusCode::OK, kind, line, true)))
}

impl From<IdempotencyError> for ApiError {
    fn from(error: IdempotencyError) -> Self {
        if crate::error::is_disk_full(&error) {
            let status = StatusCode::INSUFFICIENT_STORAGE;
            return Self::of(status, "disk_full", &error)
                .hint("make room on the data directory's disk and try again");
        }
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_header_of_visible_characters() {
        let with = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HEADER, value.parse().unwrap());
            }
            key_of(&headers).is_ok()
        };
        assert!(with(&["a"]) && with(&["0d0f2c60-7c8e-4d1e"]) && with(&[&"k".repeat(255)]));
        for bad in [
            &["a", "b"][..],
            &[""],
            &["a b"],
            &[&"k".repeat(256)],
            &["é"],
        ] {
            assert!(!with(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_last_line_is_the_answer_unless_it_came_to_nothing_for_now() {
        assert!(last_line(b"{\"progress\":{\"step\":\"boot\"}}\n").is_none());
        assert!(last_line(b"{\"done\":{}}\n").unwrap().is_some());
        assert!(
            last_line(b"{\"error\":{\"code\":\"bad_image\"}}\n")
                .unwrap()
                .is_some()
        );
        assert!(
            last_line(b"{\"error\":{\"code\":\"busy\"}}\n")
                .unwrap()
                .is_none()
        );
    }
}
