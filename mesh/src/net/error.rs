//! What can go wrong at the edge of the mesh, for those who asked for it.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use rhizome_identity::{MeshId, NodeId};
use rhizome_memory::FragmentId;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the network part of a node could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The UDP socket could not be bound.
    #[error("cannot bind UDP {addr}")]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system or the endpoint said.
        source: Cause,
    },
    /// The directory or a file in it could not be used.
    #[error("cannot use `{}`", path.display())]
    Data {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The relay could not listen.
    #[error("cannot listen on TCP {addr} for the relay")]
    Relay {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The store of large bodies could not be opened.
    #[error("cannot open the blob store in `{}`", path.display())]
    Blobs {
        /// Its directory.
        path: PathBuf,
        /// What the store said.
        source: Cause,
    },
}

impl StartError {
    pub(crate) fn bind(addr: SocketAddr, source: impl Into<Cause>) -> Self {
        Self::Bind {
            addr,
            source: source.into(),
        }
    }

    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Bind { addr, .. } if addr.port() != 0 => format!(
                "is another node running on port {}? choose another with `--bind`, or port 0 for a free one",
                addr.port()
            ),
            Self::Bind { .. } => "choose an address of this machine with `--bind`".to_owned(),
            Self::Relay { addr, .. } => format!(
                "is something else listening on port {}? choose another with `--relay-listen`",
                addr.port()
            ),
            Self::Data { .. } => "check owner and free space of the data directory".to_owned(),
            Self::Blobs { path, .. } => format!(
                "move `{}` away; bodies are fetched again from other members",
                path.display()
            ),
        })
    }
}

/// What an inviter answers instead of a welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The inviter knows no such invite, or its proof does not hold.
    #[error("the inviter does not know this invite")]
    Unknown,
    /// The invite's time is over.
    #[error("the invite has expired")]
    Expired,
    /// All uses of the invite are taken.
    #[error("the invite has been used up")]
    Spent,
    /// The invite was closed.
    #[error("the invite was closed")]
    Closed,
    /// The inviter belongs to another mesh, or to none.
    #[error("the inviter is not a member of the invite's mesh")]
    WrongMesh,
    /// The inviter has too many joins at once, or is stopping.
    #[error("the inviter is busy")]
    Busy,
    /// A person at the inviter must approve whoever redeems this invite; it has been told.
    #[error("somebody at the inviter has to approve this node first")]
    ApprovalNeeded,
    /// Only the node that issued the invite counts its uses.
    #[error("the invite can be redeemed at its issuer only")]
    NotIssuer,
    /// The inviter could not write the grant.
    #[error("the inviter could not record the grant")]
    Failed,
}

