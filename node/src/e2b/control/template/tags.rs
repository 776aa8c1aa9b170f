//! Tags: names for the builds of a template.
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use serde::Deserialize;
use serde_json::json;

use super::{Shared, no_build, template};
use crate::{
    cli::utc,
    e2b::{
        Door,
        control::{Body, create::keep},
        error::Answer,
    },
};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::e2b::control) struct Tags {
    target: Option<String>,
    name: Option<String>,
    tags: Vec<String>,
}

/// Gives a build more tags.
pub(in crate::e2b::control) async fn tag(State(door): Shared, Body(asked): Body<Tags>) -> Answer {
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

pub(in crate::e2b::control) async fn untag(State(door): Shared, Body(asked): Body<Tags>) -> Answer {
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

pub(in crate::e2b::control) async fn tags(State(door): Shared, Path(id): Path<String>) -> Answer {
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
