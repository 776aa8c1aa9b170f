//! `rhizome token create|list|revoke`.

use clap::{Args, Subcommand};

use super::{Context, Failure, names, seconds};
use crate::{
    api::types::token::{Token, TokenBody, TokenCreated, TokenRevoked, Tokens},
    cli::{client::encode, ui::utc},
};

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a token and print it once: its holder speaks as one agent, in some spaces
    #[command(after_help = "Examples:
  rhizome token create laptop-agent --agent mender --space findings
  rhizome token create ci --sandboxes --expires 30d

It opens the API at the address of `rhizome up --api`:
  curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:4581/v1/self")]
    Create(Create),
    /// List the tokens of this node, without what is sent
    List,
    /// Revoke tokens: they open nothing from now on, and their streams end
    Revoke {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// The token.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Its name, which the audit log shows: letters, digits, `-`, `_`, `.`
    name: String,
    /// Agent that its holder speaks as [default: the node's own]
    #[arg(long)]
    agent: Option<String>,
    /// Space it opens, by name or id; repeat for several; all of the agent's by default
    #[arg(long = "space", value_name = "SPACE")]
    spaces: Vec<String>,
    /// Let it make and use sandboxes of those spaces
    #[arg(long)]
    sandboxes: bool,
    /// For how long it holds: 24h, 30d; without end by default
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    expires: Option<u64>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create(args) => create(context, args).await,
        Verb::List => list(context).await,
        Verb::Revoke { names } => {
            for name in names {
                let path = format!("/v1/tokens/{}", encode(&name));
                let revoked: TokenRevoked = context.client.delete(&path).await?;
                if context.ui.is_json() {
                    context.ui.object(&revoked)?;
                } else {
                    context.ui.line(&format!("revoked the token {name}"))?;
                }
            }
            Ok(())
        }
    }
}

async fn create(context: &Context, args: Create) -> Result<(), Failure> {
    let body = TokenBody {
        name: args.name,
        agent: args.agent,
        spaces: args.spaces,
        sandboxes: args.sandboxes,
        expires_secs: args.expires,
    };
    let made: TokenCreated = context.client.post("/v1/tokens", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&made);
    }
    // Alone on standard output, so that it can be put into a variable.
    context.ui.line(&made.secret)?;
    context.ui.status(&format!(
        "made the token {} for the agent {} in {}; it is not shown again",
        made.token.name,
        made.token.agent,
        names(&made.token.spaces, "no space")
    ));
    Ok(())
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Tokens = context.client.get("/v1/tokens").await?;
    let columns = ["token", "agent", "spaces", "sandboxes", "made", "until"];
    let none = "no tokens; make one with `rhizome token create NAME`";
    context
        .ui
        .list(&answer.tokens, none, columns, |token: &Token| {
            [
                token.name.clone(),
                token.agent.to_string(),
                names(&token.spaces, "none"),
                if token.sandboxes { "yes" } else { "no" }.to_owned(),
                utc(token.created_ms),
                token.not_after_ms.map_or_else(|| "-".to_owned(), utc),
            ]
        })
}
