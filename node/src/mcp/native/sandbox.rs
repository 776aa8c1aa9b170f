//! `sandbox`: run, exec, read, write, list, hibernate, resume, kill.
//!
//! Only for credentials that may use sandboxes ([`Session::may_sandbox`]); of those that name an agent
//! or a space, only for the sandboxes of that agent, in spaces that the credential reaches.
use std::{io::Cursor, sync::Arc};

use data_encoding::BASE64;
use rhizome_sandbox::{
    Progress as SandboxProgress, SandboxInfo,
    channel::{ExecEvent, ExecHandle, ExitStatus},
};
use rmcp::model::{CallToolResult, JsonObject};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::{
    api::types::{
        lifecycle::{LeaseBody, ResumeBody, SnapshotBody},
        sandbox::{ExecBody, SandboxBody},
    },
    daemon::{caller::Caller, names::Names, node::Node, sandbox::Bound},
    error::ApiError,
    mcp::{answer, session::Session, shown},
};

/// What is kept of what a command says, for each of its two streams, in bytes; the model reads it all.
const MAX_OUTPUT: usize = 64 * 1024;
/// The largest file that is read or written in one call, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// Time for a command that names none, and at most, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 60;
const MAX_TIMEOUT_S: u64 = 600;
/// A sandbox that nobody used for so long goes to sleep, in milliseconds.
const LEASE_MS: u64 = 60 * 60 * 1_000;
/// Permission bits of a file that is written.
const FILE_MODE: u32 = 0o644;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Run,
    Exec,
    Read,
    Write,
    List,
    Hibernate,
    Resume,
    Kill,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    action: Action,
    sandbox: Option<String>,
    command: Option<String>,
    image: Option<String>,
    name: Option<String>,
    cwd: Option<String>,
    stdin: Option<String>,
    timeout_s: Option<u64>,
    path: Option<String>,
    content: Option<String>,
    #[serde(default)]
    base64: bool,
}

pub(super) async fn call(
    session: &Session,
    arguments: JsonObject,
) -> Result<CallToolResult, ApiError> {
    let asked: Asked = answer::arguments(arguments)?;
    if !session.may_sandbox() {
        return Err(ApiError::denied("this client may not use sandboxes"));
    }
    session.node.sandboxes()?;
    let (session, node) = (session.clone(), Arc::clone(&session.node));
    // Half a sandbox helps no one: what was begun is finished, whoever still listens.
    let work = node.tasks.spawn(async move { act(&session, asked).await });
    work.await
        .map_err(|error| ApiError::internal("the work ended in a panic").caused_by(Some(&error)))?
}

async fn act(session: &Session, asked: Asked) -> Result<CallToolResult, ApiError> {
    let node = &session.node;
    match asked.action {
        Action::List => return list(session).await,
        Action::Run => return run(session, asked).await,
        _ => {}
    }
    let wanted = need(asked.sandbox.as_deref(), "sandbox")?;
    let info = find(session, wanted)?;
    let id = info.id.to_string();
    match asked.action {
        Action::Exec => {
            need(asked.command.as_deref(), "command")?;
            renew(node, &id);
            exec(node, "exec", &id, &asked).await
        }
        Action::Read => {
            renew(node, &id);
            read(node, &id, absolute(&asked)?).await
        }
        Action::Write => {
            renew(node, &id);
            write(node, &id, absolute(&asked)?, &asked).await
        }
        Action::Hibernate => {
            let body = SnapshotBody::default();
            node.hibernate_sandbox(&id, body, silent()).await?;
            Ok(state("hibernate", &id, "hibernated"))
        }
        Action::Resume => {
            let body = ResumeBody::default();
            let woken = node.resume_sandbox(&id, body, silent()).await?;
            renew(node, &id);
            Ok(state("resume", &woken.sandbox.id, &woken.sandbox.state))
        }
        Action::Kill => {
            node.kill_sandbox(&id).await?;
            Ok(state("kill", &id, "killed"))
        }
        Action::Run | Action::List => unreachable!("answered above"),
    }
}

async fn list(session: &Session) -> Result<CallToolResult, ApiError> {
    let node = &session.node;
    let mut found = Vec::new();
    let mut text = String::new();
    for info in node.sandboxes()?.list() {
        if !may_use(session, &info)? {
            continue;
        }
        let sandbox = node.sandbox_of(info);
        let name = sandbox.name.clone().unwrap_or_default();
        text.push_str(&format!(
            "{} {} {} {}\n",
            sandbox.id,
            sandbox.state,
            shown::quoted(&sandbox.image),
            shown::quoted(&name)
        ));
        found.push(json!({
            "sandbox": sandbox.id,
            "name": sandbox.name,
            "image": sandbox.image,
            "state": sandbox.state,
            "created_ms": sandbox.created_ms,
        }));
    }
    if found.is_empty() {
        text.push_str("There are no sandboxes.");
    }
    Ok(answer::told(
        text,
        &json!({"action": "list", "sandboxes": found}),
    ))
}

