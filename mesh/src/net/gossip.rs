//! Gossip: new fragments and records reach every subscribed member within a round trip.
//!
//! Gossip only accelerates. Reconciliation alone converges, so every queue here may drop.
//!
//! A message is checked before it is forwarded: the swarm holds it until [`Validator`] has given
//! its verdict, which is after the fragment is durable here. `flood_publish` is on: an own
//! publish goes to every subscribed peer in one hop, also in the second before the first
//! heartbeat has grafted anyone; what others published is relayed along the mesh only.
//! Messages are anonymous at the libp2p layer, since what they carry is signed by its author.

mod score;

use std::{
    collections::BTreeSet,
    fmt,
    num::NonZeroUsize,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use libp2p::{
    PeerId, Swarm, Transport,
    core::muxing::StreamMuxerBox,
    gossipsub::{
        self, AllowAllSubscriptionFilter, IdentTopic, IdentityTransform,
        MaxCountSubscriptionFilter, MessageAcceptance, MessageAuthenticity, MessageId,
        PublishError, TopicHash, ValidationMode,
    },
    identify, identity,
    swarm::{
        Config, NetworkBehaviour, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace};

use rhizome_identity::{MeshId, NodeId, NodeKey, SpaceId};
use rhizome_memory::Lane;

use crate::net::{
    ids::{multiaddr_of_peer, node_of_peer, peer_of_node},
    transport::IrohTransport,
};

/// The largest gossip message: a fragment with an inline body and room for the envelope.
pub(crate) const MAX_MESSAGE_BYTES: usize = 96 * 1024;
/// Messages that wait for their verdict; more are ignored and come by reconciliation.
const VALIDATION_QUEUE: usize = 1024;
/// Messages that one verdict call takes: enough to fill a signature batch and a group commit.
const VALIDATION_BATCH: usize = 64;
/// Own messages that wait to be sent; more wait in the caller.
const COMMAND_QUEUE: usize = 256;
/// Messages queued for one slow peer, at most 96 KiB each.
const PEER_QUEUE_MESSAGES: usize = 256;
/// Topics that one peer may subscribe to.
const MAX_TOPICS: usize = 4096;
/// From this size on peers tell each other which messages need no second copy.
const IDONTWANT_BYTES: usize = 4 * 1024;
/// How long a message is recognised as seen.
const SEEN_FOR: Duration = Duration::from_secs(120);
/// How often missing connections are dialled again.
const REDIAL_EVERY: Duration = Duration::from_secs(5);
/// The swarm keeps idle connections: the endpoint's own timeout finds the dead.
const IDLE_CONNECTION: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// One message that waits for its verdict.
#[derive(Debug)]
pub(crate) struct Heard {
    /// Where the message belongs.
    pub(crate) lane: Lane,
    /// The peer that sent it to us, which need not be its author.
    pub(crate) from: NodeId,
    /// A fragment's wire form or a signed record.
    pub(crate) data: Bytes,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Valid and new: forward it.
    Forward,
    /// Valid as far as we can tell, or not yet decidable: keep it from spreading, blame nobody.
    Ignore,
    /// Invalid in a way that its sender could see: the sender's score falls.
    Reject,
}

/// Judges messages before they are forwarded; called on a blocking thread.
pub(crate) trait Validator: Send + Sync + 'static {
    /// Returns one verdict per message, in their order.
    fn judge(&self, heard: &[Heard]) -> Vec<Verdict>;
}

enum Command {
    Publish(Lane, Bytes),
    Subscribe(Option<MeshId>, BTreeSet<SpaceId>),
    Peer(NodeId, bool),
    Standing(NodeId, oneshot::Sender<GossipStanding>),
}

/// How gossip stands with one peer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GossipStanding {
    /// Whether the swarm is connected to it.
    pub connected: bool,
    /// The number of topics it subscribes to.
    pub topics: usize,
    /// Its gossipsub score; below -80 nothing it sends is looked at.
    pub score: f64,
}

/// A handle to the gossip task.
#[derive(Clone)]
pub(crate) struct Gossip {
    commands: mpsc::Sender<Command>,
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gossip").finish_non_exhaustive()
    }
}

impl Gossip {
    /// Sends `data`, which is ours and durable, to the subscribers of `lane`.
    ///
    /// Waits while the queue is full; a stopped task drops the message.
    pub(crate) async fn publish(&self, lane: Lane, data: Bytes) {
        self.send(Command::Publish(lane, data)).await;
    }

