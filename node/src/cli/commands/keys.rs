//! `rhizome keys show|protect`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Context, Failure};
use crate::{
    api::types::{
        SCHEMA,
        keys::{KeysAtRest, ProtectBody},
    },
    backup, datadir,
    datadir::DataDir,
    prompt::{self, PromptError},
    vault::{AtRest, Vault, VaultError},
};

/// What to do with the keys of this node.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Tell how the keys of this node lie at rest
    Show,
    /// Have the keys of this node lie another way
    #[command(after_help = "Examples:
  rhizome keys protect --with passphrase      asks for it
  rhizome keys protect --with keyring         the desktop's, by `secret-tool`
  rhizome keys protect --with plain           in files that you alone can read

A daemon that starts without anybody there takes the passphrase from the file that
RHIZOME_PASSPHRASE_FILE names, or from its systemd credential `rhizome-passphrase`.
docs/keys.md says against what each of them helps.")]
    Protect {
        #[command(flatten)]
        how: How,
    },
}

/// How keys lie.
#[derive(Debug, Clone, Args)]
pub(crate) struct How {
    /// `plain`, `passphrase` or `keyring`
    #[arg(long, value_parser = ["plain", "passphrase", "keyring"], value_name = "HOW")]
    with: String,
    /// The file with the passphrase on its first line; asked for by default
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let at_rest = match verb {
        Verb::Show => match context.client.get("/v1/keys").await {
            Err(Failure::Unreachable { .. }) => offline(context, None)?,
            answered => answered?,
        },
        Verb::Protect { how } => {
            let body = body(&how.with, how.passphrase_file)?;
            match context.client.post("/v1/keys", &body).await {
                Err(Failure::Unreachable { .. }) => offline(context, Some(body))?,
                answered => answered?,
            }
        }
    };
    tell(context, &at_rest)
}

/// Returns what is asked of the daemon; asks the user for a passphrase that is not given.
pub(super) fn body(with: &str, file: Option<PathBuf>) -> Result<ProtectBody, Failure> {
    let passphrase = match (with, file) {
        ("passphrase", Some(file)) => Some(backup::first_line(&file)?),
        ("passphrase", None) => Some(prompt::new_secret("new passphrase of this node's keys")?),
        _ => None,
    };
    Ok(ProtectBody {
        with: with.to_owned(),
        passphrase: passphrase.map(|passphrase| passphrase.to_string()),
    })
}

fn tell(context: &Context, at_rest: &KeysAtRest) -> Result<(), Failure> {
    if context.ui.is_json() {
        return context.ui.object(at_rest);
    }
    context.ui.line(match AtRest::parse(&at_rest.with) {
        Some(AtRest::Passphrase) => "the keys of this node are under a passphrase",
        Some(AtRest::Keyring) => "the keys of this node are in the keyring of the system",
        _ => "the keys of this node lie in plain files that their owner alone can read",
    })
}

/// Looks, and changes, where no daemon runs.
fn offline(context: &Context, body: Option<ProtectBody>) -> Result<KeysAtRest, Failure> {
    let dir = context
        .data_dir
        .clone()
        .or_else(datadir::this_users_data_dir);
    let dir = dir
        .filter(|dir| dir.join("node.key").exists())
        .ok_or_else(|| {
            let hint = "name its directory with `--data-dir`";
            Failure::usage("there is no node here", hint)
        })?;
    let data = DataDir::lock(&dir).map_err(crate::daemon::StartError::from)?;
    let with = match body {
        None => Vault::at_rest_in(data.path())?,
        Some(ProtectBody { with, passphrase }) => {
            let vault = Vault::open(data.path())?;
            let with = AtRest::parse(&with).expect("clap takes no others");
            vault.protect(with, passphrase.as_deref())?;
            vault.at_rest()
        }
    };
    Ok(KeysAtRest {
        schema: SCHEMA,
        with: with.as_str().to_owned(),
    })
}

impl From<VaultError> for Failure {
    fn from(error: VaultError) -> Self {
        let hint = error.hint();
        Self::of("keys", &error, hint)
    }
}

impl From<PromptError> for Failure {
    fn from(error: PromptError) -> Self {
        let hint = "give it with `--passphrase-file`";
        Self::of("prompt", &error, Some(hint.to_owned()))
    }
}
