//! Dials, connections, and what travels on them.

use std::time::Duration;

use bytes::Bytes;
use rhizome_memory::Lane;
use rhizome_mesh::proto::{address_book, replication::Input};

use super::{
    super::{
        arena::ItemIndex,
        events::{Event, NodeIndex, Pushed},
        hostile::Hostility,
    },
    Netsim, as_index,
    builder::draw_neighbours,
};

/// How long a dead connection goes unnoticed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a dial to nobody takes to fail.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a member that floods sends each frame.
const FLOOD_COPIES: usize = 20;
/// How many others a newcomer dials once it is a member.
const NEWCOMERS_NEIGHBOURS: usize = 4;

impl Netsim {
    pub(super) fn dial(&mut self, node: NodeIndex, dials: Vec<address_book::Output>) {
        let life = self.nodes[node as usize].life;
        for dial in dials {
            let address_book::Output::Dial(peer) = dial else {
                continue;
            };
            let to = self.by_id[&peer];
            let takes = match self.links.path(node, to) {
                Some(_) => 3 * self.links.latency(node, to),
                None => DIAL_TIMEOUT,
            };
            let dialled = Event::Dialled {
                from: node,
                to,
                life,
            };
            self.agenda.add(self.now + takes, dialled);
        }
    }

    pub(super) fn dialled(&mut self, from: NodeIndex, to: NodeIndex, life: u32) {
        if self.nodes[from as usize].life != life {
            return;
        }
        let (us, them) = (self.nodes[from as usize].id, self.nodes[to as usize].id);
        let path = self.links.path(from, to).filter(|_| self.lets_in(from, to));
        let Some(path) = path else {
            return self.tell_book(from, address_book::Input::DialFailed(them));
        };
        let there = self.links.between(from, to);
        if there.is_some_and(|link| self.links.is_alive(link)) {
            // Both dialled at once, and the other dial won.
            return self.tell_book(from, address_book::Input::Up(them));
        }
        self.links.connect(from, to, path);
        for (node, peer) in [(from, them), (to, us)] {
            self.tell_book(node, address_book::Input::Up(peer));
            self.handle(node, Input::PeerUp(peer));
        }
    }

    /// Says whether both sides take each other for members; redeems the invite of a newcomer.
    fn lets_in(&mut self, from: NodeIndex, to: NodeIndex) -> bool {
        let (us, them) = (&self.nodes[from as usize], &self.nodes[to as usize]);
        let (Some(ours), Some(theirs)) = (&us.running, &them.running) else {
            return false;
        };
        // A newcomer knows nothing yet but whom its invite names.
        let trusts = us.is_joining || ours.authority.is_member(&them.id);
        if theirs.authority.is_member(&us.id) {
            return trusts;
        }
        let member = theirs.authority.member(&them.id);
        if us.is_joining && member.is_some_and(|member| member.role.can_grant()) {
            let (by, newcomer) = (to as usize, from as usize);
            let granted = self.founding.grant(by, newcomer, &theirs.authority);
            self.write_record(to, granted.bytes());
        }
        // The newcomer dials again, and the record is durable by then.
        false
    }

    /// Hands a record of its own to the disk of a node; returns its number.
    pub(super) fn write_record(&mut self, node: NodeIndex, record: &[u8]) -> ItemIndex {
        let bytes = Bytes::copy_from_slice(record);
        let item = self.arena.take_in(Lane::Authority, &bytes);
        let item = item.expect("signed by the node that writes it");
        let mark = self.nodes[node as usize].store.write(item, true);
        self.sync_later(node, mark);
        item
    }

    /// Does what follows when a node's log says something else than before.
    pub(super) fn rights_changed(&mut self, node: NodeIndex) {
        let n = &self.nodes[node as usize];
        let Some(running) = &n.running else {
            return;
        };
        let authority = std::sync::Arc::clone(&running.authority);
        if n.is_joining && authority.is_member(&n.id) {
            self.settle_in(node, &authority);
        }
        if self.is_hostile(node) {
            return;
        }
        let strangers: Vec<NodeIndex> = self
            .links
            .of(node)
            .map(|(peer, _)| peer)
            .filter(|peer| !authority.is_member(&self.nodes[*peer as usize].id))
            .filter(|_| authority.is_member(&self.nodes[node as usize].id))
            .collect();
        for peer in strangers {
            if let Some(link) = self.links.between(node, peer) {
                self.close(link);
            }
            let peer = self.nodes[peer as usize].id;
            self.tell_book(node, address_book::Input::Forget(peer));
        }
    }

