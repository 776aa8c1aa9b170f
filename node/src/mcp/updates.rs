//! Telling a client that a resource it watches has changed.
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use rmcp::{Peer, RoleServer, model::ResourceUpdatedNotificationParam};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{profile::Profiles, session::Session};
use crate::{daemon::arrivals::Arrivals, error::ApiError};

/// Events that are looked at together.
const PAGE: usize = 64;
/// Resources that one client may watch at once.
const MAX_WATCHED: usize = 64;

/// What one client watches; dropped, it watches nothing.
#[derive(Debug, Default)]
pub(super) struct Updates {
    wanted: Arc<Mutex<BTreeSet<String>>>,
    watching: Mutex<Option<DropGuard>>,
}

impl Updates {
    /// Watches `uri` too, and tells `peer` when something after `arrivals` changes it.
    ///
    /// # Errors
    /// If the client watches too much already, or has too many streams.
    pub(super) fn add(
        &self,
        session: &Session,
        profiles: &Profiles,
        arrivals: Arrivals,
        peer: Peer<RoleServer>,
        uri: String,
    ) -> Result<(), ApiError> {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            if wanted.len() >= MAX_WATCHED && !wanted.contains(&uri) {
                let message = format!("{MAX_WATCHED} resources are watched already");
                return Err(ApiError::bad_request(message));
            }
            if watching.is_some() {
                wanted.insert(uri);
                return Ok(());
            }
        }
        let permit = session.caller.stream_permit(&session.node)?;
        self.wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uri);
        let ended = CancellationToken::new();
        let work = tell(
            session.clone(),
            profiles.clone(),
            Arc::clone(&self.wanted),
            arrivals,
            permit,
            move |uri| {
                let peer = peer.clone();
                async move {
                    let changed = ResourceUpdatedNotificationParam::new(uri);
                    peer.notify_resource_updated(changed).await.is_ok()
                }
            },
        );
        let (token, stop) = (ended.clone(), session.node.stop.clone());
        session.node.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = token.cancelled() => {}
                () = stop.cancelled() => {}
            }
        });
        *watching = Some(ended.drop_guard());
        Ok(())
    }

    /// Watches `uri` no longer.
    pub(super) fn remove(&self, uri: &str) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.remove(uri);
        if wanted.is_empty() {
            // The stream goes back.
            *watching = None;
        }
    }
}

/// Calls `told` for each resource of `wanted` that changed, as long as it says that somebody listens.
pub(super) async fn tell<F: Future<Output = bool>>(
    session: Session,
    profiles: Profiles,
    wanted: Arc<Mutex<BTreeSet<String>>>,
    mut arrivals: Arrivals,
    permit: OwnedSemaphorePermit,
    told: impl Fn(String) -> F,
) {
    // Who may read what is asked each time: it may have changed.
    while let Ok(scope) = session.scope() {
        let Ok(events) = session
            .node
            .next_arrivals(&scope, &mut arrivals, PAGE)
            .await
        else {
            break;
        };
        let changed: BTreeSet<_> = {
            let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
            let changes = |uri: &&String| {
                events.iter().any(|event| {
                    profiles
                        .iter()
                        .any(|profile| profile.changes(&session, uri, event))
                })
            };
            wanted.iter().filter(changes).cloned().collect()
        };
        for uri in changed {
            if !told(uri).await {
                return;
            }
        }
    }
    drop(permit);
}
