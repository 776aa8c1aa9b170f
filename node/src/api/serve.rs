//! One HTTP/1.1 connection, whoever is at its other end.
//!
//! What a client could use to hold the daemon is bounded here: the size and number of headers, the
//! time to send them, the time for which it may refuse to read an answer.
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{Extension, Router};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

/// Time to send the head of a request, which also ends idle connections.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which the other end may refuse to read before the connection is dropped.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of buffer for a connection; a head larger than that is refused.
const MAX_BUFFER_BYTES: usize = 64 * 1024;
/// Headers of a request.
const MAX_HEADERS: usize = 64;

/// Serves `router` on `io` until the other end closes, fails or stalls, or `stop` is cancelled.
///
/// A request that is being answered when `stop` comes is finished first.
pub(crate) async fn serve<I>(io: I, router: Router, stall: Duration, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let patience = Patience::default();
    let router = router.layer(Extension(patience.clone()));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_BUFFER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(
            TokioIo::new(StallGuard::new(io, stall).with(patience)),
            TowerToHyperService::new(router),
        )
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Foreign input: interesting to a developer alone.
        tracing::debug!(%error, "a connection failed");
    }
}

/// Whether the other end may take all the time it likes, from some point on: after an upgrade,
/// when it holds up nothing but what it asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience(Arc<AtomicBool>);

impl Patience {
    /// Lets the other end read as slowly as it likes.
    pub(crate) fn without_end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream whose writes fail once the other end has not read for a while.
#[derive(Debug)]
pub(crate) struct StallGuard<S> {
    inner: S,
    limit: Duration,
    // Armed by the first write that could make no progress, disarmed by the next that does.
    stalled: Option<Pin<Box<Sleep>>>,
    patience: Patience,
}

impl<S> StallGuard<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            stalled: None,
            patience: Patience::default(),
        }
    }

    /// Heeds `patience`, whatever becomes of it later.
    pub(crate) fn with(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    fn guard<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() || self.patience.0.load(Ordering::Relaxed) {
            self.stalled = None;
            return poll;
        }
        let limit = self.limit;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(sleep.as_mut().poll(context));
        sleep.as_mut().reset(Instant::now() + limit);
        let message = "the other end does not read";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.guard(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.guard(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(context);
        self.guard(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(context);
        self.guard(context, poll)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_connection() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut guard = StallGuard::new(ours, Duration::from_millis(20));
        guard.write_all(&[0; 16]).await.unwrap();
        let error = guard.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // It may go on when the other end reads again; we only promise not to wait for ever.
        theirs.read_exact(&mut [0; 16]).await.unwrap();
        guard.write_all(&[0; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_reader_may_stop_where_it_holds_up_only_itself() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let patience = Patience::default();
        let mut guard = StallGuard::new(ours, Duration::from_millis(1)).with(patience.clone());
        patience.without_end();
        let writer = tokio::spawn(async move { guard.write_all(&[7; 32]).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut seen = [0; 32];
        theirs.read_exact(&mut seen).await.unwrap();
        writer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_slow_reader_is_no_stalled_one() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut guard = StallGuard::new(ours, Duration::from_millis(200));
        let writer = tokio::spawn(async move { guard.write_all(&[7; 64]).await });
        let mut seen = Vec::new();
        for _ in 0..16 {
            tokio::task::yield_now().await;
            let mut part = [0; 4];
            theirs.read_exact(&mut part).await.unwrap();
            seen.extend(part);
        }
        writer.await.unwrap().unwrap();
        assert_eq!(seen, [7; 64]);
    }
}
