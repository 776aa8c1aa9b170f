//! How a client of E2B comes by a sandbox.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use rhizome_sandbox::{SandboxInfo, egress::Policy, life::MAX_LEASE_MS, silent};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::list;
use crate::{
    api::{
        extract::{parse_json, read_body},
        types::{
            lifecycle::{LeaseBody, RestoreBody},
            sandbox::SandboxBody,
        },
    },
    daemon::{memory::clip, node::blocking},
    e2b::{
        Door,
        error::{Answer, E2bError},
        registry::{
            KeyRecord, Mount, OnTimeout, Record, SnapshotRecord, TemplateRecord, new_token,
        },
    },
};

/// Seconds that a sandbox gets when nobody says.
const DEFAULT_TIMEOUT_SECS: u64 = 300;
/// How long a client is kept waiting; its sandbox, made later, is then nobody's.
const CREATE_LIMIT: Duration = Duration::from_secs(150);
/// How long a second request with a key waits for the first.
const KEY_POLL: Duration = Duration::from_secs(1);
const MAX_KEY_BYTES: usize = 255;
/// Most metadata of a sandbox: entries, and bytes of a name or value.
const MAX_METADATA: usize = 128;
const MAX_METADATA_BYTES: usize = 4096;
/// The label that says that a sandbox was made through this door, and of what.
const LABEL: &str = "e2b.template";
/// Metadata that this node reads.
const OURS: &str = "rhizome.";
/// Templates that are always there, and their image.
const BUILT_IN: [(&str, &str); 3] = [
    ("base", "debian"),
    ("code-interpreter-v1", "debian"),
    ("code-interpreter", "debian"),
];

/// The body of `POST /sandboxes` and `POST /v2/sandboxes`; what is not known is not looked at.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template: Option<String>,
    timeout: Option<u64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory")]
    auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume")]
    auto_resume: Option<AutoResume>,
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    metadata: Option<BTreeMap<String, String>>,
    #[serde(rename = "envVars")]
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Option<Value>,
    iam: Option<Value>,
    #[serde(rename = "volumeMounts")]
    volume_mounts: Option<Vec<Mount>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum From {
    /// An image, under the name of a template.
    Image { template: String, image: String },
    /// A template that a client built.
    Template(Arc<TemplateRecord>),
    /// A snapshot that a client took.
    Snapshot(Arc<SnapshotRecord>),
}

pub(super) async fn create(State(door): State<Arc<Door>>, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let body = read_body(body).await?;
    let asked: Result<NewSandbox, _> = parse_json(&body);
    let refused = |error| E2bError::from(error).error_code("sandbox_create_refused");
    let asked = asked.map_err(refused)?;
    let key = idempotency_key(&head.headers)?;
    let (told, waits) = oneshot::channel();
    let task = Arc::clone(&door);
    door.node.tasks.spawn(async move {
        let outcome = match &key {
            Some(key) => make_once(&task, key, &body, asked).await,
            None => make(&task, asked).await,
        };
        let unheard = told.send(outcome);
        // What nobody was told of and nobody can ask for again is nobody's.
        if let (Err(Ok((record, _))), None) = (unheard, key) {
            debug!(
                sandbox = record.id,
                "the client did not wait for its sandbox"
            );
            if let Err(error) = super::life::end(&task, &record.id).await {
                warn!(sandbox = record.id, message = error.message(), "it stays");
            }
        }
    });
    let Ok(outcome) = tokio::time::timeout(CREATE_LIMIT, waits).await else {
        let message = format!("no sandbox within {} s", CREATE_LIMIT.as_secs());
        return Err(
            E2bError::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", message)
                .error_code("sandbox_placement_timeout"),
        );
    };
    let stopping = || {
        let message = "the node is stopping";
        E2bError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message)
            .error_code("sandbox_create_failed")
    };
    let (record, info) = outcome.map_err(|_| stopping())??;
    let made = list::made(&door, &record, &info);
    let headers = list::extras(&door, &info);
    Ok((StatusCode::CREATED, headers, Json(made)).into_response())
}

