//! Which relays of the mesh this node uses, and when it leaves one.
//!
//! Members that serve as relay say so in their address-book entries. Of these, those in use are
//! handed to the endpoint, which picks one as its home: the relay through which others reach this
//! node. A home that has gone silent is put aside while another can take its place, and comes
//! back after a wait that doubles, or as soon as its node is heard of again. Without another it
//! stays: a relay that may come back is better than none.

use std::collections::BTreeMap;

use rhizome_identity::NodeId;

use crate::proto::Mono;

/// The most relays in use at once.
pub const MAX_IN_USE: usize = 5;
/// How long a home may be out of reach before it is left.
const SILENCE: Mono = Mono::from_secs(4);
/// How long a relay that was left stays aside at first.
const FIRST_REST: Mono = Mono::from_secs(30);
/// The longest that a relay stays aside.
const LAST_REST: Mono = Mono::from_secs(600);

/// What the core is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A member says that it serves the relay at this URL; another one of the same member ends.
    Serves(NodeId, String),
    /// A member serves no relay any more, or is no member any more.
    Ends(NodeId),
    /// What the endpoint says of its home relay: its URL and whether it is connected with it.
    Home(Option<(String, bool)>),
    /// A session with this member began.
    Up(NodeId),
    /// The session with this member ended: if it is the home relay's, both may be gone.
    Down(NodeId),
}

