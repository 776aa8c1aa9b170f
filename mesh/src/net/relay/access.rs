//! Who may use the relay: members, and newcomers for as long as a join takes.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use iroh::EndpointId;
use iroh_relay::server::{Access as Verdict, AccessControl, ClientRequest, ConnectionId};
use rhizome_identity::NodeId;
use tracing::debug;

use crate::net::{connections::Membership, ids::node_of_endpoint};

/// Newcomers served at once.
const MAX_GUESTS: usize = 16;
/// How long a newcomer is served: a join is over by then.
pub(super) const GUEST_FOR: Duration = Duration::from_secs(30);
/// Connections of one client: a node has one, and for a moment the one that replaces it.
const MAX_CONNECTIONS: usize = 4;

/// Says whether a node shows by a token that it is invited.
pub(crate) type Invited = Arc<dyn Fn(&NodeId, &str) -> bool + Send + Sync>;

/// Decides about clients, and remembers who is connected.
pub(super) struct Access {
    members: Membership,
    invited: Invited,
    clients: Mutex<BTreeMap<NodeId, Vec<Client>>>,
}

#[derive(Debug, Clone, Copy)]
struct Client {
    id: ConnectionId,
    since: Instant,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Access {
    pub(super) fn new(members: Membership, invited: Invited) -> Self {
        Self {
            members,
            invited,
            clients: Mutex::default(),
        }
    }

    /// Returns the connections, begun at least `served_for` ago, of clients that are no members:
    /// revoked nodes, and newcomers.
    pub(super) fn strangers(&self, served_for: Duration) -> Vec<(NodeId, ConnectionId)> {
        let clients = self.clients();
        let mut found = Vec::new();
        for (node, connections) in clients.iter().filter(|(node, _)| !(self.members)(node)) {
            let ended = connections
                .iter()
                .filter(|client| client.since.elapsed() >= served_for);
            found.extend(ended.map(|client| (*node, client.id)));
        }
        found
    }

    fn admit(
        &self,
        node: NodeId,
        id: ConnectionId,
        token: Option<&str>,
    ) -> Result<(), &'static str> {
        let mut clients = self.clients();
        // Looked at under the lock that `strangers` takes, so that a revocation finds the client
        // in the table, or is seen here.
        if !(self.members)(&node) {
            let guests = clients.keys().filter(|node| !(self.members)(node)).count();
            if !token.is_some_and(|token| (self.invited)(&node, token)) {
                return Err("not a member of the mesh");
            }
            if guests >= MAX_GUESTS {
                return Err("too many newcomers at once");
            }
        }
        let connections = clients.entry(node).or_default();
        if connections.len() >= MAX_CONNECTIONS {
            return Err("too many connections of one node");
        }
        let since = Instant::now();
        connections.push(Client { id, since });
        Ok(())
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<NodeId, Vec<Client>>> {
        // Entries are added and removed by single calls.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccessControl for Access {
    async fn on_connect(&self, request: &ClientRequest) -> Verdict {
        let node = node_of_endpoint(&request.endpoint_id());
        let token = request.auth_token();
        match self.admit(node, request.connection_id(), token.as_deref()) {
            Ok(()) => Verdict::Allow,
            Err(why) => {
                debug!(peer = %node.fmt_short(), why, "refused a client of the relay");
                Verdict::Deny {
                    reason: Some(why.to_owned()),
                }
            }
        }
    }

    fn on_disconnect(&self, endpoint: EndpointId, id: ConnectionId) {
        let node = node_of_endpoint(&endpoint);
        let mut clients = self.clients();
        if let Some(connections) = clients.get_mut(&node) {
            connections.retain(|client| client.id != id);
            if connections.is_empty() {
                clients.remove(&node);
            }
        }
    }
}
