//! `rhizome audit`.

use clap::Args;

use super::{Context, Failure};
use crate::{
    api::types::audit::{AuditEntry, AuditPage, Who},
    cli::{client::with_query, ui::utc},
};

/// Show who did what on this node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rhizome audit                      the last 100 actions
  rhizome audit --after 0 --json     all from the beginning, 1,000 at a time")]
pub(crate) struct Audit {
    /// Entries from this number on; the newest by default
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

pub(crate) async fn run(context: &Context, args: Audit) -> Result<(), Failure> {
    let query = [
        ("after", args.after.map(|after| after.to_string())),
        ("limit", Some(args.limit.to_string())),
    ];
    let path = with_query("/v1/audit", &query);
    let page: AuditPage = context.client.get(&path).await?;
    let columns = [
        "entry", "when", "who", "action", "on", "outcome", "ms", "detail",
    ];
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    context.ui.list(
        &page.entries,
        "nothing was done here yet",
        columns,
        |entry: &AuditEntry| {
            [
                entry.seq.to_string(),
                utc(entry.at_ms),
                who(&entry.who),
                entry.action.clone(),
                or_none(&entry.on),
                entry.outcome.clone(),
                entry.took_ms.to_string(),
                or_none(&entry.detail),
            ]
        },
    )?;
    if let Some(entry) = page.broken_at {
        context.ui.status(&format!(
            "entry {entry} does not follow from the one before it: the log was changed"
        ));
    }
    Ok(())
}

fn who(who: &Who) -> String {
    let short = |id: &str| id.chars().take(10).collect::<String>();
    match who {
        Who::Owner => "owner".to_owned(),
        Who::Token { name, .. } => format!("token {name}"),
        Who::Daemon => "daemon".to_owned(),
        Who::Node { id } => format!("node {}", short(id)),
        Who::Sandbox { id, .. } => format!("sandbox {}", short(id)),
    }
}
