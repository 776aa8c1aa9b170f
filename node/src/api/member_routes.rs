//! The routes of members and of the root, for the node's own socket alone.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};

use super::{
    extract::{JsonBody, Params},
    table::{MESH, Table},
    types::{
        Done,
        member::{
            MemberRestored, MemberRevoked, MemberShown, Members, RestoreMemberBody,
            RevokeMemberParams, RootRotated,
        },
    },
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(
            MESH,
            Method::GET,
            "/v1/members",
            list,
            "List the members, and those who were revoked",
        )
        .lists("members", "/node/id")
        .route(
            MESH,
            Method::GET,
            "/v1/members/{member}",
            show,
            "Show what a member may do, what counts of its chains and what stands against it",
        )
        .route(
            MESH,
            Method::DELETE,
            "/v1/members/{member}",
            revoke,
            "End a node's membership, with what its agents may say",
        )
        .route(
            MESH,
            Method::POST,
            "/v1/members/{member}/restore",
            restore,
            "Give back what was set aside of a node's or an agent's work",
        )
        .route(
            MESH,
            Method::POST,
            "/v1/root/rotate",
            rotate_root,
            "Replace the root by the key that was chosen in advance",
        )
        .route(
            MESH,
            Method::POST,
            "/v1/store/accept",
            accept_copy,
            "Take a store that was put back from a copy for the whole",
        )
}

async fn list(State(node): Shared) -> Answer<Members> {
    node.members().map(Json)
}

async fn show(State(node): Shared, Path(member): Path<String>) -> Answer<MemberShown> {
    node.show_member(&member).map(Json)
}

async fn revoke(
    State(node): Shared,
    Path(member): Path<String>,
    Params(params): Params<RevokeMemberParams>,
) -> Answer<MemberRevoked> {
    node.revoke_member(&member, params).await.map(Json)
}

async fn restore(
    State(node): Shared,
    Path(member): Path<String>,
    JsonBody(body): JsonBody<RestoreMemberBody>,
) -> Answer<MemberRestored> {
    node.restore_member(&member, body).await.map(Json)
}

async fn rotate_root(State(node): Shared) -> Answer<RootRotated> {
    node.rotate_root().await.map(Json)
}

async fn accept_copy(State(node): Shared) -> Answer<Done> {
    node.accept_copy().await.map(Json)
}
