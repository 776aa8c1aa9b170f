//! Changes in directories: as a stream, or kept until they are asked for.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures::{Stream, stream::unfold};
use rhizome_sandbox::channel::{DirChange, DirWatch, FileError, WatchOp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    entry::entry,
    filesystem::directory,
    gone, guest, of_file,
    rpc::{self, Call, too_late},
    user_of,
};
use crate::{
    api::serve::Patience,
    e2b::{
        Door, Target,
        connect::{self, Code, ConnectError},
    },
};

/// Changes that a watcher keeps until they are asked for; then the oldest are dropped.
const MAX_KEPT: usize = 10_000;
/// Watchers of all sandboxes together.
const MAX_WATCHERS: usize = 1024;
/// How often a stream that says nothing says that it is there, if the client does not say.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// What our agent calls a file that is not whole yet.
const DRAFT: &str = ".rhizome-";

type Shared = State<Arc<Door>>;
type Whose = Extension<Target>;
type Answer = Result<Response, ConnectError>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatchRequest {
    path: String,
    recursive: bool,
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OfWatcher {
    watcher_id: String,
}

/// Every watcher that waits to be asked.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    all: Mutex<BTreeMap<String, Arc<Watcher>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Watcher {
    sandbox: String,
    watched: Watched,
    kept: Mutex<Kept>,
    _stop: DropGuard,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Kept {
    changes: VecDeque<Change>,
    /// Why no more come.
    over: Option<Over>,
}

/// Why a watch ended.
#[derive(Debug, Clone)]
enum Over {
    /// The session with the guest ended; a sandbox that wakes can be watched again.
    Asleep,
    /// The directory is gone, or the guest refuses.
    Failed(ConnectError),
}

/// What is watched, as the guest knows it.
#[derive(Debug, Clone)]
struct Watched {
    path: String,
    recursive: bool,
    with_entry: bool,
}

/// One change, in E2B's words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    name: String,
    kind: &'static str,
}

/// Whether a name is that of a file which is not whole yet.
pub(super) fn is_draft(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .unwrap_or_default()
        .starts_with(DRAFT)
}

/// Turns what the guest tells into what clients know.
#[derive(Debug, Default)]
struct Translator {
    /// A file that was written beside its place goes there now.
    placing: bool,
}

impl Translator {
    fn translate(&mut self, changes: Vec<DirChange>) -> Vec<Change> {
        let mut told = Vec::new();
        for DirChange { op, path, .. } in changes {
            if is_draft(&path) {
                self.placing = op == WatchOp::Moved;
                continue;
            }
            // Of the directory itself they hear nothing; what overflowed has no name.
            if path.is_empty() {
                continue;
            }
            let kind = match op {
                WatchOp::Created => "EVENT_TYPE_CREATE",
                WatchOp::Changed => "EVENT_TYPE_WRITE",
                WatchOp::Touched => "EVENT_TYPE_CHMOD",
                WatchOp::Removed => "EVENT_TYPE_REMOVE",
                WatchOp::Moved => "EVENT_TYPE_RENAME",
                WatchOp::Overflow => continue,
            };
            let placed = op == WatchOp::Created && std::mem::take(&mut self.placing);
            told.push(Change {
                name: path.clone(),
                kind,
            });
            if placed {
                // It came with its contents, which is a write to whoever waits for one.
                told.push(Change {
                    name: path,
                    kind: "EVENT_TYPE_WRITE",
                });
            }
        }
        told
    }
}

async fn begin(door: &Door, sandbox: &str, watched: &Watched) -> Result<DirWatch, ConnectError> {
    let guest = guest(door, sandbox).await?;
    let begun = guest.watch_moves(&watched.path, watched.recursive).await;
    begun.map_err(|error| of_file(&error))
}

async fn watched(
    door: &Door,
    target: &Target,
    call: &Call<WatchRequest>,
) -> Result<Watched, ConnectError> {
    let user = user_of(&call.headers, target)?;
    Ok(Watched {
        path: directory(door, &target.sandbox, &user, &call.message.path).await?,
        recursive: call.message.recursive,
        with_entry: call.message.include_entry,
    })
}

/// Tells a change; with what it happened to, if that is wanted and still there.
async fn told(door: &Door, sandbox: &str, watched: &Watched, change: Change) -> Value {
    let mut event = json!({ "name": change.name, "type": change.kind });
    if watched.with_entry
        && let Ok(guest) = guest(door, sandbox).await
    {
        let path = format!("{}/{}", watched.path.trim_end_matches('/'), change.name);
        if let Ok(facts) = guest.look("", &path).await {
            event["entry"] = entry(&facts);
        }
    }
    event
}

