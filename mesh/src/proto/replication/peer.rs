//! One connected peer: its frames come in here, and all that is due with it is done here.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::SpaceId;
use rhizome_memory::Lane;

use super::{
    Config, Context, Holdings, LaneSync, Output, PeerState, announce::News, frame::Frame,
    greeting::Greeting, session::Session, transfer::Outbox,
};
use crate::proto::{Mono, rng::Rng};

/// Sessions under way with one peer.
const MAX_SESSIONS: usize = 4;
/// How long the spaces wait for the authority log to be in sync.
const AUTHORITY_PATIENCE: Mono = Mono::from_secs(5);
/// How long items that were asked for may stay away before they are looked for again.
const ITEMS_PATIENCE: Mono = Mono::from_secs(3);
/// How long the side with the larger id waits for the other to open the first session.
const SECOND_OPENER: Mono = Mono::from_secs(2);
/// The longest wait between fruitless sessions.
const MAX_FOLLOW_UP: Mono = Mono::from_secs(30);
/// How many costly frames a peer may send at once, and how many more each second.
const FRAMES_BURST: u32 = 256;
const FRAMES_PER_SECOND: u32 = 64;
/// How many items that are refused a peer may send at once, and how many more each second.
const REFUSED_BURST: u32 = 256;
const REFUSED_PER_SECOND: u32 = 4;
/// How many items that are declined a peer may send at once, and how many more each second, before
/// its items go unseen for a while. Honest peers send some: they can't know what is missing here.
const DECLINED_BURST: u32 = 4096;
const DECLINED_PER_SECOND: u32 = 64;
/// How many frames beyond its leave a peer may send before it is sent away.
const MAX_STRIKES: u32 = 512;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) up_since: Mono,
    pub(super) greeting: Greeting,
    pub(super) lanes: BTreeMap<Lane, LaneState>,
    pub(super) sessions: BTreeMap<Lane, Session>,
    pub(super) outbox: Outbox,
    /// Batches of the peer that the store has not answered for.
    pub(super) inbox: BTreeMap<u64, Lane>,
    pub(super) news: News,
    frames: Bucket,
    refused: Bucket,
    declined: Bucket,
    strikes: u32,
    banned: bool,
}

/// One lane that both sides hold.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// When the next session should start.
    pub(super) due: Option<Mono>,
    pub(super) in_sync_at: Option<Mono>,
    /// Sessions in a row that found differences after which nothing became durable.
    futile: u32,
    /// Whether something became durable, here or there, since the last session.
    pub(super) progress: bool,
    /// Items asked for that have not arrived.
    pub(super) expecting: usize,
    pub(super) last_items: Mono,
}

impl LaneState {
    fn due_at(&mut self, at: Mono) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Peer {
    pub(super) fn new(now: Mono, rng: &mut Rng) -> Self {
        Self {
            up_since: now,
            greeting: Greeting::new(now),
            lanes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            outbox: Outbox::new(rng.next_u64()),
            inbox: BTreeMap::new(),
            news: News::default(),
            frames: Bucket::new(now, FRAMES_BURST, FRAMES_PER_SECOND),
            refused: Bucket::new(now, REFUSED_BURST, REFUSED_PER_SECOND),
            declined: Bucket::new(now, DECLINED_BURST, DECLINED_PER_SECOND),
            strikes: 0,
            banned: false,
        }
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.greeting.is_greeted() && !self.banned
    }

    pub(super) fn state(&self) -> PeerState {
        let lane = |(lane, state): (&Lane, &LaneState)| {
            let busy = self.sessions.contains_key(lane)
                || self.outbox.is_busy(*lane)
                || self.inbox.values().any(|batch| batch == lane);
            let sync = LaneSync {
                in_sync_at: state.in_sync_at,
                exchanging: busy || state.expecting > 0,
                queued: self.outbox.queued(*lane),
            };
            (*lane, sync)
        };
        PeerState {
            greeted: self.is_greeted(),
            lanes: self.lanes.iter().map(lane).collect(),
        }
    }

    /// Takes in a frame.
    pub(super) fn frame(&mut self, cx: &mut Context<'_>, bytes: &Bytes, held: &impl Holdings) {
        if self.banned {
            return;
        }
        let Ok(frame) = Frame::decode(bytes) else {
            return self.misbehaved(cx, "sent a malformed frame");
        };
        let costly = !matches!(frame, Frame::Ack { .. } | Frame::Stored { .. });
        if costly && !self.frames.take(cx.now, 1) {
            return self.strike(cx, "floods us with frames");
        }
        if !self.greeting.is_greeted() && !matches!(frame, Frame::Hello(_)) {
            // Its hello was lost or overtaken; it repeats itself until ours says it was heard.
            return;
        }
        match frame {
            Frame::Hello(hello) => self.hello(cx, hello, held),
            Frame::Ranges(ranges) => {
                if self.admits_lane(cx, ranges.lane) {
                    self.ranges(cx, &ranges, held);
                }
            }
            Frame::Items { lane, batch, items } => {
                if self.admits_lane(cx, lane) {
                    self.items(cx, lane, batch, items);
                }
            }
            Frame::Ack { batch, stored } => self.acknowledged(cx, batch, &stored),
            Frame::Have { lane, ids } => {
                if self.admits_lane(cx, lane) {
                    self.offered(cx, lane, &ids, held);
                }
            }
            Frame::Get { lane, ids } => {
                if self.admits_lane(cx, lane) {
                    self.enqueue(lane, ids, held);
                }
            }
            Frame::Stored { lane, ids } => {
                if self.admits_lane(cx, lane) {
                    let peer = cx.peer;
                    cx.out
                        .extend(ids.into_iter().map(|id| Output::Replica { peer, lane, id }));
                }
            }
        }
    }

    /// Does everything that is due.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>, held: &impl Holdings) {
        if self.banned {
            return;
        }
        self.greet(cx);
        if !self.greeting.is_greeted() {
            return;
        }
        self.give_up_batches(cx);
        self.repeat_questions(cx);
        self.open_sessions(cx, held);
        self.pump(cx, held);
        self.tell_news(cx, held);
    }

