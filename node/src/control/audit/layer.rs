//! Writes down what each request did, once it is known.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::Response,
};
use futures::Stream;
use serde_json::Value;

use super::{Audit, Note, Who, action::action};
use crate::{
    daemon::{caller::Caller, node::Node},
    error::ApiError,
};

/// What is kept of a stream of progress to read its last line from, in bytes.
const MAX_LAST_LINE: usize = 64 * 1024;

/// What a route adds to the entry about its request; put into the answer's extensions.
#[derive(Debug, Clone)]
pub(crate) struct Detail(pub(crate) String);

/// What the action of a route is done to, where no path says it; put into the answer's extensions.
#[derive(Debug, Clone)]
pub(crate) struct On(pub(crate) String);

/// Notes every action of `caller`; its answer is sent after its entry is on disk.
pub(crate) async fn note(
    State(node): State<Arc<Node>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let Some(found) = action(request.method(), request.uri().path()) else {
        return next.run(request).await;
    };
    let mut note = Note {
        who: Who::from(&caller),
        action: found.name(),
        on: found.on.map(str::to_owned),
        outcome: String::new(),
        detail: None,
        took_ms: 0,
    };
    let begun = Instant::now();
    let mut response = next.run(request).await;
    if let Some(Detail(detail)) = response.extensions_mut().remove() {
        note.detail = Some(detail);
    }
    if let Some(On(on)) = response.extensions_mut().remove() {
        note.on.get_or_insert(on);
    }
    let progress = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/x-ndjson");
    if progress && response.status().is_success() {
        // The end of the work is in the last line.
        let (parts, body) = response.into_parts();
        let stream = Watched {
            body: Box::pin(body.into_data_stream()),
            last: Vec::new(),
            pending: Some((node.audit.clone(), note, begun)),
        };
        return Response::from_parts(parts, Body::from_stream(stream));
    }
    note.outcome = match (response.status(), response.extensions().get::<Refused>()) {
        (StatusCode::SWITCHING_PROTOCOLS, _) => "started".to_owned(),
        (status, _) if status.is_success() => "ok".to_owned(),
        (_, Some(Refused(code))) => code.clone(),
        (status, None) => format!("http {}", status.as_u16()),
    };
    note.took_ms = millis(begun);
    node.audit.note(note).await;
    response
}

/// The code of the error that an answer carries; put into its extensions by [`ApiError`].
#[derive(Debug, Clone)]
pub(crate) struct Refused(pub(crate) String);

impl Refused {
    pub(crate) fn of(error: &ApiError) -> Self {
        Self(error.code().to_owned())
    }
}

/// A stream of progress whose last line becomes the entry.
struct Watched {
    body: Pin<Box<axum::body::BodyDataStream>>,
    last: Vec<u8>,
    pending: Option<(Audit, Note, Instant)>,
}

impl Watched {
    fn keep(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            // A line end is kept until the next line begins, so that the last one is whole.
            if self.last.last() == Some(&b'\n') {
                self.last.clear();
            }
            if self.last.len() < MAX_LAST_LINE {
                self.last.push(byte);
            }
        }
    }

    fn finish(&mut self, ended: bool) {
        let Some((audit, mut note, begun)) = self.pending.take() else {
            return;
        };
        note.took_ms = millis(begun);
        note.outcome = "left".to_owned();
        if let Ok(line) = serde_json::from_slice::<Value>(&self.last)
            && ended
        {
            let done = &line["done"];
            match line["error"]["code"].as_str() {
                Some(code) => code.clone_into(&mut note.outcome),
                None => "ok".clone_into(&mut note.outcome),
            }
            if let (None, Some(id)) = (&note.on, done["id"].as_str()) {
                note.on = Some(id.to_owned());
            }
        }
        audit.note_soon(note);
    }
}

impl Stream for Watched {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.body.as_mut().poll_next(context);
        match &polled {
            Poll::Ready(Some(Ok(chunk))) => {
                let chunk = chunk.clone();
                self.keep(&chunk);
            }
            Poll::Ready(None) => self.finish(true),
            Poll::Ready(Some(Err(_))) => self.finish(false),
            Poll::Pending => {}
        }
        polled
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.finish(false);
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
