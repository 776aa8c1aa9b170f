//! `rhizome invite create|list`.

use clap::Subcommand;
use qrcode::{QrCode, render::unicode};

use super::{Context, Failure, names, seconds, short};
use crate::{
    api::types::mesh::{InviteBody, InviteCreated, InviteInfo, Invites},
    cli::ui::utc,
};

/// What to do with invites.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print an invite: whoever has the string can join
    #[command(after_help = "Examples:
  rhizome invite create --space findings             one node, 24 hours, as writer
  rhizome invite create --role reader --uses 5 --expires 7d --qr")]
    Create {
        /// Role in the spaces: relay, reader, writer or admin
        #[arg(long, default_value = "writer")]
        role: String,
        /// Space to open, by name or id; repeat for several; all of this node's by default
        #[arg(long = "space", value_name = "SPACE")]
        spaces: Vec<String>,
        /// How many nodes may use it
        #[arg(long, default_value_t = 1)]
        uses: u16,
        /// For how long it is good: 90s, 30m, 24h, 7d
        #[arg(long, default_value = "24h", value_parser = seconds, value_name = "TIME")]
        expires: u64,
        /// Address to put into it instead of the node's own, as ip:port; repeat for several
        #[arg(long = "addr", value_name = "ADDR")]
        addrs: Vec<String>,
        /// Draw it as a QR code as well
        #[arg(long)]
        qr: bool,
    },
    /// List the invites of the mesh
    List,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create {
            role,
            spaces,
            uses,
            expires,
            addrs,
            qr,
        } => {
            let body = InviteBody {
                role: Some(role),
                spaces,
                uses: Some(uses),
                expires_secs: Some(expires),
                addrs,
            };
            create(context, body, qr).await
        }
        Verb::List => list(context).await,
    }
}

async fn create(context: &Context, body: InviteBody, qr: bool) -> Result<(), Failure> {
    let created: InviteCreated = context.client.post("/v1/invites", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&created);
    }
    context.ui.line(&created.invite)?;
    if qr {
        // Upper-case letters and digits alone keep the code in its compact alphanumeric mode.
        let code = QrCode::new(created.invite.as_bytes());
        let code = code.map_err(|error| {
            Failure::usage(
                format!("cannot draw the invite: {error}"),
                "leave out `--qr`",
            )
        })?;
        let drawn = code.render::<unicode::Dense1x2>().quiet_zone(true).build();
        context.ui.line(&drawn)?;
    }
    let InviteInfo {
        role,
        uses,
        not_after_ms,
        spaces,
        ..
    } = &created.info;
    context.ui.status(&format!(
        "good for {uses} node(s) as {role} until {}; spaces: {}; addresses: {}",
        utc(*not_after_ms),
        names(spaces, "none"),
        created.addrs.join(", ")
    ));
    Ok(())
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Invites = context.client.get("/v1/invites").await?;
    let columns = ["invite", "state", "role", "spaces", "used", "until", "by"];
    context
        .ui
        .list(&answer.invites, "no invites", columns, |invite| {
            [
                short(&invite.id),
                invite.state.clone(),
                invite.role.clone(),
                names(&invite.spaces, "-"),
                format!("{} of {}", invite.used, invite.uses),
                utc(invite.not_after_ms),
                invite.issuer.to_string(),
            ]
        })
}