/// What the core asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Hand this relay to the endpoint.
    Use(String),
    /// Take it back from the endpoint.
    Leave(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Relay {
    url: String,
    in_use: bool,
    /// Until when it stays aside.
    rests_until: Option<Mono>,
    /// How often in a row it was left.
    left: u32,
}

/// The relays that this node knows.
#[derive(Debug)]
pub struct Relays {
    me: NodeId,
    relays: BTreeMap<NodeId, Relay>,
    home: Option<String>,
    /// Since when the home is out of reach.
    silent_since: Option<Mono>,
}

impl Relays {
    /// Returns the core of the node `me`, which knows no relay.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            relays: BTreeMap::new(),
            home: None,
            silent_since: None,
        }
    }

    /// Applies `input` as of `now` and returns what to do, in order.
    pub fn handle(&mut self, now: Mono, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Serves(node, url) => {
                if self.relays.get(&node).is_some_and(|relay| relay.url == url) {
                    return out;
                }
                self.end(&node, &mut out);
                let relay = Relay {
                    url,
                    in_use: false,
                    rests_until: None,
                    left: 0,
                };
                self.relays.insert(node, relay);
            }
            Input::Ends(node) => self.end(&node, &mut out),
            Input::Home(home) => {
                let connected = home.as_ref().is_some_and(|(_, connected)| *connected);
                let url = home.map(|(url, _)| url);
                if url.is_some() && url != self.home && self.silent_since.is_some() {
                    // The endpoint was faster; peers would still be tried through the one it left.
                    self.leave_home(now, &mut out);
                }
                if connected {
                    self.silent_since = None;
                    let mut relays = self.relays.values_mut();
                    if let Some(relay) = relays.find(|relay| Some(&relay.url) == url.as_ref()) {
                        relay.left = 0;
                    }
                } else if url.is_none() || url != self.home {
                    // A new home is given its time to connect.
                    self.silent_since = url.is_some().then_some(now);
                } else {
                    self.silent_since.get_or_insert(now);
                }
                self.home = url;
            }
            Input::Up(node) => {
                if let Some(relay) = self.relays.get_mut(&node) {
                    relay.rests_until = None;
                    relay.left = 0;
                    if self.home.as_ref() == Some(&relay.url) {
                        self.silent_since = None;
                    }
                }
            }
            Input::Down(node) => {
                if let (Some(relay), Some(home)) = (self.relays.get(&node), &self.home)
                    && relay.url == *home
                {
                    self.silent_since.get_or_insert(now);
                }
            }
        }
        out.extend(self.handle_timeout(now));
        out
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Mono) -> Vec<Output> {
        let mut out = Vec::new();
        for relay in self.relays.values_mut() {
            if relay.rests_until.is_some_and(|until| until <= now) {
                relay.rests_until = None;
            }
        }
        self.fill(&mut out);
        if self.silent_since.is_some_and(|at| at + SILENCE <= now) {
            self.leave_home(now, &mut out);
        }
        out
    }

    /// Returns when [`Self::handle_timeout`] is next due.
    pub fn next_deadline(&self) -> Option<Mono> {
        let rests = self.relays.values().filter_map(|relay| relay.rests_until);
        // A silent home that nothing can replace is left when something can.
        let silence = self.silent_since.filter(|_| self.home_can_be_left());
        rests.chain(silence.map(|at| at + SILENCE)).min()
    }

    /// Returns the URLs in use.
    pub fn in_use(&self) -> impl Iterator<Item = &str> {
        let used = self.relays.values().filter(|relay| relay.in_use);
        used.map(|relay| &relay.url[..])
    }

    /// Returns every relay that is known, and the member that serves it.
    pub fn servers(&self) -> impl Iterator<Item = (&str, NodeId)> {
        let relays = self.relays.iter();
        relays.map(|(node, relay)| (&relay.url[..], *node))
    }

    fn end(&mut self, node: &NodeId, out: &mut Vec<Output>) {
        if let Some(relay) = self.relays.remove(node)
            && relay.in_use
            && !self
                .relays
                .values()
                .any(|other| other.in_use && other.url == relay.url)
        {
            out.push(Output::Leave(relay.url));
        }
    }

    /// Takes relays into use as long as there is room, each node in an order of its own, so that
    /// a mesh of many relays uses all of them.
    fn fill(&mut self, out: &mut Vec<Output>) {
        let mut free: Vec<NodeId> = self
            .relays
            .iter()
            .filter(|(_, relay)| !relay.in_use && relay.rests_until.is_none())
            .map(|(node, _)| *node)
            .collect();
        let me = self.me;
        free.sort_by_cached_key(|node| rank(&me, node));
        let room = MAX_IN_USE.saturating_sub(self.in_use().count());
        for node in free.into_iter().take(room) {
            let relay = self
                .relays
                .get_mut(&node)
                .expect("taken from the map above");
            relay.in_use = true;
            out.push(Output::Use(relay.url.clone()));
        }
    }

    fn home_can_be_left(&self) -> bool {
        let is_home = |relay: &Relay| self.home.as_ref() == Some(&relay.url);
        let mut used = self.relays.values().filter(|relay| relay.in_use);
        used.clone().any(is_home) && used.any(|relay| !is_home(relay))
    }

    fn leave_home(&mut self, now: Mono, out: &mut Vec<Output>) {
        if !self.home_can_be_left() {
            return;
        }
        self.silent_since = None;
        let home = self.home.clone();
        let relays = self.relays.values_mut();
        for relay in relays.filter(|relay| Some(&relay.url) == home.as_ref()) {
            let rest = FIRST_REST * 2_u32.pow(relay.left.min(10));
            relay.rests_until = Some(now + rest.min(LAST_REST));
            relay.left = relay.left.saturating_add(1);
            if std::mem::take(&mut relay.in_use) {
                out.push(Output::Leave(relay.url.clone()));
            }
        }
        self.fill(out);
    }
}

