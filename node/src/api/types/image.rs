//! What is asked and told of images, beyond building and listing them.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Named, sandbox::Image, schema_number};

/// `POST /v1/images/import`; the answer is a stream of progress and then
/// [`ImageBuilt`](super::sandbox::ImageBuilt).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportBody {
    /// Absolute path on the node's host: an OCI layout, or an archive.
    pub path: String,
    /// Name of the image; what it calls itself if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which of several images in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Whether it is a bare root file system.
    #[serde(default)]
    pub rootfs: bool,
}

/// `POST /v1/images/commit`; answered as an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitBody {
    /// The sandbox: id, prefix or name.
    pub sandbox: String,
    /// Name of the image.
    pub name: String,
}

/// `POST /v1/images/recipe`; answered as an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeBody {
    /// The recipe's text.
    pub recipe: String,
    /// Absolute path on the node's host: where COPY finds its files.
    pub context: String,
    /// Name of the image.
    pub name: String,
}

/// `POST /v1/images/push`; the answer is a stream of progress and then [`ImagePushed`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBody {
    /// The image: name, id or prefix.
    pub image: String,
    /// The node that is to keep it too.
    pub node: String,
}

/// An image that another node has now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePushed {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Its id.
    pub id: String,
    /// Its name here.
    pub name: String,
    /// The node.
    pub node: Named,
    /// Bytes that went over for it; the rest was there.
    pub sent_bytes: u64,
}

/// `GET /v1/images/{image}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageShown {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The image.
    #[serde(flatten)]
    pub image: Image,
    /// Its files.
    pub parts: Vec<ImagePart>,
    /// Environment of every program.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Directory in which programs start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User as whom programs run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What its maker would run in it; nothing runs it by itself.
    #[serde(default)]
    pub command: Vec<String>,
    /// What a recipe starts in the background.
    #[serde(default)]
    pub start: Vec<String>,
    /// What a recipe waits for.
    #[serde(default)]
    pub ready: Vec<String>,
    /// What its root file system was made from, the nearest first.
    pub ancestors: Vec<Ancestor>,
    /// Directories of sandboxes that need it.
    pub users: Vec<String>,
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePart {
    /// Its name.
    pub name: String,
    /// BLAKE3, in hex.
    pub hash: String,
    /// Size.
    pub bytes: u64,
}

/// One root file system in the descent of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ancestor {
    /// Its name; empty for a step of a recipe.
    pub name: String,
    /// How it was made, in words.
    pub lineage: Vec<String>,
}

/// `DELETE /v1/images/{image}`, `POST /v1/images/prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagesRemoved {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The images that are gone.
    pub images: Vec<Image>,
    /// Bytes of disk that this gave back.
    pub freed_bytes: u64,
}
