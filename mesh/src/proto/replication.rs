//! Reconciliation (signatures only).
#![allow(missing_docs, missing_debug_implementations)]

use std::time::Duration;

use bytes::Bytes;
use rhizome_identity::{Hash, NodeId};
use rhizome_memory::{IdSet, Lane};

pub trait Holdings {
    fn lanes(&self) -> Vec<Lane>;
    fn with_set<R>(&self, lane: Lane, f: impl FnOnce(&IdSet) -> R) -> Option<R>;
    fn items(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes>;
}

#[derive(Debug, Default)]
pub struct Config {}

#[derive(Debug)]
pub struct Replication;

#[derive(Debug)]
#[non_exhaustive]
pub enum Input {
    PeerUp(NodeId),
    PeerDown(NodeId),
    Frame { from: NodeId, frame: Bytes },
    Stored { lane: Lane, id: Hash, own: bool },
    AdmitDone { from: NodeId, lane: Lane },
}

#[derive(Debug)]
#[non_exhaustive]
pub enum Output {
    Send { to: NodeId, frame: Bytes },
    Admit { from: NodeId, lane: Lane, items: Vec<Bytes> },
    Misbehaved { peer: NodeId, what: &'static str },
    InSync { peer: NodeId, lane: Lane, at: Duration },
}

impl Replication {
    pub fn new(_me: NodeId, _seed: u64, _config: Config) -> Self {
        Self
    }
    pub fn handle(&mut self, _now: Duration, _input: Input, _held: &impl Holdings) -> Vec<Output> {
        todo!()
    }
    pub fn handle_timeout(&mut self, _now: Duration, _held: &impl Holdings) -> Vec<Output> {
        todo!()
    }
    pub fn next_deadline(&self) -> Option<Duration> {
        todo!()
    }
}