fn rank(me: &NodeId, node: &NodeId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("rhizome 2026-12 relay rank");
    hasher.update(me.as_bytes()).update(node.as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "http://10.0.0.1:4583/";
    const B: &str = "http://10.0.0.2:4583/";

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn at(secs: u64) -> Mono {
        Mono::from_secs(secs)
    }

    fn home(url: &str, connected: bool) -> Input {
        Input::Home(Some((url.to_owned(), connected)))
    }

    /// Two relays, the first of which is home.
    fn two() -> Relays {
        let mut relays = Relays::new(node(9));
        for (n, url) in [(1, A), (2, B)] {
            let used = relays.handle(at(0), Input::Serves(node(n), url.to_owned()));
            assert_eq!(used, [Output::Use(url.to_owned())]);
        }
        relays.handle(at(0), home(A, true));
        relays
    }

    #[test]
    fn a_home_that_lost_its_connection_is_left_for_another_and_comes_back() {
        let mut relays = two();
        assert!(
            relays.handle(at(10), home(A, false)).is_empty(),
            "not at once"
        );
        assert_eq!(relays.next_deadline(), Some(at(14)));
        assert_eq!(relays.handle_timeout(at(14)), [Output::Leave(A.to_owned())]);
        assert_eq!(relays.in_use().collect::<Vec<_>>(), [B]);
        relays.handle(at(15), home(B, true));
        assert_eq!(relays.next_deadline(), Some(at(44)));
        assert_eq!(relays.handle_timeout(at(44)), [Output::Use(A.to_owned())]);
        // Left again, it rests for longer.
        relays.handle(at(50), home(A, false));
        assert_eq!(relays.handle_timeout(at(54)), [Output::Leave(A.to_owned())]);
        assert_eq!(relays.next_deadline(), Some(at(114)));
    }

    #[test]
    fn the_end_of_its_nodes_session_is_a_sign_and_a_new_session_another() {
        let mut relays = two();
        relays.handle(at(10), Input::Down(node(2)));
        assert_eq!(relays.next_deadline(), None, "that is not the home");
        relays.handle(at(10), Input::Down(node(1)));
        relays.handle(at(11), Input::Up(node(1)));
        assert_eq!(relays.next_deadline(), None, "a session that was replaced");
        relays.handle(at(20), Input::Down(node(1)));
        assert_eq!(relays.handle_timeout(at(24)), [Output::Leave(A.to_owned())]);
        let back = relays.handle(at(25), Input::Up(node(1)));
        assert_eq!(back, [Output::Use(A.to_owned())], "its node is there again");
    }

    #[test]
    fn a_home_that_the_endpoint_left_in_silence_is_no_way_to_others_either() {
        let mut relays = two();
        relays.handle(at(1), home(A, false));
        let out = relays.handle(at(2), home(B, true));
        assert_eq!(out, [Output::Leave(A.to_owned())]);
        // One that it left for a better one stays.
        let mut relays = two();
        assert!(relays.handle(at(2), home(B, true)).is_empty());
    }

    #[test]
    fn the_only_relay_is_never_left() {
        let mut relays = two();
        relays.handle(at(1), Input::Ends(node(2)));
        relays.handle(at(2), home(A, false));
        assert_eq!(relays.next_deadline(), None);
        assert!(relays.handle_timeout(at(600)).is_empty());
        // A second one comes: now it can be left, and is.
        let out = relays.handle(at(700), Input::Serves(node(3), B.to_owned()));
        assert_eq!(
            out,
            [Output::Use(B.to_owned()), Output::Leave(A.to_owned())]
        );
    }

    #[test]
    fn relays_in_use_are_bounded_and_differ_from_node_to_node() {
        let used = |me: u8| -> Vec<String> {
            let mut relays = Relays::new(node(me));
            for n in 10..50 {
                // All at once, as when an address book is read.
                relays.relays.insert(
                    node(n),
                    Relay {
                        url: format!("http://10.0.0.{n}/"),
                        in_use: false,
                        rests_until: None,
                        left: 0,
                    },
                );
            }
            relays.handle_timeout(at(0));
            relays.in_use().map(str::to_owned).collect()
        };
        assert_eq!(used(1).len(), MAX_IN_USE);
        assert_ne!(used(1), used(2));
    }

    #[test]
    fn a_member_that_moves_or_ends_its_relay_takes_the_old_one_along() {
        let mut relays = two();
        let moved = relays.handle(at(1), Input::Serves(node(1), "http://10.0.0.3/".to_owned()));
        let use_new = Output::Use("http://10.0.0.3/".to_owned());
        assert_eq!(moved, [Output::Leave(A.to_owned()), use_new]);
        let mut servers = relays.servers();
        assert_eq!(servers.next(), Some(("http://10.0.0.3/", node(1))));
        assert_eq!(servers.next(), Some((B, node(2))));
        drop(servers);
        let ended = relays.handle(at(2), Input::Ends(node(2)));
        assert_eq!(ended, [Output::Leave(B.to_owned())]);
    }
}
