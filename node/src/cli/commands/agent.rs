//! `rhizome agent create|list|revoke`.

use clap::Subcommand;

use super::{Context, Failure, member, names, seconds, short};
use crate::{
    api::types::mesh::{Agent, AgentBody, AgentCreated, AgentRevoked, Agents},
    cli::{
        client::{encode, with_query},
        ui::utc,
    },
};

/// What to do with agents.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make an agent: a key that stays on this node, and a certificate for it
    #[command(after_help = "Examples:
  rhizome agent create mender --space findings
  rhizome agent create scout --by mender --expires 2h    an agent's own helper")]
    Create {
        /// Its name: letters, digits, `-`, `_`, `.`
        name: String,
        /// Space it may use, by name or id; repeat for several; all of this node's by default
        #[arg(long = "space", value_name = "SPACE")]
        spaces: Vec<String>,
        /// For how long it may act: 24h, 30d; without end by default
        #[arg(long, value_parser = seconds, value_name = "TIME")]
        expires: Option<u64>,
        /// The agent of this node that certifies it: it may do at most what that one may, and falls
        /// with it; the node itself by default
        #[arg(long, value_name = "AGENT")]
        by: Option<String>,
    },
    /// List the agents of the mesh
    List,
    /// End an agent: its key counts no more, and what it said is hidden on every node
    #[command(after_help = "A node may end its own agents, an admin those of others.")]
    Revoke {
        /// Its name or id
        agent: String,
        /// Why, for the log that all members read
        #[arg(long)]
        reason: Option<String>,
        /// What stays of what it said: none, seen, or what is older than 90s, 30m, 24h, 7d
        #[arg(long, default_value = "none", value_name = "WHAT", value_parser = member::keep)]
        keep: String,
    },
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create {
            name,
            spaces,
            expires,
            by,
        } => {
            let spaces = Some(spaces).filter(|spaces| !spaces.is_empty());
            let body = AgentBody {
                name,
                spaces,
                expires_secs: expires,
                by,
            };
            let created: AgentCreated = context.client.post("/v1/agents", &body).await?;
            if context.ui.is_json() {
                return context.ui.object(&created);
            }
            context.ui.line(&format!(
                "made the agent {} with id {}",
                created.agent.name, created.agent.id
            ))
        }
        Verb::List => list(context).await,
        Verb::Revoke {
            agent,
            reason,
            keep,
        } => {
            let path = format!("/v1/agents/{}", encode(&agent));
            let path = with_query(&path, &[("reason", reason), ("keep", Some(keep))]);
            let revoked: AgentRevoked = context.client.delete(&path).await?;
            if context.ui.is_json() {
                return context.ui.object(&revoked);
            }
            context.ui.line(&format!("revoked {}", revoked.agent))
        }
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Agents = context.client.get("/v1/agents").await?;
    let columns = ["agent", "name", "node", "spaces", "until", "key"];
    let none = "no agents; make one with `rhizome agent create NAME`";
    context
        .ui
        .list(&answer.agents, none, columns, |agent: &Agent| {
            [
                short(&agent.id),
                agent.name.clone(),
                agent.node.to_string(),
                agent
                    .spaces
                    .as_deref()
                    .map_or_else(|| "all".to_owned(), |spaces| names(spaces, "none")),
                agent.not_after_ms.map_or_else(|| "-".to_owned(), utc),
                if agent.forked {
                    "forked"
                } else if agent.here {
                    "here"
                } else {
                    "-"
                }
                .to_owned(),
            ]
        })
}
