//! Templates: names for images, and images that clients build with their SDK.
//!
//! A build becomes one recipe (`docs/images.md`): the archives that the client sent are copied in,
//! one script does all the steps in order, and what is left configures the image. Archives are
//! unpacked in the guest that the image is made in, never on the node.
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use axum::{
    Json,
    extract::{Path, RawQuery, Request, State},
    http::{StatusCode, header},
    response::IntoResponse,
};
use futures::StreamExt;
use rhizome_memory::now_ms;
use rhizome_sandbox::{Progress, ProgressEvent};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    Body,
    create::{self, From, keep},
    list::pairs,
    script::{Step, recipe},
    snapshot, to_the_end,
};
use crate::{
    api::types::image::RecipeBody,
    cli::utc,
    daemon::memory::clip,
    e2b::{
        Door, ENVD_VERSION,
        error::{Answer, E2bError},
        registry::{BuildRecord, TemplateRecord, new_token},
        signature::constant_time_eq,
    },
};

/// The largest archive of files for a build, in bytes.
const MAX_UPLOAD_BYTES: u64 = 1024 * 1024 * 1024;
/// Most builds of a template that are remembered.
const MAX_BUILDS: usize = 64;
/// Most lines of a build's log in one answer.
const MAX_LOG_PAGE: usize = 100;
/// What a sandbox has when a template does not say.
const DEFAULT_CPUS: u32 = 1;
const DEFAULT_MEMORY_MIB: u32 = 512;
const DISK_MIB: u64 = 4096;

type Shared = State<Arc<Door>>;

/// A line of a build's log.
#[derive(Debug, Clone)]
pub(super) struct LogLine {
    at_ms: u64,
    level: &'static str,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NewTemplate {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    #[serde(rename = "cpuCount")]
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
}