    /// Subscribes to the authority topic of `mesh` and the topics of `spaces`, and to no others.
    pub(crate) async fn subscribe(&self, mesh: Option<MeshId>, spaces: BTreeSet<SpaceId>) {
        self.send(Command::Subscribe(mesh, spaces)).await;
    }

    /// Says that `peer` can be reached, or no longer, so that the swarm keeps a connection.
    pub(crate) async fn peer(&self, peer: NodeId, reachable: bool) {
        self.send(Command::Peer(peer, reachable)).await;
    }

    /// Returns how gossip stands with `peer`.
    pub(crate) async fn standing(&self, peer: NodeId) -> GossipStanding {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Standing(peer, reply)).await;
        answer.await.unwrap_or_default()
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            trace!("gossip has stopped");
        }
    }
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    gossipsub: gossipsub::Behaviour<
        IdentityTransform,
        MaxCountSubscriptionFilter<AllowAllSubscriptionFilter>,
    >,
    identify: identify::Behaviour,
}

struct Waiting {
    id: MessageId,
    source: PeerId,
    heard: Heard,
}

struct Judged {
    id: MessageId,
    source: PeerId,
    verdict: Verdict,
}

/// The task that owns the swarm.
pub(crate) struct GossipTask {
    swarm: Swarm<Behaviour>,
    me: NodeId,
    commands: mpsc::Receiver<Command>,
    to_judge: mpsc::Sender<Waiting>,
    judged: mpsc::Receiver<Vec<Judged>>,
    mesh: Option<MeshId>,
    topics: Vec<(TopicHash, Lane)>,
    reachable: BTreeSet<NodeId>,
    worker: Option<(mpsc::Receiver<Waiting>, mpsc::Sender<Vec<Judged>>)>,
}

impl fmt::Debug for GossipTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GossipTask")
            .field("me", &self.me)
            .field("topics", &self.topics.len())
            .finish_non_exhaustive()
    }
}

impl GossipTask {
    /// Makes the swarm of `key` over `transport`; [`Self::run`] drives it.
    pub(crate) fn new(key: &NodeKey, transport: IrohTransport) -> (Gossip, Self) {
        let mut seed = key.secret_bytes();
        let keypair = identity::Keypair::ed25519_from_bytes(&mut seed[..])
            .expect("a node key is 32 bytes of ed25519 seed");
        let peer = keypair.public().to_peer_id();
        let behaviour = Behaviour {
            gossipsub: gossipsub_behaviour(),
            identify: identify::Behaviour::new(
                identify::Config::new("/rhizome/1".to_owned(), keypair.public())
                    .with_agent_version(concat!("rhizome/", env!("CARGO_PKG_VERSION")).to_owned())
                    .with_hide_listen_addrs(true)
                    .with_interval(Duration::from_secs(3600)),
            ),
        };
        let transport = transport
            .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
            .boxed();
        let config = Config::with_tokio_executor()
            .with_idle_connection_timeout(IDLE_CONNECTION)
            .with_notify_handler_buffer_size(NonZeroUsize::new(64).expect("64 is not zero"));
        let mut swarm = Swarm::new(transport, behaviour, peer, config);
        swarm
            .listen_on(multiaddr_of_peer(peer))
            .expect("the transport listens on its own peer address once");
        let (commands_in, commands) = mpsc::channel(COMMAND_QUEUE);
        let (to_judge, waiting) = mpsc::channel(VALIDATION_QUEUE);
        // One batch is judged at a time, so one slot is enough.
        let (judged_in, judged) = mpsc::channel(1);
        let task = Self {
            swarm,
            me: key.id(),
            commands,
            to_judge,
            judged,
            mesh: None,
            topics: Vec::new(),
            reachable: BTreeSet::new(),
            worker: Some((waiting, judged_in)),
        };
        (
            Gossip {
                commands: commands_in,
            },
            task,
        )
    }

