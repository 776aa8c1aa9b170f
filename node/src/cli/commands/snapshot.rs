//! `rhizome snapshot list|show|restore|export|import|rm`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use rhizome_memory::now_ms;

use super::{Context, Failure, absolute, follow, sandbox::lifecycle::LeaseArgs, short};
use crate::{
    api::types::{
        Done,
        lifecycle::{
            ArchiveBody, RestoreBody, Snapshot, SnapshotExported, SnapshotTaken, Snapshots,
        },
        sandbox::SandboxCreated,
    },
    cli::{
        client::encode,
        ui::{ago, size, utc},
    },
};

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the snapshots that this node keeps
    List,
    /// Show what a snapshot consists of
    Show {
        /// Id or unique prefix of one
        snapshot: String,
    },
    /// Make a sandbox from a snapshot: the same one again, or another
    #[command(after_help = "Examples:
  rhizome snapshot restore 3f1c                     the same sandbox, if it does not run
  rhizome snapshot restore 3f1c --as-new --name try")]
    Restore {
        /// Id or unique prefix of one
        snapshot: String,
        /// Make another sandbox, with an id and randomness of its own
        #[arg(long)]
        as_new: bool,
        /// Name of the other sandbox
        #[arg(long, requires = "as_new")]
        name: Option<String>,
        #[command(flatten)]
        lease: LeaseArgs,
        /// Go on although something that it relies on is not here
        #[arg(long)]
        force: bool,
    },
    /// Write a snapshot to one file, sealed and verified, to keep or carry it elsewhere
    #[command(after_help = "Examples:
  rhizome snapshot export 3f1c bench.rzsnap

The file can be opened by readers of the sandbox's space alone; the image is not in it.")]
    Export {
        /// Id or unique prefix of one
        snapshot: String,
        /// The file, which must not be there
        file: PathBuf,
    },
    /// Take a snapshot out of a file, and keep it until it is removed
    #[command(after_help = "Examples:
  rhizome snapshot import bench.rzsnap
  rhizome snapshot restore 3f1c")]
    Import {
        /// A file that `rhizome snapshot export` wrote
        file: PathBuf,
    },
    /// Forget snapshots that were taken with `sandbox snapshot`
    Rm {
        /// Id or unique prefix of one
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => list(context).await,
        Verb::Show { snapshot } => show(context, &snapshot).await,
        Verb::Restore {
            snapshot,
            as_new,
            name,
            lease,
            force,
        } => {
            let body = RestoreBody {
                as_new,
                name,
                lease: lease.body(),
                force,
            };
            restore(context, &snapshot, body).await
        }
        Verb::Export { snapshot, file } => export(context, &snapshot, &file).await,
        Verb::Import { file } => import(context, &file).await,
        Verb::Rm { snapshots } => remove(context, &snapshots).await,
    }
}

fn path_of(snapshot: &str) -> String {
    format!("/v1/snapshots/{}", encode(snapshot))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let answer: Snapshots = context.client.get("/v1/snapshots").await?;
    let columns = [
        "snapshot", "sandbox", "name", "image", "memory", "stored", "kept", "taken",
    ];
    let none = "no snapshots; take one with `rhizome sandbox snapshot`";
    let now = now_ms();
    context
        .ui
        .list(&answer.snapshots, none, columns, |snapshot: &Snapshot| {
            [
                short(&snapshot.id),
                short(&snapshot.sandbox),
                snapshot.name.clone().unwrap_or_else(|| "-".to_owned()),
                snapshot.image.clone(),
                format!("{} MiB", snapshot.memory_mib),
                size(snapshot.bytes_stored),
                kept(snapshot).to_owned(),
                ago(now, snapshot.taken_ms),
            ]
        })
}

fn kept(snapshot: &Snapshot) -> &'static str {
    match snapshot.asleep {
        true => "with the sandbox",
        false => "until removed",
    }
}

async fn show(context: &Context, snapshot: &str) -> Result<(), Failure> {
    let shown: SnapshotTaken = context.client.get(&path_of(snapshot)).await?;
    if context.ui.is_json() {
        return context.ui.object(&shown);
    }
    let snapshot = &shown.snapshot;
    let ui = context.ui;
    ui.line(&format!("snapshot {}", snapshot.id))?;
    ui.line(&format!("taken {} UTC", utc(snapshot.taken_ms)))?;
    ui.line(&format!("of sandbox {}", snapshot.sandbox))?;
    ui.line(&format!(
        "{} MiB of memory, {} read, {} new, {} stored",
        snapshot.memory_mib,
        size(snapshot.bytes_read),
        size(snapshot.bytes_new),
        size(snapshot.bytes_stored)
    ))?;
    ui.line(&format!("image {} {}", snapshot.image, snapshot.image_id))?;
    ui.line(&format!("kept {}", kept(snapshot)))?;
    for pack in &snapshot.packs {
        ui.line(&format!("pack {pack}"))?;
    }
    Ok(())
}

async fn export(context: &Context, snapshot: &str, file: &Path) -> Result<(), Failure> {
    let path = format!("{}/export", path_of(snapshot));
    let lines = context.client.post_lines(&path, &body_of(file)?).await?;
    let written: SnapshotExported = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&written);
    }
    for note in &written.notes {
        context.ui.status(note);
    }
    context
        .ui
        .line(&format!("{} {}", written.path, size(written.bytes)))
}

async fn import(context: &Context, file: &Path) -> Result<(), Failure> {
    let path = "/v1/snapshots/import";
    let lines = context.client.post_lines(path, &body_of(file)?).await?;
    let taken: SnapshotTaken = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&taken);
    }
    context.ui.line(&taken.snapshot.id)
}

fn body_of(file: &Path) -> Result<ArchiveBody, Failure> {
    Ok(ArchiveBody {
        path: absolute(file)?,
    })
}

async fn restore(context: &Context, snapshot: &str, body: RestoreBody) -> Result<(), Failure> {
    let path = format!("{}/restore", path_of(snapshot));
    let lines = context.client.post_lines(&path, &body).await?;
    let made: SandboxCreated = follow(context.ui, lines).await?;
    if context.ui.is_json() {
        return context.ui.object(&made);
    }
    let name = made
        .sandbox
        .name
        .as_ref()
        .map_or_else(String::new, |name| format!(" named {name}"));
    context
        .ui
        .line(&format!("sandbox {}{name} goes on", made.sandbox.id))
}

async fn remove(context: &Context, snapshots: &[String]) -> Result<(), Failure> {
    for snapshot in snapshots {
        let done: Done = context.client.delete(&path_of(snapshot)).await?;
        if context.ui.is_json() {
            context.ui.object(&done)?;
        } else {
            context.ui.line(&format!("forgot {snapshot}"))?;
        }
    }
    Ok(())
}