    /// A newcomer has found out that it is a member: it certifies its agent and meets others.
    fn settle_in(&mut self, node: NodeIndex, authority: &rhizome_identity::Authority) {
        let n = node as usize;
        self.nodes[n].is_joining = false;
        let certificate = self.founding.certificate(n, authority);
        self.write_record(node, certificate.bytes());
        let members = authority.members().count().min(self.nodes.len());
        let drawn = draw_neighbours(&mut self.dice, n, members, NEWCOMERS_NEIGHBOURS);
        for peer in drawn.into_iter().filter(|peer| *peer != node) {
            let known = address_book::Input::Known(self.nodes[peer as usize].id);
            self.nodes[n].neighbours.push(peer);
            self.tell_book(node, known);
        }
    }

    pub(super) fn close(&mut self, link: u64) {
        let Some(connection) = self.links.close(link) else {
            return;
        };
        let (a, b) = connection.ends;
        for (node, peer) in [(a, b), (b, a)] {
            let peer = self.nodes[peer as usize].id;
            self.handle(node, Input::PeerDown(peer));
            self.tell_book(node, address_book::Input::Down(peer));
        }
    }

    /// Ends a live connection because of what one side thinks of the other.
    pub(super) fn give_up(&mut self, node: NodeIndex, peer: NodeIndex) {
        if let Some(link) = self.links.between(node, peer) {
            for end in [node, peer] {
                self.nodes[end as usize].evictions += 1;
            }
            self.close(link);
        }
    }

    /// Lets both ends of dead connections find out.
    pub(super) fn lose(&mut self, dead: Vec<u64>) {
        for link in dead {
            self.agenda
                .add(self.now + IDLE_TIMEOUT, Event::Lost { link });
        }
    }

    pub(super) fn send(&mut self, from: NodeIndex, to: NodeIndex, frame: &Bytes) {
        let Some(link) = self.links.between(from, to) else {
            return;
        };
        let copies = match self.nodes[from as usize].hostility {
            Some(Hostility::Flood) => FLOOD_COPIES,
            _ => 1,
        };
        for _ in 0..copies {
            self.bytes += frame.len() as u64;
            let (dice, len) = (&mut self.dice, frame.len());
            let Ok(arrivals) = self.links.arrivals(dice, self.now, link, to, len) else {
                // What production does when the queue of frames for a peer is full.
                return self.give_up(from, to);
            };
            for at in arrivals {
                let frame = frame.clone();
                self.agenda.add(
                    at,
                    Event::Frame {
                        from,
                        to,
                        link,
                        frame,
                    },
                );
            }
        }
    }

    /// Pushes an item to everyone a node is connected with.
    pub(super) fn push_to_all(&mut self, node: NodeIndex, item: ItemIndex) {
        let peers: Vec<(NodeIndex, u64)> = self.links.of(node).collect();
        for (peer, link) in peers {
            if let Some(pushed) = self.shown_to(node, peer, item) {
                self.push(peer, link, pushed);
            }
        }
    }

    fn push(&mut self, to: NodeIndex, link: u64, item: Pushed) {
        let len = match &item {
            Pushed::Item(item) => self.arena.item(*item).bytes.len(),
            Pushed::Raw(_, bytes) => bytes.len(),
        };
        self.bytes += len as u64;
        let arrivals = self.links.arrivals(&mut self.dice, self.now, link, to, len);
        // A message of gossip that finds the queue full is dropped.
        for at in arrivals.into_iter().flatten() {
            let item = item.clone();
            self.agenda.add(at, Event::Push { to, link, item });
        }
    }

    /// Returns what of an item a node pushes to a peer.
    fn shown_to(&self, node: NodeIndex, peer: NodeIndex, item: ItemIndex) -> Option<Pushed> {
        let stored = self.arena.item(item);
        let n = &self.nodes[node as usize];
        if let Some(twin) = self.twins.get(&item)
            && n.store.is_own(item)
            && peer % 2 == 1
        {
            return Some(Pushed::Item(*twin));
        }
        let handed_out = n.store.handed_out(item, stored)?;
        Some(if handed_out == stored.bytes {
            Pushed::Item(item)
        } else {
            Pushed::Raw(stored.lane, handed_out)
        })
    }

    /// Returns everyone a node is connected with.
    pub(super) fn connected(&self, node: NodeIndex) -> Vec<NodeIndex> {
        self.links.of(node).map(|(peer, _)| peer).collect()
    }

    /// Starts a newcomer, which dials whom its invite names; returns its number.
    pub fn join(&mut self, newcomer: usize) -> &mut Self {
        self.nodes[newcomer].neighbours = self.invited_by();
        self.boot(as_index(newcomer));
        self
    }
}
