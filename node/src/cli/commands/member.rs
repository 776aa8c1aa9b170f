//! `rhizome member list|show|approve|revoke|restore|accept-copy`.

use clap::Subcommand;
use rhizome_memory::now_ms;

use super::{Context, Failure, invite, names, seconds, short};
use crate::{
    api::types::{
        Done,
        member::{
            Member, MemberChain, MemberRestored, MemberRevoked, MemberShown, Members,
            RestoreMemberBody,
        },
    },
    cli::{
        client::{encode, with_query},
        ui::{plain, utc},
    },
};

/// What to do with the members of the mesh.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the members, and those who were revoked
    List,
    /// Show a member: its roles, what counts of its agents' chains, what stands against it
    Show {
        /// Its name, id, or a prefix of the id
        member: String,
    },
    /// Let a node in that waits for approval; it then joins again with the same invite
    Approve {
        /// Its id, a prefix of it, or the name it gave itself
        node: String,
    },
    /// End a node's membership, with what its agents may say
    #[command(after_help = "Examples:
  rhizome member revoke laptop --reason left            all that is here of it stays
  rhizome member revoke laptop --keep none              nothing of it stays
  rhizome member revoke laptop --keep 2h                what is dated two hours back and more stays
  rhizome member revoke studio --as-root                an admin is the root's to revoke

The spaces it could read get new keys. What it has read cannot be unread.")]
    Revoke {
        /// Its name, id, or a prefix of the id
        member: String,
        /// Why, for the log that all members read
        #[arg(long)]
        reason: Option<String>,
        /// What stays of what its agents said: seen, none, or what is older than 90s, 30m, 24h, 7d
        #[arg(long, default_value = "seen", value_name = "WHAT", value_parser = keep)]
        keep: String,
        /// Sign with the root key, which has to be on this node
        #[arg(long)]
        as_root: bool,
    },
    /// Give back what was set aside of a node's or an agent's work, as far as it is on this node
    #[command(after_help = "Examples:
  rhizome member restore laptop      what lies beyond the cuts of its revocation
  rhizome member restore mender      the history of that agent which is on this node

It does not let anybody in again: an invite does.")]
    Restore {
        /// A node's or an agent's name, id, or a prefix of the id
        member: String,
        /// Sign with the root key, which has to be on this node
        #[arg(long)]
        as_root: bool,
    },
    /// Take this node's store, which was put back from a copy, for the whole
    #[command(
        after_help = "A store that was put back from a copy publishes nothing in a space \
before it was compared with a peer. If there is no peer any more, this lets it go on; whatever its \
agents had published since the copy was made then counts as a second history of theirs."
    )]
    AcceptCopy,
}

/// Reads what is to stay, as the daemon takes it.
pub(super) fn keep(text: &str) -> Result<String, String> {
    match text {
        "seen" | "none" => Ok(text.to_owned()),
        _ => {
            let ago = seconds(text).map_err(|error| format!("{error}, nor is it seen or none"))?;
            let before = now_ms().saturating_sub(ago.saturating_mul(1_000));
            Ok(format!("before:{before}"))
        }
    }
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => list(context).await,
        Verb::Show { member } => show(context, &member).await,
        Verb::Approve { node } => invite::approve(context, node).await,
        Verb::Revoke {
            member,
            reason,
            keep,
            as_root,
        } => {
            let path = format!("/v1/members/{}", encode(&member));
            let as_root = as_root.then(|| "true".to_owned());
            let query = [
                ("reason", reason),
                ("keep", Some(keep)),
                ("as_root", as_root),
            ];
            revoke(context, &with_query(&path, &query)).await
        }
        Verb::Restore { member, as_root } => restore(context, &member, as_root).await,
        Verb::AcceptCopy => {
            let done: Done = context.client.post("/v1/store/accept", &()).await?;
            if context.ui.is_json() {
                return context.ui.object(&done);
            }
            context.ui.line("this node's store counts as the whole")
        }
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Members = context.client.get("/v1/members").await?;
    if !answer.halted.is_empty() {
        context.ui.status(&format!(
            "the root signed two histories of this mesh, so nothing is administered: {}",
            answer.halted.join(", ")
        ));
    }
    let columns = ["node", "name", "state", "role", "since", "agents", "spaces"];
    let row = |member: &Member| {
        let spaces: Vec<String> = member
            .spaces
            .iter()
            .map(|given| format!("{}: {}", given.space, given.role))
            .collect();
        [
            short(&member.node.id),
            member.node.name.clone(),
            member.state.clone(),
            member.role.clone().unwrap_or_else(|| "-".to_owned()),
            member.since_ms.map_or_else(|| "-".to_owned(), utc),
            member.agents.to_string(),
            if spaces.is_empty() {
                "-".to_owned()
            } else {
                spaces.join(", ")
            },
        ]
    };
    let none = "no members; found a mesh with `rhizome init` or join one with `rhizome join`";
    context.ui.list(&answer.members, none, columns, row)
}

async fn show(context: &Context, member: &str) -> Result<(), Failure> {
    let path = format!("/v1/members/{}", encode(member));
    let shown: MemberShown = context.client.get(&path).await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&shown);
    }
    let Member {
        node, state, role, ..
    } = &shown.member;
    ui.line(&ui.bold(&format!("{} {}", node.name, node.id)))?;
    let role = role
        .as_ref()
        .map_or_else(String::new, |role| format!(", {role}"));
    ui.line(&format!("state: {state}{role}"))?;
    for given in &shown.member.spaces {
        ui.line(&format!("space {}: {}", given.space, given.role))?;
    }
    for revocation in &shown.revocations {
        let by = if revocation.by_root {
            "the root".to_owned()
        } else {
            revocation.by.to_string()
        };
        ui.line(&format!(
            "revoked by {by} at {}: {} ({})",
            utc(revocation.at_ms),
            plain(&revocation.reason),
            short(&revocation.record)
        ))?;
    }
    chains(context, &shown.chains)
}

fn chains(context: &Context, chains: &[MemberChain]) -> Result<(), Failure> {
    for chain in chains {
        let aside = match chain.set_aside {
            0 => String::new(),
            aside => format!(", {aside} set aside"),
        };
        let frozen = if chain.frozen {
            "; it signed two histories"
        } else {
            ""
        };
        context.ui.line(&format!(
            "{} in {}: {} count{aside}{frozen}",
            chain.agent, chain.space, chain.counts
        ))?;
    }
    Ok(())
}

async fn revoke(context: &Context, path: &str) -> Result<(), Failure> {
    let revoked: MemberRevoked = context.client.delete(path).await?;
    if context.ui.is_json() {
        return context.ui.object(&revoked);
    }
    context.ui.line(&format!(
        "revoked {}; {} of its agents' chains stay, up to what was to be kept",
        revoked.member, revoked.kept
    ))?;
    context.ui.line(&format!(
        "spaces with a new key: {}",
        names(&revoked.rekeyed, "none")
    ))?;
    context.ui.status("what it has read cannot be unread");
    Ok(())
}

async fn restore(context: &Context, member: &str, as_root: bool) -> Result<(), Failure> {
    let path = format!("/v1/members/{}/restore", encode(member));
    let body = RestoreMemberBody { as_root };
    let restored: MemberRestored = context.client.post(&path, &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&restored);
    }
    context.ui.line(&format!(
        "the work of {} counts again as far as it is here",
        restored.member
    ))?;
    chains(context, &restored.chains)
}
