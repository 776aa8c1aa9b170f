//! Images, as the API shows them.
use std::path::PathBuf;

use axum::http::StatusCode;
use rhizome_sandbox::{
    Progress as SandboxProgress,
    egress::Policy,
    image::{ImageError, ImageInfo, ImportRequest, Recipe, Removed},
};

use super::{
    fail,
    memory::clip,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        SCHEMA,
        image::{
            Ancestor, CommitBody, ImagePart, ImageShown, ImagesRemoved, ImportBody, RecipeBody,
        },
        sandbox::{Image, ImageBody, ImageBuilt, Images},
    },
    error::ApiError,
};

impl Node {
    /// Builds an image, or finds it built.
    pub(crate) async fn build_image(
        &self,
        body: ImageBody,
        progress: SandboxProgress,
    ) -> Result<ImageBuilt, ApiError> {
        let images = self.sandboxes()?.images();
        let built = match &body.name[..] {
            "minimal" if body.packages.is_empty() => images.build_minimal(progress).await,
            "minimal" => {
                return Err(ApiError::bad_request("the minimal image has no packages")
                    .hint("add packages to the image `debian`"));
            }
            "debian" => images.build_debian(&body.packages, progress).await,
            other => {
                let message = format!("there is no recipe for an image `{}`", clip(other));
                return Err(
                    ApiError::new(StatusCode::NOT_FOUND, "unknown_image", message).hint(
                        "the built-in ones are `minimal` and `debian`; others have a file: `--file`",
                    ),
                );
            }
        };
        made(built)
    }

    /// Imports an image of somebody else.
    pub(crate) async fn import_image(
        &self,
        body: ImportBody,
        progress: SandboxProgress,
    ) -> Result<ImageBuilt, ApiError> {
        let request = ImportRequest {
            path: absolute(body.path)?,
            name: body.name,
            reference: body.reference,
            rootfs: body.rootfs,
        };
        made(self.sandboxes()?.images().import(request, progress).await)
    }

    /// Makes an image of a sandbox.
    pub(crate) async fn commit_image(
        &self,
        body: CommitBody,
        progress: SandboxProgress,
    ) -> Result<ImageBuilt, ApiError> {
        let sandboxes = self.sandboxes()?;
        let found = sandboxes.get(&body.sandbox);
        let id = found.map_err(|error| fail::sandbox(&error))?.id;
        made(sandboxes.commit_image(&id, &body.name, progress).await)
    }

    /// Builds an image by a recipe.
    pub(crate) async fn build_recipe(
        &self,
        body: RecipeBody,
        network: Policy,
        progress: SandboxProgress,
    ) -> Result<ImageBuilt, ApiError> {
        let context = absolute(body.context)?;
        let recipe = Recipe::parse(&body.recipe).map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, "bad_recipe", "this is no recipe")
                .caused_by(Some(&error))
        })?;
        let sandboxes = self.sandboxes()?;
        let built = sandboxes.build_image(&recipe, &context, &body.name, network, progress);
        made(built.await)
    }

    /// Lists the images.
    pub(crate) async fn images(&self) -> Result<Images, ApiError> {
        let sandboxes = self.sandboxes()?.clone();
        let found = blocking(move || sandboxes.images().list()).await?;
        let images = found.map_err(|error| fail::image(&error))?;
        Ok(Images {
            schema: SCHEMA,
            images: images.into_iter().map(image_of).collect(),
        })
    }

    /// Shows an image.
    pub(crate) async fn show_image(&self, wanted: String) -> Result<ImageShown, ApiError> {
        let sandboxes = self.sandboxes()?.clone();
        let shown = blocking(move || sandboxes.images().show(&wanted)).await?;
        let details = shown.map_err(|error| fail::image(&error))?;
        let config = details.info.config.clone();
        let parts = details.parts.into_iter().map(|part| ImagePart {
            name: part.name,
            hash: part.hash,
            bytes: part.size,
        });
        let ancestors = details.ancestors.into_iter();
        let users = details.users.iter().map(|dir| dir.display().to_string());
        Ok(ImageShown {
            schema: SCHEMA,
            image: image_of(details.info),
            parts: parts.collect(),
            env: config.env,
            cwd: config.cwd,
            user: config.user,
            command: config.command,
            start: config.start,
            ready: config.ready,
            ancestors: ancestors
                .map(|(name, lineage)| Ancestor { name, lineage })
                .collect(),
            users: users.collect(),
        })
    }

    /// Removes an image.
    pub(crate) async fn remove_image(&self, wanted: &str) -> Result<ImagesRemoved, ApiError> {
        let images = self.sandboxes()?.images();
        gone(images.remove(wanted, rhizome_sandbox::silent()).await)
    }

    /// Removes the images that nobody needs.
    pub(crate) async fn prune_images(&self) -> Result<ImagesRemoved, ApiError> {
        let images = self.sandboxes()?.images();
        gone(images.prune(rhizome_sandbox::silent()).await)
    }
}

pub(super) fn absolute(path: String) -> Result<PathBuf, ApiError> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(ApiError::bad_request("the path is not absolute")
            .hint("the daemon does not know the directory that it is relative to"))
    }
}

fn made(built: Result<ImageInfo, ImageError>) -> Result<ImageBuilt, ApiError> {
    Ok(ImageBuilt {
        schema: SCHEMA,
        image: image_of(built.map_err(|error| fail::image(&error))?),
    })
}

fn gone(removed: Result<Removed, ImageError>) -> Result<ImagesRemoved, ApiError> {
    let removed = removed.map_err(|error| fail::image(&error))?;
    Ok(ImagesRemoved {
        schema: SCHEMA,
        images: removed.images.into_iter().map(image_of).collect(),
        freed_bytes: removed.freed_bytes,
    })
}

fn image_of(info: ImageInfo) -> Image {
    Image {
        id: info.id,
        name: info.name,
        bytes: info.size_bytes,
        created_ms: info.created_ms,
        kernel: info.kernel,
        lineage: info.lineage,
    }
}
