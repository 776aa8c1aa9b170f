//! `rhizome space create|rotate|list`.

use clap::Subcommand;
use rhizome_memory::now_ms;

use super::{Context, Failure, short};
use crate::{
    api::types::mesh::{Space, SpaceBody, SpaceCreated, SpaceRotated, Spaces},
    cli::{client::encode, ui::ago},
};

/// What to do with spaces.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a space: a shared memory with its own members and key
    #[command(after_help = "Example:\n  rhizome space create findings")]
    Create {
        /// Its name
        name: String,
    },
    /// Give a space a new key, before it is due
    #[command(after_help = "Example:
  rhizome space rotate findings

Keys are replaced by themselves every 30 days and when a reader leaves. What was published under
older keys stays readable to those who have them, and to whoever is let in later.")]
    Rotate {
        /// The space, by name or id
        space: String,
    },
    /// List the spaces of the mesh
    List,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create { name } => {
            let created: SpaceCreated = context
                .client
                .post("/v1/spaces", &SpaceBody { name })
                .await?;
            if context.ui.is_json() {
                return context.ui.object(&created);
            }
            context.ui.line(&format!(
                "made the space {} with id {}",
                created.space.name, created.space.id
            ))
        }
        Verb::Rotate { space } => {
            let path = format!("/v1/spaces/{}/rotate", encode(&space));
            let rotated: SpaceRotated = context.client.post(&path, &()).await?;
            if context.ui.is_json() {
                return context.ui.object(&rotated);
            }
            context.ui.line(&format!(
                "the space {} has its key number {}",
                rotated.space, rotated.epoch
            ))
        }
        Verb::List => list(context).await,
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Spaces = context.client.get("/v1/spaces").await?;
    let columns = [
        "space",
        "name",
        "role",
        "members",
        "key",
        "fragments",
        "waiting",
        "quarantined",
        "heads",
    ];
    let now = now_ms();
    let none = "no spaces; make one with `rhizome space create NAME`";
    context
        .ui
        .list(&answer.spaces, none, columns, |space: &Space| {
            [
                short(&space.id),
                space.name.clone(),
                space.role.clone().unwrap_or_else(|| "-".to_owned()),
                space.members.to_string(),
                format!("{} ({})", space.epoch, ago(now, space.epoch_at_ms)),
                space.fragments.to_string(),
                space.waiting.to_string(),
                space.quarantined.to_string(),
                short(&space.heads),
            ]
        })
}
