//! The task that takes a guest's packets and gives it others.
//!
//! On the stream each packet stands behind its length, a `u16`, little-endian. What is not TCP
//! through an allowed address, a question to the resolver or a ping of the gateway ends here; who
//! could hear of it is told.

use std::{io, net::SocketAddrV4, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    GATEWAY, GUEST, MTU,
    boundary::Boundary,
    carry,
    denial::Attempt,
    dns,
    packet::{self, Packet, Segment},
    policy::{Carry, Decision, Denied},
    stack::{Key, MAX_CONNECTIONS, Stack},
};

/// Port of the resolver.
const DNS_PORT: u16 = 53;
/// Bytes of packets that are taken from the guest at once.
const READ_BYTES: usize = 128 * 1024;
/// What tasks have to say to the gateway at once; they wait beyond that.
const MAX_NEWS: usize = 64;

/// Why a gateway ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatewayError {
    #[error("the stream of packets broke")]
    Stream(#[from] io::Error),
    #[error("the guest's stream of packets makes no sense: a length of {0}")]
    Length(u16),
    #[error("no randomness")]
    Random(#[from] getrandom::Error),
}

/// What a task tells the gateway.
#[derive(Debug)]
pub(super) enum News {
    /// There is somebody for the guest to speak to.
    Accept(Key),
    /// There is not.
    Refuse(Key),
    /// An answer of the resolver.
    Answer(SocketAddrV4, Vec<u8>),
}

/// Carries the packets of one guest until its stream ends or `stop` is cancelled.
pub(super) async fn run<S>(
    boundary: Arc<Boundary>,
    stream: S,
    stop: CancellationToken,
) -> Result<(), GatewayError>
where
    S: AsyncRead + AsyncWrite + Send,
{
    let mut seed = [0; 8];
    getrandom::fill(&mut seed)?;
    let changed = Arc::new(Notify::new());
    let (news_tx, mut news) = mpsc::channel(MAX_NEWS);
    let mut gateway = Gateway {
        stack: Stack::new(
            Instant::now(),
            u64::from_le_bytes(seed),
            Arc::clone(&changed),
        ),
        boundary,
        news: news_tx,
        tasks: TaskTracker::new(),
        stop: stop.child_token(),
    };
    // Whatever ends this ends the tasks too.
    let _ends = gateway.stop.clone().drop_guard();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut arrived = Vec::with_capacity(READ_BYTES);
    loop {
        gateway.take(&mut arrived)?;
        let has_more = gateway.stack.turn(Instant::now());
        let next = match has_more {
            true => Some(Instant::now()),
            false => gateway.stack.next_turn(Instant::now()),
        };
        let is_backed_up = gateway.stack.is_backed_up();
        let outgoing = gateway.stack.outgoing();
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            written = writer.write(outgoing.as_slices().0), if !outgoing.is_empty() => match written? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                len => drop(outgoing.drain(..len)),
            },
            Some(news) = news.recv() => gateway.hear(news),
            read = reader.read_buf(&mut arrived), if !is_backed_up => if read? == 0 {
                return Ok(());
            },
            () = changed.notified() => {}
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
    }
}

struct Gateway {
    stack: Stack,
    boundary: Arc<Boundary>,
    news: mpsc::Sender<News>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Gateway {
    /// Takes the whole packets of `arrived`.
    fn take(&mut self, arrived: &mut Vec<u8>) -> Result<(), GatewayError> {
        let mut rest = &arrived[..];
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u16::from_le_bytes(*length);
            if length == 0 || length > MTU {
                return Err(GatewayError::Length(length));
            }
            let Some((packet, behind)) = behind.split_at_checked(length.into()) else {
                break;
            };
            self.packet(packet);
            rest = behind;
        }
        let taken = arrived.len() - rest.len();
        arrived.drain(..taken);
        Ok(())
    }

