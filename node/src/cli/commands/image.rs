//! `rhizome image build|import|commit|push|list|show|rm|prune`.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::{Context, Failure, absolute, follow, short};
use crate::{
    api::types::{
        image::{
            CommitBody, ImagePushed, ImageShown, ImagesRemoved, ImportBody, PushBody, RecipeBody,
        },
        sandbox::{Image, ImageBody, ImageBuilt, Images},
    },
    cli::{
        client::encode,
        ui::{plain, size, utc},
    },
};

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build an image, or find it built already
    #[command(after_help = "Examples:
  rhizome image build minimal
  rhizome image build debian --packages python3-pytest,ripgrep
  rhizome image build bench --file Recipe")]
    Build {
        /// `minimal` (a kernel and busybox), `debian` (bash, python3, git, a C compiler), or with
        /// `--file` the name to give
        name: String,
        /// Debian packages to add, with commas between
        #[arg(long, value_delimiter = ',', value_name = "LIST")]
        packages: Vec<String>,
        /// Recipe to build by
        #[arg(long, short, value_name = "PATH", conflicts_with = "packages")]
        file: Option<PathBuf>,
        /// Directory from which the recipe copies; the one it lies in by default
        #[arg(long, value_name = "DIR", requires = "file")]
        context: Option<PathBuf>,
    },
    /// Import an OCI layout (directory or archive) or what `docker save` wrote
    #[command(after_help = "Examples:
  docker save alpine:3.20 > alpine.tar && rhizome image import alpine.tar
  rhizome image import layout/ --name tools
  docker export box > box.tar && rhizome image import box.tar --rootfs --name box")]
    Import {
        /// Directory or archive, plain or compressed with gzip or zstd
        path: PathBuf,
        /// Name to give to it; what it calls itself by default
        #[arg(long)]
        name: Option<String>,
        /// Which of several images in it
        #[arg(long, value_name = "NAME")]
        reference: Option<String>,
        /// Take the archive for a root file system, as `docker export` makes it
        #[arg(long)]
        rootfs: bool,
    },
    /// Make an image of what a running sandbox has on its disk
    Commit {
        /// Id, prefix of an id, or name
        sandbox: String,
        /// Name to give to the image
        #[arg(long)]
        name: String,
    },
    /// Have another node keep an image of this one
    ///
    /// A node that lacks an image fetches it by itself when a sandbox shall start from it.
    #[command(after_help = "Examples:
  rhizome image push tools cloud
  rhizome image push 3f1c9a cloud")]
    Push {
        /// Name, id, or prefix of an id
        image: String,
        /// Name or id of the node
        node: String,
    },
    /// List the images that sandboxes can start from
    #[command(visible_alias = "ls")]
    List,
    /// Show an image: its files, how programs run in it, what it was made from
    Show {
        /// Name, id, or prefix of an id
        image: String,
    },
    /// Remove images; one that a sandbox needs stays
    Rm {
        /// Names, ids, or prefixes of ids
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Remove the images that nobody needs any more
    Prune,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Build {
            name,
            packages,
            file: None,
            ..
        } => make(context, "/v1/images", &ImageBody { name, packages }).await,
        Verb::Build {
            name,
            file: Some(file),
            context: dir,
            ..
        } => {
            let recipe = std::fs::read_to_string(&file)
                .map_err(|error| unreadable("recipe", &file, &error))?;
            let beside = file.parent().filter(|dir| !dir.as_os_str().is_empty());
            let dir = dir.unwrap_or_else(|| beside.unwrap_or(Path::new(".")).to_owned());
            let body = RecipeBody {
                recipe,
                context: found(&dir)?,
                name,
            };
            make(context, "/v1/images/recipe", &body).await
        }
        Verb::Import {
            path,
            name,
            reference,
            rootfs,
        } => {
            let body = ImportBody {
                path: found(&path)?,
                name,
                reference,
                rootfs,
            };
            make(context, "/v1/images/import", &body).await
        }
        Verb::Commit { sandbox, name } => {
            make(context, "/v1/images/commit", &CommitBody { sandbox, name }).await
        }
        Verb::Push { image, node } => push(context, PushBody { image, node }).await,
        Verb::List => list(context).await,
        Verb::Show { image } => show(context, &image).await,
        Verb::Rm { images } => {
            for image in images {
                let path = format!("/v1/images/{}", encode(&image));
                removed(context, &context.client.delete(&path).await?)?;
            }
            Ok(())
        }
        Verb::Prune => {
            let body = serde_json::json!({});
            removed(
                context,
                &context.client.post("/v1/images/prune", &body).await?,
            )
        }
    }
}

