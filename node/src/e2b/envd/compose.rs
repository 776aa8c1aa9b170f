//! `POST /files/compose`: files behind each other become one, and go.
use std::{collections::BTreeSet, io, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Request, State},
};
use futures::{StreamExt, TryStreamExt};
use rhizome_sandbox::FileKind;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::io::{ReaderStream, StreamReader};

use super::{
    connect_to_http,
    files::{READ_BYTES, failed, guest, written_as},
    user_of,
};
use crate::{
    api::extract::{parse_json, read_body},
    e2b::{Door, Target, error::E2bError},
};

/// Most files that become one.
const MAX_SOURCES: usize = 10_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Compose {
    destination: String,
    source_paths: Vec<String>,
    username: Option<String>,
}

/// The new file is there whole or not at all, and its parts go once it is.
pub(super) async fn compose(
    State(door): State<Arc<Door>>,
    Extension(target): Extension<Target>,
    request: Request,
) -> Result<Json<Value>, E2bError> {
    let (head, body) = request.into_parts();
    let asked: Compose = parse_json(&read_body(body).await?)?;
    if asked.destination.is_empty() || asked.source_paths.is_empty() {
        return Err(E2bError::bad_request(
            "`destination` and `source_paths` say what becomes of what; one is missing",
        ));
    }
    if asked.source_paths.len() > MAX_SOURCES {
        return Err(E2bError::bad_request(format!(
            "at most {MAX_SOURCES} files become one"
        )));
    }
    let user = match asked.username.filter(|user| !user.is_empty()) {
        Some(user) => user,
        None => user_of(&head.headers, &target).map_err(connect_to_http)?,
    };
    let guest = guest(&door, &target).await?;
    let mut sources = Vec::new();
    for path in &asked.source_paths {
        let facts = guest.look(&user, path).await;
        let facts = facts.map_err(|error| failed(&target, &error))?;
        if facts.kind != FileKind::File {
            let message = format!("path \"{}\" is no file", facts.path);
            return Err(E2bError::bad_request(message));
        }
        sources.push(facts.path);
    }
    let reading = guest.clone();
    let bytes = futures::stream::iter(sources.clone())
        .then(move |path| {
            let guest = reading.clone();
            async move {
                let reader = guest.read_file_from(&path, 0).await;
                let reader = reader.map_err(io::Error::other)?;
                Ok::<_, io::Error>(ReaderStream::with_capacity(reader, READ_BYTES))
            }
        })
        .try_flatten();
    let reader = StreamReader::new(bytes.boxed());
    let written = guest
        .write_file_of(&user, &asked.destination, Vec::new(), reader)
        .await;
    let written = written.map_err(|error| failed(&target, &error))?;
    // Each once, and not what came of them if it has the name of one.
    let parts: BTreeSet<String> = sources.into_iter().collect();
    for part in parts.iter().filter(|part| **part != written.path) {
        let removed = guest.remove_all(&user, part).await;
        removed.map_err(|error| failed(&target, &error))?;
    }
    Ok(Json(written_as(&written)))
}
