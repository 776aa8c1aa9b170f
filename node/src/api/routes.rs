//! Which request goes where. `docs/api.md` lists them for people.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    middleware,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    exec_routes,
    extract::{Events, JsonBody, Lines, Params},
    file_routes,
    idempotency::{self, Keyed},
    image_routes, lifecycle_routes, network_routes, openapi, page, pool_routes, sandbox_routes,
    sse,
    table::{self, CONTEXTS, Described, MEMORY, MESH, NODE, RUNTIMES, Table},
    types::{
        Done,
        audit::{AuditPage, AuditParams},
        context::{CheckpointBody, Context, ContextParams, Contexts, ContextsParams},
        e2b::E2bDoor,
        import::{ImportBody, Imported},
        lifecycle::DownBody,
        memory::{
            ListParams, MemoryHistory, MemoryList, MemoryShown, PublishBody, Published, RecallBody,
            Recalled, RetractParams, WatchEvent, WatchParams, Why,
        },
        mesh::{
            AgentBody, AgentCreated, AgentRevoked, Agents, ApproveBody, Founded, InitBody,
            InviteBody, InviteClosed, InviteCreated, Invites, JoinBody, JoinRequests, Joined,
            Peers, RevokeParams, SpaceBody, SpaceCreated, Spaces,
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
    finished(owner_table(), node).layer(Extension(Caller::Owner))
}

/// What a guest may ask too; `caller` goes with every request.
pub(crate) fn guest(node: Arc<Node>, caller: Caller) -> Router {
    finished(guest_table(), node).layer(Extension(caller))
}

/// What some other node may ask; who may what is judged before (`remote::grants`).
pub(crate) fn peer(node: Arc<Node>, caller: Caller) -> Router {
    finished(peer_table(), node).layer(Extension(caller))
}

/// What the holder of a token may ask; how far it reaches is judged before (`api::tcp`), and the
/// caller is an extension of the request.
pub(crate) fn token(node: Arc<Node>) -> Router {
    finished(token_table(), node)
}

/// Every route with those who may ask it.
pub(crate) fn tables() -> Vec<(Described, Vec<&'static str>)> {
    table::combine(vec![
        ("owner", owner_table()),
        ("token", token_table()),
        ("guest", guest_table()),
        ("peer", peer_table()),
    ])
}

fn owner_table() -> Table {
    shared()
        .merge(sandbox_routes::table())
        .merge(lifecycle_routes::table())
        .merge(volume_routes::owner_table())
        .merge(exec_routes::table())
        .merge(network_routes::table())
        .merge(network_routes::secret_table())
        .merge(usage_routes::table())
        .merge(remote::routes::owner_table())
        .merge(image_routes::table())
        .merge(pool_routes::table())
        .route(
            NODE,
            Method::GET,
            "/v1/status",
            status,
            "Show what the node is doing",
        )
        .route(
            MESH,
            Method::GET,
            "/v1/peers",
            peers,
            "List the peers, this node first",
        )
        .lists("peers", "/node/id")
        .route(
            MESH,
            Method::POST,
            "/v1/mesh/init",
            init,
            "Found a mesh on this node",
        )
        .creates()
        .route(
            MESH,
            Method::POST,
            "/v1/mesh/join",
            join,
            "Join a mesh with an invite",
        )
        .creates()
        .route(
            NODE,
            Method::GET,
            "/v1/config",
            config,
            "Show each setting, and where it came from",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/e2b",
            e2b_door,
            "Show where clients of E2B are answered, and what they have to know",
        )
        .route(
            MESH,
            Method::GET,
            "/v1/invites",
            invites,
            "List the invites",
        )
        .lists("invites", "/id")
        .route(
            MESH,
            Method::POST,
            "/v1/invites",
            create_invite,
            "Make an invite",
        )
        .creates()
        .route(
            MESH,
            Method::GET,
            "/v1/invites/requests",
            join_requests,
            "List who asked to join by an invite that needs approval",
        )
        .lists("requests", "/node/id")
        .route(
            MESH,
            Method::POST,
            "/v1/invites/approve",
            approve_join,
            "Let a node in that asked to join",
        )
        .route(
            MESH,
            Method::DELETE,
            "/v1/invites/{invite}",
            close_invite,
            "Close an invite; who joined by it stays",
        )
        .route(MESH, Method::GET, "/v1/spaces", spaces, "List the spaces")
        .lists("spaces", "/id")
        .route(
            MESH,
            Method::POST,
            "/v1/spaces",
            create_space,
            "Make a space",
        )
        .creates()
        .route(
            MESH,
            Method::GET,
            "/v1/agents",
            agents,
            "List the agents, those of this node first",
        )
        .lists("agents", "/id")
        .route(
            MESH,
            Method::POST,
            "/v1/agents",
            create_agent,
            "Make an agent of this node",
        )
        .creates()
        .route(
            MESH,
            Method::DELETE,
            "/v1/agents/{agent}",
            revoke_agent,
            "End what an agent may say",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/tokens",
            tokens,
            "List the tokens, without what is sent",
        )
        .lists("tokens", "/name")
        .route(
            NODE,
            Method::POST,
            "/v1/tokens",
            create_token,
            "Make a token; its secret is told once",
        )
        .creates()
        .told_once()
        .route(
            NODE,
            Method::DELETE,
            "/v1/tokens/{token}",
            revoke_token,
            "Revoke a token",
        )
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes",
            runtimes,
            "List the runtimes that memories name",
        )
        .lists("runtimes", "/hash")
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes/{runtime}",
            show_runtime,
            "Show what a runtime is made of",
        )
        .route(
            RUNTIMES,
            Method::GET,
            "/v1/runtimes/{was}/differences/{is}",
            diff_runtimes,
            "Tell in what two runtimes differ",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/audit",
            audit,
            "Read who did what on this node",
        )
        .route(
            NODE,
            Method::GET,
            "/v1/doctor",
            doctor,
            "Check what the node needs from its machine",
        )
        .route(NODE, Method::POST, "/v1/down", down, "Stop the daemon")
}

