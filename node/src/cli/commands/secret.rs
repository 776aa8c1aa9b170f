//! `rhizome secret set|list|rm`.

use std::{
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use rhizome_sandbox::egress::SecretParts;

use super::{Context, Failure};
use crate::{
    api::types::{
        Done,
        network::{SecretSet, SecretShown, Secrets},
    },
    cli::client::encode,
};

/// Longest value that is read, in bytes; the daemon takes less.
const MAX_INPUT: u64 = 64 * 1024;

/// What to do with secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Keep a secret on this node; its value is read from standard input
    #[command(after_help = "Examples:
  rhizome secret set API_KEY --domain api.example.org < key.txt
  rhizome secret set TOKEN --domain git.example.org --header private-token --format '{}' --from token.txt

A sandbox made with `--secret API_KEY` sees a placeholder in RHIZOME_SECRET_API_KEY. In that header of
requests to that domain, over TLS, the node puts the value in its place; the value never enters the sandbox.")]
    Set(Set),
    /// List the secrets of this node, without their values
    List,
    /// Forget secrets
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// The secret.
#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Its name: letters, digits and `_`
    name: String,
    /// The one domain it is sent to
    #[arg(long)]
    domain: String,
    /// The one header it is sent in
    #[arg(long, default_value = "authorization")]
    header: String,
    /// What that header holds, `{}` standing for the value
    #[arg(long, default_value = "Bearer {}")]
    format: String,
    /// Read the value from this file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Set(args) => set(context, args).await,
        Verb::List => list(context).await,
        Verb::Rm { names } => {
            for name in names {
                let done: Done = context
                    .client
                    .delete(&format!("/v1/secrets/{}", encode(&name)))
                    .await?;
                if context.ui.is_json() {
                    context.ui.object(&done)?;
                } else {
                    context.ui.line(&format!("forgot the secret {name}"))?;
                }
            }
            Ok(())
        }
    }
}

async fn set(context: &Context, args: Set) -> Result<(), Failure> {
    // Not an argument: every user of the machine can read those.
    let text = match &args.from {
        Some(path) => read(std::fs::File::open(path)?)?,
        None => {
            if io::stdin().is_terminal() {
                context
                    .ui
                    .status("type the value, then end of file (ctrl-d)");
            }
            read(io::stdin())?
        }
    };
    let body = SecretParts {
        name: args.name,
        domain: args.domain,
        header: args.header,
        format: args.format,
        // Editors and `echo` end files with a line.
        value: text.trim_end_matches(['\r', '\n']).to_owned().into(),
    };
    let made: SecretSet = context.client.post("/v1/secrets", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&made);
    }
    let SecretShown {
        name,
        domain,
        header,
        variable,
        ..
    } = &made.secret;
    context.ui.line(&format!(
        "the secret {name} goes to https://{domain} in the header {header}; a sandbox finds its placeholder in {variable}"
    ))
}

fn read(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(MAX_INPUT).read_to_string(&mut text)?;
    Ok(text)
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Secrets = context.client.get("/v1/secrets").await?;
    let columns = ["secret", "domain", "header", "format", "variable"];
    let none = "no secrets; keep one with `rhizome secret set`";
    context
        .ui
        .list(&answer.secrets, none, columns, |secret: &SecretShown| {
            [
                secret.name.clone(),
                secret.domain.clone(),
                secret.header.clone(),
                secret.format.clone(),
                secret.variable.clone(),
            ]
        })
}