    fn packet(&mut self, bytes: &[u8]) {
        match packet::read(bytes, GUEST) {
            Some(Packet::Tcp(segment)) => self.segment(&segment, bytes),
            Some(Packet::Udp { from, to, data }) if to == SocketAddrV4::new(GATEWAY, DNS_PORT) => {
                self.question(from, data);
            }
            Some(Packet::Udp { to, .. }) if is_of_one(to) => {
                self.boundary.deny(
                    Attempt::Udp,
                    Denied {
                        rule: "what a sandbox can send: TCP, and questions to its resolver"
                            .to_owned(),
                        destination: format!("udp {to}"),
                        how_to_ask: match to.port() {
                            DNS_PORT => format!(
                                "ask the resolver at {GATEWAY}, which /etc/resolv.conf names"
                            ),
                            _ => "use TCP".to_owned(),
                        },
                    },
                );
                self.prohibit(bytes);
            }
            Some(Packet::Ping {
                to,
                ident,
                number,
                data,
            }) if to == GATEWAY => {
                let pong = packet::pong(GATEWAY, GUEST, ident, number, data);
                self.stack.send(&pong);
            }
            Some(Packet::Ping { to, .. }) if is_of_one(SocketAddrV4::new(to, 0)) => {
                self.boundary.deny(
                    Attempt::Other,
                    Denied {
                        rule: "what a sandbox can send: TCP, and questions to its resolver"
                            .to_owned(),
                        destination: format!("ping {to}"),
                        how_to_ask: "try a TCP connection instead".to_owned(),
                    },
                );
                self.prohibit(bytes);
            }
            Some(Packet::Other { to, protocol })
                if protocol != 1 && is_of_one(SocketAddrV4::new(to, 0)) =>
            {
                self.boundary.deny(
                    Attempt::Other,
                    Denied {
                        rule: "what a sandbox can send: TCP, and questions to its resolver"
                            .to_owned(),
                        destination: format!("IP protocol {protocol} to {to}"),
                        how_to_ask: "use TCP".to_owned(),
                    },
                );
                self.prohibit(bytes);
            }
            // What systems say to the network at large, IPv6 among it, is nobody's attempt.
            _ => {}
        }
    }

    fn prohibit(&mut self, packet: &[u8]) {
        if let Some(answer) = packet::prohibited(GATEWAY, packet) {
            self.stack.send(&answer);
        }
    }

    fn question(&mut self, from: SocketAddrV4, data: &[u8]) {
        let Some(asked) = dns::read(data) else { return };
        let (boundary, news) = (Arc::clone(&self.boundary), self.news.clone());
        // The boundary answers at once when too many are under way.
        self.spawn(async move {
            let answer = boundary.answer(&asked).await;
            let _ = news.send(News::Answer(from, answer)).await;
        });
    }

    fn segment(&mut self, segment: &Segment, bytes: &[u8]) {
        let key = (segment.from.port(), segment.to);
        if self.stack.is_held(&key) {
            // The guest asks again, and we have no answer yet; the stack would say no.
            return;
        }
        if self.stack.has(&key) {
            return self.stack.input(Instant::now(), bytes.to_vec());
        }
        if !segment.is_open {
            // Of a connection that another gateway had, or nobody.
            return self.stack.say_reset(segment);
        }
        let decision = if *segment.to.ip() == GATEWAY {
            Decision::Denied(Denied {
                rule: "what the gateway serves: DNS over UDP".to_owned(),
                destination: segment.to.to_string(),
                how_to_ask: "connect to a name outside".to_owned(),
            })
        } else if self.stack.is_full() {
            Decision::Denied(Denied {
                rule: format!("the limit of {MAX_CONNECTIONS} connections at once"),
                destination: segment.to.to_string(),
                how_to_ask: "close some".to_owned(),
            })
        } else {
            self.boundary.connect(segment.to)
        };
        match decision {
            Decision::Denied(denied) => {
                self.boundary.deny(Attempt::Tcp, denied);
                self.stack.say_reset(segment);
            }
            Decision::Allowed { carry, .. } => {
                let handle = self.stack.hold(key, bytes.to_vec());
                if carry == Carry::ByName {
                    // It has to speak first, so it must believe that it is heard.
                    self.stack.accept(Instant::now(), &key);
                }
                let (boundary, news) = (Arc::clone(&self.boundary), self.news.clone());
                self.spawn(carry::serve(boundary, handle, key, carry, news));
            }
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Accept(key) => self.stack.accept(Instant::now(), &key),
            News::Refuse(key) => self.stack.refuse(&key),
            News::Answer(to, bytes) => {
                let from = SocketAddrV4::new(GATEWAY, DNS_PORT);
                self.stack.send(&packet::datagram(from, to, &bytes));
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Whether something sent there would be for one machine.
fn is_of_one(to: SocketAddrV4) -> bool {
    !to.ip().is_multicast() && !to.ip().is_broadcast() && to.ip().octets()[3] != 255
}
