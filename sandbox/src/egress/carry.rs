//! One connection of a guest, from its first byte to its end.
//!
//! A connection that may go anywhere at its address is made outside first, so that the guest's
//! own attempt succeeds or fails as it would without us. One that may go on by its name is heard
//! first: nothing is made outside before the name it says was decided about. A change of the
//! policy is a new question, and an answer of no cuts it.

mod sealed;
mod web;

use std::{
    io,
    net::SocketAddrV4,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{
    boundary::Boundary,
    denial::Attempt,
    gateway::News,
    hello::{self, HelloError, MAX_HELLO},
    http::{Head, HeadError, refusal},
    name::DomainName,
    policy::{Carry, Decision, Denied},
    stack::{Handle, Key},
};

/// How long a connection may take to say which name it means.
const GREETING_LIMIT: Duration = Duration::from_secs(30);
/// How long a connection may carry nothing.
const IDLE_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Bytes copied at once.
const COPY_BYTES: usize = 32 * 1024;
/// First byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// A fatal alert, "access denied" (RFC 8446, section 6): programs have a message for it.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Why a connection was ended by us.
#[derive(Debug)]
enum Ended {
    /// It may not be, or no more.
    Denied(Attempt, Denied),
    /// It broke outside, or was idle.
    Broken,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Carries a connection.
pub(super) async fn serve(
    boundary: Arc<Boundary>,
    mut handle: Handle,
    key: Key,
    carry: Carry,
    news: mpsc::Sender<News>,
) {
    let gone = handle.gone.clone();
    let carried = async {
        match carry {
            Carry::Blindly => blindly(&boundary, &mut handle, key, &news).await,
            Carry::ByName => by_name(&boundary, &mut handle, key.1).await,
        }
    };
    let ended = tokio::select! {
        biased;
        () = gone.cancelled() => return,
        ended = carried => ended,
    };
    if let Err(ended) = ended {
        if let Ended::Denied(attempt, denied) = ended {
            boundary.deny(attempt, denied);
        }
        handle.reset();
    }
}

async fn blindly(
    boundary: &Boundary,
    handle: &mut Handle,
    key: Key,
    news: &mpsc::Sender<News>,
) -> Result<(), Ended> {
    let Ok(outside) = boundary.outside.connect(key.1).await else {
        let _ = news.send(News::Refuse(key)).await;
        return Err(Ended::Broken);
    };
    boundary.count_connection();
    let _ = news.send(News::Accept(key)).await;
    splice(boundary, &mut handle.pipe, outside, key.1, None, &[]).await
}

async fn by_name(boundary: &Boundary, handle: &mut Handle, to: SocketAddrV4) -> Result<(), Ended> {
    let mut heard = Vec::new();
    let greeted = tokio::select! {
        greeted = timeout(GREETING_LIMIT, greet(&mut handle.pipe, &mut heard)) => greeted,
        ended = revoked(boundary, to, None, Reading::Open) => return Err(ended),
    };
    let greeting = greeted.unwrap_or_else(|_| {
        Err(Ended::Denied(Attempt::Tcp, Denied {
            rule: "rules about names: a connection says which name it means, in TLS or HTTP".to_owned(),
            destination: to.to_string(),
            how_to_ask: format!(
                "if its server speaks first, ask the sandbox's owner for a rule like `tcp:NAME:{}`",
                to.port()
            ),
        }))
    })?;
    match greeting {
        Greeting::Nothing => Ok(()),
        Greeting::Tls(Err(error)) => {
            let ended = unnamed(Attempt::Tls, to, &error);
            alert(&mut handle.pipe, boundary, ended).await
        }
        Greeting::Tls(Ok(name)) => {
            if let Err(ended) = allow(boundary, Attempt::Tls, to, &name) {
                return alert(&mut handle.pipe, boundary, ended).await;
            }
            if boundary.secrets().are_for(&name) {
                return sealed::carry(boundary, &mut handle.pipe, to, &name, heard).await;
            }
            let outside = boundary.outside.connect(to).await?;
            boundary.count_connection();
            splice(boundary, &mut handle.pipe, outside, to, Some(name), &heard).await
        }
        Greeting::Http(Err(error)) => {
            let ended = unnamed(Attempt::Http, to, &error);
            explain(&mut handle.pipe, boundary, ended).await
        }
        Greeting::Http(Ok((head, len))) => {
            if let Err(ended) = web::check(boundary, to, &head) {
                return explain(&mut handle.pipe, boundary, ended).await;
            }
            heard.drain(..len);
            web::carry(boundary, &mut handle.pipe, to, *head, heard).await
        }
    }
}

/// What a connection begins with.
enum Greeting {
    /// The guest ended it without a word.
    Nothing,
    Tls(Result<DomainName, HelloError>),
    Http(Result<(Box<Head>, usize), HeadError>),
}

/// Reads until it is clear which name is meant; what was read is in `heard`.
async fn greet(
    pipe: &mut (impl AsyncRead + Unpin),
    heard: &mut Vec<u8>,
) -> Result<Greeting, Ended> {
    loop {
        if heard.first() == Some(&TLS_HANDSHAKE) {
            match hello::server_name(heard) {
                Ok(None) => {}
                Ok(Some(name)) => return Ok(Greeting::Tls(Ok(name))),
                Err(error) => return Ok(Greeting::Tls(Err(error))),
            }
        } else if !heard.is_empty() {
            match Head::parse(heard) {
                Ok(None) => {}
                Ok(Some((head, len))) => return Ok(Greeting::Http(Ok((Box::new(head), len)))),
                Err(error) => return Ok(Greeting::Http(Err(error))),
            }
        }
        heard.reserve(MAX_HELLO / 8);
        if pipe.read_buf(heard).await? == 0 {
            return match heard.is_empty() {
                true => Ok(Greeting::Nothing),
                false => Err(Ended::Broken),
            };
        }
    }
}

fn unnamed(attempt: Attempt, to: SocketAddrV4, error: &dyn std::fmt::Display) -> Ended {
    Ended::Denied(
        attempt,
        Denied {
            rule: format!("rules about names: {error}"),
            destination: to.to_string(),
            how_to_ask: format!(
                "use TLS with a server name, or HTTP/1.1 with `Host`; for another protocol ask the \
             sandbox's owner for a rule like `tcp:NAME:{}`",
                to.port()
            ),
        },
    )
}

fn allow(
    boundary: &Boundary,
    attempt: Attempt,
    to: SocketAddrV4,
    name: &DomainName,
) -> Result<(), Ended> {
    match boundary.named(to, name) {
        Decision::Allowed { .. } => Ok(()),
        Decision::Denied(denied) => Err(Ended::Denied(attempt, denied)),
    }
}

/// Tells a guest's tool in TLS that it gets no further, and notes it.
async fn alert(
    pipe: &mut (impl AsyncWrite + Unpin),
    boundary: &Boundary,
    ended: Ended,
) -> Result<(), Ended> {
    if let Ended::Denied(attempt, denied) = ended {
        boundary.deny(attempt, denied);
    }
    pipe.write_all(&ACCESS_DENIED).await?;
    pipe.shutdown().await?;
    Ok(())
}

/// Tells a guest's tool in HTTP why it gets no further, and notes it.
async fn explain(
    pipe: &mut (impl AsyncWrite + Unpin),
    boundary: &Boundary,
    ended: Ended,
) -> Result<(), Ended> {
    let (status, text) = match &ended {
        Ended::Denied(_, denied) => ("403 Denied By Sandbox Policy", denied.to_string()),
        Ended::Broken => ("502 Bad Gateway", "the server cannot be reached".to_owned()),
    };
    if let Ended::Denied(attempt, denied) = ended {
        boundary.deny(attempt, denied);
    }
    pipe.write_all(&refusal(status, &text)).await?;
    pipe.shutdown().await?;
    Ok(())
}

/// Whether a connection is read by us, and so with which secrets it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Not at all, or in the clear.
    Open,
    /// Its TLS ends here.
    Sealed,
}

/// Waits until the connection is not allowed any more.
async fn revoked(
    boundary: &Boundary,
    to: SocketAddrV4,
    name: Option<&DomainName>,
    reading: Reading,
) -> Ended {
    let (mut policy, mut secrets) = (boundary.policy_changes(), boundary.secrets_changes());
    loop {
        let decision = match name {
            Some(name) => {
                // As long as it lives it is known where its name led.
                boundary.keep_known(name, *to.ip());
                boundary.named(to, name)
            }
            None => boundary.connect(to),
        };
        if let Decision::Denied(denied) = decision {
            return Ended::Denied(Attempt::Tcp, denied);
        }
        tokio::select! {
            changed = policy.changed() => if changed.is_err() {
                return Ended::Broken;
            },
            changed = secrets.changed() => {
                // One that was passed on unread cannot become one that is read, and one that is
                // read goes on with other secrets than it has.
                let is_for_it = name.is_some_and(|name| boundary.secrets().are_for(name));
                if changed.is_err() || reading == Reading::Sealed || is_for_it {
                    return Ended::Broken;
                }
            }
        }
    }
}

/// Carries bytes both ways, `heard` first, until both ends have ended.
async fn splice<G, O>(
    boundary: &Boundary,
    guest: &mut G,
    outside: O,
    to: SocketAddrV4,
    name: Option<DomainName>,
    heard: &[u8],
) -> Result<(), Ended>
where
    G: AsyncRead + AsyncWrite + Unpin,
    O: AsyncRead + AsyncWrite,
{
    let activity = Activity::new();
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let outward = async {
        to_outside.write_all(heard).await?;
        boundary
            .sent
            .fetch_add(heard.len() as u64, Ordering::Relaxed);
        copy(&mut from_guest, &mut to_outside, &boundary.sent, &activity).await
    };
    let inward = copy(
        &mut from_outside,
        &mut to_guest,
        &boundary.received,
        &activity,
    );
    tokio::select! {
        both = async { tokio::try_join!(outward, inward) } => both.map(drop),
        ended = revoked(boundary, to, name.as_ref(), Reading::Open) => Err(ended),
        () = activity.idle() => Err(Ended::Broken),
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counter: &AtomicU64,
    activity: &Activity,
) -> Result<(), Ended> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            to.shutdown().await?;
            return Ok(());
        }
        activity.touch();
        to.write_all(&buffer[..len]).await?;
        counter.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// When a connection last carried something.
struct Activity {
    started: Instant,
    last_ms: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }

    fn touch(&self) {
        let since = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Relaxed);
    }

    /// Waits until nothing was carried for too long.
    async fn idle(&self) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let until = self.started + last + IDLE_LIMIT;
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }
}