async fn run(session: &Session, asked: Asked) -> Result<CallToolResult, ApiError> {
    let node = &session.node;
    let body = SandboxBody {
        name: asked.name.clone(),
        image: asked.image.clone(),
        lease: Some(LeaseBody {
            for_ms: Some(LEASE_MS),
            ..LeaseBody::default()
        }),
        ..SandboxBody::default()
    };
    let body = match &session.caller {
        Caller::Token(holder) => {
            let spaces = session.space.clone().into_iter().collect();
            node.accept_sandbox_of(holder, SandboxBody { spaces, ..body })?
        }
        _ => bound(session, body).await?,
    };
    let made = node.create_sandbox(body, silent()).await?.sandbox;
    if asked.command.is_none() {
        return Ok(state("run", &made.id, &made.state));
    }
    exec(node, "run", &made.id, &asked).await
}

/// Says whom a sandbox of the owner works for: without an agent and a space in the session, nobody.
async fn bound(session: &Session, body: SandboxBody) -> Result<SandboxBody, ApiError> {
    if session.agent.is_none() && session.space.is_none() {
        return Ok(body);
    }
    let agent = session
        .caller
        .agent(&session.node, session.agent.as_deref());
    Ok(SandboxBody {
        agent: Some(agent.await?.id().to_string()),
        spaces: session.space.clone().into_iter().collect(),
        ..body
    })
}

async fn exec(
    node: &Node,
    action: &str,
    id: &str,
    asked: &Asked,
) -> Result<CallToolResult, ApiError> {
    let timeout = asked
        .timeout_s
        .unwrap_or(DEFAULT_TIMEOUT_S)
        .clamp(1, MAX_TIMEOUT_S);
    let command = need(asked.command.as_deref(), "command")?;
    let body = ExecBody {
        argv: ["sh", "-c", command].map(str::to_owned).into(),
        cwd: asked.cwd.clone(),
        stdin: asked.stdin.is_some(),
        timeout_ms: Some(timeout * 1_000),
        ..ExecBody::default()
    };
    let handle = node.exec(id, body).await?;
    let said = collect(handle, asked.stdin.clone()).await?;
    let mut value = json!({
        "action": action,
        "sandbox": id,
        "stdout": String::from_utf8_lossy(&said.stdout.kept),
        "stderr": String::from_utf8_lossy(&said.stderr.kept),
        "truncated": said.stdout.lost + said.stderr.lost > 0,
    });
    let how = match said.end {
        ExitStatus::Code(code) => {
            value["exit_code"] = json!(code);
            format!("exit code {code}")
        }
        ExitStatus::Signal(number) => {
            value["signal"] = json!(number);
            format!("ended by signal {number}")
        }
        ExitStatus::TimedOut => {
            value["timed_out"] = json!(true);
            format!("killed after {timeout} s")
        }
    };
    let mut text = format!("sandbox {id}: {how}\n");
    for (name, stream) in [("stdout", &said.stdout), ("stderr", &said.stderr)] {
        if !stream.kept.is_empty() {
            text.push_str(&format!(
                "{name}:\n{}\n",
                String::from_utf8_lossy(&stream.kept)
            ));
        }
        if stream.lost > 0 {
            text.push_str(&format!(
                "({} more bytes of {name} were dropped)\n",
                stream.lost
            ));
        }
    }
    Ok(answer::told(text, &value))
}

/// What a command said.
struct Said {
    stdout: Kept,
    stderr: Kept,
    end: ExitStatus,
}

#[derive(Default)]
struct Kept {
    kept: Vec<u8>,
    lost: usize,
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let room = MAX_OUTPUT.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
        self.lost += bytes.len() - room;
    }
}