/// Makes a sandbox for an idempotency key, or finds the one that was made for it.
async fn make_once(
    door: &Arc<Door>,
    key: &str,
    body: &Bytes,
    asked: NewSandbox,
) -> Answer<(Arc<Record>, SandboxInfo)> {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(digest(&SHA256, bytes).as_ref());
    let (id, request) = (hex(key.as_bytes()), hex(body));
    let conflict = |code, message| E2bError::new(StatusCode::CONFLICT, code, message);
    let Some(_making) = door.working.make_for(&id) else {
        let code = "idempotency_in_progress";
        return Err(
            conflict(code, "a sandbox is being made for this key already")
                .error_code(code)
                .retry_after(KEY_POLL),
        );
    };
    if let Some(known) = door.registry.keys.get(&id) {
        if known.request != request {
            let code = "idempotency_request_mismatch";
            let message = "this key came with another request before";
            return Err(
                E2bError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message).error_code(code),
            );
        }
        let Some(sandbox) = &known.sandbox else {
            let code = "idempotency_outcome_unknown";
            let message = "the daemon ended while a sandbox was made for this key; list them";
            return Err(conflict(code, message).error_code(code));
        };
        return match door.known(sandbox) {
            Some((record, info, _)) => Ok((record, info)),
            None => Err(E2bError::not_found(format!(
                "the sandbox \"{sandbox}\" that was made for this key was not found: it is over"
            ))),
        };
    }
    let pending = KeyRecord {
        id: id.clone(),
        request,
        at_ms: now_ms(),
        sandbox: None,
    };
    keep(door, move |door| door.registry.keys.put(pending)).await?;
    match make(door, asked).await {
        Ok((record, info)) => {
            let sandbox = Some(record.id.clone());
            let known =
                move |door: &Door| door.registry.keys.change(&id, |key| key.sandbox = sandbox);
            keep(door, known).await?;
            Ok((record, info))
        }
        Err(error) => {
            // It did not work, so it may be tried again with the same key.
            keep(door, move |door| door.registry.keys.remove(&id)).await?;
            Err(error)
        }
    }
}

/// Makes a sandbox, and keeps what E2B knows of it before anybody is told.
async fn make(door: &Arc<Door>, asked: NewSandbox) -> Answer<(Arc<Record>, SandboxInfo)> {
    let refused = |error: E2bError| error.error_code("sandbox_create_refused");
    let checked = Checked::of(door, asked).map_err(refused)?;
    let Checked {
        from,
        mut record,
        body,
        policy,
    } = checked;
    let node = &door.node;
    let made = match &from {
        From::Snapshot(snapshot) => {
            let restore = RestoreBody {
                as_new: true,
                name: body.name,
                lease: body.lease,
                force: false,
            };
            let restored = node.restore_snapshot(&snapshot.id, restore, silent()).await;
            restored.map(|made| made.sandbox.id)
        }
        _ => {
            let made = Box::pin(node.create_sandbox(body, silent())).await;
            made.map(|made| made.sandbox.id)
        }
    };
    let id = made.map_err(|error| {
        let code = error.code().to_owned();
        let error = E2bError::from(error);
        match &code[..] {
            "limit_reached" | "quota_exceeded" | "disk_full" | "no_sandboxes" => error,
            _ => error.error_code("sandbox_create_failed"),
        }
    })?;
    record.id.clone_from(&id);
    let finished = finish(door, record, &from, policy).await;
    if finished.is_err() {
        // Nobody knows of it.
        let _ = node.kill_sandbox(&id).await;
    }
    finished
}