/// Names a path that has to be there.
fn found(path: &Path) -> Result<String, Failure> {
    let found = path.canonicalize();
    absolute(&found.map_err(|error| unreadable("file or directory", path, &error))?)
}

fn unreadable(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(
        format!("cannot read the {what} `{}`: {error}", path.display()),
        "check the path and its permissions",
    )
}

async fn make<B: serde::Serialize>(
    context: &Context,
    route: &str,
    body: &B,
) -> Result<(), Failure> {
    let lines = context.client.post_lines(route, body).await?;
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

async fn push(context: &Context, body: PushBody) -> Result<(), Failure> {
    let lines = context.client.post_lines("/v1/images/push", &body).await?;
    let pushed: ImagePushed = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&pushed);
    }
    context.ui.line(&format!(
        "image {} {} is on {} ({} sent)",
        short(&pushed.id),
        pushed.name,
        pushed.node,
        size(pushed.sent_bytes)
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

async fn show(context: &Context, image: &str) -> Result<(), Failure> {
    let path = format!("/v1/images/{}", encode(image));
    let shown: ImageShown = context.client.get(&path).await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&shown);
    }
    let Image {
        id,
        name,
        bytes,
        created_ms,
        kernel,
        lineage,
    } = &shown.image;
    ui.line(&format!("image     {id}"))?;
    ui.line(&format!("name      {name}"))?;
    ui.line(&format!("size      {}", size(*bytes)))?;
    ui.line(&format!("created   {}", utc(*created_ms)))?;
    ui.line(&format!("kernel    {kernel}"))?;
    for line in lineage {
        ui.line(&format!("made from {}", plain(line)))?;
    }
    for part in &shown.parts {
        let hash = short(&part.hash);
        ui.line(&format!(
            "part      {} {} {hash}",
            part.name,
            size(part.bytes)
        ))?;
    }
    // What others wrote into an image cannot drive the terminal.
    let words = |words: &[String]| plain(&words.join(" "));
    for (label, text) in [
        ("directory", shown.cwd.as_deref().map(plain)),
        ("user     ", shown.user.as_deref().map(plain)),
        ("command  ", Some(words(&shown.command))),
        ("start    ", Some(words(&shown.start))),
        ("ready    ", Some(words(&shown.ready))),
    ] {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            ui.line(&format!("{label} {text}"))?;
        }
    }
    for (name, value) in &shown.env {
        ui.line(&format!("env       {}={}", plain(name), plain(value)))?;
    }
    for ancestor in shown.ancestors.iter().skip(1) {
        let name = if ancestor.name.is_empty() {
            "step"
        } else {
            &ancestor.name
        };
        ui.line(&format!(
            "below     {name}: {}",
            plain(&ancestor.lineage.join(", "))
        ))?;
    }
    for user in &shown.users {
        ui.line(&format!("used by   {user}"))?;
    }
    Ok(())
}

fn removed(context: &Context, removed: &ImagesRemoved) -> Result<(), Failure> {
    if context.ui.is_json() {
        return context.ui.object(removed);
    }
    for image in &removed.images {
        context
            .ui
            .line(&format!("removed {} {}", short(&image.id), image.name))?;
    }
    context
        .ui
        .status(&format!("{} of disk given back", size(removed.freed_bytes)));
    Ok(())
}
