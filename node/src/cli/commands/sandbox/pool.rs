//! `rhizome sandbox pool list|warm|drain`.

use clap::{Args, Subcommand};
use rhizome_memory::now_ms;

use super::{Context, Failure, follow, short};
use crate::{
    api::types::pool::{Drained, Pool, WarmBody},
    cli::ui::{ago, plain, size},
};

/// What to do with the guests that wait.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the guests that wait, with the memory they take
    List,
    /// Boot a guest that waits for the next sandbox of this image and size
    #[command(after_help = "Examples:
  rhizome up --pool 4
  rhizome sandbox pool warm
  rhizome sandbox pool warm --image debian --memory 1024

A sandbox that is created and finds none is booted, and one is made to wait in the background.
Memory, CPUs and image have to be those of the sandbox; the least used go when there are more than `--pool` says.")]
    Warm(Warm),
    /// Let go of the guests that wait; sandboxes that were made from them go on
    Drain,
}

/// For which sandboxes it is to wait.
#[derive(Debug, Args)]
pub(crate) struct Warm {
    /// `minimal`, `debian` or an image id
    #[arg(long, default_value = "minimal")]
    image: String,
    /// Memory in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Virtual CPUs
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let pool: Pool = match verb {
        Verb::List => context.client.get("/v1/pool").await?,
        Verb::Warm(args) => {
            let body = WarmBody {
                image: Some(args.image),
                memory_mib: args.memory,
                vcpus: args.vcpus,
            };
            let lines = context.client.post_lines("/v1/pool", &body).await?;
            follow(context.ui, lines).await?
        }
        Verb::Drain => {
            let drained: Drained = context.client.delete("/v1/pool").await?;
            if context.ui.is_json() {
                return context.ui.object(&drained);
            }
            return context
                .ui
                .line(&format!("{} that waited are gone", drained.drained));
        }
    };
    let now = now_ms();
    let columns = [
        "image",
        "id",
        "memory",
        "vcpus",
        "takes",
        "made",
        "sandboxes",
    ];
    let none = "no guest waits; make one with `rhizome sandbox pool warm`";
    context.ui.list(&pool.guests, none, columns, |guest| {
        [
            plain(&guest.image),
            short(&guest.image_id),
            format!("{} MiB", guest.memory_mib),
            guest.vcpus.to_string(),
            size(guest.resident_bytes),
            ago(now, guest.made_ms),
            guest.taken.to_string(),
        ]
    })
}
