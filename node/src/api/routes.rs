//! Which request goes where, and who may ask it. `docs/api.md` lists them for people.
use std::sync::Arc;

use axum::{
    Extension, Router,
    http::{Method, StatusCode, Uri},
    middleware,
};

use super::{
    backup_routes, context_routes, exec_routes, file_routes,
    idempotency::{self, Keyed},
    image_routes, key_routes, lifecycle_routes, member_routes, memory_routes, mesh_routes,
    network_routes, node_routes, openapi, page, pool_routes, runtime_routes, sandbox_routes,
    table::{self, Described, NODE, Table},
    usage_routes, volume_routes,
};
use crate::{
    control::audit::layer,
    daemon::{caller::Caller, node::Node},
    error::ApiError,
    mcp, remote,
};

/// Every route, for whoever can open the node's socket; what is for another node is passed on.
pub(crate) fn owner(node: Arc<Node>) -> Router {
    let dispatch = middleware::from_fn_with_state(Arc::clone(&node), remote::on::dispatch);
    // Before routing: behind the name of a node stands any route.
    Router::new()
        .fallback_service(own_routes(node))
        .layer(dispatch)
}

fn own_routes(node: Arc<Node>) -> Router {
    asked_by(Caller::Owner, finished(owner_table(), node))
}

/// What a guest may ask too.
pub(crate) fn guest(node: Arc<Node>) -> Router {
    finished(guest_table(), node)
}

/// What some other node may ask; who may what is judged before (`remote::grants`).
pub(crate) fn peer(node: Arc<Node>) -> Router {
    finished(peer_table(), node)
}

/// What the holder of a token may ask; how far it reaches is judged before (`api::tcp`).
pub(crate) fn token(node: Arc<Node>) -> Router {
    finished(token_table(), node)
}

/// Answers `caller` by `routes`, which are made once for all callers rather than for each connection.
pub(crate) fn asked_by(caller: Caller, routes: Router) -> Router {
    Router::new()
        .fallback_service(routes)
        .layer(Extension(caller))
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
        .merge(node_routes::table())
        .merge(mesh_routes::table())
        .merge(runtime_routes::table())
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
        .merge(member_routes::table())
        .merge(backup_routes::table())
        .merge(key_routes::table())
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
        .merge(memory_routes::table())
        .merge(context_routes::table())
        .route(
            NODE,
            Method::GET,
            "/v1/openapi.json",
            openapi::serve,
            "Read this document",
        )
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

/// Writes down what the caller of each request, one of its extensions, does with these routes.
fn audited(routes: Router, node: Arc<Node>) -> Router {
    routes.layer(middleware::from_fn_with_state(node, layer::note))
}
