//! Telling what arrives, as it arrives.
use std::sync::Arc;

use rhizome_identity::Authority;
use tokio::sync::{
    OwnedSemaphorePermit,
    broadcast::error::{RecvError, TryRecvError},
};

use super::{
    super::{
        caller::Scope,
        node::{Node, blocking},
    },
    clip,
};
use crate::{
    api::{
        extract::{Gone, Lines},
        types::{
            SCHEMA,
            memory::{WatchEvent, WatchParams},
        },
    },
    error::ApiError,
};

/// Events read from the replica at a time.
const WATCH_PAGE: usize = 256;

impl Node {
    /// Sends what arrived, and with `follow` what arrives, to `lines`.
    pub(crate) async fn watch(
        self: Arc<Self>,
        scope: Scope,
        params: WatchStart,
        permit: OwnedSemaphorePermit,
        lines: Lines,
    ) {
        let work = async {
            // Listening first: what is stored between the first look and the first wait is not missed.
            let mut events = self.replica.events();
            let mut after = match params.after {
                After::Arrival(arrival) => arrival,
                After::Now => loop {
                    match events.recv().await {
                        Ok(rhizome_memory::Event::Stored { arrival, .. }) => {
                            break arrival.saturating_sub(1);
                        }
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    }
                },
            };
            loop {
                if self.send_page(&scope, &mut after, &lines).await.is_err() {
                    return;
                }
                if !params.follow {
                    return;
                }
                match events.recv().await {
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
                // One look serves all that have piled up.
                while !matches!(
                    events.try_recv(),
                    Err(TryRecvError::Empty | TryRecvError::Closed)
                ) {}
            }
        };
        tokio::select! {
            () = work => {}
            () = lines.closed() => {}
            () = self.stop.cancelled() => {}
        }
        drop(permit);
    }

    /// Sends everything from `after` to the present and moves `after` along.
    async fn send_page(&self, scope: &Scope, after: &mut u64, lines: &Lines) -> Result<(), Gone> {
        loop {
            let (replica, space, from) = (self.replica.clone(), scope.single(), *after);
            let page = blocking(move || replica.watch(space, from, WATCH_PAGE)).await;
            let Ok(page) = page else {
                return Err(Gone);
            };
            let Some(last) = page.last() else {
                return Ok(());
            };
            *after = last.arrival.max(from + 1);
            let authority = self.replica.authority();
            for event in page
                .into_iter()
                .filter(|event| scope.allows(&event.item.space))
            {
                let event = self.event_of(&authority, event);
                lines.send_event(event.arrival, &event).await?;
            }
        }
    }

    /// Returns what a watcher is told of an arrival.
    pub(crate) fn event_of(
        &self,
        authority: &Authority,
        event: rhizome_memory::WatchEvent,
    ) -> WatchEvent {
        let (arrival, id, own) = (event.arrival, event.id.to_string(), event.own);
        let memory = self.memory_of(authority, event.item);
        let title = match (&memory.kind[..], &memory.task) {
            ("context", Some(task)) if memory.title.is_empty() => task.clone(),
            _ => memory.title,
        };
        WatchEvent {
            schema: SCHEMA,
            arrival,
            id,
            doc: memory.doc,
            space: memory.space,
            kind: memory.kind,
            title,
            text: memory.text,
            task: memory.task,
            fields: memory.fields,
            author: memory.author,
            node: memory.node,
            at_ms: memory.at_ms,
            own,
            trust: memory.trust,
        }
    }
}

/// Where a watch begins, and whether it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchStart {
    after: After,
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Arrival(u64),
    Now,
}

impl WatchStart {
    pub(crate) fn parse(params: &WatchParams) -> Result<Self, ApiError> {
        let after = match params.after.as_deref() {
            None => After::Arrival(0),
            Some("now") => After::Now,
            Some(number) => After::Arrival(number.parse().map_err(|_| {
                ApiError::bad_request(format!("`{}` is no arrival number", clip(number)))
                    .hint("pass the `arrival` of the last event you have, 0 or `now`")
            })?),
        };
        let follow = match params.follow {
            None | Some(0) => false,
            Some(1) => true,
            Some(_) => return Err(ApiError::bad_request("`follow` is 0 or 1")),
        };
        if after == After::Now && !follow {
            return Err(ApiError::bad_request(
                "from `now` on there is nothing without `follow=1`",
            ));
        }
        Ok(Self { after, follow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(after: Option<&str>, follow: Option<u8>) -> Result<WatchStart, ApiError> {
        WatchStart::parse(&WatchParams {
            space: None,
            after: after.map(Into::into),
            follow,
        })
    }

    #[test]
    fn a_watch_begins_where_it_is_told() {
        assert_eq!(params(None, None).unwrap().after, After::Arrival(0));
        assert_eq!(
            params(Some("17"), Some(1)).unwrap().after,
            After::Arrival(17)
        );
        assert!(params(Some("now"), Some(1)).unwrap().follow);
        for (after, follow) in [(Some("now"), None), (Some("-1"), None), (None, Some(2))] {
            assert_eq!(params(after, follow).unwrap_err().code(), "bad_request");
        }
    }
}
