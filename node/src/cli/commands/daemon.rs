//! `rhizome up`, `down`, `status`, `doctor`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use rhizome_memory::now_ms;

use super::{Context, Failure, short};
use crate::{
    api::types::{
        Done,
        lifecycle::{DownBody, Mended},
        node::{Check, CheckStatus, Doctor as Report, Fork, Setting, Settings, Status},
    },
    cli::{
        client::with_query,
        ui::{ago, plain, size},
    },
    config::UpFlags,
    datadir,
};

/// How long a stopping daemon may take to end its sandboxes.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// Runs the daemon.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rhizome up                                   in the foreground, until Ctrl-C
  rhizome up --detach --name cloud --bind 0.0.0.0:4580
  rhizome up --relay                           carries packets for members behind NAT
  rhizome --data-dir /srv/two up --bind 0.0.0.0:4581")]
pub(crate) struct Up {
    /// Go to the background once the daemon answers
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    flags: UpFlags,
}

/// Checks what the node needs.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Boot a microVM with KVM even if an earlier answer is remembered
    #[arg(long)]
    probe: bool,
    /// Finish what an interrupted operation left, and remove what belongs to nothing
    #[arg(long, conflicts_with = "probe")]
    fix: bool,
}

/// Stops the daemon.
#[derive(Debug, Args)]
pub(crate) struct Down {
    /// What becomes of the sandboxes [default: keep]
    #[arg(long, value_parser = ["keep", "hibernate", "kill"], value_name = "WHAT")]
    sandboxes: Option<String>,
}

/// Returns where the daemon on `data_dir`, or on this user's own directory, listens.
pub(crate) fn socket_of(data_dir: Option<&Path>) -> PathBuf {
    let dir = data_dir
        .map(Path::to_owned)
        .or_else(datadir::this_users_data_dir)
        .unwrap_or_default();
    datadir::socket_of(&dir).unwrap_or_else(|_| dir.join("api.sock"))
}

pub(crate) async fn up(context: &Context, args: Up) -> Result<(), Failure> {
    let Some(dir) = context
        .data_dir
        .clone()
        .or_else(datadir::this_users_data_dir)
    else {
        return Err(Failure::usage(
            "there is no home to keep the node's data in",
            "name a directory with `--data-dir`",
        ));
    };
    if args.detach {
        let pid = crate::daemon::detach(&dir, &args.flags)
            .await
            .map_err(Failure::Start)?;
        return context
            .ui
            .line(&format!("the daemon runs as process {pid}"));
    }
    Ok(crate::daemon::run(&dir, args.flags).await?)
}

pub(crate) async fn down(context: &Context, args: Down) -> Result<(), Failure> {
    let asked: Result<Status, Failure> = context.client.get("/v1/status").await;
    let status = match asked {
        Ok(status) => status,
        // What it left behind can be ended all the same.
        Err(Failure::Unreachable { .. }) if args.sandboxes.as_deref() == Some("kill") => {
            return end_orphans(context).await;
        }
        Err(error) => return Err(error),
    };
    if args.sandboxes.as_deref() == Some("hibernate") {
        context.ui.status("putting the sandboxes to sleep");
    }
    let body = DownBody {
        sandboxes: args.sandboxes.clone(),
    };
    let _: Done = context.client.post("/v1/down", &body).await?;
    let deadline = tokio::time::Instant::now() + STOP_DEADLINE;
    while runs(status.pid) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if runs(status.pid) {
        return Err(Failure::usage(
            format!("process {} is still stopping", status.pid),
            "wait for it, or end it with `kill -9`; nothing that was acknowledged is lost",
        ));
    }
    context.ui.line("the daemon is stopped")?;
    let running = status.sandboxes.ready;
    if running > 0 && args.sandboxes.as_deref().unwrap_or("keep") == "keep" {
        context.ui.status(&format!(
            "{running} sandboxes run on; `rhizome up` takes them over, `rhizome down --sandboxes kill` ends them"
        ));
    }
    Ok(())
}

/// Ends the guests of a daemon that is gone.
async fn end_orphans(context: &Context) -> Result<(), Failure> {
    let dir = context
        .data_dir
        .clone()
        .or_else(datadir::this_users_data_dir)
        .unwrap_or_default();
    let ended = rhizome_sandbox::end_monitors(&dir.join("sandboxes")).await;
    let ended = ended.map_err(|error| {
        let hint = error.hint();
        Failure::usage(
            error.to_string(),
            hint.as_deref().unwrap_or("`rhizome up` takes them over"),
        )
    })?;
    context.ui.line(&format!(
        "no daemon runs; ended {ended} sandboxes that it left"
    ))
}

/// Whether the process runs; one that has ended and waits to be reaped does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z")
}

