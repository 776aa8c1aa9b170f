//! What goes wrong on purpose.

use std::{ops::Range, time::Duration};

use rhizome_identity::Hash;

use super::{
    super::{
        events::{Event, NodeIndex},
        invariants::{Invariant, Revoked},
        links::{Path, Weather},
    },
    Netsim, as_index,
};

impl Netsim {
    /// Parts the nodes: those of different groups cannot reach each other. Nodes in no group
    /// form one together.
    pub fn partition(&mut self, groups: &[Range<usize>]) -> &mut Self {
        let mut sides = vec![0; self.nodes.len()];
        for (side, group) in (1..).zip(groups) {
            sides[group.clone()].fill(side);
        }
        self.part(sides)
    }

    /// Parts the nodes into two: so many of a thousand, drawn at random, and the others.
    pub fn partition_share(&mut self, per_mille: u32) -> &mut Self {
        let sides = (0..self.nodes.len()).map(|_| u32::from(self.dice.chance(per_mille)));
        let sides = sides.collect();
        self.part(sides)
    }

    fn part(&mut self, sides: Vec<u32>) -> &mut Self {
        self.links.set_sides(sides);
        let cut = self.links.kill(|links, connection| {
            let (a, b) = connection.ends;
            let is_lost = |relay| links.is_cut(a, relay) || links.is_cut(b, relay);
            links.is_cut(a, b) || matches!(connection.path, Path::Via(relay) if is_lost(relay))
        });
        self.lose(cut);
        self
    }

    /// Lets all nodes reach each other again.
    pub fn heal(&mut self) -> &mut Self {
        self.links.set_sides(vec![0; self.nodes.len()]);
        self
    }

    /// Crashes a node; it starts again after `down`. What it had not synced is lost, or part of it.
    pub fn crash(&mut self, node: usize, down: Duration) -> &mut Self {
        self.stop(as_index(node), Some(down));
        self
    }

    /// Ends a node for good.
    pub fn kill(&mut self, node: usize) -> &mut Self {
        self.stop(as_index(node), None);
        self
    }

    /// Crashes a node at a later moment; it starts again after `down`.
    pub fn crash_later(&mut self, node: usize, after: Duration, down: Duration) -> &mut Self {
        let node = as_index(node);
        let down = Some(down);
        self.agenda
            .add(self.now + after, Event::Stop { node, down });
        self
    }

    /// Publishes on a node at a later moment.
    pub fn publish_later(&mut self, node: usize, after: Duration) -> &mut Self {
        let node = as_index(node);
        self.agenda.add(self.now + after, Event::Publish { node });
        self
    }

    pub(super) fn stop(&mut self, node: NodeIndex, down: Option<Duration>) {
        let n = &mut self.nodes[node as usize];
        if !n.is_up() {
            return;
        }
        let torn = self.dice.below(n.store.unsynced() + 1);
        let survived = n.crash(torn, &self.arena);
        let life = n.life;
        self.note_durable(node, &survived);
        let n = &self.nodes[node as usize];
        let disk = n.store.beyond_ground().iter();
        let kept = disk.filter(|item| self.is_promised(**item)).count();
        if kept != n.acked_here {
            let what = format!("node {node} kept {kept} of {} fragments", n.acked_here);
            self.violate(Invariant::Durable, what);
        }
        self.links.set_up(node, false);
        let mut dead = self.links.kill_of(node);
        if self.links.relays().contains(&node) {
            dead.extend(self.carried_by(node));
        }
        self.lose(dead);
        if let Some(down) = down {
            self.agenda
                .add(self.now + down, Event::Start { node, life });
        }
    }

    /// Makes a relay swallow everything, or work again.
    pub fn silence_relay(&mut self, node: usize, silent: bool) -> &mut Self {
        let node = as_index(node);
        self.links.silence_relay(node, silent);
        if silent {
            let dead = self.carried_by(node);
            self.lose(dead);
        }
        self
    }

    fn carried_by(&mut self, relay: NodeIndex) -> Vec<u64> {
        self.links
            .kill(|_, connection| connection.path == Path::Via(relay))
    }

    /// Sets what links do to frames from now on.
    pub(crate) fn set_weather(&mut self, weather: Weather) {
        self.links.weather = weather;
    }

    /// Draws so many of a thousand of the first `nodes`.
    pub(crate) fn draw(&mut self, nodes: usize, per_mille: u32) -> Vec<usize> {
        (0..nodes).filter(|_| self.dice.chance(per_mille)).collect()
    }

    /// Draws one of the first `nodes` that is honest; none if it finds none soon.
    pub(crate) fn draw_honest(&mut self, nodes: usize) -> Option<usize> {
        (0..64)
            .map(|_| self.dice.below(nodes))
            .find(|node| self.nodes[*node].hostility.is_none())
    }

    /// Draws a time between two.
    pub(crate) fn draw_time(&mut self, (lo, hi): (Duration, Duration)) -> Duration {
        self.dice.between(lo, hi)
    }

    /// Returns the hostile members.
    pub(crate) fn hostile(&self) -> Vec<usize> {
        let hostile = |n: &usize| self.nodes[*n].hostility.is_some();
        (0..self.nodes.len()).filter(hostile).collect()
    }

    /// Lets the admin `by` revoke a node, and cut its chain behind what the admin has of it less
    /// `forget` fragments.
    pub fn revoke(&mut self, by: usize, subject: usize, forget: u64) -> &mut Self {
        let agent = self.nodes[subject].agent;
        let Some(running) = &self.nodes[by].running else {
            return self;
        };
        let head = running.admission.head(&agent, &self.founding.space);
        let last = head.and_then(|(seq, _)| seq.checked_sub(forget));
        let last = last.and_then(|last| {
            let mut items = self.nodes[by].store.beyond_ground().iter();
            items.find_map(|item| {
                let item = self.arena.item(*item);
                let header = &item.fragment()?.header;
                (header.author == agent && header.seq == last).then_some((last, item.id))
            })
        });
        let last: Option<(u64, Hash)> = last;
        let record = self
            .founding
            .revocation(by, subject, last, &running.authority);
        let record = self.write_record(as_index(by), record.bytes());
        let last = last.map(|(seq, _)| seq);
        self.revoked.insert(agent, Revoked { record, last });
        self.break_promises(agent, last);
        self
    }
}
