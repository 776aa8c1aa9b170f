//! Which request goes where. `docs/api.md` lists them for people.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, State},
    http::{Method, StatusCode, Uri},
    middleware,
    response::Response,
    routing::{delete, get, post},
};
use serde::Deserialize;

use super::{
    exec_routes,
    extract::{JsonBody, Lines, Params, parse_json, read_body},
    file_routes, image_routes, lifecycle_routes, network_routes, pool_routes, sandbox_routes,
    types::{
        Done,
        audit::{AuditPage, AuditParams},
        context::{CheckpointBody, Context, ContextParams, Contexts, ContextsParams},
        lifecycle::DownBody,
        memory::{
            ListParams, MemoryList, MemoryShown, PublishBody, Published, RecallBody, Recalled,
            WatchParams, Why,
        },
        mesh::{
            AgentBody, AgentCreated, Agents, ApproveBody, Founded, InitBody, InviteBody,
            InviteClosed, InviteCreated, Invites, JoinBody, JoinRequests, Joined, Peers, SpaceBody,
            SpaceCreated, Spaces,
        },
        node::{Doctor, SelfInfo, Settings, Status},
        runtime::{Runtime, RuntimeDifferences, Runtimes},
        token::{TokenBody, TokenCreated, TokenRevoked, Tokens},
    },
    usage_routes, volume_routes,
};
use crate::{
    control::audit::layer,
    daemon::{caller::Caller, lifecycle::OnDown, memory::WatchStart, node::Node},
    error::ApiError,
    mcp, remote,
};

type Answer<T> = Result<Json<T>, ApiError>;

/// Every route, for whoever can open the node's socket; what is for another node is passed on.
pub(crate) fn owner(node: Arc<Node>) -> Router {
    let dispatch = middleware::from_fn_with_state(Arc::clone(&node), remote::on::dispatch);
    // Before routing: behind the name of a node stands any route.
    Router::new()
        .fallback_service(own_routes(node))
        .layer(dispatch)
}

fn own_routes(node: Arc<Node>) -> Router {
    let routes = shared()
        .merge(sandbox_routes::routes())
        .merge(lifecycle_routes::routes())
        .merge(volume_routes::owner_routes())
        .merge(exec_routes::routes())
        .merge(network_routes::routes())
        .merge(network_routes::secret_routes())
        .merge(usage_routes::routes())
        .merge(remote::routes::owner_routes())
        .route("/v1/status", get(status))
        .route("/v1/peers", get(peers))
        .route("/v1/mesh/init", post(init))
        .route("/v1/mesh/join", post(join))
        .merge(image_routes::routes())
        .merge(pool_routes::routes())
        .route("/v1/config", get(config))
        .route("/v1/invites", get(invites).post(create_invite))
        .route("/v1/invites/requests", get(join_requests))
        .route("/v1/invites/approve", post(approve_join))
        .route("/v1/invites/{invite}", delete(close_invite))
        .route("/v1/spaces", get(spaces).post(create_space))
        .route("/v1/agents", get(agents).post(create_agent))
        .route("/v1/tokens", get(tokens).post(create_token))
        .route("/v1/tokens/{token}", delete(revoke_token))
        .route("/v1/runtimes", get(runtimes))
        .route("/v1/runtimes/{runtime}", get(show_runtime))
        .route("/v1/runtimes/{was}/differences/{is}", get(diff_runtimes))
        .route("/v1/audit", get(audit))
        .route("/v1/doctor", get(doctor))
        .route("/v1/down", post(down))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::clone(&node));
    audited(routes, node).layer(Extension(Caller::Owner))
}

/// What a guest may ask too; `caller` goes with every request.
pub(crate) fn guest(node: Arc<Node>, caller: Caller) -> Router {
    let routes = shared()
        .merge(network_routes::guest_routes())
        .merge(usage_routes::guest_routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::clone(&node));
    audited(routes, node).layer(Extension(caller))
}

