//! `rhizome sandbox policy show|set|allow|deny|forget` and `rhizome sandbox denials`.

use clap::{Args, Subcommand};
use rhizome_memory::now_ms;
use rhizome_sandbox::egress::{Denial, Policy, Rule};

use super::{Context, Failure, path_of};
use crate::{
    api::types::network::{Denials, Network, NetworkBody},
    cli::ui::{ago, plain, size},
};

/// What to do with the policy of a sandbox.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what a sandbox may reach
    Show {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Put another policy in the place of the one there is
    #[command(after_help = "Examples:
  rhizome sandbox policy set bench none
  rhizome sandbox policy set bench 'allow example.org, *.pypi.org; deny evil.pypi.org'")]
    Set {
        /// Name, id or unique prefix of one
        sandbox: String,
        /// `none`, `open`, or rules: `allow RULE, RULE; deny RULE`; as it is, if absent
        policy: Option<Policy>,
        /// Secret that it may use; repeat for several. Those it may use now are forgotten
        #[arg(long = "secret", value_name = "NAME")]
        secrets: Vec<String>,
        /// Let it use no secret
        #[arg(long, conflicts_with = "secrets")]
        no_secrets: bool,
    },
    /// Allow more
    #[command(after_help = "Examples:
  rhizome sandbox policy allow bench example.org '*.example.org' 10.0.0.0/8:5432")]
    Allow(Rules),
    /// Deny something, whatever else allows it
    Deny(Rules),
    /// Take rules away, from what is allowed and what is denied
    Forget(Rules),
}

/// Rules for a sandbox.
#[derive(Debug, Args)]
pub(crate) struct Rules {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// A name, `*.` and a name, or addresses as in 10.0.0.0/8; each with `:` and ports if need be
    #[arg(required = true, value_name = "RULE")]
    rules: Vec<String>,
}

/// What a new sandbox may reach.
#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// What it may reach: `none` (the default), `open`, or rules as in `allow example.org`
    #[arg(long, value_name = "POLICY")]
    network: Option<Policy>,
    /// Name or addresses that it may reach, as in example.org, '*.example.org' or 10.0.0.0/8:5432;
    /// repeat for several
    #[arg(long = "allow", value_name = "RULE")]
    allow: Vec<Rule>,
    /// Name or addresses that it may not reach, whatever else allows them; repeat for several
    #[arg(long = "deny", value_name = "RULE")]
    deny: Vec<Rule>,
    /// Secret of the node that it may use without seeing it; repeat for several
    #[arg(long = "secret", value_name = "NAME")]
    pub(super) secrets: Vec<String>,
}

impl NetworkArgs {
    /// Returns the policy, if there is a word about it.
    pub(super) fn policy(self) -> Result<Option<Policy>, Failure> {
        if self.network.is_none() && self.allow.is_empty() && self.deny.is_empty() {
            return Ok(None);
        }
        let base = self.network.unwrap_or_default();
        let allow = base.allowed().iter().cloned().chain(self.allow).collect();
        let deny = base.denied().iter().cloned().chain(self.deny).collect();
        let policy = Policy::new(base.default_is(), allow, deny);
        policy
            .map(Some)
            .map_err(|error| Failure::usage(error.to_string(), "use fewer rules, or wider ones"))
    }
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let (sandbox, body) = match verb {
        Verb::Show { sandbox } => {
            let network: Network = context
                .client
                .get(&format!("{}/policy", path_of(&sandbox)))
                .await?;
            return show(context, &network);
        }
        Verb::Set {
            sandbox,
            policy,
            secrets,
            no_secrets,
        } => {
            let secrets = (no_secrets || !secrets.is_empty()).then_some(secrets);
            (
                sandbox,
                NetworkBody {
                    policy,
                    secrets,
                    ..NetworkBody::default()
                },
            )
        }
        Verb::Allow(Rules { sandbox, rules }) => (
            sandbox,
            NetworkBody {
                allow: rules,
                ..NetworkBody::default()
            },
        ),
        Verb::Deny(Rules { sandbox, rules }) => (
            sandbox,
            NetworkBody {
                deny: rules,
                ..NetworkBody::default()
            },
        ),
        Verb::Forget(Rules { sandbox, rules }) => (
            sandbox,
            NetworkBody {
                forget: rules,
                ..NetworkBody::default()
            },
        ),
    };
    let path = format!("{}/policy", path_of(&sandbox));
    let network: Network = context.client.post(&path, &body).await?;
    show(context, &network)
}

fn show(context: &Context, network: &Network) -> Result<(), Failure> {
    if context.ui.is_json() {
        return context.ui.object(network);
    }
    context.ui.line(&format!("network: {}", network.shown))?;
    if !network.secrets.is_empty() {
        context
            .ui
            .line(&format!("secrets: {}", network.secrets.join(", ")))?;
    }
    let usage = &network.usage;
    context.ui.line(&format!(
        "since the daemon started: {} sent, {} received, {} connections, {} attempts denied",
        size(usage.sent_bytes),
        size(usage.received_bytes),
        usage.connections,
        usage.denied
    ))
}

/// Shows what a sandbox was denied.
pub(crate) async fn denials(context: &Context, sandbox: &str) -> Result<(), Failure> {
    let path = format!("{}/egress/denials", path_of(sandbox));
    let answer: Denials = context.client.get(&path).await?;
    let now = now_ms();
    let columns = [
        "when",
        "times",
        "tried",
        "destination",
        "rule",
        "how to ask",
    ];
    let none = format!("nothing was denied; the policy is: {}", answer.policy);
    context
        .ui
        .list(&answer.denials, &none, columns, |denial: &Denial| {
            [
                ago(now, denial.last_ms),
                denial.count.to_string(),
                denial.attempt.to_string(),
                // A guest chose part of it.
                plain(&denial.denied.destination),
                plain(&denial.denied.rule),
                plain(&denial.denied.how_to_ask),
            ]
        })
}
