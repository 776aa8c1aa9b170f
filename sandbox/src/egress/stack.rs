//! The guest's TCP connections, ended here.
//!
//! A connection gets a socket when its first segment was let through, whatever address and port
//! it is for; before that no code but [`super::packet`] has seen anything of it. Its bytes go to
//! and from a task of its own through a pipe with a bound, so that a slow server closes the
//! guest's window and nothing else.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddrV4,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp,
    time::Instant as StackInstant,
    wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::Notify,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{GATEWAY, GUEST, MTU, PREFIX, packet::Segment};

/// Bytes that a connection buffers in its socket, in each direction.
const SOCKET_BYTES: usize = 64 * 1024;
/// Bytes that it buffers between its socket and its task, in each direction.
const PIPE_BYTES: usize = 64 * 1024;
/// Connections of one guest at once.
pub(super) const MAX_CONNECTIONS: usize = 128;
/// Bytes that wait to be sent to the guest; beyond that nothing is made for it.
const MAX_QUEUED: usize = 256 * 1024;
/// How long a guest may leave bytes unacknowledged.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(120);
/// How often the connections are looked at in one turn.
const MAX_ROUNDS: usize = 8;

/// A connection, by the guest's port and where it goes.
pub(super) type Key = (u16, SocketAddrV4);

/// What a connection's task holds of it.
#[derive(Debug)]
pub(super) struct Handle {
    /// The guest's bytes. Dropped, the guest sees the end, or with `reset` a reset.
    pub(super) pipe: DuplexStream,
    /// Cancelled when the guest, or the stack, has ended the connection.
    pub(super) gone: CancellationToken,
    reset: Arc<AtomicBool>,
}

impl Handle {
    /// Ends the connection with a reset.
    pub(super) fn reset(self) {
        self.reset.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
struct Connection {
    state: State,
    pipe: DuplexStream,
    gone: CancellationToken,
    reset: Arc<AtomicBool>,
    /// The guest's end was passed on.
    is_shut: bool,
    /// The task's end was seen.
    is_over: bool,
}

#[derive(Debug)]
enum State {
    /// Its first packet waits until there is somebody to speak to.
    Held(Vec<u8>),
    Live(SocketHandle),
}

/// The connections of one guest.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    link: Link,
    connections: BTreeMap<Key, Connection>,
    started: Instant,
    waker: Waker,
}

struct WakeStack(Arc<Notify>);

impl Wake for WakeStack {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Stack {
    /// Makes a stack without connections; `changed` is notified when a task has done something.
    pub(super) fn new(now: Instant, seed: u64, changed: Arc<Notify>) -> Self {
        let mut link = Link::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut link, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let own = IpCidr::new(IpAddress::Ipv4(GATEWAY), PREFIX);
            addresses.push(own).expect("there is room for one address");
        });
        interface
            .routes_mut()
            .add_default_ipv4_route(GATEWAY)
            .expect("there is room for one route");
        interface.set_any_ip(true);
        Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            link,
            connections: BTreeMap::new(),
            started: now,
            waker: Waker::from(Arc::new(WakeStack(changed))),
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.connections.contains_key(key)
    }

    /// Whether a connection waits to be accepted or refused.
    pub(super) fn is_held(&self, key: &Key) -> bool {
        let connection = self.connections.get(key);
        connection.is_some_and(|connection| matches!(connection.state, State::Held(_)))
    }

    pub(super) fn is_full(&self) -> bool {
        self.connections.len() >= MAX_CONNECTIONS
    }

    /// Whether so much waits for the guest that no more of its packets should be taken.
    pub(super) fn is_backed_up(&self) -> bool {
        self.link.out.len() >= MAX_QUEUED
    }

    /// Begins a connection; the guest hears nothing of it before [`Self::accept`].
    pub(super) fn hold(&mut self, key: Key, first: Vec<u8>) -> Handle {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (gone, reset) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        self.connections.insert(
            key,
            Connection {
                state: State::Held(first),
                pipe: near,
                gone: gone.clone(),
                reset: Arc::clone(&reset),
                is_shut: false,
                is_over: false,
            },
        );
        Handle {
            pipe: far,
            gone,
            reset,
        }
    }

