//! `rhizome volume create|list|attach|detach|checkpoint|log|diff|merge|forget|repack|rm|restore|…`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::{Serialize, de::DeserializeOwned};

use super::{Context, Failure, absolute, follow, names, seconds, short};
use crate::{
    api::types::{
        Done,
        volume::{
            Volume, VolumeAttachBody, VolumeBody, VolumeChange, VolumeCheckpointBody,
            VolumeCommitted, VolumeDetachBody, VolumeDiff, VolumeForgetBody, VolumeForgotten,
            VolumeLog, VolumeRepackBody, VolumeRepacked, VolumeShown, VolumeVersion,
            VolumeVersionBody, Volumes,
        },
    },
    cli::{
        client::{encode, with_query},
        ui::{headline, size, utc},
    },
};

/// What to do with volumes.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a volume: a directory tree in a space that outlives every sandbox
    #[command(after_help = "Examples:
  rhizome volume create work
  rhizome volume create work --space findings --from ./project")]
    Create {
        /// Its name
        name: String,
        /// Space it belongs to, if there are several
        #[arg(long)]
        space: Option<String>,
        /// Directory of this machine that it starts as
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// List volumes, their newest versions, who holds those and where they are attached
    #[command(after_help = "Examples:
  rhizome volume list
  rhizome volume list --held-by edge")]
    List {
        /// Space to list, if not all
        #[arg(long)]
        space: Option<String>,
        /// Only volumes of which this node holds a version
        #[arg(long, value_name = "NODE")]
        held_by: Option<String>,
    },
    /// Attach a volume to a sandbox at a path
    #[command(after_help = "Examples:
  rhizome volume attach work bench /work --every 5m
  rhizome volume attach work reader /work --read-only
  rhizome volume attach work bench /work --on edge

What is changed stays in the sandbox until a checkpoint: on request, every so often with
`--every`, when the sandbox hibernates, and when the volume is detached.")]
    Attach(Attach),
    /// Detach a volume from a sandbox, after a checkpoint
    #[command(after_help = "Examples:
  rhizome volume detach work
  rhizome volume detach work --sandbox bench --discard")]
    Detach(Detach),
    /// Make a version of what a volume is now in its sandbox
    #[command(after_help = "Examples:
  rhizome volume checkpoint work -m \"tests pass\"
  rhizome volume checkpoint work --replicas 2")]
    Checkpoint(Checkpoint),
    /// Show the versions of a volume and who holds them, newest first
    Log {
        /// The volume
        volume: String,
        /// Only versions that this node holds
        #[arg(long, value_name = "NODE")]
        held_by: Option<String>,
    },
    /// Show in what two versions differ
    #[command(after_help = "Examples:
  rhizome volume diff work                     the newest and the one before
  rhizome volume diff work 1f2e3d4c 9a8b7c6d")]
    Diff {
        /// The volume
        volume: String,
        /// The older version, or a prefix of its id
        from: Option<String>,
        /// The newer version, if not the newest
        to: Option<String>,
    },
    /// Bring versions together whose writers did not know of each other
    #[command(after_help = "Example:
  rhizome volume merge work

Where both changed the same file, both stay: the newer version's under its name, the other's
beside it under a name that says whose it is.")]
    Merge {
        /// The volume
        volume: String,
        /// Why
        #[arg(short, long, default_value = "")]
        message: String,
    },
    /// Forget versions: the newest and those in sandboxes stay
    #[command(
        disable_version_flag = true,
        after_help = "Examples:
  rhizome volume forget work --keep 10
  rhizome volume forget work --version 1f2e3d4c

Every node that holds them lets go of them; what other versions need too stays."
    )]
    Forget {
        /// The volume
        volume: String,
        /// All but so many of the newest
        #[arg(long, required_unless_present = "version", conflicts_with = "version")]
        keep: Option<usize>,
        /// This version, or a prefix of its id; may be repeated
        #[arg(long)]
        version: Vec<String>,
    },
    /// Put what is still needed of mostly dead and of small packs together
    #[command(after_help = "Examples:
  rhizome volume repack work
  rhizome volume repack work --dry-run

