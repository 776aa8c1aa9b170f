//! `rhizome init`, `join`, `peers`, `peers show`.

use std::{io::Read, path::PathBuf};

use clap::{Args, Subcommand};
use rhizome_memory::now_ms;

use super::{Context, Failure, short};
use crate::{
    api::types::{
        keys::KeysAtRest,
        mesh::{Founded, InitBody, JoinBody, Joined, Peer, PeerPath, PeerState, Peers},
    },
    cli::ui::{ago, plain, size, utc},
};

/// Fewest characters of an id that stand for it.
const MIN_PREFIX: usize = 4;

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

/// Shows the members.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rhizome peers\n  rhizome peers show cloud")]
pub(crate) struct PeersArgs {
    #[command(subcommand)]
    verb: Option<PeersVerb>,
}

/// What to show of the members.
#[derive(Debug, Subcommand)]
enum PeersVerb {
    /// Show one member: its addresses, by which path it is reached, and why not directly
    Show {
        /// Its name, its id, or the first characters of its id
        node: String,
    },
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

pub(crate) async fn peers(context: &Context, args: PeersArgs) -> Result<(), Failure> {
    let answer: Peers = context.client.get("/v1/peers").await?;
    let now = now_ms();
    if let Some(PeersVerb::Show { node }) = args.verb {
        return show(context, &answer.peers, &node, now);
    }
    let columns = [
        "node", "name", "state", "since", "path", "rtt", "role", "sync",
    ];
    let row = |peer: &Peer| {
        let (path, rtt) = match &peer.path {
            Some(path) => (
                format!("{} {}", path.kind, way(path)),
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

/// Shows the one member that `wanted` means.
fn show(context: &Context, peers: &[Peer], wanted: &str, now: u64) -> Result<(), Failure> {
    let is_meant = |peer: &&Peer| {
        let is_prefix = wanted.len() >= MIN_PREFIX && peer.node.starts_with(wanted);
        peer.name == wanted || is_prefix
    };
    let mut meant = peers.iter().filter(is_meant);
    let (Some(peer), None) = (meant.next(), meant.next()) else {
        let message = format!("`{wanted}` names no member, or several");
        return Err(Failure::usage(message, "`rhizome peers` lists them"));
    };
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(peer);
    }
    ui.line(&ui.bold(&format!("node {} {}", plain(&peer.name), peer.node)))?;
    let since = peer
        .since_ms
        .map(|since| format!(" since {}", ago(now, since)));
    let since = since.unwrap_or_default();
    ui.line(&format!("state: {}{since}", state(peer.state)))?;
    if let Some(path) = &peer.path {
        let rtt = path.rtt_us.map_or_else(|| "-".to_owned(), rtt);
        ui.line(&format!("path: {} {}, {rtt}", path.kind, way(path)))?;
        if let Some(why) = &path.why {
            ui.line(&format!("not direct: {}", plain(why)))?;
        }
    }
    let addrs = match peer.addrs.is_empty() {
        true => "none".to_owned(),
        false => peer.addrs.join(", "),
    };
    ui.line(&format!("addresses: {addrs}"))?;
    if let Some(relay) = &peer.relay {
        ui.line(&format!("serves the relay {}", plain(relay)))?;
    }
    ui.line(&format!(
        "traffic: {} sent, {} received",
        size(peer.sent_bytes),
        size(peer.received_bytes)
    ))
}

/// Returns where a path leads, and whose relay it leads through.
fn way(path: &PeerPath) -> String {
    let through = path.relay.as_ref().map(|node| &node.name[..]);
    let through = through.map(|name| format!(" of {}", plain(name)));
    format!("{}{}", path.addr, through.unwrap_or_default())
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
