//! The control plane: what clients of E2B ask of the node rather than of one sandbox's programs.
//!
//! - [`create`], [`life`], [`list`]: sandboxes, from the first to the last
//! - [`snapshot`], [`template`] (its steps: [`script`]), [`volume`] ([`content`]): what outlives them
//! - [`watch`]: metrics and logs
//! - [`network`]: what they may reach
//! - [`state`]: what is under way
//!
//! Work that must not stop half way because a client hangs up runs in a task of the node.
mod content;
mod create;
mod life;
mod list;
mod network;
mod script;
mod snapshot;
pub(crate) mod state;
mod template;
mod volume;
mod watch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post, put},
};
use rhizome_memory::now_ms;
use serde::de::DeserializeOwned;
use tracing::warn;

pub(crate) use self::life::wake;
use super::{
    Door, Standing,
    error::{Answer, E2bError},
    signature::constant_time_eq,
};
use crate::{
    api::extract::{parse_json, read_body},
    control::audit::{Note, Who, layer::Refused},
    daemon::{memory::clip, node::blocking},
};

/// How long what was made for an idempotency key is remembered, in milliseconds.
const KEY_LIFE_MS: u64 = 24 * 3600 * 1000;
/// How long the files of a build are kept.
const ARCHIVE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Time between two looks at what is over.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// The header that says which sandbox an answer is about; ours, which their clients ignore.
const SANDBOX_HEADER: &str = "rhizome-sandbox";

pub(super) fn router(door: Arc<Door>) -> Router {
    let guarded = Arc::clone(&door);
    Router::new()
        .route("/sandboxes", get(list::list_v1).post(create::create))
        .route("/v2/sandboxes", get(list::list_v2).post(create::create))
        .route("/sandboxes/{id}", get(list::info).delete(life::kill))
        .route("/v2/sandboxes/{id}", get(list::info).delete(life::kill))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/resume", post(life::resume))
        .route("/v2/sandboxes/{id}/resume", post(life::resume))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/v2/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/timeout", post(life::timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refreshes))
        .route("/sandboxes/{id}/fork", post(life::fork))
        .route("/sandboxes/metrics", get(watch::bulk))
        .route("/sandboxes/{id}/metrics", get(watch::metrics))
        .route("/sandboxes/{id}/logs", get(watch::logs_v1))
        .route("/v2/sandboxes/{id}/logs", get(watch::logs_v2))
        .route("/sandboxes/{id}/network", put(network::put))
        .route("/sandboxes/{id}/snapshots", post(snapshot::take))
        .route("/snapshots", get(snapshot::list))
        .route("/templates", get(template::list))
        .route("/v2/templates", get(template::list))
        .route("/v3/templates", post(template::request))
        .route(
            "/templates/tags",
            post(template::tags::tag).delete(template::tags::untag),
        )
        .route("/templates/aliases/{alias}", get(template::alias))
        .route(
            "/templates/{id}",
            get(template::show).delete(template::remove),
        )
        .route("/templates/{id}/tags", get(template::tags::tags))
        .route(
            "/templates/{id}/files/{hash}",
            get(template::files::files).put(template::files::upload),
        )
        .route(
            "/v2/templates/{id}/builds/{build}",
            post(template::build::start),
        )
        .route(
            "/templates/{id}/builds/{build}/status",
            get(template::build::status),
        )
        .route("/volumes", get(volume::list).post(volume::create))
        .route("/volumes/{id}", get(volume::show).delete(volume::remove))
        .route(
            "/volumecontent/{id}/path",
            get(content::stat)
                .patch(content::own)
                .delete(content::remove),
        )
        .route(
            "/volumecontent/{id}/dir",
            get(content::list).post(content::make_dir),
        )
        .route(
            "/volumecontent/{id}/file",
            get(content::read).put(content::write),
        )
        .route("/secrets", any(volume::secrets))
        .route("/secrets/{*rest}", any(volume::secrets))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(door)
        .layer(middleware::from_fn_with_state(guarded, guard))
}

/// Asks for the key, and writes down what is done.
async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Files of a build are sent to a URL that opens for itself, and a volume has its own token.
    let opens_itself = (request.method() == Method::PUT && path.contains("/files/"))
        || path.starts_with("/volumecontent/");
    if !opens_itself && let Err(error) = authenticated(&door, request.headers()) {
        return error.into_response();
    }
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let (action, mut on) = action(request.method(), request.uri());
    let begun = Instant::now();
    let response = next.run(request).await;
    if on.is_none() {
        let made = response.headers().get(SANDBOX_HEADER);
        on = made.and_then(|id| id.to_str().ok()).map(str::to_owned);
    }
    let outcome = match response.extensions().get::<Refused>() {
        Some(Refused(code)) => code.clone(),
        None if response.status().is_success() => "ok".to_owned(),
        None => format!("http {}", response.status().as_u16()),
    };
    let note = Note {
        who: Who::Owner,
        action,
        on,
        outcome,
        detail: None,
        took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    door.node.audit.note(note).await;
    response
}

