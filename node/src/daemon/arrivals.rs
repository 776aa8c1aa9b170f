//! What arrives, for whoever waits for it: the next page from a place in the node's order of arrival.
use rhizome_memory::Event;
use tokio::sync::broadcast::{
    Receiver,
    error::{RecvError, TryRecvError},
};

use super::{
    caller::Scope,
    node::{Node, blocking},
};
use crate::{api::types::memory::WatchEvent, error::ApiError};

/// Events read from the replica at a time.
const PAGE: usize = 256;

/// A place in the node's order of arrival, and an ear for what comes after it.
#[derive(Debug)]
pub(crate) struct Arrivals {
    after: u64,
    events: Receiver<Event>,
}

impl Arrivals {
    /// Returns the place from which the next page is read: a cursor.
    pub(crate) fn after(&self) -> u64 {
        self.after
    }
}

impl Node {
    /// Returns the place behind everything that is here.
    pub(crate) async fn arrivals_from_now(&self) -> Result<Arrivals, ApiError> {
        // Listening first: what is stored between the two is not missed.
        let events = self.replica.events();
        let replica = self.replica.clone();
        let after = blocking(move || replica.last_arrival()).await?;
        Ok(Arrivals { after, events })
    }

    /// Returns a place behind the arrival `after`.
    pub(crate) fn arrivals_after(&self, after: u64) -> Arrivals {
        let events = self.replica.events();
        Arrivals { after, events }
    }

    /// Reads what is there after a place, as far as `scope` allows, and moves the place along; at most
    /// `limit` events. Nothing means that there is no more for now.
    pub(crate) async fn read_arrivals(
        &self,
        scope: &Scope,
        arrivals: &mut Arrivals,
        limit: usize,
    ) -> Result<Vec<WatchEvent>, ApiError> {
        let limit = limit.clamp(1, PAGE);
        loop {
            let (replica, space, from) = (self.replica.clone(), scope.single(), arrivals.after);
            let page = blocking(move || replica.watch(space, from, limit)).await?;
            let Some(last) = page.last() else {
                return Ok(Vec::new());
            };
            arrivals.after = last.arrival.max(from + 1);
            let authority = self.replica.authority();
            let events: Vec<_> = page
                .into_iter()
                .filter(|event| scope.allows(&event.item.space))
                .map(|event| self.event_of(&authority, event))
                .collect();
            // A page of other spaces alone says nothing about what comes after it.
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    /// As [`Self::read_arrivals`], but waits until there is something.
    ///
    /// # Cancel safety
    /// A dropped future has lost nothing: the place moves only when events are returned.
    pub(crate) async fn next_arrivals(
        &self,
        scope: &Scope,
        arrivals: &mut Arrivals,
        limit: usize,
    ) -> Result<Vec<WatchEvent>, ApiError> {
        loop {
            let events = self.read_arrivals(scope, arrivals, limit).await?;
            if !events.is_empty() {
                return Ok(events);
            }
            match arrivals.events.recv().await {
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(ApiError::internal("the replica is closed")),
            }
            // One look serves all that have piled up.
            while !matches!(
                arrivals.events.try_recv(),
                Err(TryRecvError::Empty | TryRecvError::Closed)
            ) {}
        }
    }
}
