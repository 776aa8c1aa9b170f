//! `rhizome runtime list|show|diff`.

use clap::Subcommand;

use super::{Context, Failure, short};
use crate::{
    api::types::runtime::{Runtime, RuntimeDifferences, RuntimeLine, Runtimes},
    cli::{client::encode, ui::utc},
};

/// What to ask about runtimes.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the runtimes that memories were learned in
    List,
    /// Show what a runtime is made of
    #[command(after_help = "Example:\n  rhizome runtime show bench")]
    Show {
        /// A sandbox, or the hash of a runtime (or the beginning of it)
        runtime: String,
    },
    /// Say in what two runtimes differ
    #[command(after_help = "Example:\n  rhizome runtime diff 3fa9c1 bench")]
    Diff {
        /// A sandbox, or the hash of a runtime
        was: String,
        /// The other one
        is: String,
    },
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let ui = context.ui;
    match verb {
        Verb::List => {
            let answer: Runtimes = context.client.get("/v1/runtimes").await?;
            let none = "no runtimes; the first sandbox with a space tells of its own";
            ui.list(
                &answer.runtimes,
                none,
                ["runtime", "since", "about"],
                |line: &RuntimeLine| [short(&line.hash), utc(line.at_ms), line.about.clone()],
            )
        }
        Verb::Show { runtime } => {
            let path = format!("/v1/runtimes/{}", encode(&runtime));
            let answer: Runtime = context.client.get(&path).await?;
            if ui.is_json() {
                return ui.object(&answer);
            }
            ui.line(&format!("runtime: {}", answer.hash))?;
            for (name, value) in answer.fingerprint.as_object().into_iter().flatten() {
                ui.line(&format!("{name}: {}", spell(value)))?;
            }
            Ok(())
        }
        Verb::Diff { was, is } => {
            let path = format!("/v1/runtimes/{}/differences/{}", encode(&was), encode(&is));
            let answer: RuntimeDifferences = context.client.get(&path).await?;
            if ui.is_json() {
                return ui.object(&answer);
            }
            if answer.differences.is_empty() {
                return ui.line("the two runtimes are the same");
            }
            for difference in &answer.differences {
                ui.line(&difference.to_string())?;
            }
            Ok(())
        }
    }
}

fn spell(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(spell).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", spell(value)))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    }
}