/// Why a join did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No inviter named in the invite answered.
    #[error("no inviter could be reached at {}", list(.tried, .relays))]
    Unreachable {
        /// The nodes and addresses dialled.
        tried: Vec<(NodeId, SocketAddr)>,
        /// The relays through which they were looked for.
        relays: Vec<String>,
    },
    /// The inviter answered, then went silent.
    #[error("the inviter did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The inviter said no.
    #[error("the inviter refused")]
    Refused(#[source] Refusal),
    /// The invite has expired by this machine's clock.
    #[error("the invite expired {} s ago by this machine's clock", now_ms.saturating_sub(*not_after_ms) / 1_000)]
    Expired {
        /// When the invite ended.
        not_after_ms: u64,
        /// The time here.
        now_ms: u64,
    },
    /// This node is a member of a mesh already.
    #[error("this node is a member of mesh {mesh} already")]
    AlreadyMember {
        /// That mesh.
        mesh: MeshId,
    },
    /// The invite names this very node as inviter.
    #[error("this node issued the invite itself")]
    OwnInvite,
    /// The inviter's answer does not hold: it broke the protocol or its records do not make this
    /// node a member of the invited mesh.
    #[error("the inviter's answer does not hold: {what}")]
    BadAnswer {
        /// What is wrong with it.
        what: String,
    },
    /// The connection failed in the middle.
    #[error("the connection to the inviter failed")]
    Connection(#[source] Cause),
    /// The records could not be stored here.
    #[error("cannot store the mesh's records")]
    Store(#[source] Cause),
}

impl JoinError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unreachable { .. } => {
                "check that the inviter's node is up and that its UDP port is open to this machine, then try again; the invite is unused"
            }
            Self::TimedOut(_) | Self::Connection(_) => {
                "try again; a join that the inviter has recorded is answered again"
            }
            Self::Refused(Refusal::Unknown | Refusal::WrongMesh) => {
                "ask for a new invite from a running node of that mesh"
            }
            Self::Refused(Refusal::Expired | Refusal::Spent | Refusal::Closed)
            | Self::Expired { .. } => "ask for a new invite",
            Self::Refused(Refusal::ApprovalNeeded) => {
                "let somebody approve this node at the inviter (`rhizome invite approve`), then join again with the same invite"
            }
            Self::Refused(Refusal::NotIssuer) => "ask for an invite from a node that is up",
            Self::Refused(Refusal::Busy) => "try again in a moment",
            Self::Refused(Refusal::Failed) => "look at the inviter's log",
            Self::AlreadyMember { .. } => "use a data directory of its own for each mesh",
            Self::OwnInvite => "hand the invite to another machine",
            Self::BadAnswer { .. } => "compare the versions of both nodes",
            Self::Store(_) => "check free space of the data directory",
        };
        Some(hint.to_owned())
    }
}

fn list(tried: &[(NodeId, SocketAddr)], relays: &[String]) -> String {
    if tried.is_empty() && relays.is_empty() {
        return "no address (the invite names none)".to_owned();
    }
    let addrs = tried.iter().map(|(_, addr)| addr.to_string());
    let relays = relays.iter().map(|url| format!("{url} (a relay)"));
    addrs.chain(relays).collect::<Vec<_>>().join(", ")
}

/// Why no control stream could be opened to a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CtlError {
    /// The node is not another member of the mesh.
    #[error("{} is not another member of the mesh", node.fmt_short())]
    NotAMember {
        /// The node.
        node: NodeId,
    },
    /// The node could not be dialled.
    #[error("cannot connect to node {}", node.fmt_short())]
    Unreachable {
        /// The node.
        node: NodeId,
        /// What the dial said.
        source: Cause,
    },
    /// The node did not answer, or has no room for another stream.
    #[error("node {} did not answer within {} s", node.fmt_short(), waited.as_secs())]
    TimedOut {
        /// The node.
        node: NodeId,
        /// How long was waited.
        waited: Duration,
    },
    /// The connection closed as the stream was opened.
    #[error("node {} closed the connection", node.fmt_short())]
    Closed {
        /// The node.
        node: NodeId,
        /// How it was closed.
        source: Cause,
    },
}

impl CtlError {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotAMember { .. } => "`rhizome peers` shows the members".to_owned(),
            Self::Unreachable { .. } | Self::TimedOut { .. } => {
                "see whether it is up, and since when it is gone, with `rhizome peers`".to_owned()
            }
            Self::Closed { .. } => "try again; it may be starting, stopping or busy".to_owned(),
        })
    }
}

/// Too few nodes said in time that they hold a fragment.
#[derive(Debug, thiserror::Error)]
#[error("{} of {wanted} other nodes hold the fragment after {} ms", .held_by.len(), .waited.as_millis())]
pub struct ReplicaTimeout {
    /// The fragment.
    pub id: FragmentId,
    /// How many nodes were asked for.
    pub wanted: usize,
    /// The nodes that hold it durably.
    pub held_by: Vec<NodeId>,
    /// How long was waited.
    pub waited: Duration,
}

impl ReplicaTimeout {
    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        Some("the fragment is durable here and will replicate; see who is connected with `rhizome peers`".to_owned())
    }
}
