//! Fragments that wait for others, and what for. Bounded per author and in all.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use minicbor::{Decode, Encode};
use rhizome_identity::{AgentId, SpaceId};

use super::{Opened, apply::doc_key};
use crate::{DocId, FragmentId, Header, document::DocKey};

/// Most fragments of one author that wait.
pub const MAX_WAITING_PER_AUTHOR: usize = 256;
/// Most fragments that wait in all.
pub const MAX_WAITING: usize = 4096;
/// Most bytes of all changes that wait.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug)]
struct Waiter {
    key: DocKey,
    author: AgentId,
    seq: u64,
    bytes: usize,
    on: Vec<FragmentId>,
}

/// Who waits for whom; the fragments themselves are in the database.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    waiters: BTreeMap<FragmentId, Waiter>,
    by_awaited: BTreeSet<(FragmentId, FragmentId)>,
    by_author: BTreeMap<AgentId, BTreeSet<(DocKey, u64, FragmentId)>>,
    by_space: BTreeMap<SpaceId, usize>,
    bytes: usize,
}

impl Waiting {
    /// Adds or renews a waiter; returns whether there was room.
    pub(super) fn insert(&mut self, key: &DocKey, opened: &Opened, on: &[FragmentId]) -> bool {
        self.remove(&opened.id);
        let author = opened.header.author;
        let of_author = self.by_author.get(&author).map_or(0, BTreeSet::len);
        let bytes = opened.change.len();
        if of_author >= MAX_WAITING_PER_AUTHOR
            || self.waiters.len() >= MAX_WAITING
            || self.bytes + bytes > MAX_WAITING_BYTES
        {
            return false;
        }
        let seq = opened.header.seq;
        self.bytes += bytes;
        *self.by_space.entry(key.space).or_default() += 1;
        self.by_author
            .entry(author)
            .or_default()
            .insert((*key, seq, opened.id));
        self.by_awaited
            .extend(on.iter().map(|awaited| (*awaited, opened.id)));
        self.waiters.insert(
            opened.id,
            Waiter {
                key: *key,
                author,
                seq,
                bytes,
                on: on.to_vec(),
            },
        );
        true
    }

    pub(super) fn remove(&mut self, id: &FragmentId) -> bool {
        let Some(waiter) = self.waiters.remove(id) else {
            return false;
        };
        self.bytes -= waiter.bytes;
        if let Some(in_space) = self.by_space.get_mut(&waiter.key.space) {
            *in_space -= 1;
        }
        for awaited in waiter.on {
            self.by_awaited.remove(&(awaited, *id));
        }
        if let Some(of_author) = self.by_author.get_mut(&waiter.author) {
            of_author.remove(&(waiter.key, waiter.seq, *id));
            if of_author.is_empty() {
                self.by_author.remove(&waiter.author);
            }
        }
        true
    }

    /// Returns who waits for `awaited`.
    pub(super) fn woken_by(&self, awaited: &FragmentId) -> Vec<FragmentId> {
        let least = FragmentId::from_bytes([0; 32]);
        let greatest = FragmentId::from_bytes([0xff; 32]);
        self.by_awaited
            .range((*awaited, least)..=(*awaited, greatest))
            .map(|(_, waiter)| *waiter)
            .collect()
    }

    /// Returns what `id` waits for.
    pub(super) fn on(&self, id: &FragmentId) -> Option<&[FragmentId]> {
        self.waiters.get(id).map(|waiter| &waiter.on[..])
    }

    /// Returns the fragments of the same document and author that come earlier in its chain.
    pub(super) fn earlier_of_author(
        &self,
        key: &DocKey,
        opened: &Opened,
    ) -> impl Iterator<Item = FragmentId> {
        let least = FragmentId::from_bytes([0; 32]);
        let range = (*key, 0, least)..(*key, opened.header.seq, least);
        self.by_author
            .get(&opened.header.author)
            .into_iter()
            .flat_map(move |all| all.range(range.clone()))
            .map(|(.., id)| *id)
    }

    /// Returns the waiting fragments of a document, whatever its shape.
    pub(super) fn of_document(&self, space: &SpaceId, doc: &DocId) -> BTreeSet<FragmentId> {
        let of_document = self
            .waiters
            .iter()
            .filter(|(_, waiter)| (waiter.key.space, waiter.key.doc) == (*space, *doc));
        of_document.map(|(id, _)| *id).collect()
    }

    /// Returns how many wait in each space.
    pub(super) fn by_space(&self) -> &BTreeMap<SpaceId, usize> {
        &self.by_space
    }

    /// Adds a waiter that was read back from the database.
    pub(super) fn restore(&mut self, id: FragmentId, row: &[u8]) -> Option<()> {
        let opened = decode_waiting(id, row)?;
        let on = minicbor::decode::<Row>(row).ok()?.on;
        self.insert(&doc_key(&opened), &opened, &on).then_some(())
    }
}

#[derive(Encode, Decode)]
struct Row {
    #[cbor(n(0), with = "minicbor::bytes")]
    header: Vec<u8>,
    #[cbor(n(1), with = "minicbor::bytes")]
    change: Vec<u8>,
    #[n(2)]
    on: Vec<FragmentId>,
}

pub(super) fn encode_waiting(opened: &Opened, on: &[FragmentId]) -> Vec<u8> {
    let row = Row {
        header: opened.header.to_bytes(),
        change: opened.change.to_vec(),
        on: on.to_vec(),
    };
    minicbor::to_vec(row).expect("writing to a vector does not fail")
}

pub(super) fn decode_waiting(id: FragmentId, row: &[u8]) -> Option<Opened> {
    let row: Row = minicbor::decode(row).ok()?;
    Some(Opened {
        id,
        header: Header::from_bytes(&row.header).ok()?,
        change: Bytes::from(row.change),
    })
}
