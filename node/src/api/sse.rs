//! Server-Sent Events: `watch` for browsers and for clients that know nothing else.
//!
//! An event's `id` is its arrival number; a client that lost its connection sends the last one as
//! `Last-Event-ID` and goes on behind it. Comments between events say that the daemon is there.
use std::{convert::Infallible, task::Poll, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::{sync::mpsc, time::Instant};

use super::types::memory::WatchParams;
use crate::error::ApiError;

/// The type of such an answer.
const KIND: &str = "text/event-stream";
/// Silence after which a comment is sent; proxies close what is silent for half a minute.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
/// What is sent first: for how long a client waits before it connects again, in milliseconds.
const HELLO: &[u8] = b"retry: 1000\n\n";
const COMMENT: &[u8] = b": still here\n\n";

/// Whether the client asks for events.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|kind| {
            let kind = kind.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case(KIND)
        })
}

/// Reads `Last-Event-ID`, which beats `after`: it is the newer of the two. Such a client follows
/// unless it says otherwise.
pub(crate) fn resumed(
    headers: &HeaderMap,
    mut params: WatchParams,
) -> Result<WatchParams, ApiError> {
    if let Some(last) = headers.get("last-event-id").filter(|last| !last.is_empty()) {
        let last = last.to_str().ok().and_then(|last| last.parse::<u64>().ok());
        let last = last.ok_or_else(|| {
            ApiError::bad_request("`Last-Event-ID` is no arrival number")
                .hint("send the `id` of the last event as it came")
        })?;
        params.after = Some(last.to_string());
    }
    params.follow = params.follow.or(Some(1));
    Ok(params)
}

/// Returns the side that fills the answer, and the answer; `queue` events may wait in it.
pub(crate) fn answer(queue: usize, heartbeat: Duration) -> (mpsc::Sender<Bytes>, Response) {
    let (sender, mut events) = mpsc::channel::<Bytes>(queue);
    let mut greeted = false;
    let mut beat = Box::pin(tokio::time::sleep(heartbeat));
    let stream = futures::stream::poll_fn(move |context| {
        if !greeted {
            greeted = true;
            return Poll::Ready(Some(Ok::<_, Infallible>(Bytes::from_static(HELLO))));
        }
        if let Poll::Ready(event) = events.poll_recv(context) {
            beat.as_mut().reset(Instant::now() + heartbeat);
            return Poll::Ready(event.map(Ok));
        }
        if beat.as_mut().poll(context).is_ready() {
            beat.as_mut().reset(Instant::now() + heartbeat);
            return Poll::Ready(Some(Ok(Bytes::from_static(COMMENT))));
        }
        Poll::Pending
    });
    let headers = [
        (header::CONTENT_TYPE, KIND),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let response = (headers, Body::from_stream(stream)).into_response();
    (sender, response)
}

/// Returns one event as it travels.
pub(crate) fn event(id: u64, value: &impl Serialize) -> Bytes {
    // JSON as serde writes it has no line ends, so one `data` line is enough.
    let json = serde_json::to_string(value).expect("answers are plain structs");
    Bytes::from(format!("id: {id}\ndata: {json}\n\n"))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn a_client_is_believed_about_what_it_has() {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::ACCEPT,
            "text/html, text/event-stream;q=0.9".parse().unwrap(),
        );
        assert!(is_wanted(&headers));
        headers.insert("last-event-id", "41".parse().unwrap());
        let params = WatchParams {
            after: Some("3".into()),
            ..WatchParams::default()
        };
        let resumed = resumed(&headers, params.clone()).unwrap();
        assert_eq!(resumed.after.as_deref(), Some("41"));
        assert_eq!(resumed.follow, Some(1));
        headers.insert("last-event-id", "x".parse().unwrap());
        assert!(super::resumed(&headers, params).is_err());
        headers.insert(header::ACCEPT, "application/json".parse().unwrap());
        assert!(!is_wanted(&headers));
    }

    #[tokio::test]
    async fn silence_is_broken_by_comments_and_text_breaks_no_event() {
        let (sender, response) = answer(4, Duration::from_millis(5));
        let text = "a\nid: 9\n\ndata: b";
        sender.send(event(7, &text)).await.unwrap();
        let mut body = response.into_body();
        let mut next = async || {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            String::from_utf8(frame.to_vec()).unwrap()
        };
        assert!(next().await.starts_with("retry: "));
        assert_eq!(next().await, "id: 7\ndata: \"a\\nid: 9\\n\\ndata: b\"\n\n");
        assert_eq!(next().await.as_bytes(), COMMENT);
    }
}
