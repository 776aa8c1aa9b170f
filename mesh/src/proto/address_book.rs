//! When to dial whom (signatures only).
#![allow(missing_docs, missing_debug_implementations)]

use std::time::Duration;

use rhizome_identity::NodeId;

#[derive(Debug)]
pub struct AddressBook;

#[derive(Debug)]
pub enum Input {
    Known(NodeId),
    Forget(NodeId),
    Moved(NodeId),
    Up(NodeId),
    Down(NodeId),
    DialFailed(NodeId),
}

#[derive(Debug)]
pub enum Output {
    Dial(NodeId),
}

impl AddressBook {
    pub fn new(_me: NodeId, _seed: u64) -> Self {
        Self
    }
    pub fn handle(&mut self, _now: Duration, _input: Input) -> Vec<Output> {
        todo!()
    }
    pub fn handle_timeout(&mut self, _now: Duration) -> Vec<Output> {
        todo!()
    }
    pub fn next_deadline(&self) -> Option<Duration> {
        todo!()
    }
}
