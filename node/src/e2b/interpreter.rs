//! The code interpreter of one sandbox: contexts, which keep their state, and cells that run in
//! them.
//!
//! A context is a program in the guest: `interpreter/driver.py`, an IPython shell that takes cells
//! on its standard input and tells what happens on its standard output, line by line. So a context
//! sleeps, wakes and is copied with its sandbox, like every program. Which contexts there are is
//! asked of the guest, whose programs carry their names: nothing of it is kept here.
//!
//! One cell runs in a context at a time. A client that goes away interrupts its cell, as ^C would.
mod link;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use bytes::Bytes;
use futures::stream::unfold;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::link::{Link, LinkError};
use super::{
    Access, Door, Target,
    envd::{guest, of_exec},
    error::E2bError,
};
use crate::{
    api::{extract::read_at_most, serve::Patience},
    daemon::memory::clip,
};

/// Largest request, in bytes.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;
/// Lines that wait for a slow client; then its cell waits for it.
const QUEUE_LINES: usize = 16;
/// The context of cells that name none.
const DEFAULT: &str = "python";
/// Contexts of one sandbox: each is a Python of its own.
const MAX_CONTEXTS: usize = 32;

type Shared = State<Arc<Door>>;
type Whose = Extension<Target>;

/// Who runs a cell in which context.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    turns: Mutex<BTreeMap<(String, String), Turn>>,
    last: AtomicU64,
}

/// Whoever holds it runs a cell. The link to the context stays in it between cells.
type Turn = Arc<tokio::sync::Mutex<Option<Link>>>;

impl Contexts {
    fn turn(&self, door: &Door, sandbox: &str, context: &str) -> Turn {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sandbox.to_owned(), context.to_owned());
        if !turns.contains_key(&key) {
            // Those of sandboxes that are over are needed no more.
            turns.retain(|(sandbox, _), _| door.known(sandbox).is_some());
        }
        Arc::clone(turns.entry(key).or_default())
    }

    fn forget(&self, sandbox: &str, context: &str) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.remove(&(sandbox.to_owned(), context.to_owned()));
    }

    /// Returns a number that no cell had before, of this daemon or the last.
    fn number(&self) -> u64 {
        let now = rhizome_memory::now_ms();
        let before = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(now.max(last + 1))
            });
        now.max(before.unwrap_or(0) + 1)
    }
}

/// Whether a command is a context, and no process that a client started.
pub(super) fn is_own(command: &str) -> bool {
    link::context_of(command).is_some()
}

/// Returns the routes of port 49999; each request carries a [`Target`] among its extensions.
pub(crate) fn router() -> Router<Arc<Door>> {
    Router::new()
        .route("/health", get(async || Json("OK")))
        .route("/execute", post(execute))
        .route("/contexts", get(list).post(create))
        .route("/contexts/{context}", delete(remove))
        .route("/contexts/{context}/restart", post(restart))
        .fallback(async || E2bError::not_found("there is nothing under this path").into_response())
        .layer(from_fn(guard))
}

/// Only code wants the token: clients send none with what is about contexts.
async fn guard(Extension(target): Extension<Target>, request: Request, next: Next) -> Response {
    if target.access == Access::Token || request.uri().path() != "/execute" {
        return next.run(request).await;
    }
    E2bError::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "the sandbox's access token is missing or wrong",
    )
    .into_response()
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ExecuteRequest {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateRequest {
    language: Option<String>,
    cwd: Option<String>,
}

async fn read<T: for<'a> Deserialize<'a> + Default>(request: Request) -> Result<T, E2bError> {
    let bytes = read_at_most(request.into_body(), MAX_REQUEST_BYTES).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|error| E2bError::bad_request(error.to_string()))
}

fn check_language(language: Option<&str>) -> Result<(), E2bError> {
    match language.unwrap_or("python").to_ascii_lowercase().as_str() {
        "" | "python" | "python3" | "ipython" => Ok(()),
        _ => Err(E2bError::unsupported(format_args!(
            "the language `{}` in the code interpreter; it runs Python",
            clip(language.unwrap_or_default())
        ))),
    }
}

fn failed(target: &Target, error: LinkError) -> E2bError {
    match error {
        LinkError::Gone => E2bError::gone(&target.sandbox),
        LinkError::NoContext => E2bError::not_found("there is no such context"),
        LinkError::NoKernel { what } => E2bError::new(
            StatusCode::NOT_IMPLEMENTED,
            "no_kernel",
            format!(
                "the image of this sandbox has no Python with IPython ({what}): make it from \
                 `code-interpreter-v1`, or install `python3-ipython`"
            ),
        ),
        LinkError::Failed(error) => {
            E2bError::new(error.code.status(), error.code.as_str(), error.message)
        }
    }
}