pub(crate) async fn status(context: &Context) -> Result<(), Failure> {
    let status: Status = context.client.get("/v1/status").await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&status);
    }
    let now = now_ms();
    ui.line(&ui.bold(&format!("node {} {}", status.node.name, status.node.id)))?;
    ui.line(&format!(
        "daemon: version {}, process {}, up since {}, {} resident",
        status.version,
        status.pid,
        ago(now, status.started_ms),
        size(status.resident_bytes)
    ))?;
    ui.line(&format!(
        "data: {} ({} free)",
        status.data_dir,
        size(status.disk_free_bytes)
    ))?;
    ui.line(&format!("addresses: {}", status.addrs.join(", ")))?;
    if let Some(api) = &status.api {
        ui.line(&format!("api: http://{api}, with a token"))?;
    }
    if let Some(url) = &status.e2b {
        ui.line(&format!(
            "clients of E2B: {url} (`rhizome e2b env` says what to export)"
        ))?;
    }
    match &status.mesh {
        None => {
            ui.line("mesh: none; found one with `rhizome init` or join one with `rhizome join`")?
        }
        Some(mesh) => ui.line(&format!(
            "mesh: {} ({}), {} members, {} connected, role {}{}",
            mesh.name,
            short(&mesh.id),
            status.members,
            status.connected,
            status.role.as_deref().unwrap_or("none"),
            if status.root {
                ", holds the root key"
            } else {
                ""
            }
        ))?,
    }
    for space in &status.spaces {
        ui.line(&format!(
            "space {}: {} fragments, {} waiting, {} in quarantine",
            space.name, space.fragments, space.waiting, space.quarantined
        ))?;
    }
    let sandboxes = &status.sandboxes;
    match &sandboxes.problem {
        Some(problem) => ui.line(&format!("sandboxes: none can run here: {problem}"))?,
        None => ui.line(&format!(
            "sandboxes: {} ready of {}{}",
            sandboxes.ready,
            sandboxes.total,
            sandboxes
                .accel
                .as_ref()
                .map(|accel| format!(" ({accel})"))
                .unwrap_or_default()
        ))?,
    }
    if sandboxes.waiting > 0 {
        ui.line(&format!(
            "pool: {} waiting in {} of memory",
            sandboxes.waiting,
            size(sandboxes.waiting_bytes)
        ))?;
    }
    for Fork {
        space,
        author,
        ours,
        theirs,
    } in &status.forks
    {
        ui.line(&format!(
            "fork: {} signed two histories in {}: {ours} counts here, {theirs} is kept as evidence",
            plain(&author.to_string()),
            plain(&space.to_string())
        ))?;
    }
    for share in status
        .shares
        .iter()
        .filter(|share| share.used_percent > 100)
    {
        ui.line(&format!(
            "share: {} {} wrote {} % of its share: what it writes waits behind others; {} refused so far",
            share.kind,
            plain(&share.of.to_string()),
            share.used_percent,
            share.refused
        ))?;
    }
    for note in &status.recovery.notes {
        ui.line(&format!("recovery: {note}"))?;
    }
    Ok(())
}

/// Prints every setting of the running daemon.
pub(crate) async fn config_show(context: &Context) -> Result<(), Failure> {
    let answer: Settings = context.client.get("/v1/config").await?;
    let columns = ["setting", "value", "from"];
    context.ui.list(
        &answer.settings,
        "no settings",
        columns,
        |setting: &Setting| {
            let value = match &setting.value {
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Null => "-".to_owned(),
                other => other.to_string(),
            };
            [setting.name.clone(), value, setting.from.clone()]
        },
    )?;
    context
        .ui
        .status(&format!("file: {} (it need not exist)", answer.file));
    Ok(())
}

async fn fix(context: &Context) -> Result<(), Failure> {
    let mended: Mended = context
        .client
        .post("/v1/doctor/fix", &serde_json::json!({}))
        .await?;
    if context.ui.is_json() {
        context.ui.object(&mended)?;
    } else {
        let done: Vec<_> = mended
            .done
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        context.ui.line(&match done.is_empty() {
            true => "nothing was left to mend".to_owned(),
            false => format!("mended: {}", done.join(", ")),
        })?;
        for problem in &mended.left {
            context.ui.line(&format!("left as it is: {problem}"))?;
        }
    }
    match mended.left.is_empty() {
        true => Ok(()),
        false => Err(Failure::Exit(1)),
    }
}

pub(crate) async fn doctor(context: &Context, args: Doctor) -> Result<(), Failure> {
    if args.fix {
        return fix(context).await;
    }
    context
        .ui
        .status("checking; KVM is tried by booting, which takes some seconds the first time");
    let probe = args.probe.then(|| "1".to_owned());
    let report: Report = context
        .client
        .get(&with_query("/v1/doctor", &[("probe", probe)]))
        .await?;
    if context.ui.is_json() {
        report
            .checks
            .iter()
            .try_for_each(|check| context.ui.object(check))?;
    } else {
        for Check {
            name,
            status,
            seen,
            mend,
        } in &report.checks
        {
            let mark = match status {
                CheckStatus::Ok => "ok  ",
                CheckStatus::Warn => "warn",
                CheckStatus::Fail => "FAIL",
            };
            context.ui.line(&format!("{mark}  {name}: {seen}"))?;
            if let Some(mend) = mend {
                context.ui.line(&format!("      mend it with: {mend}"))?;
            }
        }
    }
    let failed = report
        .checks
        .iter()
        .filter(|check| check.status == CheckStatus::Fail)
        .count();
    if failed > 0 {
        Err(Failure::Exit(1))
    } else {
        Ok(())
    }
}
