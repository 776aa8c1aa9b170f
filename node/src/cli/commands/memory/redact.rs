//! `rhizome memory redact`.

use clap::Args;

use super::{Context, Failure};
use crate::{
    api::types::memory::{RedactBody, RedactReceipt},
    cli::client::encode,
};

/// Which memory, and why.
#[derive(Debug, Args)]
pub(crate) struct Redact {
    /// Document id
    doc: String,
    /// Why, in one line that every reader of the space will see
    #[arg(long, default_value = "")]
    reason: String,
    /// Agent to speak as, by name or id; its author by default, or the node's own
    #[arg(long)]
    agent: Option<String>,
    /// Space, by name or id
    #[arg(long)]
    space: Option<String>,
    /// Do not ask first
    #[arg(long)]
    yes: bool,
}

/// Redacts a memory, after asking.
pub(crate) async fn run(context: &Context, args: Redact) -> Result<(), Failure> {
    let Redact {
        doc,
        reason,
        agent,
        space,
        yes,
    } = args;
    let ui = context.ui;
    if !yes {
        ui.ask(
            "Take what this memory says off the disk of every node, for good?",
            "nothing was redacted",
            "add `--yes`",
        )?;
    }
    let body = RedactBody {
        agent,
        space,
        reason,
    };
    let path = format!("/v1/memory/{}/redact", encode(&doc));
    let receipt: RedactReceipt = context.client.post(&path, &body).await?;
    if ui.is_json() {
        return ui.object(&receipt);
    }
    ui.line(&format!("redacted {}", receipt.doc))?;
    if receipt.left > 0 {
        ui.status(&format!(
            "{} of its fragments are of others and stay: their authors may redact them, or an admin of the space",
            receipt.left
        ));
    }
    Ok(())
}
