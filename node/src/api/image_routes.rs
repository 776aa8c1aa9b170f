//! The routes of images, for the node's own socket alone.
use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};

use super::{
    extract::JsonBody,
    sandbox_routes::with_progress,
    types::{
        image::{CommitBody, ImageShown, ImagesRemoved, ImportBody, RecipeBody},
        sandbox::{ImageBody, Images},
    },
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/images", get(list).post(build))
        .route("/v1/images/import", post(import))
        .route("/v1/images/commit", post(commit))
        .route("/v1/images/recipe", post(recipe))
        .route("/v1/images/prune", post(prune))
        .route("/v1/images/{image}", get(show).delete(remove))
}

async fn list(State(node): Shared) -> Answer<Images> {
    node.images().await.map(Json)
}

async fn show(State(node): Shared, Path(image): Path<String>) -> Answer<ImageShown> {
    node.show_image(image).await.map(Json)
}

async fn remove(State(node): Shared, Path(image): Path<String>) -> Answer<ImagesRemoved> {
    node.remove_image(&image).await.map(Json)
}

async fn prune(State(node): Shared) -> Answer<ImagesRemoved> {
    node.prune_images().await.map(Json)
}

async fn build(
    State(node): Shared,
    JsonBody(body): JsonBody<ImageBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.build_image(body, progress).await
    }))
}

async fn import(
    State(node): Shared,
    JsonBody(body): JsonBody<ImportBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.import_image(body, progress).await
    }))
}

async fn commit(
    State(node): Shared,
    JsonBody(body): JsonBody<CommitBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.commit_image(body, progress).await
    }))
}

async fn recipe(
    State(node): Shared,
    JsonBody(body): JsonBody<RecipeBody>,
) -> Result<Response, ApiError> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.build_recipe(body, progress).await
    }))
}
