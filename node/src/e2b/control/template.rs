//! Templates: names for images, and images that clients build with their SDK.
//!
//! A build ([`build`]) becomes one recipe (`docs/images.md`): the archives that the client sent
//! ([`files`]) are copied in, one script does all the steps in order, and what is left configures
//! the image. Archives are unpacked in the guest that the image is made in, never on the node.
pub(super) mod build;
pub(super) mod files;
pub(super) mod tags;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use serde::Deserialize;
use serde_json::{Value, json};

use self::build::build_id;
use super::{
    Body,
    create::{self, From, keep},
    snapshot, to_the_end,
};
use crate::{
    cli::utc,
    daemon::memory::clip,
    e2b::{
        Door, ENVD_VERSION,
        error::{Answer, E2bError},
        registry::{BuildRecord, TemplateRecord, new_token},
    },
};

/// Most builds of a template that are remembered.
const MAX_BUILDS: usize = 64;
/// What a sandbox has when a template does not say.
const DEFAULT_CPUS: u32 = 1;
const DEFAULT_MEMORY_MIB: u32 = 512;
const DISK_MIB: u64 = 4096;

type Shared = State<Arc<Door>>;

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
