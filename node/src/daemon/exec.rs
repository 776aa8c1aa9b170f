//! Commands in sandboxes, connections into them, and changes in their directories.
use axum::http::StatusCode;
use rhizome_sandbox::channel::{
    DirChange, DirWatch, DoorStream, ExecHandle, ExecId, ExecRequest, ExecStatus, FileError,
    GuestChannel, PtySize, WatchOp,
};

use super::{fail, node::Node};
use crate::{
    api::{
        end_of,
        types::{
            SCHEMA,
            sandbox::{AttachBody, Exec, ExecBody, Execs, FileChange, Pty, WatchParams},
        },
    },
    error::ApiError,
};

/// Fewest digits of an id that are looked up as a prefix.
const MIN_PREFIX: usize = 3;

impl Node {
    /// Starts a command and reads it.
    pub(crate) async fn exec(&self, wanted: &str, body: ExecBody) -> Result<ExecHandle, ApiError> {
        if body.argv.is_empty() {
            return Err(ApiError::bad_request("there is no command to run")
                .hint("put it after `--`: rhizome sandbox exec <sandbox> -- <command>"));
        }
        let id = self.find_sandbox(wanted)?.id;
        let exec = match &body.id {
            Some(text) => Some(text.parse::<ExecId>().map_err(|error| {
                ApiError::bad_request("`id` names no command").caused_by(Some(&error))
            })?),
            None => None,
        };
        let request = ExecRequest {
            argv: body.argv,
            env: body.env,
            cwd: body.cwd,
            user: body.user,
            stdin: body.stdin,
            timeout: body.timeout_ms.map(std::time::Duration::from_millis),
            pty: body
                .pty
                .map(|Pty { rows, columns }| PtySize { rows, columns }),
            keep: body.keep || body.detach,
            id: exec,
        };
        self.sandboxes()?
            .exec(&id, request)
            .await
            .map_err(|error| fail::sandbox(&error))
    }

    /// Starts a command that needs no reader, and returns its id.
    pub(crate) async fn exec_detached(
        &self,
        wanted: &str,
        body: ExecBody,
    ) -> Result<ExecId, ApiError> {
        // It is kept, so that dropping the handle lets go of it.
        Ok(self.exec(wanted, body).await?.id())
    }

    /// Lists the commands of a sandbox, those that ended too.
    pub(crate) async fn execs(&self, wanted: &str) -> Result<Execs, ApiError> {
        let all = self.guest(wanted).await?.execs().await;
        let all = all.map_err(|error| fail::exec(&error))?;
        Ok(Execs {
            schema: SCHEMA,
            execs: all.into_iter().map(exec_of).collect(),
        })
    }

    /// Reads a command on, by its id or a unique prefix of it.
    pub(crate) async fn attach(
        &self,
        wanted: &str,
        exec: &str,
        body: &AttachBody,
    ) -> Result<ExecHandle, ApiError> {
        let guest = self.guest(wanted).await?;
        let id = find_exec(&guest, exec).await?;
        let from = if body.new_only { u64::MAX } else { body.from };
        let attached = guest.attach(id, from).await;
        attached.map_err(|error| fail::exec(&error))
    }

    /// Signals a command.
    pub(crate) async fn signal_exec(
        &self,
        wanted: &str,
        exec: &str,
        number: i32,
    ) -> Result<(), ApiError> {
        let guest = self.guest(wanted).await?;
        let id = find_exec(&guest, exec).await?;
        let signalled = guest.signal_exec(id, number).await;
        signalled.map_err(|error| fail::exec(&error))
    }

    /// Connects to a port of a sandbox.
    pub(crate) async fn forward(&self, wanted: &str, port: u16) -> Result<DoorStream, ApiError> {
        let connected = self.guest(wanted).await?.forward(port).await;
        connected.map_err(|error| fail::forward(&error))
    }

    /// Watches a directory of a sandbox.
    pub(crate) async fn watch_dir(
        &self,
        wanted: &str,
        params: &WatchParams,
    ) -> Result<DirWatch, ApiError> {
        let guest = self.guest(wanted).await?;
        let watched = guest.watch_dir(&params.path, params.recursive).await;
        watched.map_err(|error| watch_failed(&error))
    }

    async fn guest(&self, wanted: &str) -> Result<GuestChannel, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let channel = self.sandboxes()?.channel(&id).await;
        channel.map_err(|error| fail::sandbox(&error))
    }
}

async fn find_exec(guest: &GuestChannel, wanted: &str) -> Result<ExecId, ApiError> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let all = guest.execs().await.map_err(|error| fail::exec(&error))?;
    let matching: Vec<ExecId> = all
        .iter()
        .map(|status| status.id)
        .filter(|id| wanted.len() >= MIN_PREFIX && id.to_string().starts_with(wanted))
        .collect();
    match matching[..] {
        [id] => Ok(id),
        [] => {
            let message = format!("no command `{}`", super::memory::clip(wanted));
            Err(
                ApiError::new(StatusCode::NOT_FOUND, "no_such_exec", message)
                    .hint("`rhizome sandbox ps` lists the commands of a sandbox"),
            )
        }
        _ => {
            let message = format!(
                "`{}` begins the ids of several commands",
                super::memory::clip(wanted)
            );
            Err(ApiError::bad_request(message).hint("give more of it"))
        }
    }
}

fn exec_of(status: ExecStatus) -> Exec {
    Exec {
        id: status.id.to_string(),
        command: status.command,
        user: status.user,
        pid: status.pid,
        started_ms: status.started_ms,
        ran_ms: status.ran_ms,
        end: status.exit.map(end_of),
        keep: status.keep,
        pty: status.pty,
        attached: status.attached,
        dropped: status.dropped,
        position: status.position,
    }
}

/// Returns a change as the API tells it.
pub(crate) fn file_change(change: DirChange) -> FileChange {
    let op = match change.op {
        WatchOp::Created => "created",
        WatchOp::Changed => "changed",
        WatchOp::Touched => "touched",
        WatchOp::Removed | WatchOp::Moved => "removed",
        WatchOp::Overflow => "overflow",
    };
    FileChange {
        schema: SCHEMA,
        change: op.to_owned(),
        dir: change.directory,
        path: change.path,
    }
}

/// Returns why a directory is not watched, or not any more.
pub(crate) fn watch_failed(error: &FileError) -> ApiError {
    fail::file(error)
}
