//! The files of a build, kept under their hash until builds have had them.
use std::{collections::BTreeMap, path::PathBuf};

use axum::{
    Json,
    extract::{Path, RawQuery, Request, State},
    http::{StatusCode, header},
    response::IntoResponse,
};
use futures::StreamExt;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{Shared, template};
use crate::e2b::{
    Door,
    control::list::pairs,
    error::{Answer, E2bError},
    registry::new_token,
    signature::constant_time_eq,
};

/// The largest archive of files for a build, in bytes.
const MAX_UPLOAD_BYTES: u64 = 1024 * 1024 * 1024;

/// Says whether the files with a hash are here, and where they are to be sent.
pub(in crate::e2b::control) async fn files(
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
pub(in crate::e2b::control) async fn upload(
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

/// Returns where an archive lies; its name is the hash that the client computed.
pub(super) fn archive(door: &Door, hash: &str) -> Answer<PathBuf> {
    if hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(E2bError::bad_request("the hash of files is 64 hex digits"));
    }
    Ok(door.node.data.join("e2b/files").join(hash))
}
