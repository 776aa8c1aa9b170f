//! `rhizome quota set|list|remove`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

use super::{Context, Failure};
use crate::{
    api::types::usage::{Per, Quota, QuotaBody, QuotaList, Resource},
    cli::{client::with_query, ui::utc},
};

/// What to do with quotas.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Limit what an agent or a space may use; a limit that is there is replaced
    #[command(after_help = "Examples:
  rhizome quota set --agent mender cpu=2h egress=1GiB
  rhizome quota set --space findings --per month ram='4GiB*100h' sandbox=200h
  rhizome quota set --each-agent disk=10GiB

What runs when its quota is used up is put to sleep within a quarter of a minute, with all that is in
it, and its agent is told; what is to run then is refused. It goes on with `rhizome sandbox resume`
once there is quota again. Disk is what is held at a moment; all else is used up over a day (from
midnight, UTC), a month, or ever.")]
    Set(Set),
    /// List the quotas and how they stand
    List,
    /// Remove quotas
    #[command(after_help = "Examples:
  rhizome quota remove --agent mender cpu
  rhizome quota remove --space findings        all of that space")]
    Remove(Remove),
}

/// Whose.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Whose {
    /// An agent, by name or id
    #[arg(long)]
    agent: Option<String>,
    /// A space, by name or id
    #[arg(long)]
    space: Option<String>,
    /// Each agent that has no such quota of its own
    #[arg(long)]
    each_agent: bool,
    /// Each space that has no such quota of its own
    #[arg(long)]
    each_space: bool,
}

impl Whose {
    fn each(&self) -> Option<String> {
        match (self.each_agent, self.each_space) {
            (true, _) => Some("agent".to_owned()),
            (_, true) => Some("space".to_owned()),
            _ => None,
        }
    }
}

/// What is limited.
#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(flatten)]
    whose: Whose,
    /// Over which time: day, month or ever
    #[arg(long, default_value = "day")]
    per: Per,
    /// cpu=2h, ram=4GiB*8h, disk=10GiB, egress=1GiB, sandbox=24h
    #[arg(required = true, value_name = "RESOURCE=AMOUNT", value_parser = limit)]
    limits: Vec<(Resource, u64)>,
}

/// What is no longer limited.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    whose: Whose,
    /// Only those over this time: day, month or ever
    #[arg(long)]
    per: Option<Per>,
    /// cpu, ram, disk, egress or sandbox; all, if absent
    #[arg(value_name = "RESOURCE")]
    resources: Vec<Resource>,
}

fn limit(text: &str) -> Result<(Resource, u64), String> {
    let (resource, amount) = text
        .split_once('=')
        .ok_or("write what is limited and how much there may be, as in cpu=2h")?;
    let resource: Resource = resource.trim().parse()?;
    Ok((resource, resource.parse_amount(amount)?))
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Set(args) => set(context, args).await,
        Verb::List => {
            let list: QuotaList = context.client.get("/v1/quotas").await?;
            show(
                context,
                &list.quotas,
                "no quotas; set one with `rhizome quota set`",
            )
        }
        Verb::Remove(args) => remove(context, args).await,
    }
}

async fn set(context: &Context, args: Set) -> Result<(), Failure> {
    let limits: BTreeMap<_, _> = args.limits.iter().copied().collect();
    if limits.len() < args.limits.len() {
        return Err(Failure::usage(
            "one resource is limited twice",
            "give each once, or use `--per` in two commands",
        ));
    }
    let body = QuotaBody {
        each: args.whose.each(),
        agent: args.whose.agent,
        space: args.whose.space,
        per: Some(args.per),
        limits,
    };
    let list: QuotaList = context.client.post("/v1/quotas", &body).await?;
    show(context, &list.quotas, "nothing was set")
}

async fn remove(context: &Context, args: Remove) -> Result<(), Failure> {
    let one = |resource: Option<Resource>| {
        let query = [
            ("agent", args.whose.agent.clone()),
            ("space", args.whose.space.clone()),
            ("each", args.whose.each()),
            ("per", args.per.map(|per| per.to_string())),
            ("resource", resource.map(|one| one.to_string())),
        ];
        with_query("/v1/quotas", &query)
    };
    let paths: Vec<_> = match args.resources.is_empty() {
        true => vec![one(None)],
        false => args.resources.iter().map(|of| one(Some(*of))).collect(),
    };
    for path in paths {
        let list: QuotaList = context.client.delete(&path).await?;
        if context.ui.is_json() {
            list.quotas
                .iter()
                .try_for_each(|quota| context.ui.object(quota))?;
            continue;
        }
        for quota in &list.quotas {
            context
                .ui
                .line(&format!("removed the quota {}", title(quota)))?;
        }
    }
    Ok(())
}

fn title(quota: &Quota) -> String {
    format!("{} of {} per {}", quota.resource, whose(quota), quota.per)
}

fn whose(quota: &Quota) -> String {
    match &quota.of {
        Some(named) => format!("{} {named}", quota.kind),
        None => format!("each {}", quota.kind),
    }
}

fn show(context: &Context, quotas: &[Quota], none: &str) -> Result<(), Failure> {
    let columns = ["whose", "what", "per", "used", "limit", "state", "anew at"];
    context.ui.list(quotas, none, columns, |quota: &Quota| {
        let resource = quota.resource;
        [
            whose(quota),
            resource.to_string(),
            quota.per.to_string(),
            quota
                .used
                .map_or_else(|| "-".to_owned(), |used| resource.show_amount(used)),
            resource.show_amount(quota.limit),
            match (quota.over, quota.used) {
                (true, _) => "used up".to_owned(),
                (false, Some(_)) => "ok".to_owned(),
                (false, None) => "-".to_owned(),
            },
            quota.ends_ms.map_or_else(|| "-".to_owned(), utc),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_resource_and_an_amount() {
        assert_eq!(limit("cpu=2h"), Ok((Resource::Cpu, 7_200)));
        assert_eq!(limit("disk=1GiB"), Ok((Resource::Disk, 1 << 30)));
        for bad in ["cpu", "=2h", "cpu=", "cpus=2h", "cpu=2h2"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
