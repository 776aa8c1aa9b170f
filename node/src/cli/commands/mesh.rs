//! `rhizome init`, `join`, `peers`.

use std::{io::Read, path::PathBuf};

use clap::Args;
use rhizome_memory::now_ms;

use super::{Context, Failure, short};
use crate::{
    api::types::{
        keys::KeysAtRest,
        mesh::{Founded, InitBody, JoinBody, Joined, Peer, PeerState, Peers},
    },
    cli::ui::{ago, utc},
};

/// Founds a mesh on this node.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rhizome init --name lab --space findings\n  rhizome init --name lab --keys passphrase"
)]
pub(crate) struct Init {
    /// Name of the mesh
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Name of this node in it; by default the one the daemon was started with
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Make a first space
    #[arg(long, value_name = "NAME")]
    space: Option<String>,
    /// How the keys lie at rest: `plain`, `passphrase` or `keyring`; as they do by default
    #[arg(long, value_parser = ["plain", "passphrase", "keyring"], value_name = "HOW")]
    keys: Option<String>,
    /// The file with the passphrase on its first line; asked for by default
    #[arg(long, value_name = "FILE", requires = "keys")]
    passphrase_file: Option<PathBuf>,
}

/// Joins a mesh with an invite.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rhizome join RHZ1...\n  rhizome join - < invite.txt")]
pub(crate) struct Join {
    /// The invite; `-` reads it from standard input
    invite: String,
    /// Name of this node in the mesh; by default the one the daemon was started with
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

pub(crate) async fn init(context: &Context, args: Init) -> Result<(), Failure> {
    let Init {
        name,
        node_name,
        space,
        keys,
        passphrase_file,
    } = args;
    // Asked for first: nothing is founded by whoever changes their mind.
    let keys = keys
        .map(|with| super::keys::body(&with, passphrase_file))
        .transpose()?;
    let body = InitBody {
        name,
        node_name,
        space,
    };
    let founded: Founded = context.client.post("/v1/mesh/init", &body).await?;
    let at_rest: KeysAtRest = match keys {
        Some(body) => context.client.post("/v1/keys", &body).await?,
        None => context.client.get("/v1/keys").await?,
    };
    if context.ui.is_json() {
        return context.ui.object(&founded);
    }
    context.ui.line(&format!(
        "founded the mesh {} with id {}",
        founded.mesh.name, founded.mesh.id
    ))?;
    if let Some(space) = &founded.space {
        context.ui.line(&format!("made the space {}", space.name))?;
    }
    context
        .ui
        .status(&format!("the root key is in {}", founded.root_key));
    context
        .ui
        .status("keep a copy of it off this machine; invite others with `rhizome invite create`");
    if at_rest.with == "plain" {
        context.ui.status(
            "the keys lie in plain files that you alone can read; `rhizome keys protect` seals them",
        );
    }
    Ok(())
}

pub(crate) async fn join(context: &Context, args: Join) -> Result<(), Failure> {
    let invite = match args.invite.as_str() {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(64 * 1024).read_to_string(&mut text);
            read.map_err(|source| Failure::File {
                path: "-".into(),
                source,
            })?;
            text.trim().to_owned()
        }
        invite => invite.to_owned(),
    };
    let body = JoinBody {
        invite,
        node_name: args.node_name,
    };
    context.ui.status("dialling the node that made the invite");
    let joined: Joined = context.client.post("/v1/mesh/join", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&joined);
    }
    context.ui.line(&format!(
        "joined the mesh {} as {}, let in by {}; spaces: {}",
        joined.mesh,
        joined.role,
        joined.by,
        super::names(&joined.spaces, "none")
    ))
}

pub(crate) async fn peers(context: &Context) -> Result<(), Failure> {
    let answer: Peers = context.client.get("/v1/peers").await?;
    let now = now_ms();
    let columns = [
        "node", "name", "state", "since", "path", "rtt", "role", "sync",
    ];
    let row = |peer: &Peer| {
        let (path, rtt) = match &peer.path {
            Some(path) => (
                format!("{} {}", path.kind, path.addr),
                path.rtt_us.map_or_else(|| "-".to_owned(), rtt),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let sync: Vec<_> = peer
            .sync
            .iter()
            .map(|sync| format!("{}: {}", sync.lane, sync.state))
            .collect();
        let since = peer.since_ms.map_or_else(
            || "-".to_owned(),
            |since| format!("{} ({})", utc(since), ago(now, since)),
        );
        [
            short(&peer.node),
            peer.name.clone(),
            state(peer.state).to_owned(),
            since,
            path,
            rtt,
            peer.role.clone(),
            if sync.is_empty() {
                "-".to_owned()
            } else {
                sync.join(", ")
            },
        ]
    };
    let none = "no members; found a mesh with `rhizome init` or join one with `rhizome join`";
    context.ui.list(&answer.peers, none, columns, row)
}

fn state(state: PeerState) -> &'static str {
    match state {
        PeerState::This => "this node",
        PeerState::Connected => "connected",
        PeerState::Gone => "gone",
        PeerState::Never => "never seen",
    }
}

/// Returns a round trip in milliseconds, to a hundredth.
fn rtt(rtt_us: u64) -> String {
    format!("{}.{:02} ms", rtt_us / 1000, rtt_us % 1000 / 10)
}
