//! `rhizome resume`: wake a sandbox here or elsewhere, wherever it went to sleep.

use clap::Args;

use super::{Context, Failure, follow, short};
use crate::{
    api::types::remote::{ResumeBody, Resumed},
    cli::ui::{size, utc},
};

/// What to wake, and where.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// Sandbox by name, id or prefix, or its snapshot by a prefix of its id
    sandbox: String,
    /// Node to wake it on: a name or id, `any`, or `label=NAME[=VALUE]` [default: this one]
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
    /// Wake it as it slept last, though it may run elsewhere, or rely on what is not there
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(context: &Context, args: Resume) -> Result<(), Failure> {
    let body = ResumeBody {
        what: args.sandbox,
        on: args.on,
        force: args.force,
    };
    let lines = context.client.post_lines("/v1/resume", &body).await?;
    let woken: Resumed = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&woken);
    }
    let sandbox = &woken.sandbox;
    let called = sandbox.name.clone().unwrap_or_else(|| short(&sandbox.id));
    let node = sandbox
        .node
        .as_ref()
        .map_or_else(|| "this node".to_owned(), ToString::to_string);
    context.ui.line(&format!(
        "sandbox {called} is {} on {node}, as it was at {} ({} fetched)",
        sandbox.state,
        utc(woken.taken_ms),
        size(woken.fetched_bytes)
    ))?;
    for note in &woken.notes {
        context.ui.status(note);
    }
    Ok(())
}