Nodes do this by themselves from time to time. What is given up goes when nothing needs it, an hour
later at the earliest; the other nodes that hold the volume follow.")]
    Repack {
        /// The volume
        volume: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a volume that no sandbox has, with all of its versions
    #[command(after_help = "Example:
  rhizome volume rm work

Every node that holds versions of it lets go of them.")]
    Rm {
        /// The volume
        volume: String,
    },
    /// Make what a version was the newest one; nothing is forgotten
    #[command(
        disable_version_flag = true,
        after_help = "Example:
  rhizome volume restore work 1f2e3d4c"
    )]
    Restore {
        /// The volume
        volume: String,
        /// The version, or a prefix of its id
        version: String,
        /// Why
        #[arg(short, long, default_value = "")]
        message: String,
    },
    /// Write a version to a new directory of this machine
    #[command(
        disable_version_flag = true,
        after_help = "Example:
  rhizome volume export work ./copy --version 1f2e3d4c"
    )]
    Export {
        /// The volume
        volume: String,
        /// The directory, which must not be there yet
        dir: PathBuf,
        /// The version, if not the newest
        #[arg(long)]
        version: Option<String>,
    },
    /// Make a directory of this machine the newest version
    #[command(
        disable_version_flag = true,
        after_help = "Example:
  rhizome volume import work ./project -m \"from the laptop\""
    )]
    Import {
        /// The volume
        volume: String,
        /// The directory
        dir: PathBuf,
        /// The version that it follows, if not the newest
        #[arg(long)]
        version: Option<String>,
        /// Why
        #[arg(short, long, default_value = "")]
        message: String,
    },
}

/// Attach a volume to a sandbox at a path
#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Attach {
    /// The volume
    volume: String,
    /// The sandbox
    sandbox: String,
    /// Absolute path in it
    path: String,
    /// Only to read; many sandboxes may at once
    #[arg(long)]
    read_only: bool,
    /// The version, if not the newest
    #[arg(long)]
    version: Option<String>,
    /// Take the newest also where several do not know of each other
    #[arg(long)]
    newest: bool,
    /// Write also while another sandbox may
    #[arg(long)]
    force: bool,
    /// Time between checkpoints, such as 5m
    #[arg(long, value_parser = seconds, default_value = "0", value_name = "TIME")]
    every: u64,
    /// Node that runs the sandbox, or `any` or `label=<name>` to look for it
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
}

/// Detach a volume from a sandbox
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The volume
    volume: String,
    /// The sandbox, if it is attached to several
    #[arg(long)]
    sandbox: Option<String>,
    /// Drop what was changed since the last checkpoint
    #[arg(long)]
    discard: bool,
    /// Detach also while programs use it
    #[arg(long)]
    force: bool,
    /// Node that runs the sandbox, or `any` or `label=<name>` to look for it
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
}

/// Make a version of a volume
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    /// The volume
    volume: String,
    /// The sandbox, if it is attached to several
    #[arg(long)]
    sandbox: Option<String>,
    /// Why
    #[arg(short, long, default_value = "")]
    message: String,
    /// How many other nodes must hold it
    #[arg(long)]
    replicas: Option<usize>,
    /// Node that runs the sandbox, or `any` or `label=<name>` to look for it
    #[arg(long, value_name = "NODE")]
    on: Option<String>,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Create { name, space, from } => create(context, name, space, from).await,
        Verb::List { space, held_by } => list(context, space, held_by).await,
        Verb::Attach(args) => attach(context, args).await,
        Verb::Detach(args) => detach(context, args).await,
        Verb::Checkpoint(args) => {
            let body = VolumeCheckpointBody {
                sandbox: args.sandbox,
                message: args.message,
                replicas: args.replicas,
            };
            let context = on(context, args.on.as_deref());
            commit(&context, &args.volume, "checkpoint", &body).await
        }
        Verb::Log { volume, held_by } => log(context, &volume, held_by).await,
        Verb::Diff { volume, from, to } => diff(context, &volume, from, to).await,
        Verb::Merge { volume, message } => {
            let body = VolumeVersionBody {
                message,
                ..VolumeVersionBody::default()
            };
            commit(context, &volume, "merge", &body).await
        }
        Verb::Forget {
            volume,
            keep,
            version,
        } => {
            let body = VolumeForgetBody {
                versions: version,
                keep,
            };
            let path = format!("/v1/volumes/{volume}/forget");
            let done: VolumeForgotten = context.client.post(&path, &body).await?;
            if context.ui.is_json() {
                return context.ui.object(&done);
            }
            let (gone, kept) = (done.forgotten.len(), done.kept);
            context
                .ui
                .line(&format!("{gone} versions are forgotten, {kept} are kept"))
        }
        Verb::Repack { volume, dry_run } => repack(context, &volume, dry_run).await,
        Verb::Rm { volume } => {
            let path = format!("/v1/volumes/{}", encode(&volume));
            let done: Done = context.client.delete(&path).await?;
            if context.ui.is_json() {
                return context.ui.object(&done);
            }
            context.ui.line(&format!("the volume {volume} is gone"))
        }
        Verb::Restore {
            volume,
            version,
            message,
        } => {
            let body = VolumeVersionBody {
                version: Some(version),
                message,
                ..VolumeVersionBody::default()
            };
            commit(context, &volume, "restore", &body).await
        }
        Verb::Export {
            volume,
            dir,
            version,
        } => {
            let body = VolumeVersionBody {
                version,
                path: Some(absolute(&dir)?),
                message: String::new(),
            };
            let done: VolumeCommitted = ask(context, &volume, "export", &body).await?;
            if context.ui.is_json() {
                return context.ui.object(&done);
            }
            context.ui.line(&format!(
                "version {} is in {}",
                short(&done.version.id),
                dir.display()
            ))
        }
        Verb::Import {
            volume,
            dir,
            version,
            message,
        } => {
            let body = VolumeVersionBody {
                version,
                path: Some(absolute(&dir)?),
                message,
            };
            commit(context, &volume, "import", &body).await
        }
    }
}

