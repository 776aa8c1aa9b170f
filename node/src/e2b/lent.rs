//! A request's body that comes back unread from whoever refused the request.
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    extract::Request,
};
use futures::{Stream, StreamExt};

/// What is read of a refused body, so that its connection can go on.
const MAX_BYTES: usize = 256 * 1024;
/// Time that may take.
const TIME: Duration = Duration::from_secs(1);

type Slot = Arc<Mutex<Option<BodyDataStream>>>;

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Left(Option<Slot>);

/// A body that goes back to its [`Left`] when it is dropped before its end.
struct Lent {
    stream: Option<BodyDataStream>,
    slot: Slot,
}

/// Lends the body of a request to whoever answers it.
pub(super) fn lend(request: Request) -> (Request, Left) {
    // What has none stays without one, and without a length that is not known.
    if request.body().is_end_stream() {
        return (request, Left(None));
    }
    let (head, body) = request.into_parts();
    let slot = Slot::default();
    let lent = Lent {
        stream: Some(body.into_data_stream()),
        slot: Arc::clone(&slot),
    };
    let request = Request::from_parts(head, Body::from_stream(lent));
    (request, Left(Some(slot)))
}

impl Left {
    /// Reads what was left unread; returns whether that is all of it.
    pub(super) async fn read_up(self) -> bool {
        let Some(slot) = self.0 else {
            return true;
        };
        let taken = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut stream) = taken else {
            return true;
        };
        let reading = async {
            let mut bytes = 0;
            while let Some(chunk) = stream.next().await {
                bytes += chunk.map_or(MAX_BYTES, |chunk| chunk.len());
                if bytes >= MAX_BYTES {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(TIME, reading).await.unwrap_or(false)
    }
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        let polled = stream.poll_next_unpin(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.stream = None;
        }
        polled
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let stream = self.stream.take();
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(chunks: usize) -> Request {
        let chunk = || Ok::<_, std::io::Error>(Bytes::from(vec![0; 64 * 1024]));
        let stream = futures::stream::iter((0..chunks).map(move |_| chunk()));
        Request::new(Body::from_stream(stream))
    }

    #[tokio::test]
    async fn what_was_left_is_read_within_bounds() {
        let (asked, left) = lend(request(2));
        drop(asked);
        assert!(left.read_up().await);
        let (asked, left) = lend(request(100));
        drop(asked);
        assert!(!left.read_up().await);
        let (asked, left) = lend(request(100));
        let read = axum::body::to_bytes(asked.into_body(), usize::MAX).await;
        assert_eq!(read.unwrap().len(), 100 * 64 * 1024);
        assert!(left.read_up().await);
        let (_, left) = lend(Request::new(Body::empty()));
        assert!(left.read_up().await);
        let endless = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let (asked, left) = lend(Request::new(Body::from_stream(endless)));
        drop(asked);
        assert!(!left.read_up().await);
    }
}
