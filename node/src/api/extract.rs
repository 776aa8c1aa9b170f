//! Requests and answers as both doors read and write them: JSON bodies, queries, NDJSON streams.
use std::{marker::PhantomData, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use super::sse;
use crate::error::ApiError;

/// The largest JSON body of a request: a memory's text and all its other fields, with room.
pub(crate) const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Time to send such a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines of a stream that may wait for a slow reader.
pub(crate) const STREAM_QUEUE_LINES: usize = 64;

/// A JSON body, read whole within [`MAX_BODY_BYTES`]; an empty one reads as `{}`.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read_body(request.into_body()).await?;
        parse_json(&bytes).map(Self)
    }
}

/// Reads a body of at most [`MAX_BODY_BYTES`].
pub(crate) async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    read_at_most(body, MAX_BODY_BYTES).await
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_at_most(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let limited = http_body_util::Limited::new(body, limit);
    let collected = http_body_util::BodyExt::collect(limited);
    let Ok(collected) = tokio::time::timeout(BODY_TIMEOUT, collected).await else {
        let message = format!(
            "the request was not sent within {} s",
            BODY_TIMEOUT.as_secs()
        );
        return Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            message,
        ));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the request is larger than {limit} bytes"),
        )),
        Err(error) => {
            Err(ApiError::bad_request("the request could not be read").caused_by(Some(&*error)))
        }
    }
}

/// Parses a JSON body; an empty one reads as `{}`.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.iter().all(u8::is_ascii_whitespace) {
        b"{}"
    } else {
        bytes
    };
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request("the request is not the JSON that this route takes")
            .caused_by(Some(&error))
    })
}

/// The query of a request.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse_query(&parts.uri)
    }
}

/// Parses the query of `uri`.
pub(crate) fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<Params<T>, ApiError> {
    match Query::try_from_uri(uri) {
        Ok(Query(params)) => Ok(Params(params)),
        Err(error) => Err(
            ApiError::bad_request("the query is not one that this route takes")
                .caused_by(Some(&error)),
        ),
    }
}

/// What a route with progress answers.
pub(crate) type Answered<T> = Result<Progressing<T>, ApiError>;

/// Lines of progress and then one with a `T`, or an error.
#[derive(Debug)]
pub(crate) struct Progressing<T>(Response, PhantomData<fn() -> T>);

impl<T> Progressing<T> {
    pub(crate) fn new(response: Response) -> Self {
        Self(response, PhantomData)
    }
}

impl<T> IntoResponse for Progressing<T> {
    fn into_response(self) -> Response {
        self.0
    }
}

/// A `T` a line, or an event.
#[derive(Debug)]
pub(crate) struct Events<T>(Response, PhantomData<fn() -> T>);

impl<T> Events<T> {
    pub(crate) fn new(response: Response) -> Self {
        Self(response, PhantomData)
    }
}

impl<T> IntoResponse for Events<T> {
    fn into_response(self) -> Response {
        self.0
    }
}

/// The sending side of an answer line by line, or event by event; dropped, it ends the answer.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    sender: mpsc::Sender<Bytes>,
    /// Whether lines are Server-Sent Events.
    events: bool,
}

impl Lines {
    /// Returns an NDJSON answer and the side that fills it.
    pub(crate) fn answer() -> (Self, Response) {
        let (sender, mut lines) = mpsc::channel::<Bytes>(STREAM_QUEUE_LINES);
        let stream = futures::stream::poll_fn(move |context| {
            lines
                .poll_recv(context)
                .map(|line| line.map(Ok::<_, std::convert::Infallible>))
        });
        let headers = [
            (header::CONTENT_TYPE, "application/x-ndjson"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (
            Self {
                sender,
                events: false,
            },
            (headers, Body::from_stream(stream)).into_response(),
        )
    }

    /// Returns an answer of Server-Sent Events and the side that fills it.
    pub(crate) fn events() -> (Self, Response) {
        let (sender, response) = sse::answer(STREAM_QUEUE_LINES, sse::HEARTBEAT);
        (
            Self {
                sender,
                events: true,
            },
            response,
        )
    }

    /// As [`Self::send`]; `id` is where a reader that lost its connection goes on.
    ///
    /// # Errors
    /// [`Gone`] if nobody reads any more.
    pub(crate) async fn send_event(&self, id: u64, value: &impl Serialize) -> Result<(), Gone> {
        let bytes = match self.events {
            true => sse::event(id, value),
            false => line(value),
        };
        self.sender.send(bytes).await.map_err(|_| Gone)
    }

    /// Sends one line; waits while the reader is slow.
    ///
    /// # Errors
    /// [`Gone`] if nobody reads any more.
    pub(crate) async fn send(&self, value: &impl Serialize) -> Result<(), Gone> {
        self.sender.send(line(value)).await.map_err(|_| Gone)
    }

    /// Sends one line unless the reader is behind; progress may be dropped, results may not.
    pub(crate) fn try_send(&self, value: &impl Serialize) {
        let _ = self.sender.try_send(line(value));
    }

    /// Waits until nobody reads any more.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Nobody reads the answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

fn line(value: &impl Serialize) -> Bytes {
    let mut bytes = serde_json::to_vec(value).expect("answers are plain structs");
    bytes.push(b'\n');
    bytes.into()
}
