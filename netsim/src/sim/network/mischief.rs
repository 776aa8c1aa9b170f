//! What hostile members do of their own accord.

use std::time::Duration;

use rhizome_memory::FragmentId;

use super::{
    super::{
        events::{Event, NodeIndex},
        hostile::Hostility,
        node::hash_of,
    },
    Netsim, as_index,
};

/// How often a hostile node does something to each neighbour.
const MISCHIEF_EVERY: Duration = Duration::from_millis(500);

impl Netsim {
    pub(super) fn mischief(&mut self, node: NodeIndex, life: u32) {
        let n = &self.nodes[node as usize];
        if n.life != life {
            return;
        }
        match n.hostility {
            Some(Hostility::Garbage) => self.send_garbage(node),
            // It goes on whatever its log says of it.
            Some(Hostility::BackDate | Hostility::Poison) if self.dice.chance(200) => {
                self.publish(node as usize);
            }
            Some(Hostility::Fork) if self.dice.chance(200) => {
                self.publish_forked(node as usize);
            }
            _ => {}
        }
        self.next_mischief(node);
    }

    pub(super) fn next_mischief(&mut self, node: NodeIndex) {
        let life = self.nodes[node as usize].life;
        self.agenda
            .add(self.now + MISCHIEF_EVERY, Event::Mischief { node, life });
    }

    fn send_garbage(&mut self, node: NodeIndex) {
        for peer in self.connected(node) {
            let len = 1 + self.dice.below(600);
            let mut frame = self.dice.bytes(len);
            // Half of it looks like a frame of some kind, to get past the first check.
            if self.dice.chance(500) {
                frame[0] = u8::try_from(1 + self.dice.below(7)).expect("at most seven");
            }
            self.send(node, peer, &frame.into());
        }
    }

    /// Signs two fragments for the next position: one is stored and shown to some peers, the other
    /// is shown to the rest.
    pub(super) fn publish_forked(&mut self, node: usize) -> Option<FragmentId> {
        let index = as_index(node);
        let n = &mut self.nodes[node];
        let (id, mark) = n.publish(&self.founding, node, self.now, &mut self.arena)?;
        let item = self.arena.find(&hash_of(id))?;
        let seq = self.arena.item(item).fragment()?.header.seq;
        let prev = self.other_heads.get(&index).copied();
        if seq == 0 || prev.is_some() {
            let place = (seq, prev);
            let n = &mut self.nodes[node];
            let forked = n.fork(&self.founding, node, self.now, place, &mut self.arena);
            if let Some((other, twin)) = forked {
                self.other_heads.insert(index, other);
                self.twins.insert(item, twin);
            }
        }
        self.sync_later(index, mark);
        Some(id)
    }
}
