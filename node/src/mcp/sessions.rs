//! The sessions of streamable HTTP: whose they are, how many, how long they may idle.
//!
//! A session is found by its id alone, so the sessions of each credential are kept apart: an id that
//! somebody else came by opens nothing.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::Stream;
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::server_side_http::ServerSseMessage,
        streamable_http_server::session::{
            SessionId, SessionManager,
            local::{LocalSessionManager, LocalSessionManagerError, SessionConfig},
        },
    },
};

use crate::daemon::caller::Caller;

/// Sessions of the node's owner at once.
const MAX_OWNER_SESSIONS: usize = 64;
/// Sessions of any other credential at once.
const MAX_SESSIONS: usize = 16;
/// A session that says nothing for so long is closed; its client begins another.
const IDLE: Duration = Duration::from_secs(60 * 60);
/// Time between the first request of a session and its `initialize`.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The sessions of every credential.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<BTreeMap<String, Arc<Bounded>>>);

impl Doors {
    /// Returns the sessions of `caller`; `None` if that one speaks no MCP.
    pub(super) fn of(&self, caller: &Caller) -> Option<Arc<Bounded>> {
        let (name, limit) = match caller {
            Caller::Owner => ("owner".to_owned(), MAX_OWNER_SESSIONS),
            Caller::Guest(guest) => (format!("sandbox/{}", guest.sandbox), MAX_SESSIONS),
            // Not by its name: another token may have it once this one is revoked.
            Caller::Token(holder) => (
                format!("token/{:p}", Arc::as_ptr(&holder.limits)),
                MAX_SESSIONS,
            ),
            Caller::Peer(_) => return None,
        };
        let mut doors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = doors.get(&name) {
            return Some(Arc::clone(found));
        }
        // As many entries as credentials are in use, give or take those that ended since.
        doors.retain(|_, door| Arc::strong_count(door) > 1 || !door.is_empty());
        let made = Arc::new(Bounded::new(limit, Some(caller.clone())));
        doors.insert(name, Arc::clone(&made));
        Some(made)
    }
}

/// The sessions of one credential.
#[derive(Debug)]
pub(super) struct Bounded {
    inner: LocalSessionManager,
    limit: usize,
    /// Whose they are; kept, so that nobody else's limits come to lie at the same address.
    _of: Option<Caller>,
    /// Held while a session is made: counting and adding is one step.
    making: tokio::sync::Mutex<()>,
}

/// Why a session cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum SessionsError {
    /// There are as many as there may be.
    #[error("{0} sessions are open already")]
    Full(usize),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] LocalSessionManagerError),
}

impl Bounded {
    fn new(limit: usize, of: Option<Caller>) -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(IDLE);
        config.init_timeout = Some(INIT_TIMEOUT);
        let mut inner = LocalSessionManager::default();
        inner.session_config = config;
        Self {
            inner,
            limit,
            _of: of,
            making: tokio::sync::Mutex::default(),
        }
    }

    fn is_empty(&self) -> bool {
        // Somebody who holds the lock is making or ending one.
        self.inner
            .sessions
            .try_read()
            .is_ok_and(|sessions| sessions.is_empty())
    }

    /// Returns how many more there may be.
    pub(super) async fn room(&self) -> usize {
        let open = self.inner.sessions.read().await.len();
        self.limit.saturating_sub(open)
    }

    /// Returns how many there may be at once.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }
}

impl SessionManager for Bounded {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let _making = self.making.lock().await;
        if self.room().await == 0 {
            return Err(SessionsError::Full(self.limit));
        }
        Ok(self.inner.create_session().await?)
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.inner.create_stream(id, message).await?)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.inner.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.inner.resume(id, last_event_id).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_are_so_many_sessions_and_no_more() {
        let sessions = Bounded::new(2, None);
        let (first, _transport) = sessions.create_session().await.unwrap();
        let (_, _other) = sessions.create_session().await.unwrap();
        assert_eq!(sessions.room().await, 0);
        let refused = sessions.create_session().await.map(|(id, _)| id);
        assert!(matches!(refused, Err(SessionsError::Full(2))));
        sessions.close_session(&first).await.unwrap();
        assert_eq!(sessions.room().await, 1);
    }

    #[tokio::test]
    async fn an_id_opens_nothing_with_another_credential() {
        let doors = Doors::default();
        let owner = doors.of(&Caller::Owner).unwrap();
        let (id, _transport) = owner.create_session().await.unwrap();
        assert!(owner.has_session(&id).await.unwrap());
        let again = doors.of(&Caller::Owner).unwrap();
        assert!(again.has_session(&id).await.unwrap());
        let peer = rhizome_identity::NodeKey::generate().id();
        assert!(doors.of(&Caller::Peer(peer)).is_none());
    }
}
