//! The routes of usage, quotas and metrics.
use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{
    extract::{JsonBody, Params},
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
pub(super) fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/usage", get(usage))
        .route(
            "/v1/quotas",
            get(quotas).post(set_quotas).delete(remove_quotas),
        )
        .route("/metrics", get(metrics))
}

/// For a guest.
pub(super) fn guest_routes() -> Router<Arc<Node>> {
    Router::new().route("/v1/usage", get(own_usage))
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
