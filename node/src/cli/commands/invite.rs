//! `rhizome invite create|list|close|requests|approve`.

use clap::Subcommand;
use qrcode::{QrCode, render::unicode};

use super::{Context, Failure, names, seconds, short};
use crate::{
    api::types::mesh::{
        ApproveBody, InviteBody, InviteClosed, InviteCreated, InviteInfo, Invites, JoinRequest,
        JoinRequests,
    },
    cli::{
        client::encode,
        ui::{headline, utc},
    },
};

/// Characters of a newcomer's name that are shown.
const NAME_WIDTH: usize = 40;

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
        /// Let nobody in whom somebody at this node has not approved
        #[arg(long)]
        approve: bool,
        /// Draw it as a QR code as well
        #[arg(long)]
        qr: bool,
    },
    /// List the invites of the mesh
    List,
    /// Close an invite before it expires; who has joined by it stays
    #[command(visible_alias = "revoke")]
    Close {
        /// The string, the invite's id, or a prefix of it
        invite: String,
    },
    /// List the nodes that wait for approval at this node
    Requests,
    /// Let a node in that waits for approval; it then joins again with the same invite
    Approve {
        /// Its id, a prefix of it, or the name it gave itself
        node: String,
    },
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create {
            role,
            spaces,
            uses,
            expires,
            addrs,
            approve,
            qr,
        } => {
            let body = InviteBody {
                role: Some(role),
                spaces,
                uses: Some(uses),
                expires_secs: Some(expires),
                addrs,
                approve,
            };
            create(context, body, qr).await
        }
        Verb::List => list(context).await,
        Verb::Close { invite } => close(context, &invite).await,
        Verb::Requests => requests(context).await,
        Verb::Approve { node } => approve(context, node).await,
    }
}

async fn close(context: &Context, invite: &str) -> Result<(), Failure> {
    let path = format!("/v1/invites/{}", encode(invite));
    let closed: InviteClosed = context.client.delete(&path).await?;
    if context.ui.is_json() {
        return context.ui.object(&closed);
    }
    let InviteInfo { id, used, uses, .. } = &closed.info;
    context.ui.line(&format!(
        "the invite {} is closed; {used} of {uses} used it",
        short(id)
    ))
}

async fn requests(context: &Context) -> Result<(), Failure> {
    let answer: JoinRequests = context.client.get("/v1/invites/requests").await?;
    let columns = ["node", "name", "invite", "asked", "state"];
    let none = "no node waits for approval";
    context
        .ui
        .list(&answer.requests, none, columns, |request: &JoinRequest| {
            [
                short(&request.node.id),
                headline(&request.node.name, NAME_WIDTH),
                short(&request.invite),
                utc(request.asked_ms),
                if request.approved {
                    "approved"
                } else {
                    "waits"
                }
                .to_owned(),
            ]
        })
}

pub(super) async fn approve(context: &Context, node: String) -> Result<(), Failure> {
    let body = ApproveBody { node };
    let answer: JoinRequests = context.client.post("/v1/invites/approve", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&answer);
    }
    for request in &answer.requests {
        context.ui.line(&format!(
            "approved {} {}; it is let in when it joins again",
            short(&request.node.id),
            headline(&request.node.name, NAME_WIDTH)
        ))?;
    }
    Ok(())
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