fn guest_table() -> Table {
    shared()
        .merge(network_routes::guest_table())
        .merge(usage_routes::guest_table())
}

fn token_table() -> Table {
    shared()
        .merge(sandbox_routes::table())
        .merge(exec_routes::table())
        .merge(lifecycle_routes::sandbox_table())
        .merge(network_routes::token_table())
}

fn peer_table() -> Table {
    sandbox_routes::table()
        .merge(exec_routes::table())
        .merge(lifecycle_routes::sandbox_table())
        .merge(network_routes::table())
        .merge(volume_routes::peer_table())
        .merge(remote::routes::peer_table())
}

fn shared() -> Table {
    mcp::http::table()
        .merge(file_routes::table())
        .route(
            NODE,
            Method::GET,
            "/v1/openapi.json",
            openapi::serve,
            "Read this document",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/self",
            self_info,
            "Say who asks, and what that one may use",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory",
            list,
            "List memories, newest first",
        )
        .pages("memories", "/doc")
        .route(
            MEMORY,
            Method::POST,
            "/v1/memory",
            publish,
            "Publish a memory",
        )
        .creates()
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory/{doc}",
            show,
            "Show a memory",
        )
        .route(
            MEMORY,
            Method::DELETE,
            "/v1/memory/{doc}",
            retract,
            "Take a memory back; its history stays",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/memory/{doc}/history",
            history,
            "List what was ever said in a memory",
        )
        .route(
            MEMORY,
            Method::POST,
            "/v1/memory/import",
            import,
            "Bring in the memory of another system",
        )
        .route(
            MEMORY,
            Method::POST,
            "/v1/recall",
            recall,
            "Find memories by words, best first",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/why/{fragment}",
            why,
            "Tell why a fragment counts, or what it waits for",
        )
        .route(
            MEMORY,
            Method::GET,
            "/v1/watch",
            watch,
            "Watch what arrives",
        )
        .also(|operation| {
            operation.answers_events();
            let arrival = serde_json::json!({"type": "string", "pattern": "^[0-9]{1,20}$"});
            operation.takes_header(
                "Last-Event-ID",
                arrival,
                "The `id` of the last event one has: as `after`",
            );
        })
        .route(
            CONTEXTS,
            Method::GET,
            "/v1/context",
            context,
            "Show the context of a task",
        )
        .route(
            CONTEXTS,
            Method::POST,
            "/v1/context/checkpoint",
            checkpoint,
            "Add to the context of a task",
        )
        .creates()
        .route(
            CONTEXTS,
            Method::GET,
            "/v1/contexts",
            contexts,
            "List the contexts, last touched first",
        )
        .lists("contexts", "/doc")
}

/// Puts around the routes of `table` what all of them have; the caller is an extension of each
/// request, put around this.
fn finished(table: Table, node: Arc<Node>) -> Router {
    let (routes, described) = table.into_parts();
    let keyed = Keyed::new(Arc::clone(&node), &described);
    let lists = page::Lists::new(&described);
    let routes = routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Arc::clone(&node));
    audited(routes, node)
        .layer(middleware::from_fn_with_state(lists, page::layer))
        // Outside the audit: what is answered again is not done again.
        .layer(middleware::from_fn_with_state(keyed, idempotency::layer))
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
#[derive(Debug, Deserialize, JsonSchema)]
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

async fn retract(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<RetractParams>,
) -> Answer<Published> {
    node.retract(&caller, &doc, params).await.map(Json)
}

async fn import(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ImportBody>,
) -> Answer<Imported> {
    mcp::kg::store::import(&node, &caller, body).await.map(Json)
}

async fn history(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    Path(doc): Path<String>,
    Params(params): Params<ShowParams>,
) -> Answer<MemoryHistory> {
    node.history(&caller, &doc, params.space.as_deref())
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
    headers: HeaderMap,
    Params(params): Params<WatchParams>,
) -> Result<Events<WatchEvent>, ApiError> {
    let scope = caller.readable(&node, params.space.as_deref())?;
    let sse = sse::is_wanted(&headers);
    let params = match sse {
        true => sse::resumed(&headers, params)?,
        false => params,
    };
    let start = WatchStart::parse(&params)?;
    let permit = caller.stream_permit(&node)?;
    let (lines, response) = if sse {
        Lines::events()
    } else {
        Lines::answer()
    };
    let watching = Arc::clone(&node).watch(scope, start, permit, lines);
    node.tasks.spawn(watching);
    Ok(Events::new(response))
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

async fn e2b_door(State(node): State<Arc<Node>>) -> Answer<E2bDoor> {
    node.e2b_door().map(Json)
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

async fn revoke_agent(
    State(node): State<Arc<Node>>,
    Path(agent): Path<String>,
    Params(params): Params<RevokeParams>,
) -> Answer<AgentRevoked> {
    node.revoke_agent(&agent, params).await.map(Json)
}

/// The query of `GET /v1/doctor`.
#[derive(Debug, Deserialize, JsonSchema)]
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

async fn down(
    State(node): State<Arc<Node>>,
    // Read also when there is nothing in it: closing on a client that still sends looks like a
    // failure.
    JsonBody(body): JsonBody<DownBody>,
) -> Answer<Done> {
    let what = OnDown::parse(body.sandboxes.as_deref())?;
    node.before_down(what).await?;
    node.set_on_down(what);
    // The connection finishes its answer before it heeds the stop.
    node.stop.cancel();
    Ok(Json(Done::default()))
}
