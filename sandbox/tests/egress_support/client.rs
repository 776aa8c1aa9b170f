//! A guest's network without a guest: a stack of its own at the other end of the packets.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddrV4},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use rhizome_sandbox::egress::{GATEWAY, GUEST, MTU, PREFIX};
use simple_dns::{Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE, rdata::RData};
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::{tcp, udp},
    wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, IpListenEndpoint},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    sync::{Notify, mpsc, oneshot},
};

const SOCKET_BYTES: usize = 256 * 1024;
const PIPE_BYTES: usize = 64 * 1024;

enum Ask {
    Connect(SocketAddrV4, oneshot::Sender<io::Result<DuplexStream>>),
    Datagram(SocketAddrV4, Vec<u8>, oneshot::Sender<Vec<u8>>),
    Raw(Vec<u8>),
}

/// A guest's network.
#[derive(Clone)]
pub(crate) struct Client(mpsc::Sender<Ask>);

impl Client {
    /// Starts a stack over `stream`.
    pub(crate) fn start(stream: DuplexStream) -> Self {
        let (asks, receiver) = mpsc::channel(64);
        tokio::spawn(run(stream, receiver));
        Self(asks)
    }

    /// Connects; a reset is an error.
    pub(crate) async fn connect(&self, to: impl AsRef<str>) -> io::Result<DuplexStream> {
        let (tx, rx) = oneshot::channel();
        let to = to.as_ref().parse().unwrap();
        self.0.send(Ask::Connect(to, tx)).await.unwrap();
        rx.await.unwrap()
    }

    /// Looks a name up and returns the code and the addresses.
    pub(crate) async fn lookup(&self, name: &str) -> (RCODE, Vec<Ipv4Addr>) {
        self.ask(name, TYPE::A).await
    }

    pub(crate) async fn ask(&self, name: &str, kind: TYPE) -> (RCODE, Vec<Ipv4Addr>) {
        let mut packet = Packet::new_query(7);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let (kind, class) = (QTYPE::TYPE(kind), QCLASS::CLASS(simple_dns::CLASS::IN));
        packet
            .questions
            .push(Question::new(Name::new_unchecked(name), kind, class, false));
        let (tx, rx) = oneshot::channel();
        let to = SocketAddrV4::new(GATEWAY, 53);
        let bytes = packet.build_bytes_vec().unwrap();
        self.0.send(Ask::Datagram(to, bytes, tx)).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(20), rx)
            .await
            .unwrap()
            .unwrap();
        let answer = Packet::parse(&answer).unwrap();
        let address = |record: &simple_dns::ResourceRecord<'_>| match &record.rdata {
            RData::A(a) => Some(Ipv4Addr::from_bits(a.address)),
            _ => None,
        };
        (
            answer.rcode(),
            answer.answers.iter().filter_map(address).collect(),
        )
    }

    /// Sends a packet as it is.
    pub(crate) async fn raw(&self, packet: Vec<u8>) {
        self.0.send(Ask::Raw(packet)).await.unwrap();
    }
}

struct Link {
    arrived: VecDeque<Vec<u8>>,
    out: Vec<u8>,
}

impl Link {
    fn push(&mut self, packet: &[u8]) {
        let len = u16::try_from(packet.len()).unwrap();
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(packet);
    }
}

