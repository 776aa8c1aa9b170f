//! A libp2p [`Transport`] whose connections are iroh connections.
//!
//! iroh has authenticated and encrypted the connection, so no noise and no yamux runs above it:
//! a substream is a QUIC bidirectional stream. Addresses are iroh's business too; a libp2p
//! address is a bare `/p2p/<peer>`. `docs/adr/0007-libp2p-over-one-iroh-endpoint.md` has the
//! reasons.

mod muxer;

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use iroh::{
    endpoint::Connection,
    protocol::{AcceptError, ProtocolHandler},
};
use libp2p::{
    Multiaddr, PeerId,
    core::{
        Transport,
        transport::{DialOpts, ListenerId, TransportError, TransportEvent},
    },
};
use tokio::sync::mpsc;
use tracing::debug;

use crate::net::{
    connections::{Close, Connections, Protocol},
    endpoint::{DialError, GOSSIP_ALPN, Net},
    ids::{multiaddr_of_peer, node_of_endpoint, node_of_peer, peer_of_multiaddr, peer_of_node},
};

pub(crate) use muxer::IrohMuxer;

/// How long a dial may take; iroh alone would take 30 s to give a dead address up.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepted connections that the swarm has not taken yet; more are closed as [`Close::Busy`].
const ACCEPT_QUEUE: usize = 64;

/// Why the transport has no connection to offer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum IrohTransportError {
    /// The peer could not be reached.
    #[error("cannot reach the peer")]
    Dial(#[from] DialError),
    /// Another connection with the same peer won the simultaneous dial.
    #[error("another connection with this peer is in use")]
    Duplicate,
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] iroh::endpoint::ConnectionError),
}

/// The accepting half, registered on the router for [`GOSSIP_ALPN`].
#[derive(Debug, Clone)]
pub(crate) struct GossipProtocol {
    accepted: mpsc::Sender<Connection>,
    connections: Connections,
}

impl ProtocolHandler for GossipProtocol {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        if !self.connections.claim(Protocol::Gossip, &connection) {
            return Ok(());
        }
        if let Err(refused) = self.accepted.try_send(connection) {
            let connection = match refused {
                mpsc::error::TrySendError::Full(c) | mpsc::error::TrySendError::Closed(c) => c,
            };
            debug!(peer = %connection.remote_id().fmt_short(), "gossip accept queue is full");
            Close::Busy.apply(&connection);
        }
        Ok(())
    }
}

/// The transport of the swarm; see the module's page.
#[derive(Debug)]
pub(crate) struct IrohTransport {
    net: Net,
    me: PeerId,
    accepted: mpsc::Receiver<Connection>,
    listener: Option<ListenerId>,
    events: VecDeque<Event>,
    waker: Option<Waker>,
}

type Event = TransportEvent<<IrohTransport as Transport>::ListenerUpgrade, IrohTransportError>;

impl IrohTransport {
    /// Makes the transport over `net` and the handler that feeds it accepted connections.
    pub(crate) fn new(net: Net) -> (Self, GossipProtocol) {
        let (sender, accepted) = mpsc::channel(ACCEPT_QUEUE);
        let handler = GossipProtocol {
            accepted: sender,
            connections: net.connections.clone(),
        };
        let me = peer_of_node(&node_of_endpoint(&net.endpoint.id()))
            .expect("an endpoint id is a valid ed25519 key");
        let transport = Self {
            net,
            me,
            accepted,
            listener: None,
            events: VecDeque::new(),
            waker: None,
        };
        (transport, handler)
    }

    fn push(&mut self, event: Event) {
        self.events.push_back(event);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Transport for IrohTransport {
    type Output = (PeerId, IrohMuxer);
    type Error = IrohTransportError;
    type ListenerUpgrade = std::future::Ready<Result<Self::Output, Self::Error>>;
    type Dial = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    /// Starts handing accepted connections to the swarm; iroh has bound the socket already, so
    /// the only address to listen on is our own `/p2p/<peer>`, once.
    fn listen_on(
        &mut self,
        id: ListenerId,
        addr: Multiaddr,
    ) -> Result<(), TransportError<Self::Error>> {
        if self.listener.is_some() || peer_of_multiaddr(&addr) != Some(self.me) {
            return Err(TransportError::MultiaddrNotSupported(addr));
        }
        self.listener = Some(id);
        self.push(TransportEvent::NewAddress {
            listener_id: id,
            listen_addr: addr,
        });
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        if self.listener != Some(id) {
            return false;
        }
        self.listener = None;
        self.push(TransportEvent::ListenerClosed {
            listener_id: id,
            reason: Ok(()),
        });
        true
    }

    fn dial(
        &mut self,
        addr: Multiaddr,
        _: DialOpts,
    ) -> Result<Self::Dial, TransportError<Self::Error>> {
        let target = peer_of_multiaddr(&addr).and_then(|peer| Some((peer, node_of_peer(&peer)?)));
        let Some((peer, node)) = target else {
            return Err(TransportError::MultiaddrNotSupported(addr));
        };
        let net = self.net.clone();
        Ok(async move {
            let connection = net.connect(&node, GOSSIP_ALPN, DIAL_TIMEOUT).await?;
            if !net.connections.claim(Protocol::Gossip, &connection) {
                return Err(IrohTransportError::Duplicate);
            }
            Ok((peer, IrohMuxer::new(connection)))
        }
        .boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        if let Some(listener_id) = self.listener
            && let Poll::Ready(Some(connection)) = self.accepted.poll_recv(cx)
        {
            let node = node_of_endpoint(&connection.remote_id());
            let peer = peer_of_node(&node).expect("a remote id is a valid ed25519 key");
            return Poll::Ready(TransportEvent::Incoming {
                listener_id,
                local_addr: multiaddr_of_peer(self.me),
                send_back_addr: multiaddr_of_peer(peer),
                upgrade: std::future::ready(Ok((peer, IrohMuxer::new(connection)))),
            });
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