/// What some other node may ask; who may what is judged before (`remote::grants`).
pub(crate) fn peer(node: Arc<Node>, caller: Caller) -> Router {
    let routes = sandbox_routes::routes()
        .merge(exec_routes::routes())
        .merge(lifecycle_routes::sandbox_routes())
        .merge(network_routes::routes())
        .merge(volume_routes::peer_routes())
        .merge(remote::routes::peer_routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::clone(&node));
    audited(routes, node).layer(Extension(caller))
}

/// What the holder of a token may ask; how far it reaches is judged before (`api::tcp`), and the
/// caller is an extension of the request.
pub(crate) fn token(node: Arc<Node>) -> Router {
    let routes = shared()
        .merge(sandbox_routes::routes())
        .merge(exec_routes::routes())
        .merge(lifecycle_routes::sandbox_routes())
        .merge(network_routes::token_routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::clone(&node));
    audited(routes, node)
}

fn shared() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/self", get(self_info))
        .route("/v1/memory", get(list).post(publish))
        .route("/v1/memory/{doc}", get(show))
        .route("/v1/recall", post(recall))
        .route("/v1/why/{fragment}", get(why))
        .route("/v1/watch", get(watch))
        .route("/v1/context", get(context))
        .route("/v1/context/checkpoint", post(checkpoint))
        .route("/v1/contexts", get(contexts))
        .merge(file_routes::routes())
        .merge(mcp::http::routes())
}

async fn no_route(uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(120).collect();
    ApiError::new(
        StatusCode::NOT_FOUND,
        "no_route",
        format!("there is nothing at `{path}`"),
    )
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(120).collect();
    let method: String = method.as_str().chars().take(16).collect();
    let message = format!("`{path}` does not take {method}");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", message)
}

async fn self_info(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
) -> Answer<SelfInfo> {
    node.self_info(&caller).await.map(Json)
}

async fn publish(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<PublishBody>,
) -> Answer<Published> {
    node.publish(&caller, body).await.map(Json)
}

async fn recall(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<RecallBody>,
) -> Answer<Recalled> {
    node.recall(&caller, body).await.map(Json)
}

async fn list(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ListParams>,
) -> Answer<MemoryList> {
    node.list(&caller, params).await.map(Json)
}

/// The query of `GET /v1/memory/{doc}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowParams {
    space: Option<String>,
}

async fn show(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<ShowParams>,
) -> Answer<MemoryShown> {
    node.show(&caller, &doc, params.space.as_deref())
        .await
        .map(Json)
}

async fn why(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(fragment): Path<String>,
) -> Answer<Why> {
    node.why(&caller, &fragment).await.map(Json)
}

async fn watch(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<WatchParams>,
) -> Result<Response, ApiError> {
    let scope = caller.readable(&node, params.space.as_deref())?;
    let start = WatchStart::parse(&params)?;
    let permit = caller.stream_permit(&node)?;
    let (lines, response) = Lines::answer();
    let watching = Arc::clone(&node).watch(scope, start, permit, lines);
    node.tasks.spawn(watching);
    Ok(response)
}

async fn checkpoint(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<CheckpointBody>,
) -> Answer<Published> {
    node.checkpoint(&caller, body).await.map(Json)
}

async fn context(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ContextParams>,
) -> Answer<Context> {
    node.context(&caller, params).await.map(Json)
}

async fn contexts(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<ContextsParams>,
) -> Answer<Contexts> {
    node.contexts(&caller, params).await.map(Json)
}

async fn status(State(node): State<Arc<Node>>) -> Answer<Status> {
    node.status().await.map(Json)
}

async fn peers(State(node): State<Arc<Node>>) -> Answer<Peers> {
    node.peers().map(Json)
}

async fn init(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<InitBody>,
) -> Answer<Founded> {
    node.init(body).await.map(Json)
}

async fn join(State(node): State<Arc<Node>>, JsonBody(body): JsonBody<JoinBody>) -> Answer<Joined> {
    node.join(body).await.map(Json)
}