async fn collect(mut handle: ExecHandle, stdin: Option<String>) -> Result<Said, ApiError> {
    let mut events = std::mem::replace(&mut handle.events, tokio::sync::mpsc::channel(1).1);
    let feeding = async {
        if let Some(input) = stdin {
            // A command that does not read its input is no error of the caller's.
            if handle.write_stdin(input).await.is_ok() {
                let _ = handle.close_stdin().await;
            }
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
        loop {
            match events.recv().await {
                Some(Ok(ExecEvent::Stdout(bytes))) => stdout.add(&bytes),
                Some(Ok(ExecEvent::Stderr(bytes))) => stderr.add(&bytes),
                Some(Ok(ExecEvent::Exit(end))) => {
                    break Ok(Said {
                        stdout,
                        stderr,
                        end,
                    });
                }
                Some(Err(error)) => break Err(crate::daemon::exec_failed(&error)),
                None => break Err(gone()),
            }
        }
    };
    tokio::select! {
        said = reading => said,
        () = feeding => Err(gone()),
    }
}

fn gone() -> ApiError {
    ApiError::new(
        axum::http::StatusCode::GONE,
        "sandbox_gone",
        "the sandbox went away while the command ran",
    )
}

async fn read(node: &Node, id: &str, path: &str) -> Result<CallToolResult, ApiError> {
    let file = node.read_file(id, path).await?;
    if file.size > MAX_FILE {
        let message = format!(
            "the file is {} bytes; {MAX_FILE} can be read at once",
            file.size
        );
        return Err(ApiError::bad_request(message).hint("read a part with `exec`: head, tail, sed"));
    }
    let mut bytes = Vec::new();
    let read = file.reader.take(MAX_FILE).read_to_end(&mut bytes).await;
    read.map_err(|error| {
        ApiError::bad_request("the file could not be read").caused_by(Some(&error))
    })?;
    let mut value = json!({"action": "read", "sandbox": id, "bytes": bytes.len()});
    let text = match String::from_utf8(bytes) {
        Ok(text) => {
            value["base64"] = json!(false);
            text
        }
        Err(error) => {
            value["base64"] = json!(true);
            BASE64.encode(error.as_bytes())
        }
    };
    value["content"] = Value::String(text.clone());
    Ok(answer::told(text, &value))
}

async fn write(
    node: &Node,
    id: &str,
    path: &str,
    asked: &Asked,
) -> Result<CallToolResult, ApiError> {
    let content = asked.content.as_deref().ok_or_else(|| missing("content"))?;
    let bytes = match asked.base64 {
        true => BASE64.decode(content.as_bytes()).map_err(|error| {
            ApiError::bad_request("`content` is no base64").caused_by(Some(&error))
        })?,
        false => content.as_bytes().to_vec(),
    };
    if bytes.len() as u64 > MAX_FILE {
        let message = format!(
            "the file is {} bytes; {MAX_FILE} can be written",
            bytes.len()
        );
        return Err(ApiError::bad_request(message));
    }
    let written = node
        .write_file(id, path, FILE_MODE, Cursor::new(bytes))
        .await?;
    let value = json!({"action": "write", "sandbox": id, "bytes": written});
    Ok(answer::told(format!("{written} bytes are written"), &value))
}

fn find(session: &Session, wanted: &str) -> Result<SandboxInfo, ApiError> {
    let info = session.node.find_sandbox_for(&session.caller, wanted)?;
    if may_use(session, &info)? {
        return Ok(info);
    }
    // The same as of one that is not here: its existence is nobody else's business.
    Err(ApiError::not_found(format!(
        "there is no sandbox {} here",
        shown::quoted(wanted)
    )))
}

/// Returns whether a sandbox is within what the session may touch.
fn may_use(session: &Session, info: &SandboxInfo) -> Result<bool, ApiError> {
    let narrowed = session.agent.is_some() || session.space.is_some();
    if session.is_owner() && !narrowed {
        return Ok(true);
    }
    let bound = Bound::of(info);
    let scope = session.scope()?;
    let in_scope = !bound.spaces.is_empty() && bound.spaces.iter().all(|space| scope.allows(space));
    let of_agent = match &session.agent {
        None => true,
        Some(wanted) => {
            let node = &session.node;
            let agent = Names(&node.replica.authority()).find_agent(&node.id(), wanted)?;
            bound.agent == Some(agent)
        }
    };
    Ok(in_scope && of_agent)
}

/// Keeps a sandbox awake for as long again, if it has a lease at all.
fn renew(node: &Node, id: &str) {
    let lease = LeaseBody {
        for_ms: Some(LEASE_MS),
        renew: true,
        ..LeaseBody::default()
    };
    if let Err(error) = node.lease_sandbox(id, lease) {
        tracing::debug!(%error, "a lease was not renewed");
    }
}

fn state(action: &str, id: &str, state: &str) -> CallToolResult {
    let value = json!({"action": action, "sandbox": id, "state": state});
    answer::told(format!("sandbox {id} is {state}"), &value)
}

fn need<'a>(given: Option<&'a str>, name: &str) -> Result<&'a str, ApiError> {
    given
        .filter(|text| !text.is_empty())
        .ok_or_else(|| missing(name))
}

fn missing(name: &str) -> ApiError {
    ApiError::bad_request(format!("this action needs `{name}`"))
}

fn absolute(asked: &Asked) -> Result<&str, ApiError> {
    let path = need(asked.path.as_deref(), "path")?;
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(path);
    }
    Err(ApiError::bad_request("a path in a sandbox begins with `/`"))
}

fn silent() -> SandboxProgress {
    Arc::new(|_| {})
}