async fn finish(
    door: &Arc<Door>,
    mut record: Record,
    from: &From,
    policy: Policy,
) -> Answer<(Arc<Record>, SandboxInfo)> {
    let node = &door.node;
    if matches!(from, From::Snapshot(_)) {
        let id = node.find_sandbox(&record.id)?.id;
        let info = node.find_sandbox(&record.id)?;
        if info.network != policy {
            let set = node.sandboxes()?.set_network(&id, policy, info.secrets);
            let failed = |error| crate::daemon::fail::sandbox(&error);
            set.await.map_err(failed)?;
        }
    }
    let id = record.id.clone();
    if !matches!(from, From::Snapshot(_)) {
        // Its programs run as the image says, unless a client says otherwise.
        let image = node.find_sandbox(&id)?.image_id;
        if let Ok(shown) = node.show_image(image).await {
            let user = shown
                .user
                .and_then(|user| user.split(':').next().map(str::to_owned));
            record.user = user.filter(|user| user != "root");
            record.cwd = shown.cwd;
        }
    }
    super::volume::attach(door, &id, &record.mounts).await?;
    let record = keep(door, move |door| door.registry.sandboxes.put(record)).await?;
    if let From::Template(template) = from {
        let template = template.id.clone();
        let count = move |door: &Door| {
            door.registry
                .templates
                .change(&template, |t| t.spawned += 1)
        };
        keep(door, count).await?;
    }
    Ok((record, node.find_sandbox(&id)?))
}

/// Does something to what is kept, where waiting for the disk holds nobody up.
pub(super) async fn keep<T: Send + 'static>(
    door: &Arc<Door>,
    work: impl FnOnce(&Door) -> Result<T, crate::e2b::registry::RegistryError> + Send + 'static,
) -> Answer<T> {
    let door = Arc::clone(door);
    let done = blocking(move || work(&door)).await?;
    done.map_err(|error| crate::error::ApiError::from(error).into())
}

/// A request that can be met, as far as can be seen.
#[derive(Debug)]
struct Checked {
    from: From,
    record: Record,
    body: SandboxBody,
    policy: Policy,
}

impl Checked {
    fn of(door: &Door, asked: NewSandbox) -> Answer<Self> {
        if asked.mcp.as_ref().is_some_and(|mcp| !mcp.is_null()) {
            return Err(E2bError::unsupported(
                "the MCP gateway; `/mcp` of the node's own API is its equal",
            ));
        }
        if asked.iam.as_ref().is_some_and(|iam| !iam.is_null()) {
            return Err(E2bError::unsupported("identity tokens (`iam`)"));
        }
        if asked.auto_pause_memory == Some(false) {
            return Err(E2bError::unsupported(
                "a pause at the end of the time that drops the memory (`autoPauseMemory: false`)",
            ));
        }
        let mounts = asked.volume_mounts.unwrap_or_default();
        let space = super::volume::space_of(door, &mounts)?;
        let metadata = asked.metadata.unwrap_or_default();
        check_metadata(&metadata)?;
        let wanted = asked.template.as_deref().unwrap_or("base");
        let from = find(door, wanted)?;
        let timeout_secs = asked.timeout.unwrap_or(DEFAULT_TIMEOUT_SECS).max(1);
        check_timeout(timeout_secs)?;
        let on_timeout = match asked.auto_pause {
            Some(true) => OnTimeout::Pause,
            _ => OnTimeout::Kill,
        };
        let auto_resume = asked.auto_resume.unwrap_or_default().enabled;
        if auto_resume && on_timeout == OnTimeout::Kill {
            let message = "`autoResume` takes `autoPause`: what was killed cannot wake";
            return Err(E2bError::bad_request(message));
        }
        let network = asked.network.filter(|network| !network.is_null());
        let policy = super::network::policy(asked.allow_internet_access, network.as_ref())?;
        let is_public = network
            .as_ref()
            .is_none_or(|network| network["allowPublicTraffic"] != false);
        let mut body = extras(door, &metadata)?;
        let envs = asked.env_vars.unwrap_or_default();
        body.lease = Some(lease(timeout_secs, on_timeout));
        body.network = Some(policy.clone());
        let mut record = Record {
            id: String::new(),
            metadata,
            access_token: new_token()?,
            traffic_token: (!is_public).then(new_token).transpose()?,
            on_timeout,
            auto_resume,
            timeout_secs,
            started_ms: now_ms(),
            internet: asked.allow_internet_access,
            network,
            mounts,
            ..Record::default()
        };
        match &from {
            From::Image { template, image } => {
                record.template.clone_from(template);
                record.alias = Some(template.clone());
                body.image = Some(image.clone());
            }
            From::Template(template) => {
                record.template.clone_from(&template.id);
                record.alias = template.names.first().cloned();
                body.image.clone_from(&template.image);
                let given = |value: u32| Some(value).filter(|value| *value > 0);
                body.vcpus = body.vcpus.or(given(template.vcpus));
                body.memory_mib = body.memory_mib.or(given(template.memory_mib));
            }
            From::Snapshot(snapshot) => {
                record.template.clone_from(&snapshot.id);
                record.alias = snapshot.names.first().cloned();
                record.envs.clone_from(&snapshot.envs);
                record.user.clone_from(&snapshot.user);
                record.cwd.clone_from(&snapshot.cwd);
                let is_other = body.agent.is_some()
                    || !body.spaces.is_empty()
                    || !body.secrets.is_empty()
                    || !body.requires.is_empty()
                    || body.vcpus.is_some()
                    || body.memory_mib.is_some();
                if is_other {
                    return Err(E2bError::bad_request(
                        "a sandbox that is made from a snapshot is as large as what it was taken of, works for the same agent, and has the same spaces, secrets and requirements",
                    ));
                }
            }
        }
        // A volume is attached to sandboxes of its own space; a snapshot brings its own along.
        if body.spaces.is_empty() && !matches!(from, From::Snapshot(_)) {
            body.spaces.extend(space);
        }
        record.envs.extend(envs);
        body.labels
            .insert(LABEL.to_owned(), record.template.clone());
        Ok(Self {
            from,
            record,
            body,
            policy,
        })
    }
}