async fn invites(State(node): State<Arc<Node>>) -> Answer<Invites> {
    node.invites().map(Json)
}

async fn create_invite(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<InviteBody>,
) -> Answer<InviteCreated> {
    node.create_invite(body).await.map(Json)
}

async fn close_invite(
    State(node): State<Arc<Node>>,
    Path(invite): Path<String>,
) -> Answer<InviteClosed> {
    node.close_invite(&invite).await.map(Json)
}

async fn join_requests(State(node): State<Arc<Node>>) -> Answer<JoinRequests> {
    Ok(Json(node.join_requests()))
}

async fn approve_join(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<ApproveBody>,
) -> Answer<JoinRequests> {
    node.approve_join(&body).map(Json)
}

async fn config(State(node): State<Arc<Node>>) -> Answer<Settings> {
    Ok(Json(node.settings()))
}

async fn spaces(State(node): State<Arc<Node>>) -> Answer<Spaces> {
    node.spaces().await.map(Json)
}

async fn create_space(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<SpaceBody>,
) -> Answer<SpaceCreated> {
    node.create_space(body).await.map(Json)
}

/// Writes down what the caller of each request, one of its extensions, does with these routes.
fn audited(routes: Router, node: Arc<Node>) -> Router {
    routes.layer(middleware::from_fn_with_state(node, layer::note))
}

async fn audit(
    State(node): State<Arc<Node>>,
    Params(params): Params<AuditParams>,
) -> Answer<AuditPage> {
    node.audit_page(params).await.map(Json)
}

async fn tokens(State(node): State<Arc<Node>>) -> Answer<Tokens> {
    Ok(Json(node.list_tokens()))
}

async fn create_token(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<TokenBody>,
) -> Answer<TokenCreated> {
    node.create_token(body).await.map(Json)
}

async fn revoke_token(
    State(node): State<Arc<Node>>,
    Path(token): Path<String>,
) -> Answer<TokenRevoked> {
    node.revoke_token(token).await.map(Json)
}

async fn runtimes(State(node): State<Arc<Node>>) -> Answer<Runtimes> {
    node.list_runtimes().await.map(Json)
}

async fn show_runtime(
    State(node): State<Arc<Node>>,
    Path(runtime): Path<String>,
) -> Answer<Runtime> {
    node.show_runtime(&runtime).await.map(Json)
}

async fn diff_runtimes(
    State(node): State<Arc<Node>>,
    Path((was, is)): Path<(String, String)>,
) -> Answer<RuntimeDifferences> {
    node.diff_runtimes(&was, &is).await.map(Json)
}

async fn agents(State(node): State<Arc<Node>>) -> Answer<Agents> {
    node.agents_list().map(Json)
}

async fn create_agent(
    State(node): State<Arc<Node>>,
    JsonBody(body): JsonBody<AgentBody>,
) -> Answer<AgentCreated> {
    node.create_agent(body).await.map(Json)
}

/// The query of `GET /v1/doctor`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DoctorParams {
    /// 1 to boot once more instead of trusting what an earlier boot found.
    probe: Option<u8>,
}

async fn doctor(
    State(node): State<Arc<Node>>,
    Params(params): Params<DoctorParams>,
) -> Answer<Doctor> {
    node.doctor(params.probe == Some(1)).await.map(Json)
}

async fn down(State(node): State<Arc<Node>>, body: Body) -> Answer<Done> {
    // Read also when there is nothing in it: closing on a client that still sends looks like a
    // failure.
    let body = read_body(body).await?;
    let body: DownBody = match body.is_empty() {
        true => DownBody::default(),
        false => parse_json(&body)?,
    };
    let what = OnDown::parse(body.sandboxes.as_deref())?;
    node.before_down(what).await?;
    node.set_on_down(what);
    // The connection finishes its answer before it heeds the stop.
    node.stop.cancel();
    Ok(Json(Done::default()))
}