/// Asks for a build; its files and steps come after.
pub(super) async fn request(State(door): Shared, Body(asked): Body<NewTemplate>) -> Answer {
    let given = asked.name.or(asked.alias).unwrap_or_default();
    let (name, tag) = match given.rsplit_once(':') {
        Some((name, tag)) => (name.to_owned(), Some(tag.to_owned())),
        None => (given.clone(), None),
    };
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let message = "a template's name is 1 to 64 of a-z A-Z 0-9 - _ .";
        return Err(E2bError::bad_request(message));
    }
    let mut tags = asked.tags.unwrap_or_default();
    tags.extend(tag);
    if tags.is_empty() {
        tags.push("default".to_owned());
    }
    let all = door.registry.templates.all();
    let known = all.iter().find(|template| template.names.contains(&name));
    let now = now_ms();
    let mut template = match known {
        Some(template) => TemplateRecord::clone(template),
        None => TemplateRecord {
            id: new_token()?.chars().take(20).collect(),
            names: vec![name],
            created_ms: now,
            upload_token: new_token()?,
            ..TemplateRecord::default()
        },
    };
    template.vcpus = asked.cpu_count.unwrap_or(template.vcpus);
    template.memory_mib = asked.memory_mb.unwrap_or(template.memory_mib);
    template.updated_ms = now;
    let build = build_id()?;
    while template.builds.len() >= MAX_BUILDS {
        let oldest = template.builds.iter().min_by_key(|(_, b)| b.created_ms);
        let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
            break;
        };
        template.builds.remove(&oldest);
    }
    template.builds.insert(
        build.clone(),
        BuildRecord {
            status: "waiting".to_owned(),
            tags: tags.clone(),
            created_ms: now,
            ..BuildRecord::default()
        },
    );
    let kept = keep(&door, move |door| door.registry.templates.put(template)).await?;
    let answer = json!({
        "templateID": kept.id,
        "buildID": build,
        "public": false,
        "names": kept.names,
        "aliases": kept.names,
        "tags": tags,
    });
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// Says whether the files with a hash are here, and where they are to be sent.
pub(super) async fn files(
    State(door): Shared,
    Path((id, hash)): Path<(String, String)>,
    request: Request,
) -> Answer {
    let template = template(&door, &id)?;
    let path = archive(&door, &hash)?;
    let mut answer = json!({"present": tokio::fs::try_exists(&path).await.unwrap_or(false)});
    if answer["present"] == false {
        let host = request.headers().get(header::HOST);
        let scheme = if door.at.tls { "https" } else { "http" };
        // Whatever name the client found us by, it finds us by again.
        let base = match host.and_then(|host| host.to_str().ok()) {
            Some(host) => format!("{scheme}://{host}"),
            None => door.at.url(),
        };
        let token = &template.upload_token;
        answer["url"] = format!("{base}/templates/{id}/files/{hash}?token={token}").into();
    }
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// Takes the files. No key comes with them: the URL itself opens this.
pub(super) async fn upload(
    State(door): Shared,
    Path((id, hash)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer {
    let template = template(&door, &id)?;
    let query: BTreeMap<_, _> = pairs(query.as_deref().unwrap_or_default())
        .into_iter()
        .collect();
    let token = query.get("token").map(String::as_str).unwrap_or_default();
    if !constant_time_eq(token.as_bytes(), template.upload_token.as_bytes()) {
        let message = "this is not where these files are to be sent";
        return Err(E2bError::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            message,
        ));
    }
    let path = archive(&door, &hash)?;
    let failed = |error: std::io::Error| {
        let error =
            crate::error::ApiError::of(StatusCode::INSUFFICIENT_STORAGE, "disk_full", &error);
        E2bError::from(error)
    };
    let dir = path.parent().expect("it is in a directory").to_owned();
    tokio::fs::create_dir_all(&dir).await.map_err(failed)?;
    let beside = dir.join(format!("{}.new", new_token()?));
    let written = async {
        let mut file = tokio::fs::File::create(&beside).await?;
        let mut body = request.into_body().into_data_stream();
        let mut bytes = 0;
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(std::io::Error::other)?;
            bytes += chunk.len() as u64;
            if bytes > MAX_UPLOAD_BYTES {
                return Err(std::io::Error::other("the archive is larger than 1 GiB"));
            }
            file.write_all(&chunk).await?;
        }
        file.sync_all().await?;
        tokio::fs::rename(&beside, &path).await
    };
    if let Err(error) = written.await {
        let _ = tokio::fs::remove_file(&beside).await;
        return Err(failed(error));
    }
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Start {
    #[serde(rename = "fromImage")]
    from_image: Option<String>,
    #[serde(rename = "fromTemplate")]
    from_template: Option<String>,
    #[serde(rename = "fromImageRegistry")]
    registry: Option<Value>,
    steps: Vec<Step>,
    #[serde(rename = "startCmd")]
    start: Option<String>,
    #[serde(rename = "readyCmd")]
    ready: Option<String>,
}

/// Begins a build; the client asks how it goes.
pub(super) async fn start(
    State(door): Shared,
    Path((id, build)): Path<(String, String)>,
    Body(asked): Body<Start>,
) -> Answer {
    let template = template(&door, &id)?;
    match template.builds.get(&build) {
        None => return Err(no_build(&build)),
        Some(known) if known.status != "waiting" => {
            let message = format!("the build is {} already", known.status);
            return Err(E2bError::new(StatusCode::CONFLICT, "building", message));
        }
        Some(_) => {}
    }
    set(&door, &id, &build, |build| {
        build.status = "building".to_owned()
    })
    .await?;
    let task = Arc::clone(&door);
    door.node.tasks.spawn(async move {
        let outcome = run(&task, &id, &build, asked).await;
        let (image, reason) = match outcome {
            Ok(image) => (Some(image), None),
            Err(error) => (None, Some(error.message().to_owned())),
        };
        task.working.log(
            &build,
            line(
                if reason.is_some() { "error" } else { "info" },
                reason
                    .clone()
                    .unwrap_or_else(|| "the build is ready".to_owned()),
            ),
        );
        let of_record = image.clone();
        let ended = set(&task, &id, &build, move |build| {
            let is_ready = of_record.is_some();
            build.status = if is_ready { "ready" } else { "error" }.to_owned();
            build.reason = reason;
            build.image = of_record;
        });
        if let Err(error) = ended.await {
            tracing::warn!(
                message = error.message(),
                "a build's end was not written down"
            );
        }
        if let Some(image) = image {
            let change = move |door: &Door| {
                door.registry.templates.change(&id, |template| {
                    template.image = Some(image);
                    template.updated_ms = now_ms();
                })
            };
            let _ = keep(&task, change).await;
        }
    });
    Ok(StatusCode::ACCEPTED.into_response())
}

async fn run(door: &Arc<Door>, id: &str, build: &str, asked: Start) -> Answer<String> {
    if asked
        .registry
        .as_ref()
        .is_some_and(|registry| !registry.is_null())
    {
        return Err(E2bError::unsupported(
            "images from a registry; `rhizome image import` takes one from a file",
        ));
    }
    let base = base(
        door,
        asked.from_image.as_deref(),
        asked.from_template.as_deref(),
    )?;
    let say = |message: String| door.working.log(build, line("info", message));
    say(format!("from the image `{base}` of this node"));
    let context = door.node.data.join("e2b/files");
    tokio::fs::create_dir_all(&context)
        .await
        .map_err(crate::error::ApiError::internal)?;
    for step in &asked.steps {
        if let Some(hash) = step.archive()
            && !tokio::fs::try_exists(archive(door, hash)?)
                .await
                .unwrap_or(false)
        {
            let message = format!("the files {} were not sent", clip(hash));
            return Err(E2bError::bad_request(message));
        }
    }
    let recipe = recipe(
        &base,
        &asked.steps,
        asked.start.as_deref(),
        asked.ready.as_deref(),
    )?;
    let Some(recipe) = recipe else {
        // Nothing is to be done to it.
        return Ok(base);
    };
    let (working, of_build) = (Arc::clone(door), build.to_owned());
    let progress: Progress = Arc::new(move |event: ProgressEvent<'_>| {
        let message = format!("{}: {}", event.step, event.detail);
        working.working.log(&of_build, line("info", message));
    });
    let short: String = build.chars().take(8).collect();
    let body = RecipeBody {
        recipe,
        context: context.display().to_string(),
        name: format!("e2b-{id}-{short}"),
    };
    let built = Box::pin(door.node.build_recipe(body, progress)).await?;
    Ok(built.image.name)
}

/// Returns the image of this node that a build starts from.
fn base(door: &Door, image: Option<&str>, template: Option<&str>) -> Answer<String> {
    if let Some(template) = template {
        return match create::find(door, template)? {
            From::Image { image, .. } => Ok(image),
            From::Template(template) => template
                .image
                .clone()
                .ok_or_else(|| no_template(&template.id)),
            From::Snapshot(_) => Err(E2bError::unsupported("templates from snapshots")),
        };
    }
    let wanted = image.unwrap_or("e2bdev/base");
    let images = door.node.sandboxes()?.images();
    if images.knows(wanted) {
        return Ok(wanted.to_owned());
    }
    let untagged = wanted.split([':', '@']).next().unwrap_or(wanted);
    match untagged
        .trim_start_matches("docker.io/")
        .trim_start_matches("library/")
    {
        "e2bdev/base" | "e2bdev/code-interpreter" | "debian" => Ok("debian".to_owned()),
        name if images.knows(name) => Ok(name.to_owned()),
        _ => Err(E2bError::unsupported(format!(
            "the image '{}': nothing is fetched from a registry; import it with `rhizome image import` under that name, or start from `e2bdev/base`, `debian` or a template of this node",
            clip(wanted)
        ))),
    }
}

/// Says how a build goes.
pub(super) async fn status(
    State(door): Shared,
    Path((id, build)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    let template = template(&door, &id)?;
    let known = template
        .builds
        .get(&build)
        .ok_or_else(|| no_build(&build))?;
    let query: BTreeMap<_, _> = pairs(query.as_deref().unwrap_or_default())
        .into_iter()
        .collect();
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
    let offset = number("logsOffset").unwrap_or(0);
    let most = number("limit").unwrap_or(MAX_LOG_PAGE).min(MAX_LOG_PAGE);
    let lines = door.working.logged(&build);
    let entries: Vec<_> = lines
        .iter()
        .skip(offset)
        .take(most)
        .map(|line| json!({"timestamp": utc(line.at_ms), "message": line.message, "level": line.level}))
        .collect();
    // A build of a daemon that is gone goes on nowhere.
    let is_lost =
        known.status == "building" && lines.is_empty() && known.created_ms < door.node.started_ms;
    let status = if is_lost { "error" } else { &known.status };
    let mut answer = json!({
        "templateID": id,
        "buildID": build,
        "status": status,
        "logs": [],
        "logEntries": entries,
    });
    let lost = is_lost.then(|| "the daemon ended while it was built".to_owned());
    if let Some(reason) = known.reason.clone().or(lost) {
        answer["reason"] = json!({"message": reason, "logEntries": []});
    }
    Ok(Json(answer).into_response())
}

pub(super) async fn alias(State(door): Shared, Path(alias): Path<String>) -> Answer {
    let id = match create::find(&door, &alias)? {
        From::Image { template, .. } => template,
        From::Template(template) => template.id.clone(),
        From::Snapshot(snapshot) => snapshot.id.clone(),
    };
    Ok(Json(json!({"templateID": id, "public": false})).into_response())
}

pub(super) async fn list(State(door): Shared) -> Answer {
    let mut shown: Vec<_> = create::built_in(&door)
        .into_iter()
        .map(|name| {
            let at = utc(door.node.started_ms);
            listed(
                &name,
                std::slice::from_ref(&name),
                0,
                0,
                (&at, &at),
                (0, 0),
                "ready",
                true,
            )
        })
        .collect();
    for template in door.registry.templates.all() {
        let (created, updated) = (utc(template.created_ms), utc(template.updated_ms));
        let newest = template
            .builds
            .values()
            .max_by_key(|build| build.created_ms);
        let status = newest.map_or("waiting", |build| &build.status);
        shown.push(listed(
            &template.id,
            &template.names,
            template.vcpus,
            template.memory_mib,
            (&created, &updated),
            (template.spawned, template.builds.len()),
            status,
            false,
        ));
        let last = shown.last_mut().expect("it was just added");
        if let Some(id) = newest_id(&template) {
            last["buildID"] = id.into();
        }
    }
    Ok(Json(shown).into_response())
}

pub(super) async fn show(State(door): Shared, Path(id): Path<String>) -> Answer {
    let template = template(&door, &id)?;
    let (created, updated) = (utc(template.created_ms), utc(template.updated_ms));
    let newest = template
        .builds
        .values()
        .max_by_key(|build| build.created_ms);
    let mut shown = listed(
        &template.id,
        &template.names,
        template.vcpus,
        template.memory_mib,
        (&created, &updated),
        (template.spawned, template.builds.len()),
        newest.map_or("waiting", |build| &build.status),
        false,
    );
    if let Some(id) = newest_id(&template) {
        shown["buildID"] = id.into();
    }
    let builds = template.builds.iter().map(|(id, build)| {
        json!({
            "buildID": id,
            "status": build.status,
            "createdAt": utc(build.created_ms),
            "updatedAt": utc(build.created_ms),
            "cpuCount": given(template.vcpus, DEFAULT_CPUS),
            "memoryMB": given(template.memory_mib, DEFAULT_MEMORY_MIB),
        })
    });
    shown["builds"] = builds.collect();
    Ok(Json(shown).into_response())
}

#[expect(
    clippy::too_many_arguments,
    reason = "the fields of one object, all required"
)]
fn listed(
    id: &str,
    names: &[String],
    vcpus: u32,
    memory_mib: u32,
    (created, updated): (&str, &str),
    (spawned, builds): (u64, usize),
    status: &str,
    is_default: bool,
) -> Value {
    json!({
        "templateID": id,
        "buildID": "00000000-0000-0000-0000-000000000000",
        "cpuCount": given(vcpus, DEFAULT_CPUS),
        "memoryMB": given(memory_mib, DEFAULT_MEMORY_MIB),
        "diskSizeMB": DISK_MIB,
        "public": false,
        "aliases": names,
        "names": names,
        "createdAt": created,
        "updatedAt": updated,
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": spawned,
        "buildCount": builds,
        "envdVersion": ENVD_VERSION,
        "buildStatus": status,
        "isDefault": is_default,
    })
}

