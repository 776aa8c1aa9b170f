//! The replica as judge of gossip.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{self as memory, AdmitOutcome, Fragment, Lane, RecordOutcome, Replica};

use crate::net::gossip::{Heard, Validator, Verdict};

/// How long a stored fragment counts as news worth forwarding when it is heard once more.
const NEWS_FOR: Duration = Duration::from_secs(30);
/// Stored fragments remembered as news.
const MAX_NEWS: usize = 4096;

/// What was stored here lately by another way than gossip.
///
/// Reconciliation may win the race with gossip. The message is then a duplicate here, yet the
/// peers behind us may still need it. Old fragments that someone replays are not forwarded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent {
    news: Arc<Mutex<News>>,
}

#[derive(Debug, Default)]
struct News {
    /// Oldest first.
    order: VecDeque<(Instant, Hash)>,
    stored_at: BTreeMap<Hash, Instant>,
}

impl Recent {
    /// Notes that `id` was stored just now.
    pub(crate) fn note(&self, id: Hash) {
        let now = Instant::now();
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let News { order, stored_at } = &mut *news;
        if stored_at.insert(id, now).is_none() {
            order.push_back((now, id));
        }
        while order
            .front()
            .is_some_and(|(at, _)| order.len() > MAX_NEWS || now.duration_since(*at) > NEWS_FOR)
        {
            let (_, old) = order.pop_front().expect("the front was seen");
            stored_at.remove(&old);
        }
    }

    fn contains(&self, id: &Hash) -> bool {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.stored_at
            .get(id)
            .is_some_and(|at| at.elapsed() <= NEWS_FOR)
    }
}

/// Judges gossip by offering it to the replica.
#[derive(Debug)]
pub(crate) struct ReplicaValidator {
    replica: Replica,
    recent: Recent,
}

impl ReplicaValidator {
    /// Makes the judge of `replica`.
    pub(crate) fn new(replica: Replica) -> Self {
        Self {
            replica,
            recent: Recent::default(),
        }
    }

    /// Returns the memory of what was stored lately, for the task that hears of it.
    pub(crate) fn recent(&self) -> Recent {
        self.recent.clone()
    }

    fn fragments(&self, from: NodeId, lane: Lane, wires: Vec<Bytes>) -> Vec<Verdict> {
        let outcomes = self.replica.admit(from, wires.clone());
        let outcomes = outcomes
            .into_iter()
            .map(Some)
            .chain(std::iter::repeat_with(|| None));
        wires
            .iter()
            .zip(outcomes)
            .map(|(wire, outcome)| {
                let verdict = outcome.map_or(Verdict::Ignore, |outcome| self.fragment(&outcome));
                match verdict {
                    Verdict::Forward if !belongs(wire, lane) => Verdict::Reject,
                    other => other,
                }
            })
            .collect()
    }

    fn fragment(&self, outcome: &AdmitOutcome) -> Verdict {
        match &outcome.verdict {
            memory::Verdict::Admit => Verdict::Forward,
            memory::Verdict::Duplicate => match outcome.id {
                Some(id) if self.recent.contains(&id.into()) => Verdict::Forward,
                _ => Verdict::Ignore,
            },
            memory::Verdict::Reject(reason) if reason.is_senders_fault() => Verdict::Reject,
            // What is over a share waits for reconciliation. A fork is its author's doing, and proof of it travels on the authority lane.
            _ => Verdict::Ignore,
        }
    }
}

/// Whether a fragment was sent to the topic of its own space.
fn belongs(wire: &Bytes, lane: Lane) -> bool {
    Fragment::decode(wire).is_ok_and(|fragment| Lane::Space(fragment.header.space) == lane)
}

fn record(outcome: &RecordOutcome) -> Verdict {
    match outcome {
        RecordOutcome::Stored => Verdict::Forward,
        RecordOutcome::Rejected(_) => Verdict::Reject,
        _ => Verdict::Ignore,
    }
}

impl Validator for ReplicaValidator {
    fn judge(&self, heard: &[Heard]) -> Vec<Verdict> {
        heard
            .chunk_by(|a, b| a.lane == b.lane && a.from == b.from)
            .flat_map(|run| {
                let (lane, from) = (run[0].lane, run[0].from);
                let items: Vec<Bytes> = run.iter().map(|heard| heard.data.clone()).collect();
                match lane {
                    Lane::Authority => self
                        .replica
                        .admit_records(Some(from), items)
                        .iter()
                        .map(record)
                        .collect(),
                    Lane::Space(_) => self.fragments(from, lane, items),
                }
            })
            .collect()
    }
}