async fn execute(
    State(door): Shared,
    Extension(target): Whose,
    slow: Option<Extension<Patience>>,
    request: Request,
) -> Result<Response, E2bError> {
    let asked: ExecuteRequest = read(request).await?;
    check_language(asked.language.as_deref())?;
    let named = asked.context_id.filter(|id| !id.is_empty());
    let context = named.clone().unwrap_or_else(|| DEFAULT.to_owned());
    let turn = door.interpreter.turn(&door, &target.sandbox, &context);
    let mut turn = turn.lock_owned().await;
    let number = door.interpreter.number();
    let cell = json!({ "id": number, "code": asked.code, "env": asked.env_vars });
    // A link may be of a session that is over: then it says so now, and a new one is made.
    let sent = match turn.as_mut() {
        Some(link) => link.send(&cell).await.is_ok(),
        None => false,
    };
    if !sent {
        *turn = None;
        // Only the default one is made when it is needed.
        let made = match named {
            Some(_) if context != DEFAULT => link::find(&door, &target, &context).await,
            _ => link::find_or_make(&door, &target, &context, None).await,
        };
        let mut link = made.map_err(|error| failed(&target, error))?;
        link.send(&cell)
            .await
            .map_err(|error| failed(&target, error))?;
        *turn = Some(link);
    }
    let (lines, told) = mpsc::channel::<io::Result<Bytes>>(QUEUE_LINES);
    let stop = door.node.stop.clone();
    // It goes on if the client goes away: the cell has to be interrupted then, and its end read.
    tokio::spawn(async move {
        let Some(link) = turn.as_mut() else { return };
        let over = tokio::select! {
            over = link.run(number, &lines) => over,
            () = stop.cancelled() => Err(LinkError::Gone),
        };
        if over.is_err() {
            *turn = None;
            let broken = io::Error::new(io::ErrorKind::BrokenPipe, "the context is gone");
            let _ = lines.send(Err(broken)).await;
        }
    });
    if let Some(Extension(patience)) = slow {
        patience.without_end();
    }
    let body = unfold(
        told,
        |mut told| async move { Some((told.recv().await?, told)) },
    );
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(body)).into_response())
}

async fn list(State(door): Shared, Extension(target): Whose) -> Result<Json<Vec<Value>>, E2bError> {
    let all = link::contexts(&door, &target).await;
    let all = all.map_err(|error| failed(&target, error))?;
    Ok(Json(
        all.into_iter().map(|(context, _)| context.told()).collect(),
    ))
}

async fn create(
    State(door): Shared,
    Extension(target): Whose,
    request: Request,
) -> Result<Response, E2bError> {
    let asked: CreateRequest = read(request).await?;
    check_language(asked.language.as_deref())?;
    let all = link::contexts(&door, &target).await;
    let all = all.map_err(|error| failed(&target, error))?;
    if all.len() >= MAX_CONTEXTS {
        let message = format!("a sandbox has at most {MAX_CONTEXTS} contexts");
        let full = E2bError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", message);
        return Err(full);
    }
    let id = super::registry::new_token().map_err(E2bError::from)?;
    let id = id[..16].to_owned();
    let turn = door.interpreter.turn(&door, &target.sandbox, &id);
    let mut turn = turn.lock().await;
    let link = link::find_or_make(&door, &target, &id, asked.cwd.as_deref()).await;
    let link = link.map_err(|error| failed(&target, error))?;
    let told = link.context.told();
    *turn = Some(link);
    Ok((StatusCode::CREATED, Json(told)).into_response())
}

async fn remove(
    State(door): Shared,
    Extension(target): Whose,
    Path(context): Path<String>,
) -> Result<StatusCode, E2bError> {
    end(&door, &target, &context).await?;
    door.interpreter.forget(&target.sandbox, &context);
    Ok(StatusCode::NO_CONTENT)
}

async fn restart(
    State(door): Shared,
    Extension(target): Whose,
    Path(context): Path<String>,
) -> Result<Json<Value>, E2bError> {
    let before = end(&door, &target, &context).await?;
    // The cell that ran hears of its end and leaves its turn.
    let turn = door.interpreter.turn(&door, &target.sandbox, &context);
    let mut turn = turn.lock().await;
    *turn = None;
    let link = link::find_or_make(&door, &target, &context, Some(&before.cwd)).await;
    let link = link.map_err(|error| failed(&target, error))?;
    let told = link.context.told();
    *turn = Some(link);
    Ok(Json(told))
}

/// Ends a context with all that it started.
async fn end(door: &Door, target: &Target, context: &str) -> Result<link::Context, E2bError> {
    let all = link::contexts(door, target).await;
    let all = all.map_err(|error| failed(target, error))?;
    let found = all.into_iter().find(|(found, _)| found.id == context);
    let Some((found, exec)) = found else {
        return Err(failed(target, LinkError::NoContext));
    };
    let failed = |error| failed(target, LinkError::Failed(error));
    let guest = guest(door, &target.sandbox).await.map_err(failed)?;
    let signalled = guest.signal_exec(exec, 9).await;
    signalled.map_err(|error| failed(of_exec(&error)))?;
    link::gone(&guest, exec).await;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cells_never_come_twice() {
        let contexts = Contexts::default();
        let mut last = 0;
        for _ in 0..10_000 {
            let number = contexts.number();
            assert!(number > last);
            last = number;
        }
    }

    #[test]
    fn other_languages_are_refused_by_name() {
        for ours in [None, Some("python"), Some("Python3"), Some("")] {
            assert!(check_language(ours).is_ok(), "{ours:?}");
        }
        let error = check_language(Some("javascript")).unwrap_err();
        assert!(error.message().contains("javascript"), "{error:?}");
    }
}