struct Arrived(Vec<u8>);
struct Outgoing<'a>(&'a mut Link);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(&packet);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived, Outgoing<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Outgoing(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Outgoing<'_>> {
        (self.out.len() < 1 << 20).then_some(Outgoing(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = MTU.into();
        caps
    }
}

struct WakeUs(Arc<Notify>);

impl Wake for WakeUs {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

struct Connection {
    handle: SocketHandle,
    opening: Option<(oneshot::Sender<io::Result<DuplexStream>>, DuplexStream)>,
    pipe: Option<DuplexStream>,
    is_shut: bool,
    is_over: bool,
}

async fn run(stream: DuplexStream, mut asks: mpsc::Receiver<Ask>) {
    let mut link = Link {
        arrived: VecDeque::new(),
        out: Vec::new(),
    };
    let config = Config::new(HardwareAddress::Ip);
    let mut interface = Interface::new(config, &mut link, smoltcp::time::Instant::ZERO);
    interface.update_ip_addrs(|all| {
        all.push(IpCidr::new(IpAddress::Ipv4(GUEST), PREFIX))
            .unwrap();
    });
    interface
        .routes_mut()
        .add_default_ipv4_route(GATEWAY)
        .unwrap();
    let mut sockets = SocketSet::new(Vec::new());
    let mut connections: Vec<Connection> = Vec::new();
    let mut questions: BTreeMap<SocketHandle, oneshot::Sender<Vec<u8>>> = BTreeMap::new();
    let started = Instant::now();
    let now = || {
        smoltcp::time::Instant::from_micros(i64::try_from(started.elapsed().as_micros()).unwrap())
    };
    let changed = Arc::new(Notify::new());
    let waker = Waker::from(Arc::new(WakeUs(Arc::clone(&changed))));
    let mut next_port = 20_000_u16;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut bytes = Vec::new();
    loop {
        while let Some((length, behind)) = bytes.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            if behind.len() < length {
                break;
            }
            link.arrived.push_back(behind[..length].to_vec());
            bytes.drain(..2 + length);
        }
        for _ in 0..4 {
            interface.poll(now(), &mut link, &mut sockets);
            let mut cx = Context::from_waker(&waker);
            for connection in &mut connections {
                connection.turn(&mut cx, &mut sockets);
            }
            interface.poll(now(), &mut link, &mut sockets);
        }
        connections.retain(|connection| {
            let over = connection.pipe.is_none() && connection.opening.is_none();
            if over {
                sockets.remove(connection.handle);
            }
            !over
        });
        questions.retain(|&handle, _| sockets.get::<udp::Socket<'_>>(handle).is_open());
        let answered: Vec<_> = questions
            .keys()
            .copied()
            .filter(|&handle| sockets.get::<udp::Socket<'_>>(handle).can_recv())
            .collect();
        for handle in answered {
            let data = sockets
                .get_mut::<udp::Socket<'_>>(handle)
                .recv()
                .unwrap()
                .0
                .to_vec();
            let _ = questions.remove(&handle).unwrap().send(data);
            sockets.remove(handle);
        }
        let delay = interface
            .poll_delay(now(), &sockets)
            .map_or(Duration::from_secs(1), Into::into);
        tokio::select! {
            biased;
            written = writer.write(&link.out), if !link.out.is_empty() => match written {
                Ok(len) if len > 0 => drop(link.out.drain(..len)),
                _ => return,
            },
            read = reader.read_buf(&mut bytes) => if !matches!(read, Ok(len) if len > 0) {
                return;
            },
            ask = asks.recv() => {
                next_port += 1;
                match ask {
                    None => return,
                    Some(Ask::Raw(packet)) => link.push(&packet),
                    Some(Ask::Connect(to, opened)) => {
                        let buffer = || tcp::SocketBuffer::new(vec![0; SOCKET_BYTES]);
                        let mut socket = tcp::Socket::new(buffer(), buffer());
                        let to = IpEndpoint::from(to);
                        socket.connect(interface.context(), to, next_port).unwrap();
                        let (near, far) = tokio::io::duplex(PIPE_BYTES);
                        connections.push(Connection {
                            handle: sockets.add(socket),
                            opening: Some((opened, far)),
                            pipe: Some(near),
                            is_shut: false,
                            is_over: false,
                        });
                    }
                    Some(Ask::Datagram(to, data, answered)) => {
                        let buffer = || udp::PacketBuffer::new(
                            vec![udp::PacketMetadata::EMPTY; 4],
                            vec![0; 8192],
                        );
                        let mut socket = udp::Socket::new(buffer(), buffer());
                        socket.bind(IpListenEndpoint::from(next_port)).unwrap();
                        socket.send_slice(&data, IpEndpoint::from(to)).unwrap();
                        questions.insert(sockets.add(socket), answered);
                    }
                }
            }
            () = changed.notified() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }
}

impl Connection {
    fn turn(&mut self, cx: &mut Context<'_>, sockets: &mut SocketSet<'_>) {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        if self.opening.is_some() {
            match socket.state() {
                tcp::State::SynSent => return,
                tcp::State::Closed => {
                    let (opened, _) = self.opening.take().unwrap();
                    let _ = opened.send(Err(io::ErrorKind::ConnectionRefused.into()));
                    self.pipe = None;
                    return;
                }
                _ => {
                    let (opened, far) = self.opening.take().unwrap();
                    let _ = opened.send(Ok(far));
                }
            }
        }
        let Some(pipe) = &mut self.pipe else { return };
        while socket.can_recv() {
            let taken = socket.recv(|data| match Pin::new(&mut *pipe).poll_write(cx, data) {
                Poll::Ready(Ok(len)) => (len, true),
                Poll::Ready(Err(_)) => (data.len(), true),
                Poll::Pending => (0, false),
            });
            if !matches!(taken, Ok(true)) {
                break;
            }
        }
        while !self.is_over && socket.can_send() {
            let given = socket.send(|room| {
                let mut buf = ReadBuf::new(room);
                let polled = Pin::new(&mut *pipe).poll_read(cx, &mut buf);
                (
                    buf.filled().len(),
                    polled.is_ready().then_some(buf.filled().len()),
                )
            });
            match given {
                Ok(Some(0)) => {
                    self.is_over = true;
                    socket.close();
                }
                Ok(Some(_)) => {}
                _ => break,
            }
        }
        match socket.state() {
            // A reset, or all over: the pipe is dropped, and a reader that wanted more sees it.
            tcp::State::Closed | tcp::State::TimeWait if !socket.can_recv() => self.pipe = None,
            tcp::State::CloseWait | tcp::State::LastAck if !self.is_shut && !socket.can_recv() => {
                self.is_shut = Pin::new(pipe).poll_shutdown(cx).is_ready();
            }
            _ => {}
        }
    }
}
