//! `rhizome image build|list`.

use clap::Subcommand;

use super::{Context, Failure, follow, short};
use crate::{
    api::types::sandbox::{Image, ImageBody, ImageBuilt, Images},
    cli::ui::{size, utc},
};

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build an image, or find it built already
    #[command(after_help = "Examples:
  rhizome image build minimal
  rhizome image build debian --packages python3-pytest,ripgrep")]
    Build {
        /// `minimal` (a kernel and busybox) or `debian` (bash, python3, git, a C compiler)
        name: String,
        /// Debian packages to add, with commas between
        #[arg(long, value_delimiter = ',', value_name = "LIST")]
        packages: Vec<String>,
    },
    /// List the images that sandboxes can start from
    List,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Build { name, packages } => build(context, ImageBody { name, packages }).await,
        Verb::List => list(context).await,
    }
}

async fn build(context: &Context, body: ImageBody) -> Result<(), Failure> {
    let lines = context.client.post_lines("/v1/images", &body).await?;
    let built: ImageBuilt = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&built);
    }
    let Image {
        id, name, bytes, ..
    } = &built.image;
    context.ui.line(&format!(
        "image {name} is ready: {} ({})",
        short(id),
        size(*bytes)
    ))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Images = context.client.get("/v1/images").await?;
    let columns = ["image", "name", "size", "created", "kernel", "made from"];
    let none = "no images; build one with `rhizome image build minimal`";
    context
        .ui
        .list(&answer.images, none, columns, |image: &Image| {
            let lineage = image.lineage.join(", ");
            [
                short(&image.id),
                image.name.clone(),
                size(image.bytes),
                utc(image.created_ms),
                image.kernel.clone(),
                if lineage.is_empty() {
                    "-".to_owned()
                } else {
                    lineage
                },
            ]
        })
}