    /// Runs the swarm until `stop`.
    pub(crate) async fn run(mut self, validator: Arc<dyn Validator>, stop: CancellationToken) {
        let (waiting, judged) = self.worker.take().expect("run consumes the task");
        let worker = tokio::task::spawn_blocking(move || judge_all(waiting, judged, validator));
        let mut redial = tokio::time::interval(REDIAL_EVERY);
        redial.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // Stopping first, then our own work, then work from peers.
                () = stop.cancelled() => break,
                Some(verdicts) = self.judged.recv() => self.report(verdicts),
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                event = self.swarm.select_next_some() => self.event(event),
                _ = redial.tick() => self.dial_missing(),
            }
        }
        // Dropping the queue ends the worker after the batch it is in.
        drop(self);
        if worker.await.is_err() {
            debug!("the gossip validator was cancelled");
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Publish(lane, data) => self.publish(lane, &data),
            Command::Subscribe(mesh, spaces) => self.subscribe(mesh, spaces),
            Command::Peer(peer, reachable) => {
                if reachable {
                    self.reachable.insert(peer);
                    self.dial(peer);
                } else {
                    self.reachable.remove(&peer);
                }
            }
            Command::Standing(node, reply) => {
                let peer = peer_of_node(&node);
                let gossipsub = &self.swarm.behaviour().gossipsub;
                let standing = peer.map_or_else(GossipStanding::default, |peer| GossipStanding {
                    connected: self.swarm.is_connected(&peer),
                    topics: gossipsub
                        .all_peers()
                        .find(|(other, _)| **other == peer)
                        .map_or(0, |(_, topics)| topics.len()),
                    score: gossipsub.peer_score(&peer).unwrap_or_default(),
                });
                // A caller that went away needs no answer.
                let _ = reply.send(standing);
            }
        }
    }

    fn publish(&mut self, lane: Lane, data: &Bytes) {
        let Some(mesh) = self.mesh else { return };
        let topic = topic_of(&mesh, &lane);
        match self
            .swarm
            .behaviour_mut()
            .gossipsub
            .publish(topic, data.to_vec())
        {
            Ok(_) | Err(PublishError::Duplicate | PublishError::NoPeersSubscribedToTopic) => {}
            Err(error) => debug!(?lane, %error, "not pushed; reconciliation will carry it"),
        }
    }

    fn subscribe(&mut self, mesh: Option<MeshId>, spaces: BTreeSet<SpaceId>) {
        let mut wanted: Vec<(TopicHash, Lane)> = Vec::new();
        if let Some(mesh) = &mesh {
            let lanes = spaces.into_iter().map(Lane::Space);
            wanted.extend(
                std::iter::once(Lane::Authority)
                    .chain(lanes)
                    .map(|lane| (topic_of(mesh, &lane).hash(), lane)),
            );
        }
        let gossipsub = &mut self.swarm.behaviour_mut().gossipsub;
        for (topic, _) in &self.topics {
            if !wanted.iter().any(|(kept, _)| kept == topic) {
                gossipsub.unsubscribe(&IdentTopic::new(topic.as_str()));
            }
        }
        for (topic, lane) in &wanted {
            let topic = IdentTopic::new(topic.as_str());
            if let Err(error) = gossipsub.set_topic_params(topic.clone(), score::topic()) {
                debug!(?lane, error, "topic scores not set");
            }
            if let Err(error) = gossipsub.subscribe(&topic) {
                debug!(?lane, %error, "not subscribed");
            }
        }
        self.mesh = mesh;
        self.topics = wanted;
    }

    fn event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Gossipsub(gossipsub::Event::Message {
                propagation_source,
                message_id,
                message,
            })) => self.heard(propagation_source, message_id, message),
            SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                trace!(peer = %peer_id, "gossip connection is up");
            }
            SwarmEvent::ConnectionClosed { peer_id, cause, .. } => {
                trace!(peer = %peer_id, cause = ?cause, "gossip connection is down");
            }
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                trace!(%error, "gossip dial failed");
            }
            _ => {}
        }
    }

    fn heard(&mut self, source: PeerId, id: MessageId, message: gossipsub::Message) {
        let lane = self
            .topics
            .iter()
            .find(|(topic, _)| *topic == message.topic)
            .map(|(_, lane)| *lane);
        let queued = match (lane, node_of_peer(&source)) {
            (Some(lane), Some(from)) => self
                .to_judge
                .try_send(Waiting {
                    id: id.clone(),
                    source,
                    heard: Heard {
                        lane,
                        from,
                        data: message.data.into(),
                    },
                })
                .is_ok(),
            _ => false,
        };
        if !queued {
            self.report(vec![Judged {
                id,
                source,
                verdict: Verdict::Ignore,
            }]);
        }
    }

    fn report(&mut self, verdicts: Vec<Judged>) {
        for judged in verdicts {
            let acceptance = match judged.verdict {
                Verdict::Forward => MessageAcceptance::Accept,
                Verdict::Ignore => MessageAcceptance::Ignore,
                Verdict::Reject => MessageAcceptance::Reject,
            };
            self.swarm
                .behaviour_mut()
                .gossipsub
                .report_message_validation_result(&judged.id, &judged.source, acceptance);
        }
    }

    fn dial_missing(&mut self) {
        for peer in self.reachable.clone() {
            self.dial(peer);
        }
    }

    /// Dials `node` if that is our part: the node with the lower id dials, so that two nodes
    /// that meet do not dial each other at once.
    fn dial(&mut self, node: NodeId) {
        let Some(peer) = peer_of_node(&node).filter(|_| self.me < node) else {
            return;
        };
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(vec![multiaddr_of_peer(peer)])
            .build();
        if let Err(error) = self.swarm.dial(options) {
            trace!(peer = %node.fmt_short(), %error, "no gossip dial needed");
        }
    }
}

