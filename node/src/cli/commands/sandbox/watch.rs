//! `rhizome sandbox watch-dir`: what changes in a directory of a sandbox.

use clap::Args;
use futures::StreamExt;

use super::{Context, Failure, path_of};
use crate::{
    api::types::sandbox::FileChange,
    cli::{client::with_query, ui::plain},
};

/// Which directory.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// Absolute path of a directory in it
    path: String,
    /// Watch the directories in it too, now and when they come
    #[arg(short, long)]
    recursive: bool,
}

pub(crate) async fn run(context: &Context, args: Watch) -> Result<(), Failure> {
    let query = [
        ("path", Some(args.path)),
        ("recursive", Some(args.recursive.to_string())),
    ];
    let path = with_query(&format!("{}/watch", path_of(&args.sandbox)), &query);
    let mut lines = context.client.get_lines(&path).await?;
    while let Some(line) = lines.next().await {
        let line = line?;
        if let Some(failure) = Failure::from_line(&line) {
            return Err(failure);
        }
        let change: FileChange =
            serde_json::from_str(&line).map_err(|error| Failure::Protocol(error.to_string()))?;
        if context.ui.is_json() {
            context.ui.object(&change)?;
            continue;
        }
        let slash = if change.dir && !change.path.is_empty() {
            "/"
        } else {
            ""
        };
        // A name is the sandbox's to choose.
        let name = plain(&change.path);
        context
            .ui
            .line(&format!("{:<8} {name}{slash}", change.change))?;
    }
    Err(Failure::Protocol("the daemon went away".to_owned()))
}