    /// Accepts a connection that is held.
    pub(super) fn accept(&mut self, now: Instant, key: &Key) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let State::Held(first) = &mut connection.state else {
            return;
        };
        let first = std::mem::take(first);
        let buffer = || tcp::SocketBuffer::new(vec![0; SOCKET_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(stack_duration(UNANSWERED_LIMIT)));
        let endpoint = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*key.1.ip())),
            port: key.1.port(),
        };
        let listens = socket.listen(endpoint).is_ok();
        let handle = self.sockets.add(socket);
        connection.state = State::Live(handle);
        if listens {
            self.input(now, first);
        }
        // A first packet that our reader takes and the stack does not leaves it listening.
        if self.sockets.get::<tcp::Socket<'_>>(handle).state() == tcp::State::Listen {
            self.remove(key);
        }
    }

    /// Refuses a connection that is held; `segment` is what a reset answers.
    pub(super) fn refuse(&mut self, key: &Key) {
        let Some(Connection {
            state: State::Held(first),
            ..
        }) = self.connections.get(key)
        else {
            return;
        };
        if let Some(super::packet::Packet::Tcp(segment)) = super::packet::read(first, GUEST) {
            self.say_reset(&segment);
        }
        self.remove(key);
    }

    /// Says that there is no such connection.
    pub(super) fn say_reset(&mut self, segment: &Segment) {
        if let Some(reset) = segment.reset() {
            self.send(&reset);
        }
    }

    /// Queues a packet for the guest; dropped if too much waits already.
    pub(super) fn send(&mut self, packet: &[u8]) {
        if !self.is_backed_up() {
            self.link.push(packet);
        }
    }

    /// Takes a packet of a connection that there is.
    pub(super) fn input(&mut self, now: Instant, packet: Vec<u8>) {
        self.link.arrived.push_back(packet);
        let now = self.stack_now(now);
        self.interface.poll(now, &mut self.link, &mut self.sockets);
    }

    /// Moves bytes between sockets and tasks, and ends what has ended. Returns whether more is to
    /// be done at once.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        for _ in 0..MAX_ROUNDS {
            let moved = self.pump();
            let at = self.stack_now(now);
            self.interface.poll(at, &mut self.link, &mut self.sockets);
            self.reap();
            if !moved {
                return false;
            }
        }
        true
    }

    /// Returns when the stack wants its next turn, if at all.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        let at = self.stack_now(now);
        let delay = self.interface.poll_delay(at, &self.sockets)?;
        Some(now + Duration::from_micros(delay.total_micros()))
    }

    /// Returns the bytes that wait for the guest, each packet behind its length.
    pub(super) fn outgoing(&mut self) -> &mut VecDeque<u8> {
        &mut self.link.out
    }

    fn pump(&mut self) -> bool {
        let mut moved = false;
        let mut cx = Context::from_waker(&self.waker);
        for connection in self.connections.values_mut() {
            let State::Live(handle) = connection.state else {
                continue;
            };
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
            moved |= connection.give_task(&mut cx, socket);
            moved |= connection.give_guest(&mut cx, socket);
        }
        moved
    }

    fn reap(&mut self) {
        let is_done = |connection: &Connection| match connection.state {
            // Its task refuses it by being over.
            State::Held(_) => false,
            State::Live(handle) => {
                let socket = self.sockets.get::<tcp::Socket<'_>>(handle);
                match socket.state() {
                    // Its reset has been sent.
                    tcp::State::Closed => socket.remote_endpoint().is_none(),
                    // Nobody else could answer to this address, so no old segment can mislead.
                    tcp::State::TimeWait => !socket.can_recv(),
                    _ => false,
                }
            }
        };
        let done: Vec<Key> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_done(connection))
            .map(|(key, _)| *key)
            .collect();
        for key in done {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(connection) = self.connections.remove(key) {
            if let State::Live(handle) = connection.state {
                self.sockets.remove(handle);
            }
            // After an orderly end the task has nothing more to do; else it must not go on.
            if !(connection.is_shut && connection.is_over) {
                connection.gone.cancel();
            }
        }
    }

    fn stack_now(&self, now: Instant) -> StackInstant {
        let micros = now.saturating_duration_since(self.started).as_micros();
        StackInstant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            connection.gone.cancel();
        }
    }
}

impl Connection {
    /// Passes the guest's bytes on to the task.
    fn give_task(&mut self, cx: &mut Context<'_>, socket: &mut tcp::Socket<'_>) -> bool {
        let mut moved = false;
        while socket.can_recv() {
            let pipe = Pin::new(&mut self.pipe);
            let taken = socket.recv(|data| match pipe.poll_write(cx, data) {
                Poll::Ready(Ok(len)) => (len, true),
                // The task takes no more. What it has said goes out still, then its end.
                Poll::Ready(Err(_)) => (data.len(), true),
                Poll::Pending => (0, false),
            });
            match taken {
                Ok(true) => moved = true,
                Ok(false) | Err(_) => return moved,
            }
        }
        let has_ended = matches!(
            socket.state(),
            tcp::State::CloseWait
                | tcp::State::LastAck
                | tcp::State::Closing
                | tcp::State::TimeWait
        );
        if has_ended && !self.is_shut {
            self.is_shut = Pin::new(&mut self.pipe).poll_shutdown(cx).is_ready();
            moved = true;
        }
        moved
    }

    /// Passes the task's bytes on to the guest.
    fn give_guest(&mut self, cx: &mut Context<'_>, socket: &mut tcp::Socket<'_>) -> bool {
        let mut moved = false;
        while !self.is_over && socket.can_send() {
            let pipe = Pin::new(&mut self.pipe);
            let given = socket.send(|room| {
                let mut buf = ReadBuf::new(room);
                let polled = pipe.poll_read(cx, &mut buf);
                let len = buf.filled().len();
                match polled {
                    Poll::Ready(_) => (len, Some(len)),
                    Poll::Pending => (0, None),
                }
            });
            match given {
                Ok(Some(0)) => {
                    self.finish(socket);
                    return true;
                }
                Ok(Some(_)) => moved = true,
                Ok(None) | Err(_) => return moved,
            }
        }
        moved
    }

    fn finish(&mut self, socket: &mut tcp::Socket<'_>) {
        self.is_over = true;
        if self.reset.load(Ordering::Acquire) {
            socket.abort();
        } else {
            socket.close();
        }
    }
}

/// The wire between the guest's packets and the stack.
#[derive(Default)]
struct Link {
    arrived: VecDeque<Vec<u8>>,
    out: VecDeque<u8>,
}

impl Link {
    fn push(&mut self, packet: &[u8]) {
        let len = u16::try_from(packet.len()).expect("a packet is no longer than the MTU");
        self.out.extend(len.to_le_bytes());
        self.out.extend(packet);
    }
}

impl Device for Link {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Arrived, Outgoing<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Outgoing(self)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Outgoing<'_>> {
        (self.out.len() < MAX_QUEUED).then_some(Outgoing(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = MTU.into();
        caps
    }
}

struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Outgoing<'a>(&'a mut Link);

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(&packet);
        result
    }
}

fn stack_duration(duration: Duration) -> smoltcp::time::Duration {
    smoltcp::time::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