/// `WatchDir`: changes as they happen.
pub(super) async fn stream(
    State(door): Shared,
    Extension(target): Whose,
    slow: Option<Extension<Patience>>,
    request: Request,
) -> Response {
    let begun = async {
        let call: Call<WatchRequest> = rpc::opening(request).await?;
        let watched = watched(&door, &target, &call).await?;
        let watch = begin(&door, &target.sandbox, &watched).await?;
        let deadline = call.timeout.map(|timeout| Instant::now() + timeout);
        let keepalive = super::process::keepalive(&call.headers, KEEPALIVE);
        Ok(changes(
            door,
            target.sandbox,
            watched,
            watch,
            (keepalive, deadline),
        ))
    };
    let begun = begun.await;
    rpc::streamed(slow.as_deref(), begun)
}

struct Telling {
    door: Arc<Door>,
    sandbox: String,
    watched: Watched,
    watch: DirWatch,
    translator: Translator,
    keepalive: Duration,
    deadline: Option<Instant>,
    waiting: VecDeque<Change>,
    begun: bool,
    over: bool,
}

fn changes(
    door: Arc<Door>,
    sandbox: String,
    watched: Watched,
    watch: DirWatch,
    (keepalive, deadline): (Duration, Option<Instant>),
) -> impl Stream<Item = Bytes> {
    let telling = Telling {
        door,
        sandbox,
        watched,
        watch,
        translator: Translator::default(),
        keepalive,
        deadline,
        waiting: VecDeque::new(),
        begun: false,
        over: false,
    };
    unfold(telling, |mut telling| async move {
        let frame = telling.next().await?;
        Some((frame, telling))
    })
}

impl Telling {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        if !std::mem::replace(&mut self.begun, true) {
            return Some(connect::message(&json!({ "start": {} })));
        }
        loop {
            if let Some(change) = self.waiting.pop_front() {
                let event = told(&self.door, &self.sandbox, &self.watched, change).await;
                return Some(connect::message(&json!({ "filesystem": event })));
            }
            let quiet = Instant::now() + self.keepalive;
            let deadline = self.deadline.unwrap_or(quiet);
            let heard = tokio::select! {
                biased;
                heard = self.watch.changes.recv() => heard,
                () = self.door.node.stop.cancelled() => None,
                () = sleep_until(deadline), if self.deadline.is_some() => {
                    self.over = true;
                    return Some(connect::end(Some(&too_late())));
                }
                () = sleep_until(quiet) => {
                    return Some(connect::message(&json!({ "keepalive": {} })));
                }
            };
            let error = match heard {
                Some(Ok(changes)) => {
                    self.waiting.extend(self.translator.translate(changes));
                    continue;
                }
                Some(Err(error)) => of_file(&error),
                None => gone(),
            };
            self.over = true;
            return Some(connect::end(Some(&error)));
        }
    }
}

/// `CreateWatcher`: changes are kept from now on.
pub(super) async fn create(
    State(door): Shared,
    Extension(target): Whose,
    request: Request,
) -> Answer {
    let call: Call<WatchRequest> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let watched = watched(&door, &target, &call).await?;
        let watch = begin(&door, &target.sandbox, &watched).await?;
        let stop = CancellationToken::new();
        let watcher = Arc::new(Watcher {
            sandbox: target.sandbox.clone(),
            watched,
            kept: Mutex::default(),
            _stop: stop.clone().drop_guard(),
            stop,
        });
        let watchers = &door.envd.watchers;
        let id = {
            let mut all = lock(&watchers.all);
            // Those of sandboxes that are over will never be asked again.
            all.retain(|_, watcher| door.known(&watcher.sandbox).is_some());
            if all.len() >= MAX_WATCHERS {
                return Err(ConnectError::new(
                    Code::ResourceExhausted,
                    "too many directories are watched",
                ));
            }
            let number = watchers.next.fetch_add(1, Ordering::Relaxed);
            let id = format!("w{number}-{}", rhizome_memory::now_ms());
            all.insert(id.clone(), Arc::clone(&watcher));
            id
        };
        tokio::spawn(keep(Arc::downgrade(&watcher), watcher.stop.clone(), watch));
        Ok(json!({ "watcherId": id }))
    })
    .await
}

