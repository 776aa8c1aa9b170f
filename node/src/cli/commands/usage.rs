//! `rhizome usage`.

use clap::Args;
use rhizome_memory::now_ms;

use super::{Context, Failure, names, seconds, short};
use crate::{
    api::types::usage::{By, Resource, UsageAnswer, UsageParams, UsageRow},
    cli::{
        client::with_query,
        ui::{plain, size, utc},
    },
};

/// Show what agents, spaces and sandboxes used of this node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rhizome usage                             each agent, since the beginning
  rhizome usage --by space --since 24h
  rhizome usage --by sandbox --agent mender --json

What a sandbox uses counts for its agent, and in full for each of its spaces; what the versions of a
volume take for its space, and for the agent in whose sandbox they were made. Times are cut to whole
hours, and to whole days beyond three days ago.")]
pub(crate) struct Usage {
    /// A row for each of these
    #[arg(long, value_enum, default_value = "agent")]
    by: By,
    /// From this long ago on; since the beginning, if absent
    #[arg(long, value_name = "LENGTH", value_parser = seconds)]
    since: Option<u64>,
    /// Until this long ago; until now, if absent
    #[arg(long, value_name = "LENGTH", value_parser = seconds)]
    until: Option<u64>,
    /// Only this agent's, by name or id
    #[arg(long)]
    agent: Option<String>,
    /// Only this space's, by name or id
    #[arg(long)]
    space: Option<String>,
}

pub(crate) async fn run(context: &Context, args: Usage) -> Result<(), Failure> {
    let ago = |seconds: u64| now_ms().saturating_sub(seconds.saturating_mul(1_000));
    let params = UsageParams {
        by: Some(args.by),
        from_ms: args.since.map(ago),
        until_ms: args.until.map(ago),
        agent: args.agent,
        space: args.space,
    };
    let by = match args.by {
        By::Agent => "agent",
        By::Space => "space",
        By::Sandbox => "sandbox",
    };
    let query = [
        ("by", Some(by.to_owned())),
        ("from_ms", params.from_ms.map(|ms| ms.to_string())),
        ("until_ms", params.until_ms.map(|ms| ms.to_string())),
        ("agent", params.agent),
        ("space", params.space),
    ];
    let answer: UsageAnswer = context.client.get(&with_query("/v1/usage", &query)).await?;
    if !context.ui.is_json()
        && let Some(from_ms) = answer.from_ms
    {
        let until = utc(answer.until_ms);
        context
            .ui
            .status(&format!("from {} until {until}", utc(from_ms)));
    }
    let columns = [
        by, "cpu", "memory", "ran", "runs now", "disk now", "disk", "sent", "received",
    ];
    let none = "nothing was used here";
    context
        .ui
        .list(&answer.usage, none, columns, |row: &UsageRow| {
            let used = &row.used;
            [
                who(answer.by, row),
                Resource::Cpu.show_amount(used.cpu_ms / 1_000),
                Resource::Ram.show_amount(used.ram_mib_s),
                Resource::Sandbox.show_amount(used.sandbox_ms / 1_000),
                used.running.to_string(),
                size(used.disk_bytes),
                Resource::Ram.show_amount(used.disk_mib_s),
                size(used.sent_bytes),
                size(used.received_bytes),
            ]
        })
}

fn who(by: By, row: &UsageRow) -> String {
    let agent = || row.agent.as_ref().map(ToString::to_string);
    match by {
        By::Agent => agent().unwrap_or_else(|| "(no agent)".to_owned()),
        By::Space => names(&row.spaces, "(no space)"),
        By::Sandbox => match (&row.sandbox, &row.name) {
            (None, _) if row.volume.is_some() => {
                let volume = row.volume.as_deref().unwrap_or_default();
                format!("volume {}", short(volume))
            }
            (Some(_), Some(name)) => plain(name),
            (Some(id), None) => short(id),
            (None, _) => format!("(older, {})", agent().as_deref().unwrap_or("no agent")),
        },
    }
}
