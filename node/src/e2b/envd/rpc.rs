//! Calls of the Connect protocol over HTTP: reading what is asked, answering in one piece or in
//! many.
use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::{
    api::{extract::read_at_most, serve::Patience},
    e2b::connect::{
        self, Code, ConnectError, Frame, Frames, MAX_MESSAGE_BYTES, Shape, check_shape,
    },
};

/// Time to send the one message of a server stream.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client asks, and how long it gives.
#[derive(Debug)]
pub(super) struct Call<T> {
    pub(super) headers: HeaderMap,
    pub(super) message: T,
    pub(super) timeout: Option<Duration>,
}

impl<T> Call<T> {
    /// Does what was asked, in the time there is.
    pub(super) async fn within(
        timeout: Option<Duration>,
        work: impl Future<Output = Result<Value, ConnectError>>,
    ) -> Result<Response, ConnectError> {
        let answer = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, work)
                .await
                .unwrap_or_else(|_| Err(too_late()))?,
            None => work.await?,
        };
        Ok(Json(answer).into_response())
    }
}

/// Reads a unary call.
pub(super) async fn unary<T: DeserializeOwned>(request: Request) -> Result<Call<T>, ConnectError> {
    let (parts, body) = request.into_parts();
    check_shape(&parts.headers, Shape::Unary)?;
    let timeout = connect::timeout(&parts.headers)?;
    let bytes = read_at_most(body, MAX_MESSAGE_BYTES)
        .await
        .map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                ConnectError::new(Code::ResourceExhausted, &error.info().message)
            }
            _ => ConnectError::invalid(&error.info().message),
        })?;
    Ok(Call {
        headers: parts.headers,
        message: parse(&bytes)?,
        timeout,
    })
}

/// Reads the one message of a call that is answered by a stream.
pub(super) async fn opening<T: DeserializeOwned>(
    request: Request,
) -> Result<Call<T>, ConnectError> {
    let (parts, body) = request.into_parts();
    check_shape(&parts.headers, Shape::Stream)?;
    let timeout = connect::timeout(&parts.headers)?;
    let mut messages = Messages::of(body);
    let message = tokio::time::timeout(MESSAGE_TIMEOUT, messages.next())
        .await
        .unwrap_or_else(|_| Err(too_late()))?
        .ok_or_else(|| ConnectError::invalid("the stream holds no message"))?;
    Ok(Call {
        headers: parts.headers,
        message: parse(&message)?,
        timeout,
    })
}

/// The messages of a client's stream.
pub(super) struct Messages {
    body: futures::stream::BoxStream<'static, Result<Bytes, axum::Error>>,
    frames: Frames,
}

impl Messages {
    pub(super) fn of(body: Body) -> Self {
        Self {
            body: body.into_data_stream().boxed(),
            frames: Frames::default(),
        }
    }

    /// Returns the next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ConnectError> {
        loop {
            match self.frames.next()? {
                Some(Frame::Message(message)) => return Ok(Some(message)),
                Some(Frame::End) => return Ok(None),
                None => {}
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.frames.extend(&bytes),
                Some(Err(_)) => {
                    return Err(ConnectError::new(Code::Canceled, "the client went away"));
                }
                None => {
                    self.frames.finish()?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Parses a message; fields that nobody knows are left alone, as the protocol has it.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ConnectError> {
    let bytes = if bytes.iter().all(u8::is_ascii_whitespace) {
        b"{}"
    } else {
        bytes
    };
    serde_json::from_slice(bytes)
        .map_err(|error| ConnectError::invalid(format!("the message cannot be read: {error}")))
}

/// Answers with a stream of frames, or with one that holds the error alone.
pub(super) fn streamed<S>(patience: Option<&Patience>, frames: Result<S, ConnectError>) -> Response
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let body = match frames {
        Ok(frames) => {
            // A client that reads slowly holds up what it reads, and nothing else.
            if let Some(patience) = patience {
                patience.without_end();
            }
            Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>))
        }
        Err(error) => Body::from(connect::end(Some(&error))),
    };
    let headers = [(header::CONTENT_TYPE, "application/connect+json")];
    (headers, body).into_response()
}

/// Waits until a point in time, if there is one.
pub(super) async fn until<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

pub(super) fn too_late() -> ConnectError {
    ConnectError::new(Code::DeadlineExceeded, "the time of the call is over")
}