/// Keeps what is heard until the watch ends or the watcher goes.
async fn keep(watcher: std::sync::Weak<Watcher>, stop: CancellationToken, mut watch: DirWatch) {
    let mut translator = Translator::default();
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = watch.changes.recv() => heard,
        };
        let Some(watcher) = watcher.upgrade() else {
            return;
        };
        let mut kept = lock(&watcher.kept);
        match heard {
            Some(Ok(changes)) => {
                kept.changes.extend(translator.translate(changes));
                let over = kept.changes.len().saturating_sub(MAX_KEPT);
                kept.changes.drain(..over);
            }
            Some(Err(FileError::SandboxGone { .. })) | None => {
                kept.over = Some(Over::Asleep);
                return;
            }
            Some(Err(error)) => {
                kept.over = Some(Over::Failed(of_file(&error)));
                return;
            }
        }
    }
}

/// `GetWatcherEvents`: what was kept since the last time.
pub(super) async fn take(
    State(door): Shared,
    Extension(target): Whose,
    request: Request,
) -> Answer {
    let call: Call<OfWatcher> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let watcher = find(&door, &target, &call.message.watcher_id)?;
        let (changes, over) = {
            let mut kept = lock(&watcher.kept);
            (std::mem::take(&mut kept.changes), kept.over.clone())
        };
        match over {
            // It slept and is awake again: go on, as its own watcher would have.
            Some(Over::Asleep) => {
                let watch = begin(&door, &watcher.sandbox, &watcher.watched).await?;
                lock(&watcher.kept).over = None;
                tokio::spawn(keep(Arc::downgrade(&watcher), watcher.stop.clone(), watch));
            }
            Some(Over::Failed(error)) if changes.is_empty() => return Err(error),
            Some(Over::Failed(_)) | None => {}
        }
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            events.push(told(&door, &watcher.sandbox, &watcher.watched, change).await);
        }
        Ok(json!({ "events": events }))
    })
    .await
}

/// `RemoveWatcher`.
pub(super) async fn remove(
    State(door): Shared,
    Extension(target): Whose,
    request: Request,
) -> Answer {
    let call: Call<OfWatcher> = rpc::unary(request).await?;
    Call::<()>::within(call.timeout, async {
        let watcher = find(&door, &target, &call.message.watcher_id)?;
        watcher.stop.cancel();
        lock(&door.envd.watchers.all).remove(&call.message.watcher_id);
        Ok(json!({}))
    })
    .await
}

fn find(door: &Door, target: &Target, id: &str) -> Result<Arc<Watcher>, ConnectError> {
    let found = lock(&door.envd.watchers.all).get(id).cloned();
    found
        // One sandbox's token says nothing of another's watchers.
        .filter(|watcher| watcher.sandbox == target.sandbox)
        .ok_or_else(|| ConnectError::not_found("there is no such watcher"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(op: WatchOp, path: &str) -> DirChange {
        DirChange {
            op,
            directory: false,
            path: path.to_owned(),
        }
    }

    fn told(changes: Vec<DirChange>) -> Vec<(String, &'static str)> {
        let told = Translator::default().translate(changes);
        told.into_iter()
            .map(|change| (change.name, change.kind))
            .collect()
    }

    #[test]
    fn a_file_that_is_put_in_its_place_is_made_and_written() {
        let seen = told(vec![
            change(WatchOp::Created, "d/.rhizome-1"),
            change(WatchOp::Changed, "d/.rhizome-1"),
            change(WatchOp::Touched, "d/.rhizome-1"),
            change(WatchOp::Moved, "d/.rhizome-1"),
            change(WatchOp::Created, "d/z"),
            change(WatchOp::Created, "d/y"),
        ]);
        let expected = [
            ("d/z".to_owned(), "EVENT_TYPE_CREATE"),
            ("d/z".to_owned(), "EVENT_TYPE_WRITE"),
            ("d/y".to_owned(), "EVENT_TYPE_CREATE"),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn every_change_has_their_name() {
        let seen = told(vec![
            change(WatchOp::Changed, "a"),
            change(WatchOp::Touched, "a"),
            change(WatchOp::Moved, "a"),
            change(WatchOp::Created, "b"),
            change(WatchOp::Removed, "b"),
            change(WatchOp::Overflow, ""),
            change(WatchOp::Touched, ""),
        ]);
        let kinds: Vec<_> = seen.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(
            kinds,
            [
                "EVENT_TYPE_WRITE",
                "EVENT_TYPE_CHMOD",
                "EVENT_TYPE_RENAME",
                "EVENT_TYPE_CREATE",
                "EVENT_TYPE_REMOVE"
            ]
        );
    }
}
