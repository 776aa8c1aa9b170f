//! `/files`: whole files in and out, streamed both ways.
use std::{collections::BTreeMap, io, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::{FromRequest, Multipart, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::TryStreamExt;
use rhizome_sandbox::{
    FileKind,
    channel::{FailureCode, FileError, GuestChannel, PathFacts},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::{ReaderStream, StreamReader};

use super::{
    connect_to_http, entry,
    upload::{bytes_of, is_clients_fault},
    user_of,
};
use crate::e2b::{Access, Door, Target, error::E2bError};

/// The form's field that holds a file.
const FIELD: &str = "file";
/// Files of one upload.
const MAX_FILES: usize = 1000;
/// Bytes that are read of a file at once.
pub(super) const READ_BYTES: usize = 64 * 1024;
/// What headers begin with that say something about a file.
const METADATA_HEADER: &str = "x-metadata-";

type Shared = State<Arc<Door>>;
type Whose = Extension<Target>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileQuery {
    path: Option<String>,
    username: Option<String>,
}

impl FileQuery {
    /// Returns whose path it is. A signature is for the user in the URL, whatever a header says.
    fn user(&self, headers: &HeaderMap, target: &Target) -> Result<String, E2bError> {
        let named = self.username.clone().filter(|user| !user.is_empty());
        match (named, target.access) {
            (Some(user), _) => Ok(user),
            (None, Access::Token) => user_of(headers, target).map_err(connect_to_http),
            (None, _) => Ok(target.record.user.clone().unwrap_or_default()),
        }
    }
}

pub(super) async fn guest(door: &Door, target: &Target) -> Result<GuestChannel, E2bError> {
    let guest = super::guest(door, &target.sandbox).await;
    guest.map_err(|_| E2bError::gone(&target.sandbox))
}

/// `GET /files`.
pub(super) async fn download(
    State(door): Shared,
    Extension(target): Whose,
    Query(query): Query<FileQuery>,
    headers: HeaderMap,
) -> Result<Response, E2bError> {
    let user = query.user(&headers, &target)?;
    let path = query.path.as_deref().unwrap_or_default();
    let guest = guest(&door, &target).await?;
    let failed = |error: FileError| failed(&target, &error);
    let facts = guest.look(&user, path).await.map_err(failed)?;
    if facts.kind == FileKind::Directory {
        let message = format!("path \"{}\" is a directory", facts.path);
        return Err(E2bError::bad_request(message));
    }
    // Of a link `facts` has the link's own size.
    let range = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok())
        .filter(|_| !facts.is_link);
    let range = match range.map(|range| part_of(range, facts.size)) {
        Some(Part::Of(first, last)) => Some((first, last)),
        Some(Part::None) => {
            let mut refused = E2bError::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "no_such_range",
                format!("the file has {} bytes", facts.size),
            )
            .into_response();
            let size = format!("bytes */{}", facts.size);
            refused.headers_mut().insert(
                header::CONTENT_RANGE,
                HeaderValue::from_str(&size).expect("a number"),
            );
            return Ok(refused);
        }
        Some(Part::Whole) | None => None,
    };
    let from = range.map_or(0, |(first, _)| first);
    let reader = guest.read_file_from(&facts.path, from).await;
    let reader = reader.map_err(failed)?;
    let reader: Box<dyn AsyncRead + Send + Unpin> = match range {
        Some((first, last)) => Box::new(reader.take(last - first + 1)),
        None => Box::new(reader),
    };
    let stream = ReaderStream::with_capacity(reader, READ_BYTES);
    // A file that breaks off does so with an error, and the client's connection with it.
    let body = Body::from_stream(stream.map_err(io::Error::other));
    let mut response = body.into_response();
    let said = response.headers_mut();
    said.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    // What is in a sandbox is nothing for a browser to run.
    said.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    said.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let name =
        percent_encoding::utf8_percent_encode(facts.name(), percent_encoding::NON_ALPHANUMERIC);
    let disposition = format!("attachment; filename*=UTF-8''{name}");
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        said.insert(header::CONTENT_DISPOSITION, disposition);
    }
    if let Some((first, last)) = range {
        let part = format!("bytes {first}-{last}/{}", facts.size);
        said.insert(
            header::CONTENT_RANGE,
            HeaderValue::from_str(&part).expect("numbers"),
        );
        said.insert(header::CONTENT_LENGTH, (last - first + 1).into());
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// What a `Range` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// These bytes, both ends included.
    Of(u64, u64),
    /// Nothing that the file has.
    None,
    /// It asks for several parts, or says what we don't read: then all is sent, as is allowed.
    Whole,
}

fn part_of(range: &str, size: u64) -> Part {
    let Some((first, last)) = range
        .strip_prefix("bytes=")
        .filter(|range| !range.contains(','))
        .and_then(|range| range.trim().split_once('-'))
    else {
        return Part::Whole;
    };
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    match (number(first), number(last)) {
        (Some(first), _) if first >= size => Part::None,
        (Some(first), Some(last)) if last >= first => Part::Of(first, last.min(size - 1)),
        (Some(first), None) if last.is_empty() => Part::Of(first, size - 1),
        (None, Some(0)) if first.is_empty() => Part::None,
        (None, Some(_)) if first.is_empty() && size == 0 => Part::None,
        (None, Some(count)) if first.is_empty() => Part::Of(size.saturating_sub(count), size - 1),
        _ => Part::Whole,
    }
}

/// `POST /files`.
pub(super) async fn upload(
    State(door): Shared,
    Extension(target): Whose,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Result<Json<Vec<Value>>, E2bError> {
    let (parts, body) = request.into_parts();
    let user = query.user(&parts.headers, &target)?;
    let attributes = attributes(&parts.headers)?;
    let path = query.path.filter(|path| !path.is_empty());
    let bytes = bytes_of(&parts.headers, body)?;
    let guest = guest(&door, &target).await?;
    let kind = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default()
        .to_ascii_lowercase();
    if kind.starts_with("multipart/form-data") {
        let request = Request::from_parts(parts, Body::from_stream(bytes));
        let form = Multipart::from_request(request, &()).await;
        let form = form.map_err(|error| E2bError::bad_request(error.body_text()))?;
        return form_of(&guest, &target, &user, path, &attributes, form).await;
    }
    // A client that names another kind sends the file all the same.
    let Some(path) = path else {
        return Err(E2bError::bad_request(
            "`path` says where the file goes; it is missing",
        ));
    };
    let reader = StreamReader::new(bytes);
    let written = guest.write_file_of(&user, &path, attributes, reader).await;
    let written = written.map_err(|error| failed(&target, &error))?;
    Ok(Json(vec![written_as(&written)]))
}

async fn form_of(
    guest: &GuestChannel,
    target: &Target,
    user: &str,
    path: Option<String>,
    attributes: &[(Vec<u8>, Vec<u8>)],
    mut form: Multipart,
) -> Result<Json<Vec<Value>>, E2bError> {
    let mut written = Vec::new();
    loop {
        let field = form.next_field().await;
        let field = field.map_err(|error| E2bError::bad_request(error.body_text()))?;
        let Some(field) = field else { break };
        if field.name() != Some(FIELD) {
            continue;
        }
        if written.len() >= MAX_FILES {
            return Err(E2bError::bad_request("an upload has at most 1000 files"));
        }
        let to = match (&path, field.file_name()) {
            (Some(path), _) if written.is_empty() => path.clone(),
            (Some(_), _) => {
                return Err(E2bError::bad_request(
                    "you cannot upload multiple files when `path` is set",
                ));
            }
            (None, Some(name)) if !name.is_empty() => name.to_owned(),
            (None, _) => {
                return Err(E2bError::bad_request(
                    "a file has neither a `path` nor a filename",
                ));
            }
        };
        let reader = StreamReader::new(field.map_err(io::Error::other));
        let put = guest
            .write_file_of(user, &to, attributes.to_vec(), reader)
            .await;
        let put = put.map_err(|error| failed(target, &error))?;
        written.push(written_as(&put));
    }
    if written.is_empty() {
        return Err(E2bError::bad_request(
            "the form has no file in its field `file`",
        ));
    }
    Ok(Json(written))
}

/// The names and values of what is kept with a file.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns what a client wants to be kept with a file.
fn attributes(headers: &HeaderMap) -> Result<Attributes, E2bError> {
    let mut kept = BTreeMap::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER) else {
            continue;
        };
        let value = value.to_str().map_err(|_| {
            E2bError::bad_request("the value of an `X-Metadata-` header is printable ASCII")
        })?;
        let name = format!("{}{key}", entry::METADATA_PREFIX);
        kept.insert(name.into_bytes(), value.as_bytes().to_vec());
    }
    Ok(kept.into_iter().collect())
}

