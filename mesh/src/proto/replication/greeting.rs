//! Hellos: versions, restarts and the spaces both sides hold.

use std::collections::BTreeSet;

use rhizome_identity::SpaceId;
use rhizome_memory::Lane;

use super::{
    Context, Holdings,
    frame::{Frame, Hello, OLDEST_VERSION, VERSION},
    peer::Peer,
};
use crate::proto::Mono;

/// The wait before a hello that nobody answered is repeated, doubled each time up to the cap.
const FIRST_REPEAT: Mono = Mono::from_secs(1);
const LAST_REPEAT: Mono = Mono::from_secs(30);

/// What both sides have said of themselves.
#[derive(Debug)]
pub(super) struct Greeting {
    /// The peer's instance and the number of its last hello.
    seen: Option<(u64, u32)>,
    /// The spaces the peer says it holds.
    claimed: BTreeSet<SpaceId>,
    /// The spaces we tell it that we hold: those it is entitled to.
    offered: BTreeSet<SpaceId>,
    /// The number of our last hello.
    number: u32,
    /// Whether the peer knows our last hello.
    heard: bool,
    repeats: u32,
    next: Option<Mono>,
}

impl Greeting {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            seen: None,
            claimed: BTreeSet::new(),
            offered: BTreeSet::new(),
            number: 1,
            heard: false,
            repeats: 0,
            next: Some(now),
        }
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.seen.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.next
    }
}

impl Peer {
    /// Sends a hello if one is due.
    pub(super) fn greet(&mut self, cx: &mut Context<'_>) {
        let greeting = &mut self.greeting;
        if greeting.next.is_none_or(|at| at > cx.now) {
            return;
        }
        let wait = (FIRST_REPEAT * 2_u32.pow(greeting.repeats.min(8))).min(LAST_REPEAT);
        greeting.repeats += 1;
        greeting.next = (!greeting.heard).then(|| cx.now + cx.node.rng.jitter(wait));
        let hello = Hello {
            version: VERSION,
            oldest: OLDEST_VERSION,
            instance: cx.node.instance,
            number: greeting.number,
            heard: greeting.seen.map_or(0, |(_, number)| number),
            spaces: greeting.offered.iter().copied().collect(),
        };
        cx.send(&Frame::Hello(hello));
    }

    /// Works out anew which spaces the peer may share, after our spaces or the authority changed;
    /// tells it if that is other than what it was told.
    pub(super) fn share(&mut self, cx: &mut Context<'_>, held: &impl Holdings) {
        let entitled = |space: &&SpaceId| held.may_sync(&cx.peer, Lane::Space(**space));
        let offered = cx.node.spaces.iter().filter(entitled).copied().collect();
        let greeting = &mut self.greeting;
        if greeting.offered != offered {
            greeting.offered = offered;
            greeting.number += 1;
            greeting.heard = false;
            greeting.repeats = 0;
            greeting.next = Some(cx.now);
        }
        if greeting.is_greeted() {
            let common = &greeting.claimed & &greeting.offered;
            self.set_lanes(cx, &common);
        }
    }

    pub(super) fn hello(&mut self, cx: &mut Context<'_>, hello: Hello, held: &impl Holdings) {
        if hello.version < OLDEST_VERSION || hello.oldest > VERSION {
            return self.incompatible(cx, hello.version);
        }
        match self.greeting.seen {
            // An older hello was overtaken by a newer one.
            Some((instance, number)) if instance == hello.instance && number > hello.number => {
                return;
            }
            Some((instance, _)) if instance != hello.instance => {
                // The peer restarted without our noticing: what was under way is void.
                let mut afresh = Self::new(cx.now, &mut cx.node.rng);
                afresh.greeting.number = self.greeting.number;
                afresh.greeting.offered = std::mem::take(&mut self.greeting.offered);
                *self = afresh;
            }
            _ => {}
        }
        let greeting = &mut self.greeting;
        greeting.seen = Some((hello.instance, hello.number));
        greeting.claimed = hello.spaces.into_iter().collect();
        greeting.heard = hello.heard == greeting.number;
        if greeting.heard {
            greeting.next = None;
            greeting.repeats = 0;
        } else {
            // It does not know us, or not our last hello: tell it, and that we know it.
            greeting.next = Some(cx.now);
        }
        self.share(cx, held);
    }
}
