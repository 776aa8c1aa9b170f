//! `rhizome e2b ca|env`.

use clap::Subcommand;

use super::{Context, Failure};
use crate::api::types::e2b::E2bDoor;

/// What to ask about the door for clients of E2B.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print what to export so that clients of E2B come here
    #[command(after_help = "Example:
  eval \"$(rhizome e2b env)\"
  python3 -c 'from e2b import Sandbox; print(Sandbox.create().commands.run(\"uname -a\").stdout)'")]
    Env,
    /// Print the certificate that clients of E2B have to trust
    #[command(after_help = "Example:\n  rhizome e2b ca > rhizome-e2b.pem")]
    Ca,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let door: E2bDoor = context.client.get("/v1/e2b").await?;
    match verb {
        Verb::Env => env(context, &door),
        Verb::Ca => {
            let Some(path) = &door.ca else {
                return Err(Failure::usage(
                    "clients of E2B are answered without TLS",
                    "start the daemon with `--e2b-tls`",
                ));
            };
            let pem = std::fs::read_to_string(path)?;
            context.ui.line(pem.trim_end())
        }
    }
}

fn env(context: &Context, door: &E2bDoor) -> Result<(), Failure> {
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(door);
    }
    let mut lines = vec![(
        "E2B_API_KEY",
        door.key.clone().unwrap_or_else(|| "anything".to_owned()),
    )];
    if door.domain_mode && door.tls {
        lines.push(("E2B_DOMAIN", door.domain.clone()));
    } else {
        lines.push(("E2B_API_URL", door.url.clone()));
        lines.push(("E2B_SANDBOX_URL", door.url.clone()));
        lines.push(("E2B_VOLUME_API_URL", door.url.clone()));
    }
    if let Some(ca) = &door.ca {
        // The Python client and what it stands on; the JavaScript one.
        lines.push(("SSL_CERT_FILE", ca.clone()));
        lines.push(("NODE_EXTRA_CA_CERTS", ca.clone()));
    }
    for (name, value) in lines {
        let value = value.replace('\'', r"'\''");
        ui.line(&format!("export {name}='{value}'"))?;
    }
    Ok(())
}