fn authenticated(door: &Door, headers: &HeaderMap) -> Answer<()> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let refused = |message: &str| {
        Err(E2bError::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            message,
        ))
    };
    let sent = text("x-api-key").or(bearer(headers)).unwrap_or_default();
    match &door.node.config.e2b.key {
        _ if sent.is_empty() => refused("no key was sent; set E2B_API_KEY"),
        Some(key) if !constant_time_eq(key.0.as_bytes(), sent.as_bytes()) => {
            refused("this is not the key of this node; `rhizome e2b env` shows where it is set")
        }
        _ => Ok(()),
    }
}

/// Returns the token that a request sends as `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let sent = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = sent.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Names what a request does, for the audit log: `e2b.create`, `e2b.pause`, `e2b.templates`…
fn action(method: &Method, uri: &Uri) -> (String, Option<String>) {
    let mut parts = uri.path().split('/').filter(|part| {
        let is_version = part.len() == 2 && part.starts_with('v');
        !part.is_empty() && !is_version
    });
    let (kind, on, verb) = (parts.next(), parts.next(), parts.next());
    let word = match (kind.unwrap_or_default(), on, verb, method.as_str()) {
        ("sandboxes", None, ..) => "create",
        ("sandboxes", Some(_), None, "DELETE") => "kill",
        ("sandboxes", Some(_), Some(verb), _) => verb,
        (kind, ..) => kind,
    };
    (format!("e2b.{}", clip(word)), on.map(clip))
}

async fn no_route(uri: Uri) -> E2bError {
    let path = clip(uri.path());
    E2bError::not_found(format!("this node has no route `{path}`"))
}

async fn no_method(method: Method, uri: Uri) -> E2bError {
    let (path, method) = (clip(uri.path()), clip(method.as_str()));
    let message = format!("`{path}` does not take {method}");
    E2bError::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", message)
}

/// A JSON body; an empty one reads as `{}`, as some clients send none.
#[derive(Debug)]
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = E2bError;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        let bytes = read_body(request.into_body()).await?;
        Ok(Self(parse_json(&bytes)?))
    }
}

/// Runs work that is finished whether or not the client waits.
async fn to_the_end<T: Send + 'static>(
    door: &Arc<Door>,
    work: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    let done = door.node.tasks.spawn(work).await;
    done.unwrap_or_else(|error| {
        Err(
            crate::error::ApiError::internal("the work ended in a panic")
                .caused_by(Some(&error))
                .into(),
        )
    })
}

/// Brings what is kept in line with what is there, before the first request.
pub(super) async fn tidy(door: &Arc<Door>) {
    sweep(door).await;
    for record in door.registry.sandboxes.all() {
        let known = door.known(&record.id);
        let Some((record, info, Standing::Running)) = known else {
            continue;
        };
        // The daemon ended between waking it and giving it its time.
        if info.lease.is_none()
            && let Err(error) = life::give_time(door, &record, record.timeout_secs)
        {
            warn!(sandbox = record.id, message = error.message(), "no lease");
        }
    }
}

/// Forgets, now and then, what is over: leases end sandboxes without asking this door.
pub(super) async fn keep_tidy(door: Arc<Door>) {
    loop {
        tokio::select! {
            biased; // Stopping first.
            () = door.node.stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_EVERY) => sweep(&door).await,
        }
    }
}

async fn sweep(door: &Arc<Door>) {
    let of_task = Arc::clone(door);
    let swept = blocking(move || {
        let (door, registry) = (&of_task, &of_task.registry);
        // A node that can run no sandboxes today may run them tomorrow.
        if let Ok(sandboxes) = door.node.sandboxes() {
            for record in registry.sandboxes.all() {
                if door.known(&record.id).is_none() {
                    door.working.forget(&record.id);
                    registry.sandboxes.remove(&record.id)?;
                }
            }
            for snapshot in registry.snapshots.all() {
                if sandboxes.find_snapshot(&snapshot.id).is_err() {
                    registry.snapshots.remove(&snapshot.id)?;
                }
            }
        }
        for key in registry.keys.all() {
            if key.at_ms.saturating_add(KEY_LIFE_MS) < now_ms() {
                registry.keys.remove(&key.id)?;
            }
        }
        // Files of builds are a cache: whoever builds again sends them again.
        let archives = std::fs::read_dir(door.node.data.join("e2b/files"));
        for archive in archives.into_iter().flatten().flatten() {
            let age = archive
                .metadata()
                .and_then(|meta| meta.modified())
                .ok()
                .and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > ARCHIVE_LIFE) {
                let _ = std::fs::remove_file(archive.path());
            }
        }
        Ok::<_, super::registry::RegistryError>(())
    });
    if let Ok(Err(error)) = swept.await {
        warn!(%error, "what clients of E2B left could not be swept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_done_and_to_what() {
        let of = |method: Method, path: &str| action(&method, &path.parse().unwrap());
        assert_eq!(
            of(Method::POST, "/v2/sandboxes"),
            ("e2b.create".into(), None)
        );
        let on = Some("abc".to_owned());
        assert_eq!(
            of(Method::DELETE, "/sandboxes/abc"),
            ("e2b.kill".into(), on.clone())
        );
        assert_eq!(
            of(Method::POST, "/v2/sandboxes/abc/connect"),
            ("e2b.connect".into(), on.clone())
        );
        assert_eq!(of(Method::DELETE, "/templates/abc").0, "e2b.templates");
    }
}
