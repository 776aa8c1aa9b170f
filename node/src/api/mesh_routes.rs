//! The routes of the mesh: its peers, invites, spaces and agents.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};

use super::{
    extract::{JsonBody, Params},
    table::{MESH, Table},
    types::mesh::{
        AgentBody, AgentCreated, AgentRevoked, Agents, ApproveBody, Founded, InitBody, InviteBody,
        InviteClosed, InviteCreated, Invites, JoinBody, JoinRequests, Joined, Peers, RevokeParams,
        SpaceBody, SpaceCreated, SpaceRotated, Spaces,
    },
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner alone.
pub(super) fn table() -> Table {
    Table::default()
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
            Method::POST,
            "/v1/spaces/{space}/rotate",
            rotate_space,
            "Give a space a new key, before it is due",
        )
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
}

async fn peers(State(node): Shared) -> Answer<Peers> {
    node.peers().map(Json)
}

async fn init(State(node): Shared, JsonBody(body): JsonBody<InitBody>) -> Answer<Founded> {
    node.init(body).await.map(Json)
}

async fn join(State(node): Shared, JsonBody(body): JsonBody<JoinBody>) -> Answer<Joined> {
    node.join(body).await.map(Json)
}

async fn invites(State(node): Shared) -> Answer<Invites> {
    node.invites().map(Json)
}

async fn create_invite(
    State(node): Shared,
    JsonBody(body): JsonBody<InviteBody>,
) -> Answer<InviteCreated> {
    node.create_invite(body).await.map(Json)
}

async fn close_invite(State(node): Shared, Path(invite): Path<String>) -> Answer<InviteClosed> {
    node.close_invite(&invite).await.map(Json)
}

async fn join_requests(State(node): Shared) -> Answer<JoinRequests> {
    Ok(Json(node.join_requests()))
}

async fn approve_join(
    State(node): Shared,
    JsonBody(body): JsonBody<ApproveBody>,
) -> Answer<JoinRequests> {
    node.approve_join(&body).map(Json)
}

async fn spaces(State(node): Shared) -> Answer<Spaces> {
    node.spaces().await.map(Json)
}

async fn create_space(
    State(node): Shared,
    JsonBody(body): JsonBody<SpaceBody>,
) -> Answer<SpaceCreated> {
    node.create_space(body).await.map(Json)
}

async fn rotate_space(State(node): Shared, Path(space): Path<String>) -> Answer<SpaceRotated> {
    node.rotate_space(&space).await.map(Json)
}

async fn agents(State(node): Shared) -> Answer<Agents> {
    node.agents_list().map(Json)
}

async fn create_agent(
    State(node): Shared,
    JsonBody(body): JsonBody<AgentBody>,
) -> Answer<AgentCreated> {
    node.create_agent(body).await.map(Json)
}

async fn revoke_agent(
    State(node): Shared,
    Path(agent): Path<String>,
    Params(params): Params<RevokeParams>,
) -> Answer<AgentRevoked> {
    node.revoke_agent(&agent, params).await.map(Json)
}
