//! What was said before is counted, not stored again.
//!
//! The first time an agent says what another memory says already, that is published at once: which
//! agents agree must not be lost. How often it says so after that is counted here and published now
//! and then, each time after twice the pause of the time before: five agents that say the same a
//! hundred times each leave a few dozen small fragments rather than five hundred memories. A crash
//! loses what was counted since, and nothing else.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rhizome_identity::{AgentId, Hash, SpaceId};
use rhizome_memory::{
    DocId, Kind, MemoryItem, PublishRequest, Published, Replica, confirmation, keyed_doc,
};
use tokio::sync::{Mutex as Turn, Notify, OwnedMutexGuard};
use tracing::warn;

use super::super::{
    fail,
    node::{Node, blocking},
};
use crate::{agents::LocalAgent, error::ApiError};

/// How many texts published last are known before the view has them.
const RECENT: usize = 4_096;
/// How many counts are kept; those that are published go first.
const MAX_COUNTS: usize = 4_096;
/// The pause before a count is published for the first time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The pause doubles so many times.
const MAX_DOUBLINGS: u32 = 12;

/// What is said again on this node.
#[derive(Debug, Default)]
pub(crate) struct Again {
    /// Texts that are being published, each with those who wait to say it too.
    turns: Mutex<Turns>,
    state: Mutex<State>,
    work: Notify,
}

/// Texts by what is equal for those that say the same.
type Turns = BTreeMap<[u8; 32], Arc<Turn<()>>>;

/// The right to publish one text, until it is dropped.
#[derive(Debug)]
pub(super) struct MyTurn<'a> {
    again: &'a Again,
    same: [u8; 32],
    lock: Arc<Turn<()>>,
    held: Option<OwnedMutexGuard<()>>,
}

impl Drop for MyTurn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut turns = self.again.turns();
        // The table and this one know it: nobody waits for it.
        if Arc::strong_count(&self.lock) == 2 {
            turns.remove(&self.same);
        }
    }
}

/// Which memory is said again, and by whom.
type CountKey = (SpaceId, DocId, AgentId);

#[derive(Debug, Default)]
struct State {
    recent: BTreeMap<[u8; 32], DocId>,
    order: VecDeque<[u8; 32]>,
    counts: BTreeMap<CountKey, Count>,
}

/// How often one agent said again what one memory says.
#[derive(Debug)]
struct Count {
    agent: LocalAgent,
    fingerprint: Hash,
    published: u64,
    now: u64,
    publishings: u32,
    due: Instant,
    receipt: Option<Published>,
}

impl Again {
    /// Waits until nobody else publishes this text; other texts wait for none but their own.
    pub(super) async fn turn(&self, same: &[u8; 32]) -> MyTurn<'_> {
        let lock = Arc::clone(self.turns().entry(*same).or_default());
        // Made before the wait: who gives up waiting leaves nothing behind.
        let mut turn = MyTurn {
            again: self,
            same: *same,
            lock: Arc::clone(&lock),
            held: None,
        };
        turn.held = Some(lock.lock_owned().await);
        turn
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was published until the view has it.
    pub(super) fn remember(&self, same: [u8; 32], doc: DocId) {
        let mut state = self.state();
        if state.recent.insert(same, doc).is_none() {
            state.order.push_back(same);
        }
        while state.order.len() > RECENT {
            if let Some(oldest) = state.order.pop_front() {
                state.recent.remove(&oldest);
            }
        }
    }

    /// Returns how often a memory was said again beyond what is published of that.
    pub(super) fn pending(&self, space: &SpaceId, doc: &DocId) -> u64 {
        let state = self.state();
        if state.counts.is_empty() {
            return 0;
        }
        let from = (*space, *doc, AgentId::from_bytes([0; 32]));
        let to = (*space, *doc, AgentId::from_bytes([0xff; 32]));
        state
            .counts
            .range(from..=to)
            .map(|(_, count)| count.now.saturating_sub(count.published))
            .sum()
    }

