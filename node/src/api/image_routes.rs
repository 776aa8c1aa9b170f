//! The routes of images, for the node's own socket alone.
use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::Method,
};
use rhizome_sandbox::egress::Policy;

use super::{
    extract::{Answered, JsonBody},
    sandbox_routes::with_progress,
    table::{IMAGES, Table},
    types::{
        image::{CommitBody, ImageShown, ImagesRemoved, ImportBody, RecipeBody},
        sandbox::{ImageBody, ImageBuilt, Images},
    },
};
use crate::{daemon::node::Node, error::ApiError};

type Answer<T> = Result<Json<T>, ApiError>;
type Shared = State<Arc<Node>>;

pub(super) fn table() -> Table {
    Table::default()
        .route(IMAGES, Method::GET, "/v1/images", list, "List the images")
        .lists("images", "/id")
        .route(IMAGES, Method::POST, "/v1/images", build, "Build an image")
        .creates()
        .route(
            IMAGES,
            Method::POST,
            "/v1/images/import",
            import,
            "Import an image from a file of the machine",
        )
        .creates()
        .route(
            IMAGES,
            Method::POST,
            "/v1/images/commit",
            commit,
            "Make an image of a sandbox",
        )
        .creates()
        .route(
            IMAGES,
            Method::POST,
            "/v1/images/recipe",
            recipe,
            "Make an image by a recipe",
        )
        .creates()
        .route(
            IMAGES,
            Method::POST,
            "/v1/images/prune",
            prune,
            "Remove the images that nothing needs",
        )
        .route(
            IMAGES,
            Method::GET,
            "/v1/images/{image}",
            show,
            "Show an image",
        )
        .route(
            IMAGES,
            Method::DELETE,
            "/v1/images/{image}",
            remove,
            "Remove an image",
        )
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

async fn build(State(node): Shared, JsonBody(body): JsonBody<ImageBody>) -> Answered<ImageBuilt> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.build_image(body, progress).await
    }))
}

async fn import(State(node): Shared, JsonBody(body): JsonBody<ImportBody>) -> Answered<ImageBuilt> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.import_image(body, progress).await
    }))
}

async fn commit(State(node): Shared, JsonBody(body): JsonBody<CommitBody>) -> Answered<ImageBuilt> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.commit_image(body, progress).await
    }))
}

async fn recipe(State(node): Shared, JsonBody(body): JsonBody<RecipeBody>) -> Answered<ImageBuilt> {
    node.sandboxes()?;
    Ok(with_progress(node, move |node, progress| async move {
        node.build_recipe(body, Policy::default(), progress).await
    }))
}