fn gossipsub_behaviour()
-> gossipsub::Behaviour<IdentityTransform, MaxCountSubscriptionFilter<AllowAllSubscriptionFilter>> {
    let config = gossipsub::ConfigBuilder::default()
        .validate_messages()
        .validation_mode(ValidationMode::Anonymous)
        .max_transmit_size(MAX_MESSAGE_BYTES)
        .message_id_fn(|message| MessageId::from(blake3::hash(&message.data).as_bytes().to_vec()))
        .flood_publish(true)
        .duplicate_cache_time(SEEN_FOR)
        .idontwant_message_size_threshold(IDONTWANT_BYTES)
        .connection_handler_queue_len(PEER_QUEUE_MESSAGES)
        .heartbeat_initial_delay(Duration::from_millis(100))
        .build()
        .expect("the gossip configuration is consistent");
    let filter = MaxCountSubscriptionFilter {
        filter: AllowAllSubscriptionFilter {},
        max_subscribed_topics: MAX_TOPICS,
        max_subscriptions_per_request: MAX_TOPICS,
    };
    let mut behaviour = gossipsub::Behaviour::new_with_subscription_filter(
        MessageAuthenticity::Anonymous,
        config,
        filter,
    )
    .expect("anonymous messages match the anonymous validation mode");
    behaviour
        .with_peer_score(score::peer(), score::thresholds())
        .expect("the score parameters are valid");
    behaviour
}

/// Takes whatever has queued up while the last batch was judged, so that load makes batches and
/// silence makes no delay. Blocks: a message passes from the swarm to this thread and no other task.
fn judge_all(
    mut waiting: mpsc::Receiver<Waiting>,
    judged: mpsc::Sender<Vec<Judged>>,
    validator: Arc<dyn Validator>,
) {
    let mut batch = Vec::with_capacity(VALIDATION_BATCH);
    while waiting.blocking_recv_many(&mut batch, VALIDATION_BATCH) > 0 {
        let (ids, heard): (Vec<_>, Vec<_>) = batch
            .drain(..)
            .map(|waiting| ((waiting.id, waiting.source), waiting.heard))
            .unzip();
        // A panic in there is a bug of ours: it costs the batch, which reconciliation brings again.
        let verdicts = panic::catch_unwind(AssertUnwindSafe(|| validator.judge(&heard)));
        let verdicts = verdicts
            .unwrap_or_default()
            .into_iter()
            .chain(std::iter::repeat(Verdict::Ignore));
        let verdicts = ids
            .into_iter()
            .zip(verdicts)
            .map(|((id, source), verdict)| Judged {
                id,
                source,
                verdict,
            })
            .collect();
        if judged.blocking_send(verdicts).is_err() {
            break;
        }
    }
}

/// Returns the topic of `lane`: named by a hash, so that a peer outside a space learns nothing
/// from the name.
fn topic_of(mesh: &MeshId, lane: &Lane) -> IdentTopic {
    let mut hasher = blake3::Hasher::new_derive_key("rhizome gossip topic 1");
    hasher.update(mesh.as_bytes());
    if let Lane::Space(space) = lane {
        hasher.update(space.as_bytes());
    }
    IdentTopic::new(hasher.finalize().to_hex().as_str())
}

#[cfg(test)]
mod tests;
