//! MCP as streamable HTTP, at `/mcp`.
use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{Method, StatusCode},
    response::Response,
};
use bytes::Bytes;
use http_body_util::{BodyExt, combinators::BoxBody};
use rmcp::{
    ServerHandler,
    transport::{StreamableHttpServerConfig, StreamableHttpService},
};

use super::{
    MAX_MESSAGE_BYTES, PIPE_PROTOCOL, pipe,
    server::Server,
    session::{Query, Session},
    sessions::Bounded,
};
use crate::{
    api::{
        extract::Params,
        openapi::Operation,
        table::{MCP, Table},
    },
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

/// How often a stream that says nothing shows that it still is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Names under which a loopback listener may be asked for, whatever the port. A page of another name
/// that resolves to us would have its own.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Pages that may ask: those of this machine.
const ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// Returns the routes of MCP, for every caller that has an agent.
pub(crate) fn table() -> Table {
    let messages = |operation: &mut Operation<'_>| {
        operation.takes_message();
        operation.answers_message();
    };
    Table::default()
        .route(
            MCP,
            Method::POST,
            "/mcp",
            serve,
            "Send a message of MCP, over streamable HTTP",
        )
        .also(messages)
        .route(
            MCP,
            Method::GET,
            "/mcp",
            serve,
            "Follow what the MCP server says by itself",
        )
        .also(|operation| operation.answers_as("text/event-stream"))
        .route(MCP, Method::DELETE, "/mcp", serve, "End a session of MCP")
        .also(|operation| operation.answers_as("text/plain"))
        .route(
            MCP,
            Method::POST,
            "/v1/mcp/pipe",
            pipe::open,
            "Speak MCP over one connection, a message a line",
        )
        .also(|operation| operation.upgrades(PIPE_PROTOCOL))
}

async fn serve(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<Query>,
    request: Request,
) -> Result<Response, ApiError> {
    let Some(sessions) = node.mcp.of(&caller) else {
        return Err(ApiError::denied("another node's agents have MCP at home"));
    };
    let begins = *request.method() == Method::POST && !request.headers().contains_key(SESSION);
    if begins && sessions.room().await == 0 {
        let message = format!("{} sessions are open already", sessions.limit());
        let full = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_sessions", message);
        return Err(full.hint("end one with DELETE; an idle one ends by itself within the hour"));
    }
    // A stream of its own for what the server says by itself.
    let permit = match *request.method() == Method::GET {
        true => Some(caller.stream_permit(&node)?),
        false => None,
    };
    // No page reaches a Unix socket, and its clients name a host as they like.
    let config = config(&node, !matches!(caller, Caller::Owner));
    let (session, profiles) = Session::open(node, caller, query).await?;
    let server = move || Server::new(session.clone(), profiles.clone());
    let response = answer(server, sessions, config, request).await;
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // Given back when the stream ends.
            let _held = &permit;
            frame
        }))
    }))
}

/// Answers one request, with what `server` makes where a session begins.
pub(super) async fn answer<H: ServerHandler>(
    server: impl Fn() -> H + Send + Sync + 'static,
    sessions: Arc<Bounded>,
    config: StreamableHttpServerConfig,
    request: Request,
) -> axum::http::Response<BoxBody<Bytes, Infallible>> {
    let factory = move || Ok(server());
    let service = StreamableHttpService::new(factory, sessions, config);
    service.handle(request).await
}

const SESSION: &str = "mcp-session-id";

/// Returns how requests are taken, `checked` by their host too.
pub(super) fn config(node: &Node, checked: bool) -> StreamableHttpServerConfig {
    let mut config = StreamableHttpServerConfig::default()
        .with_allowed_origins(ORIGINS)
        .enforce_origin_validation();
    config.allowed_hosts = match checked {
        true => HOSTS.map(str::to_owned).to_vec(),
        false => Vec::new(),
    };
    config.sse_keep_alive = Some(KEEP_ALIVE);
    config.max_request_body_bytes = MAX_MESSAGE_BYTES;
    config.cancellation_token = node.stop.clone();
    config
}