fn given(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn newest_id(template: &TemplateRecord) -> Option<String> {
    let newest = template.builds.iter().max_by_key(|(_, b)| b.created_ms);
    newest.map(|(id, _)| id.clone())
}

/// Forgets a template, or a snapshot: their clients ask for both here.
pub(super) async fn remove(State(door): Shared, Path(id): Path<String>) -> Answer {
    let of_task = Arc::clone(&door);
    let work = async move {
        match create::find(&of_task, &id)? {
            From::Snapshot(found) => snapshot::remove(&of_task, &found).await,
            From::Template(template) => {
                let id = template.id.clone();
                keep(&of_task, move |door| door.registry.templates.remove(&id)).await?;
                for image in template
                    .builds
                    .values()
                    .filter_map(|build| build.image.as_ref())
                {
                    // One that a sandbox uses stays until `rhizome image prune`.
                    if image.starts_with("e2b-") {
                        let _ = of_task.node.remove_image(image).await;
                    }
                }
                Ok(())
            }
            From::Image { template, .. } => Err(E2bError::new(
                StatusCode::FORBIDDEN,
                "denied",
                format!("the template '{}' is always there", clip(&template)),
            )),
        }
    };
    to_the_end(&door, work).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tags {
    target: Option<String>,
    name: Option<String>,
    tags: Vec<String>,
}

/// Gives a build more tags.
pub(super) async fn tag(State(door): Shared, Body(asked): Body<Tags>) -> Answer {
    let target = asked.target.or(asked.name).unwrap_or_default();
    let (name, tag) = match target.rsplit_once(':') {
        Some((name, tag)) => (name.to_owned(), Some(tag.to_owned())),
        None => (target, None),
    };
    let template = template(&door, &name)?;
    let found = template
        .builds
        .iter()
        .filter(|(_, build)| tag.as_ref().is_none_or(|tag| build.tags.contains(tag)))
        .max_by_key(|(_, build)| build.created_ms);
    let Some((build, _)) = found else {
        return Err(no_build(tag.as_deref().unwrap_or("latest")));
    };
    let (build, tags) = (build.clone(), asked.tags.clone());
    let of_record = template.id.clone();
    let (wanted, given) = (build.clone(), tags.clone());
    let change = move |door: &Door| {
        door.registry.templates.change(&of_record, |template| {
            for (id, build) in &mut template.builds {
                // A tag is of one build.
                build.tags.retain(|have| !given.contains(have));
                if *id == wanted {
                    build.tags.extend(given.iter().cloned());
                }
            }
        })
    };
    keep(&door, change).await?;
    let answer = json!({"tags": tags, "buildID": build});
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

pub(super) async fn untag(State(door): Shared, Body(asked): Body<Tags>) -> Answer {
    let name = asked.name.or(asked.target).unwrap_or_default();
    let template = template(&door, &name)?;
    let (id, gone) = (template.id.clone(), asked.tags);
    let change = move |door: &Door| {
        door.registry.templates.change(&id, |template| {
            for build in template.builds.values_mut() {
                build.tags.retain(|have| !gone.contains(have));
            }
        })
    };
    keep(&door, change).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn tags(State(door): Shared, Path(id): Path<String>) -> Answer {
    let template = template(&door, &id)?;
    let tags: Vec<_> = template
        .builds
        .iter()
        .flat_map(|(id, build)| {
            let at = utc(build.created_ms);
            build
                .tags
                .iter()
                .map(move |tag| json!({"tag": tag, "buildID": id, "createdAt": at}))
        })
        .collect();
    Ok(Json(tags).into_response())
}

async fn set(
    door: &Arc<Door>,
    id: &str,
    build: &str,
    change: impl FnOnce(&mut BuildRecord) + Send + 'static,
) -> Answer<()> {
    let (id, build) = (id.to_owned(), build.to_owned());
    let work = move |door: &Door| {
        door.registry.templates.change(&id, |template| {
            if let Some(build) = template.builds.get_mut(&build) {
                change(build);
            }
        })
    };
    keep(door, work).await?;
    Ok(())
}

fn template(door: &Door, wanted: &str) -> Answer<Arc<TemplateRecord>> {
    let name = wanted.rsplit('/').next().unwrap_or(wanted);
    let templates = &door.registry.templates;
    let found = templates.get(name).or_else(|| {
        let all = templates.all();
        let has = |template: &&Arc<TemplateRecord>| template.names.iter().any(|n| n == name);
        all.iter().find(has).cloned()
    });
    found.ok_or_else(|| no_template(wanted))
}

fn no_template(id: &str) -> E2bError {
    E2bError::not_found(format!("template '{}' was not found", clip(id)))
}

fn no_build(id: &str) -> E2bError {
    E2bError::not_found(format!("build '{}' was not found", clip(id)))
}

/// Returns where an archive lies; its name is the hash that the client computed.
fn archive(door: &Door, hash: &str) -> Answer<PathBuf> {
    if hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(E2bError::bad_request("the hash of files is 64 hex digits"));
    }
    Ok(door.node.data.join("e2b/files").join(hash))
}

fn build_id() -> Answer<String> {
    let token = new_token()?;
    // A random UUID, version 4.
    Ok(format!(
        "{}-{}-4{}-a{}-{}",
        &token[..8],
        &token[8..12],
        &token[13..16],
        &token[17..20],
        &token[20..32]
    ))
}

fn line(level: &'static str, message: String) -> LogLine {
    LogLine {
        at_ms: now_ms(),
        level,
        message: message
            .chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
            .take(4096)
            .collect(),
    }
}
