//! Builds: a client's steps become a recipe, and its image the template's.
use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, RawQuery, State},
    http::StatusCode,
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use rhizome_sandbox::{Progress, ProgressEvent};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Shared, files::archive, no_build, no_template, template};
use crate::{
    api::types::image::RecipeBody,
    cli::utc,
    daemon::memory::clip,
    e2b::{
        Door,
        control::{
            Body,
            create::{self, From, keep},
            list::pairs,
            network,
            script::{Step, recipe},
        },
        error::{Answer, E2bError},
        registry::{BuildRecord, new_token},
    },
};

/// Most lines of a build's log in one answer.
const MAX_LOG_PAGE: usize = 100;

/// A line of a build's log.
#[derive(Debug, Clone)]
pub(in crate::e2b::control) struct LogLine {
    at_ms: u64,
    level: &'static str,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::e2b::control) struct Start {
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
pub(in crate::e2b::control) async fn start(
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
    // What a sandbox may reach when nobody says: builds install things.
    let network = network::policy(None, None)?;
    let built = Box::pin(door.node.build_recipe(body, network, progress)).await?;
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
pub(in crate::e2b::control) async fn status(
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

pub(super) fn build_id() -> Answer<String> {
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