/// Reads what metadata says to this node.
///
/// Whoever reaches the door without its key gets a sandbox and nothing of the mesh: every user of
/// the machine reaches it.
fn extras(door: &Door, metadata: &BTreeMap<String, String>) -> Answer<SandboxBody> {
    let mut body = SandboxBody::default();
    for (name, value) in metadata {
        let Some(name) = name.strip_prefix(OURS) else {
            continue;
        };
        let number = || {
            value.parse().map_err(|_| {
                E2bError::bad_request(format!("the metadata `{OURS}{}` is no number", clip(name)))
            })
        };
        let list = || {
            value
                .split(',')
                .map(|part| part.trim().to_owned())
                .collect()
        };
        match name {
            "name" => body.name = Some(value.clone()),
            "memory_mib" => body.memory_mib = Some(number()?),
            "vcpus" => body.vcpus = Some(number()?),
            "requires" => body.requires = value.lines().map(str::to_owned).collect(),
            "agent" | "space" | "spaces" | "secrets" if door.node.config.e2b.key.is_none() => {
                let message = format!(
                    "the metadata `{OURS}{name}` gives access to the mesh; this node has no `e2b.key`, so anybody on its machine could ask for it"
                );
                return Err(E2bError::new(StatusCode::FORBIDDEN, "denied", message));
            }
            "agent" => body.agent = Some(value.clone()),
            "space" | "spaces" => body.spaces = list(),
            "secrets" => body.secrets = list(),
            other => {
                return Err(E2bError::bad_request(format!(
                    "the metadata `{OURS}{}` means nothing here; known are name, memory_mib, vcpus, requires, agent, space, secrets",
                    clip(other)
                )));
            }
        }
    }
    Ok(body)
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Answer<()> {
    let long = |text: &String| text.len() > MAX_METADATA_BYTES;
    if metadata.len() > MAX_METADATA || metadata.iter().any(|(k, v)| long(k) || long(v)) {
        return Err(E2bError::bad_request(format!(
            "metadata has at most {MAX_METADATA} entries of up to {MAX_METADATA_BYTES} bytes"
        )));
    }
    Ok(())
}

/// Refuses a time that no lease has.
pub(super) fn check_timeout(secs: u64) -> Answer<()> {
    let most = MAX_LEASE_MS / 1000;
    if secs > most {
        return Err(E2bError::bad_request(format!(
            "`timeout` is {most} s at most"
        )));
    }
    Ok(())
}

/// Returns a lease for `secs` from now.
pub(super) fn lease(secs: u64, then: OnTimeout) -> LeaseBody {
    let then = match then {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause => "hibernate",
    };
    LeaseBody {
        for_ms: Some(secs.max(1).saturating_mul(1000).min(MAX_LEASE_MS)),
        then: Some(then.to_owned()),
        id: Some("e2b".to_owned()),
        ..LeaseBody::default()
    }
}

/// Returns the names of the templates that are always there.
pub(super) fn built_in(door: &Door) -> Vec<String> {
    let given = door.node.config.e2b.templates.keys().cloned();
    let mut names: Vec<String> = BUILT_IN
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    names.extend(given);
    names.sort_unstable();
    names.dedup();
    names
}

/// Finds what a client calls a template: a snapshot, a template it built, one of ours, an image.
pub(super) fn find(door: &Door, wanted: &str) -> Answer<From> {
    let registry = &door.registry;
    let snapshot = registry.snapshots.get(wanted).or_else(|| {
        let mut named: Vec<_> = registry
            .snapshots
            .all()
            .into_iter()
            .filter(|snapshot| snapshot.names.iter().any(|name| name == wanted))
            .collect();
        named.sort_by_key(|snapshot| snapshot.created_ms);
        named.pop()
    });
    if let Some(snapshot) = snapshot {
        return Ok(From::Snapshot(snapshot));
    }
    // `name:tag` is the build with that tag; the newest one has the name alone.
    let (name, tag) = match wanted.rsplit_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (wanted, None),
    };
    // Some clients put their team before it.
    let name = name.rsplit('/').next().unwrap_or(name);
    let built = registry.templates.get(name).or_else(|| {
        let all = registry.templates.all();
        let has = |template: &&Arc<TemplateRecord>| template.names.iter().any(|n| n == name);
        all.iter().find(has).cloned()
    });
    if let Some(template) = built {
        let image = match tag {
            None | Some("latest" | "default") => template.image.clone(),
            Some(tag) => template
                .builds
                .values()
                .filter(|build| build.tags.iter().any(|have| have == tag))
                .max_by_key(|build| build.created_ms)
                .and_then(|build| build.image.clone()),
        };
        let Some(image) = image else {
            return Err(E2bError::not_found(format!(
                "the template '{}' has no build that is ready",
                clip(wanted)
            )));
        };
        let template = TemplateRecord {
            image: Some(image),
            ..TemplateRecord::clone(&template)
        };
        return Ok(From::Template(Arc::new(template)));
    }
    let settings = &door.node.config.e2b.templates;
    let given = settings.get(wanted).map(String::as_str);
    let ours = || BUILT_IN.iter().find(|(name, _)| *name == wanted);
    if let Some(image) = given.or_else(|| ours().map(|(_, image)| *image)) {
        return Ok(From::Image {
            template: wanted.to_owned(),
            image: image.to_owned(),
        });
    }
    if door.node.sandboxes()?.images().knows(wanted) {
        return Ok(From::Image {
            template: wanted.to_owned(),
            image: wanted.to_owned(),
        });
    }
    Err(E2bError::not_found(format!(
        "template '{}' was not found: it is no snapshot, no template that was built here, no alias in `e2b.templates` and no image of this node",
        clip(wanted)
    )))
}

fn idempotency_key(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    match value.to_str() {
        Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(plain) => {
            Ok(Some(key.to_owned()))
        }
        _ => Err(E2bError::bad_request(format!(
            "an idempotency key is 1 to {MAX_KEY_BYTES} of a-z 0-9 -"
        ))),
    }
}