    /// Returns what was published under `same` last on this node.
    pub(super) fn recent(&self, same: &[u8; 32]) -> Option<DocId> {
        self.state().recent.get(same).copied()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the next count is to be published.
    fn next_due(&self) -> Option<Instant> {
        let state = self.state();
        let open = state
            .counts
            .values()
            .filter(|count| count.now > count.published);
        open.map(|count| count.due).min()
    }

    /// Returns the counts to publish now.
    fn due(&self, now: Option<Instant>) -> Vec<(CountKey, LocalAgent, Hash, u64)> {
        let state = self.state();
        let is_due =
            |count: &Count| count.now > count.published && now.is_none_or(|now| count.due <= now);
        let due = state.counts.iter().filter(|(_, count)| is_due(count));
        due.map(|(key, count)| (*key, count.agent.clone(), count.fingerprint, count.now))
            .collect()
    }

    fn note_published(&self, key: &CountKey, times: u64, receipt: Option<Published>) {
        let mut state = self.state();
        if let Some(count) = state.counts.get_mut(key) {
            count.publishings += 1;
            count.due = Instant::now() + pause(count.publishings);
            if let Some(receipt) = receipt {
                count.published = count.published.max(times);
                count.receipt = Some(receipt);
            }
        }
        if state.counts.len() > MAX_COUNTS {
            state.counts.retain(|_, count| count.now > count.published);
        }
    }
}

fn pause(publishings: u32) -> Duration {
    FIRST_PAUSE * 2_u32.pow(publishings.saturating_sub(1).min(MAX_DOUBLINGS))
}

/// Returns the memory that says what `same` stands for already; `recent` is what was published under
/// it last, which the view may not have yet.
pub(super) fn said_before(
    replica: &Replica,
    space: &SpaceId,
    same: &[u8; 32],
    recent: Option<DocId>,
) -> Result<Option<MemoryItem>, ApiError> {
    if let Some(item) = replica.same(space, same).map_err(fail::replica)? {
        return Ok(Some(item));
    }
    let Some(doc) = recent else { return Ok(None) };
    let item = replica.memory(space, &doc).map_err(fail::replica)?;
    Ok(item.filter(|item| !item.retracted))
}

impl Node {
    /// Counts that `agent` said again what `item` says; returns a fragment that says so and the
    /// number of times it was said in all.
    pub(super) async fn confirm(
        &self,
        agent: &LocalAgent,
        fingerprint: Hash,
        item: &MemoryItem,
    ) -> Result<Published, ApiError> {
        let key = (item.space, item.doc, agent.id());
        {
            let mut state = self.again.state();
            if let Some(count) = state.counts.get_mut(&key)
                && let Some(receipt) = count.receipt
            {
                count.now += 1;
                drop(state);
                self.again.work.notify_one();
                return Ok(receipt);
            }
        }
        let replica = self.replica.clone();
        let draft_key = confirmation(&item.doc, &agent.id(), 0)
            .key
            .unwrap_or_default();
        let doc = keyed_doc(&item.space, Kind::Confirmation, &draft_key);
        let space = item.space;
        let before = blocking(move || replica.memory(&space, &doc))
            .await?
            .map_err(fail::replica)?
            .and_then(|item| item.fields.get("times")?.parse::<u64>().ok())
            .unwrap_or_default();
        let times = before + 1;
        let receipt = self.publish_count(&key, agent, fingerprint, times).await?;
        let count = Count {
            agent: agent.clone(),
            fingerprint,
            published: times,
            now: times,
            publishings: 1,
            due: Instant::now() + pause(1),
            receipt: Some(receipt),
        };
        self.again.state().counts.insert(key, count);
        Ok(receipt)
    }

    async fn publish_count(
        &self,
        (space, doc, _): &CountKey,
        agent: &LocalAgent,
        fingerprint: Hash,
        times: u64,
    ) -> Result<Published, ApiError> {
        let request = PublishRequest {
            space: *space,
            draft: confirmation(doc, &agent.id(), times),
            fingerprint,
        };
        let (replica, key) = (self.replica.clone(), Arc::clone(&agent.key));
        blocking(move || replica.publish(&key, request))
            .await?
            .map_err(fail::publish)
    }

    async fn publish_counts(&self, now: Option<Instant>) {
        for (key, agent, fingerprint, times) in self.again.due(now) {
            let published = self.publish_count(&key, &agent, fingerprint, times).await;
            if let Err(error) = &published {
                warn!(%error, "how often something was said is not published");
            }
            self.again.note_published(&key, times, published.ok());
        }
    }
}

/// Publishes counts as they fall due, and all of them at the end.
pub(crate) async fn keep_counts(node: Arc<Node>) {
    loop {
        let next = node.again.next_due();
        let wait = async {
            match next {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = node.stop.cancelled() => break,
            () = wait => node.publish_counts(Some(Instant::now())).await,
            () = node.again.work.notified() => {}
        }
    }
    node.publish_counts(None).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        assert_eq!(pause(1), Duration::from_secs(1));
        assert_eq!(pause(4), Duration::from_secs(8));
        assert_eq!(pause(u32::MAX), Duration::from_secs(4_096));
    }

    #[tokio::test]
    async fn a_text_waits_for_itself_and_for_no_other() {
        let again = Again::default();
        let (mut one, mut other) = ([0; 32], [0; 32]);
        (one[1], other[1]) = (1, 2);
        let first = again.turn(&one).await;
        let elsewhere = again.turn(&other).await;
        {
            let mut second = std::pin::pin!(again.turn(&one));
            assert!(futures::poll!(second.as_mut()).is_pending());
            drop(first);
            // Woken, and gone before it was asked again.
            assert_eq!(again.turns().len(), 2);
        }
        assert_eq!(again.turns().len(), 1);
        drop(again.turn(&one).await);
        drop(elsewhere);
        assert!(again.turns().is_empty());
    }

    #[test]
    fn only_so_many_texts_are_remembered() {
        let again = Again::default();
        for n in 0..RECENT + 10 {
            let mut same = [0; 32];
            same[..8].copy_from_slice(&(n as u64).to_be_bytes());
            again.remember(same, DocId::from_bytes(same));
        }
        let state = again.state();
        assert_eq!((state.recent.len(), state.order.len()), (RECENT, RECENT));
    }
}