async fn create(
    context: &Context,
    name: String,
    space: Option<String>,
    from: Option<PathBuf>,
) -> Result<(), Failure> {
    let from = from.as_deref().map(absolute).transpose()?;
    let body = VolumeBody { name, space, from };
    let lines = context.client.post_lines("/v1/volumes", &body).await?;
    let shown: VolumeShown = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&shown);
    }
    let Volume { name, id, .. } = &shown.volume;
    context
        .ui
        .line(&format!("made the volume {name} with id {id}"))
}

/// Returns where requests go: to the node named, or to the one that this speaks to.
fn on(context: &Context, node: Option<&str>) -> Context {
    match node {
        Some(node) => Context {
            client: context.client.on(node),
            ..context.clone()
        },
        None => context.clone(),
    }
}

async fn repack(context: &Context, volume: &str, dry_run: bool) -> Result<(), Failure> {
    let body = VolumeRepackBody { dry_run };
    let done: VolumeRepacked = ask(context, volume, "repack", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&done);
    }
    if done.packs == 0 {
        return context.ui.line("nothing is worth repacking");
    }
    let (verb, left) = match dry_run {
        true => ("would be given up", ""),
        false => ("given up", ", and what is not goes when nothing needs it"),
    };
    let packs = if done.packs == 1 { "pack" } else { "packs" };
    context.ui.line(&format!(
        "{} {packs} with {}: {verb}; {} of it is needed and stored anew{left}",
        done.packs,
        size(done.bytes),
        size(done.live_bytes)
    ))
}

async fn list(
    context: &Context,
    space: Option<String>,
    held_by: Option<String>,
) -> Result<(), Failure> {
    let fields = [("space", space), ("held_by", held_by)];
    let path = with_query("/v1/volumes", &fields);
    let answer: Volumes = context.client.get(&path).await?;
    let columns = [
        "volume",
        "name",
        "space",
        "newest",
        "made",
        "by",
        "held by",
        "attached to",
    ];
    let none = "no volumes; make one with `rhizome volume create NAME`";
    context
        .ui
        .list(&answer.volumes, none, columns, |volume: &Volume| {
            let head = volume.heads.first();
            let newest = match volume.heads.len() {
                0 => "-".to_owned(),
                1 => head.map_or_else(String::new, |head| short(&head.id)),
                several => format!("{several} that do not know of each other"),
            };
            let attached = volume.attached.iter().map(|attached| {
                let how = if attached.writable {
                    ""
                } else {
                    " (read-only)"
                };
                format!("{} on {}{how}", short(&attached.sandbox), attached.node)
            });
            let attached: Vec<_> = attached.collect();
            [
                short(&volume.id),
                volume.name.clone(),
                volume.space.to_string(),
                newest,
                head.map_or_else(|| "-".to_owned(), |head| utc(head.at_ms)),
                head.map_or_else(|| "-".to_owned(), |head| headline(&head.author, 24)),
                head.map_or_else(|| "-".to_owned(), |head| names(&head.holders, "nobody")),
                if attached.is_empty() {
                    "-".to_owned()
                } else {
                    attached.join(", ")
                },
            ]
        })
}

