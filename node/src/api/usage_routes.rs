//! The routes of usage, quotas and metrics.
use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    http::{Method, header},
    response::{IntoResponse, Response},
};

use super::{
    extract::{JsonBody, Params},
    table::{Table, USAGE},
    types::usage::{OwnUsage, QuotaBody, QuotaList, QuotaParams, UsageAnswer, UsageParams},
};
use crate::{
    control::metrics,
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

/// For the owner alone.
pub(super) fn table() -> Table {
    Table::default()
        .route(
            USAGE,
            Method::GET,
            "/v1/usage",
            usage,
            "Add up what was used, the most first",
        )
        .route(USAGE, Method::GET, "/v1/quotas", quotas, "List the quotas")
        .route(USAGE, Method::POST, "/v1/quotas", set_quotas, "Set quotas")
        .creates()
        .route(
            USAGE,
            Method::DELETE,
            "/v1/quotas",
            remove_quotas,
            "Remove quotas",
        )
        .route(
            USAGE,
            Method::GET,
            "/metrics",
            metrics,
            "Read the figures of the node, for Prometheus",
        )
        .also(|operation| operation.answers_as(metrics::CONTENT_TYPE))
}

/// For a guest.
pub(super) fn guest_table() -> Table {
    Table::default().route(
        USAGE,
        Method::GET,
        "/v1/usage",
        own_usage,
        "Tell what the sandbox that asks used",
    )
}

async fn usage(State(node): Shared, Params(params): Params<UsageParams>) -> Answer<UsageAnswer> {
    node.usage(params).await.map(Json)
}

async fn own_usage(State(node): Shared, Extension(caller): Extension<Caller>) -> Answer<OwnUsage> {
    match caller {
        Caller::Guest(guest) => node.own_usage(&guest).map(Json),
        _ => Err(ApiError::bad_request("this is for what runs in a sandbox")),
    }
}

async fn quotas(State(node): Shared) -> Answer<QuotaList> {
    node.quotas().await.map(Json)
}

async fn set_quotas(State(node): Shared, JsonBody(body): JsonBody<QuotaBody>) -> Answer<QuotaList> {
    node.set_quotas(body).await.map(Json)
}

async fn remove_quotas(
    State(node): Shared,
    Params(params): Params<QuotaParams>,
) -> Answer<QuotaList> {
    node.remove_quotas(params).await.map(Json)
}

async fn metrics(State(node): Shared) -> Result<Response, ApiError> {
    let text = node.metrics().await?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
