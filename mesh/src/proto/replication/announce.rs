//! News of single items: what was published here, and what became durable where.
//!
//! A node announces its own items to its peers. A peer answers once it holds an item durably,
//! however it got it, so that a publisher can wait for a number of replicas; and it asks for the
//! item if gossip does not bring it in time. All of it may be lost: reconciliation repairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rhizome_identity::Hash;
use rhizome_memory::Lane;

use super::{
    Context, Holdings,
    frame::{Frame, MAX_FRAME_IDS},
    peer::Peer,
};
use crate::proto::Mono;

/// Most ids that wait to be told to one peer; beyond it, the oldest are left to reconciliation.
const MAX_UNTOLD: usize = 4096;
/// Most announced items of one peer that we look out for.
const MAX_AWAITED: usize = 4096;

/// News to and from one peer.
#[derive(Debug, Default)]
pub(super) struct News {
    have: VecDeque<(Lane, Hash)>,
    stored: VecDeque<(Lane, Hash)>,
    tell_at: Option<Mono>,
    /// Announced items that are not here yet.
    awaited: BTreeSet<(Lane, Hash)>,
    /// When to ask for each of them; in order, because the wait is the same for all.
    fetch: VecDeque<(Mono, Lane, Hash)>,
    /// Those that were asked for, oldest first.
    fetched: VecDeque<(Lane, Hash)>,
}

impl News {
    pub(super) fn deadline(&self) -> Option<Mono> {
        let fetch = self.fetch.front().map(|(at, ..)| *at);
        fetch.into_iter().chain(self.tell_at).min()
    }

    fn tell(&mut self, at: Mono) {
        self.tell_at = Some(self.tell_at.map_or(at, |known| known.min(at)));
        for untold in [&mut self.have, &mut self.stored] {
            while untold.len() > MAX_UNTOLD {
                untold.pop_front();
            }
        }
    }
}

impl Peer {
    /// An item became durable here.
    pub(super) fn stored(&mut self, cx: &mut Context<'_>, lane: Lane, id: Hash, own: bool) {
        if !self.is_greeted() || !self.lanes.contains_key(&lane) {
            return;
        }
        let awaited = self.news.awaited.remove(&(lane, id));
        if awaited {
            self.news.stored.push_back((lane, id));
        }
        if own {
            self.news.have.push_back((lane, id));
        }
        if own || awaited {
            self.news.tell(cx.now + cx.node.config.announce_after);
        }
    }

    /// The peer published something.
    pub(super) fn offered(
        &mut self,
        cx: &mut Context<'_>,
        lane: Lane,
        ids: &[Hash],
        held: &impl Holdings,
    ) {
        let here = held.with_set(lane, |set| {
            ids.iter().map(|id| set.contains(id)).collect::<Vec<bool>>()
        });
        for (id, here) in ids.iter().zip(here.unwrap_or_default()) {
            if here {
                self.news.stored.push_back((lane, *id));
                self.news.tell(cx.now);
            } else if self.news.awaited.insert((lane, *id)) {
                let at = cx.now + cx.node.config.fetch_after;
                self.news.fetch.push_back((at, lane, *id));
            }
        }
        while self.news.awaited.len() > MAX_AWAITED {
            let oldest = self
                .news
                .fetched
                .pop_front()
                .or_else(|| self.news.fetch.pop_front().map(|(_, lane, id)| (lane, id)));
            let Some(oldest) = oldest else { break };
            self.news.awaited.remove(&oldest);
        }
    }

    /// Tells and asks what is due.
    pub(super) fn tell_news(&mut self, cx: &mut Context<'_>, held: &impl Holdings) {
        if self.news.tell_at.is_some_and(|at| at <= cx.now) {
            self.news.tell_at = None;
            let have = by_lane(self.news.have.drain(..));
            send(cx, have, |lane, ids| Frame::Have { lane, ids });
            let stored = by_lane(self.news.stored.drain(..));
            send(cx, stored, |lane, ids| Frame::Stored { lane, ids });
        }
        let mut get = Vec::new();
        while let Some((_, lane, id)) = self.news.fetch.pop_front_if(|(at, ..)| *at <= cx.now) {
            if !self.news.awaited.contains(&(lane, id)) {
                continue;
            }
            if held.with_set(lane, |set| set.contains(&id)) == Some(false) {
                get.push((lane, id));
            }
            self.news.fetched.push_back((lane, id));
        }
        while self.news.fetched.len() > MAX_AWAITED {
            if let Some(oldest) = self.news.fetched.pop_front() {
                self.news.awaited.remove(&oldest);
            }
        }
        send(cx, by_lane(get.into_iter()), |lane, ids| Frame::Get {
            lane,
            ids,
        });
    }
}

fn by_lane(news: impl Iterator<Item = (Lane, Hash)>) -> BTreeMap<Lane, Vec<Hash>> {
    let mut lanes: BTreeMap<Lane, Vec<Hash>> = BTreeMap::new();
    for (lane, id) in news {
        lanes.entry(lane).or_default().push(id);
    }
    lanes
}

fn send(
    cx: &mut Context<'_>,
    news: BTreeMap<Lane, Vec<Hash>>,
    frame: impl Fn(Lane, Vec<Hash>) -> Frame,
) {
    for (lane, ids) in news {
        for ids in ids.chunks(MAX_FRAME_IDS) {
            cx.send(&frame(lane, ids.to_vec()));
        }
    }
}