async fn attach(context: &Context, args: Attach) -> Result<(), Failure> {
    let body = VolumeAttachBody {
        sandbox: args.sandbox.clone(),
        path: args.path.clone(),
        read_only: args.read_only,
        version: args.version,
        newest: args.newest,
        force: args.force,
        every_secs: args.every,
    };
    let context = on(context, args.on.as_deref());
    let shown: VolumeShown = ask(&context, &args.volume, "attach", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&shown);
    }
    context.ui.line(&format!(
        "volume {} is at {} in {}",
        shown.volume.name, args.path, args.sandbox
    ))
}

async fn detach(context: &Context, args: Detach) -> Result<(), Failure> {
    let body = VolumeDetachBody {
        sandbox: args.sandbox,
        discard: args.discard,
        force: args.force,
    };
    let context = on(context, args.on.as_deref());
    let shown: VolumeShown = ask(&context, &args.volume, "detach", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&shown);
    }
    context
        .ui
        .line(&format!("volume {} is detached", shown.volume.name))
}

async fn log(context: &Context, volume: &str, held_by: Option<String>) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/log", encode(volume));
    let path = with_query(&path, &[("held_by", held_by)]);
    let answer: VolumeLog = context.client.get(&path).await?;
    let columns = [
        "version", "made", "by", "stored", "held by", "from", "message",
    ];
    context.ui.list(
        &answer.versions,
        "no versions",
        columns,
        |version: &VolumeVersion| {
            let parents: Vec<_> = version.parents.iter().map(|parent| short(parent)).collect();
            [
                short(&version.id),
                utc(version.at_ms),
                headline(&version.author, 24),
                size(version.bytes_stored),
                names(&version.holders, "nobody"),
                if parents.is_empty() {
                    "-".to_owned()
                } else {
                    parents.join(", ")
                },
                headline(&version.message, 60),
            ]
        },
    )
}

async fn diff(
    context: &Context,
    volume: &str,
    from: Option<String>,
    to: Option<String>,
) -> Result<(), Failure> {
    let sides = [("from", from), ("to", to)];
    let sides = sides
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name}={}", encode(&value))));
    let query: Vec<_> = sides.collect();
    let path = format!("/v1/volumes/{}/diff?{}", encode(volume), query.join("&"));
    let answer: VolumeDiff = context.client.get(&path).await?;
    if context.ui.is_json() {
        return context.ui.object(&answer);
    }
    let none = "nothing differs";
    let columns = ["change", "was", "is", "path"];
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    context
        .ui
        .list(&answer.changes, none, columns, |change: &VolumeChange| {
            [
                change.kind.clone(),
                bytes(change.old_bytes),
                bytes(change.new_bytes),
                headline(&change.path, 4_096),
            ]
        })?;
    if answer.more {
        context.ui.status("and more; `volume export` shows all");
    }
    Ok(())
}

/// Asks for something that may make a version, and says which.
async fn commit(
    context: &Context,
    volume: &str,
    verb: &str,
    body: &impl Serialize,
) -> Result<(), Failure> {
    let done: VolumeCommitted = ask(context, volume, verb, body).await?;
    for path in &done.unsettled {
        let path = headline(path, 4_096);
        let line = format!("warning: {path} was written while it was read");
        context.ui.status(&line);
    }
    if done.skipped > 0 {
        let line = format!(
            "warning: {} devices, pipes or sockets are left out",
            done.skipped
        );
        context.ui.status(&line);
    }
    if context.ui.is_json() {
        return context.ui.object(&done);
    }
    for conflict in &done.conflicts {
        let path = headline(&conflict.path, 4_096);
        context
            .ui
            .line(&match (&conflict.kept_as, conflict.kind.as_str()) {
                (Some(beside), _) => format!(
                    "conflict: {path}: both versions are kept, the other one as {}",
                    headline(beside, 4_096)
                ),
                (None, "removed_and_changed") => {
                    format!(
                        "conflict: {path}: removed in one version, kept as the other changed it"
                    )
                }
                (None, "meta_changed") => {
                    format!(
                        "conflict: {path}: mode, owner or attributes differ, the newer's are kept"
                    )
                }
                (None, _) => format!("conflict: {path}: removed in the other version, kept"),
            })?;
    }
    let id = short(&done.version.id);
    let holders = names(&done.version.holders, "nobody");
    context.ui.line(&if done.changed {
        format!("version {id}, held by {holders}")
    } else {
        format!("nothing changed since version {id}")
    })
}

async fn ask<T: DeserializeOwned>(
    context: &Context,
    volume: &str,
    verb: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    let path = format!("/v1/volumes/{}/{verb}", encode(volume));
    let lines = context.client.post_lines(&path, body).await?;
    follow(context.ui, lines).await
}