    /// Returns when [`Self::drive`] is next due.
    pub(super) fn deadline(&self, config: &Config) -> Option<Mono> {
        if self.banned {
            return None;
        }
        let greeting = self.greeting.deadline();
        if !self.greeting.is_greeted() {
            return greeting;
        }
        let sessions = self.lanes.keys().filter_map(|lane| self.opens_at(*lane));
        let questions = self
            .sessions
            .values()
            .filter_map(|session| session.deadline(config));
        sessions
            .chain(questions)
            .chain(greeting)
            .chain(self.outbox.deadline(config))
            .chain(self.news.deadline())
            .min()
    }

    /// Makes a session due in every lane.
    pub(super) fn reconcile_all(&mut self, cx: &mut Context<'_>) {
        for state in self.lanes.values_mut() {
            // Where sessions have been fruitless their own, slower pace holds.
            if state.futile == 0 || state.due.is_none() {
                state.due_at(cx.now);
            }
        }
    }

    /// Makes a session due soon, because something received cannot be used yet.
    pub(super) fn reconcile_soon(&mut self, cx: &mut Context<'_>, lane: Lane) {
        if let Some(state) = self.lanes.get_mut(&lane) {
            let wait = follow_up(cx, state.futile) / 4;
            state.due_at(cx.now + wait);
        }
    }

    /// Sets the lanes both sides hold to authority and `spaces`.
    pub(super) fn set_lanes(&mut self, cx: &mut Context<'_>, spaces: &BTreeSet<SpaceId>) {
        let wanted: BTreeSet<Lane> = std::iter::once(Lane::Authority)
            .chain(spaces.iter().map(|s| Lane::Space(*s)))
            .collect();
        self.lanes.retain(|lane, _| wanted.contains(lane));
        self.sessions.retain(|lane, _| wanted.contains(lane));
        self.outbox.retain_lanes(&wanted);
        // One session serves both sides, so only one of them opens it, unless that one is silent.
        let first = cx.node.me < cx.peer;
        for lane in wanted {
            let due = if first {
                cx.now
            } else {
                cx.now + cx.node.rng.jitter(SECOND_OPENER)
            };
            let fresh = || LaneState {
                due: Some(due),
                ..LaneState::default()
            };
            self.lanes.entry(lane).or_insert_with(fresh);
        }
    }

    /// Notes that a session found both sides equal.
    pub(super) fn in_sync(&mut self, cx: &mut Context<'_>, lane: Lane) {
        let Some(state) = self.lanes.get_mut(&lane) else {
            return;
        };
        state.in_sync_at = Some(cx.now);
        state.due = None;
        state.futile = 0;
        state.progress = false;
        state.expecting = 0;
        cx.out.push(Output::InSync {
            peer: cx.peer,
            lane,
            at: cx.now,
        });
    }

    /// Notes that a session of ours found differences, or got no answer: another one has to show
    /// that they are gone.
    pub(super) fn differed(&mut self, cx: &mut Context<'_>, lane: Lane) {
        let Some(state) = self.lanes.get_mut(&lane) else {
            return;
        };
        state.futile = if state.progress {
            0
        } else {
            state.futile.saturating_add(1)
        };
        state.progress = false;
        let wait = follow_up(cx, state.futile.saturating_sub(1));
        // Not sooner than that, whatever else asked for a session meanwhile.
        state.due = Some(cx.now + wait);
    }

