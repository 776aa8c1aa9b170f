//! Views with writers, without keys, disks or peers.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its share; what a test prepares has to work"
)]

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use rhizome_identity::{AgentId, Hash, MeshId, NodeId, SpaceId};
use rhizome_memory::{
    Applied, ComposeContext, Composed, ContextPatch, Draft, FragmentId, Header, Hlc, Kind, Opened,
    View,
};

pub(crate) const MESH: MeshId = MeshId::from_bytes([0xee; 32]);

pub(crate) fn space(n: u8) -> SpaceId {
    SpaceId::from_bytes([n; 32])
}

/// An author, with its chain in each space.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) id: AgentId,
    pub(crate) node: NodeId,
    chains: BTreeMap<SpaceId, (u64, Option<FragmentId>)>,
}

impl Writer {
    pub(crate) fn new(n: u8) -> Self {
        Self {
            id: AgentId::from_bytes([n; 32]),
            node: NodeId::from_bytes([n | 0x80; 32]),
            chains: BTreeMap::new(),
        }
    }

    pub(crate) fn ctx(&self, space: SpaceId, now: Hlc) -> ComposeContext {
        ComposeContext {
            author: self.id,
            node: self.node,
            now,
            space,
        }
    }

    /// Puts a composed change under a header, as if signed.
    pub(crate) fn sign(&mut self, space: SpaceId, now: Hlc, composed: &Composed) -> Opened {
        self.sign_change(space, now, composed, composed.change.clone())
    }

    /// The same with another change than the composed one.
    pub(crate) fn sign_change(
        &mut self,
        space: SpaceId,
        now: Hlc,
        composed: &Composed,
        change: Vec<u8>,
    ) -> Opened {
        let (seq, prev) = self.chains.entry(space).or_default();
        let header = Header {
            version: 1,
            mesh: MESH,
            space,
            author: self.id,
            node: self.node,
            seq: *seq,
            prev: *prev,
            auth_heads: Vec::new(),
            deps: composed.deps.clone(),
            hlc: now,
            kind: composed.kind,
            doc: composed.doc,
            fingerprint: Hash::of(b"fingerprint"),
            epoch: 0,
            nonce: [0; 24],
            body_hash: Hash::of(&change),
            body_len: u32::try_from(change.len()).unwrap(),
        };
        let id = FragmentId::from(Hash::of(&header.to_bytes()));
        *seq += 1;
        *prev = Some(id);
        Opened {
            id,
            header,
            change: Bytes::from(change),
        }
    }
}

/// A view on a node of its own.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) view: View,
    pub(crate) arrival: u64,
}

impl Node {
    pub(crate) fn open(dir: &Path) -> Self {
        let view = View::open(dir).unwrap();
        let arrival = view.watermark();
        Self { view, arrival }
    }

    pub(crate) fn publish(
        &mut self,
        writer: &mut Writer,
        space: SpaceId,
        now: u64,
        draft: &Draft,
    ) -> Opened {
        let now = Hlc::from_ms(now);
        let composed = self.view.compose(writer.ctx(space, now), draft).unwrap();
        self.finish(writer, space, now, &composed)
    }

    pub(crate) fn checkpoint(
        &mut self,
        writer: &mut Writer,
        space: SpaceId,
        now: u64,
        task: &str,
        patch: &ContextPatch,
    ) -> Opened {
        let now = Hlc::from_ms(now);
        let composed = self
            .view
            .compose_context(writer.ctx(space, now), task, patch)
            .unwrap();
        self.finish(writer, space, now, &composed)
    }

    fn finish(
        &mut self,
        writer: &mut Writer,
        space: SpaceId,
        now: Hlc,
        composed: &Composed,
    ) -> Opened {
        let opened = writer.sign(space, now, composed);
        self.view.reserve(&space, composed, opened.id);
        assert_eq!(self.take([opened.clone()]), [(opened.id, Applied::Applied)]);
        opened
    }

    pub(crate) fn take(
        &mut self,
        batch: impl IntoIterator<Item = Opened>,
    ) -> Vec<(FragmentId, Applied)> {
        let batch: Vec<Opened> = batch.into_iter().collect();
        self.arrival += batch.len() as u64;
        self.view.apply(self.arrival, batch)
    }

    /// Applies one fragment and says what became of it.
    pub(crate) fn verdict(&mut self, opened: Opened) -> Applied {
        let id = opened.id;
        let verdicts = self.take([opened]);
        verdicts.into_iter().find(|(of, _)| *of == id).unwrap().1
    }
}

pub(crate) fn draft(title: &str) -> Draft {
    Draft::new(Kind::Fact, title, "")
}

pub(crate) fn keyed(key: &str, title: &str) -> Draft {
    Draft {
        key: Some(key.to_owned()),
        ..draft(title)
    }
}