pub(super) fn written_as(facts: &PathFacts) -> Value {
    let mut written = json!({ "path": facts.path, "name": facts.name(), "type": "file" });
    let metadata = entry::metadata(facts);
    if !metadata.is_empty() {
        written["metadata"] = metadata.into();
    }
    written
}

pub(super) fn failed(target: &Target, error: &FileError) -> E2bError {
    let (status, code) = match error {
        FileError::SandboxGone { .. } => return E2bError::gone(&target.sandbox),
        FileError::NotFound { .. } => (StatusCode::NOT_FOUND, "no_such_file"),
        FileError::OldGuest { .. } => {
            let hint = error.hint().unwrap_or_default();
            let message = format!("{error}: {hint}");
            return E2bError::new(StatusCode::NOT_IMPLEMENTED, "old_guest", message);
        }
        error if is_clients_fault(error) => {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            let message = format!("{error}: {}", cause.unwrap_or_default());
            return E2bError::bad_request(message);
        }
        FileError::Guest { code, .. } => match code {
            FailureCode::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
            FailureCode::NoSuchUser => (StatusCode::UNAUTHORIZED, "no_such_user"),
            FailureCode::PermissionDenied | FailureCode::ReadOnly => {
                (StatusCode::FORBIDDEN, "denied")
            }
            FailureCode::TooMany => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            FailureCode::Io => (StatusCode::INTERNAL_SERVER_ERROR, "guest_failed"),
            _ => (StatusCode::BAD_REQUEST, "bad_request"),
        },
        FileError::InvalidPath { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "guest_failed"),
    };
    E2bError::new(status, code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_rfc_9110() {
        for (range, part) in [
            ("bytes=0-3", Part::Of(0, 3)),
            ("bytes=4-", Part::Of(4, 9)),
            ("bytes=-3", Part::Of(7, 9)),
            ("bytes=-99", Part::Of(0, 9)),
            ("bytes=8-99", Part::Of(8, 9)),
            ("bytes=10-", Part::None),
            ("bytes=-0", Part::None),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=3-1", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes=-", Part::Whole),
            ("lines=1-2", Part::Whole),
        ] {
            assert_eq!(part_of(range, 10), part, "{range}");
        }
        assert_eq!(part_of("bytes=0-", 0), Part::None);
        assert_eq!(part_of("bytes=-5", 0), Part::None);
    }

    #[test]
    fn what_is_said_of_a_file_becomes_attributes_in_order() {
        let mut headers = HeaderMap::new();
        headers.insert("X-Metadata-Zeta", "1".parse().unwrap());
        headers.insert("x-metadata-alpha", "two words".parse().unwrap());
        headers.insert("x-other", "3".parse().unwrap());
        let kept = attributes(&headers).unwrap();
        let expected = [
            (b"user.e2b.alpha".to_vec(), b"two words".to_vec()),
            (b"user.e2b.zeta".to_vec(), b"1".to_vec()),
        ];
        assert_eq!(kept, expected);
        headers.insert("x-metadata-bad", HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(attributes(&headers).is_err());
    }
}
