//! `rhizome root rotate`.

use clap::Subcommand;

use super::{Context, Failure};
use crate::api::types::member::RootRotated;

/// What to do with the root of the mesh.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make the key that was chosen in advance the root, and choose the one after it
    #[command(
        after_help = "Do it when the root key may be known to somebody else: what the old key \
signs from then on counts nowhere. The next root key has to be on this node."
    )]
    Rotate,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Rotate => {
            let rotated: RootRotated = context.client.post("/v1/root/rotate", &()).await?;
            if context.ui.is_json() {
                return context.ui.object(&rotated);
            }
            context
                .ui
                .line(&format!("the root is {} now", rotated.root))?;
            context.ui.status(&format!(
                "its key is in {}, the one that may replace it in {}",
                rotated.root_key, rotated.next_root_key
            ));
            context.ui.status("keep copies of both off this machine");
            Ok(())
        }
    }
}