    /// Returns the lane whose session may start now, if any.
    pub(super) fn next_lane(&self, now: Mono) -> Option<Lane> {
        self.lanes
            .keys()
            .copied()
            .find(|lane| self.opens_at(*lane).is_some_and(|at| at <= now))
    }

    /// Ends the peer's session for good.
    pub(super) fn misbehaved(&mut self, cx: &mut Context<'_>, what: &'static str) {
        if !self.banned {
            self.banned = true;
            cx.out.push(Output::Misbehaved {
                peer: cx.peer,
                what,
            });
        }
    }

    /// Ends the peer's session because no version is common.
    pub(super) fn incompatible(&mut self, cx: &mut Context<'_>, version: u8) {
        if !self.banned {
            self.banned = true;
            cx.out.push(Output::Incompatible {
                peer: cx.peer,
                version,
            });
        }
    }

    /// Ignores a frame that goes beyond the peer's leave, and counts it.
    pub(super) fn strike(&mut self, cx: &mut Context<'_>, what: &'static str) {
        self.strikes += 1;
        if self.strikes > MAX_STRIKES {
            self.misbehaved(cx, what);
        }
    }

    /// Counts refused items.
    pub(super) fn refused(&mut self, cx: &mut Context<'_>, items: u32) {
        if items > 0 && !self.refused.take(cx.now, items) {
            self.misbehaved(cx, "keeps sending items that are refused");
        }
    }

    /// Counts declined items.
    pub(super) fn declined(&mut self, cx: &mut Context<'_>, items: u32) {
        self.declined.spend(cx.now, items);
    }

    /// Says whether so many of the peer's items were declined that the next ones go unseen.
    pub(super) fn has_cost_enough(&mut self, cx: &Context<'_>) -> bool {
        self.declined.earn(cx.now);
        self.declined.left < 0.0
    }

    /// Says when a session in `lane` may start; `None` while something else has to end first.
    fn opens_at(&self, lane: Lane) -> Option<Mono> {
        let state = self.lanes.get(&lane)?;
        let due = state.due?;
        let busy = self.sessions.contains_key(&lane)
            || self.sessions.len() >= MAX_SESSIONS
            || self.outbox.is_busy(lane)
            || self.inbox.values().any(|batch| *batch == lane);
        if busy {
            return None;
        }
        let mut at = due;
        if state.expecting > 0 {
            at = at.max(state.last_items + ITEMS_PATIENCE);
        }
        let settled = |state: &LaneState| state.in_sync_at.is_some();
        if lane != Lane::Authority && !self.lanes.get(&Lane::Authority).is_some_and(settled) {
            at = at.max(self.up_since + AUTHORITY_PATIENCE);
        }
        Some(at)
    }

    fn admits_lane(&mut self, cx: &mut Context<'_>, lane: Lane) -> bool {
        if self.lanes.contains_key(&lane) {
            return true;
        }
        // It may know from our hello that we hold the space before we know that it does, or not
        // yet know that we no longer do.
        if let Lane::Space(space) = lane
            && !cx.node.named.contains(&space)
        {
            self.misbehaved(cx, "speaks of a space that we never named");
        }
        false
    }
}

fn follow_up(cx: &mut Context<'_>, futile: u32) -> Mono {
    let wait = cx.node.config.follow_up * 4_u32.pow(futile.min(8));
    cx.node.rng.jitter(wait.min(MAX_FOLLOW_UP))
}

/// A token bucket in virtual time.
#[derive(Debug)]
struct Bucket {
    burst: u32,
    per_second: u32,
    left: f64,
    at: Mono,
}

impl Bucket {
    fn new(at: Mono, burst: u32, per_second: u32) -> Self {
        Self {
            burst,
            per_second,
            left: f64::from(burst),
            at,
        }
    }

    fn earn(&mut self, now: Mono) {
        let earned = now.saturating_sub(self.at).as_secs_f64() * f64::from(self.per_second);
        self.left = (self.left + earned).min(f64::from(self.burst));
        self.at = now;
    }

    /// Takes tokens whether they are there or not.
    fn spend(&mut self, now: Mono, tokens: u32) {
        self.earn(now);
        self.left -= f64::from(tokens);
    }

    fn take(&mut self, now: Mono, tokens: u32) -> bool {
        self.earn(now);
        if self.left < f64::from(tokens) {
            return false;
        }
        self.left -= f64::from(tokens);
        true
    }
}
