//! The inviter's side.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use iroh::{
    endpoint::{Connection, SendStream},
    protocol::{AcceptError, ProtocolHandler},
};
use rhizome_identity::{NodeId, NodeKey, PublicKey, RedeemError, check_redeem, issue};
use rhizome_memory::{Lane, Replica, now_ms};
use tokio::sync::{Mutex, Semaphore};
use tracing::{Instrument, debug, debug_span, info, warn};

use crate::net::{
    Refusal,
    book::Book,
    connections::Close,
    frame::{self, FrameError},
    ids::node_of_endpoint,
    sync::{all_items, encode_infos},
};

use super::{
    approvals::Approvals,
    lobby::Lobby,
    records,
    wire::{self, BINDING_LABEL, MAX_NAME, MAX_REQUEST, Refused, Request, VERSION, kind},
};

/// Joins served at the same time; more are refused as busy. A place is taken only by whoever has
/// proved to hold an invite that can be redeemed; strangers wait in the [`Lobby`].
const MAX_JOINS: usize = 16;
/// How long one join may take, the joiner's share included.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves joins; the one protocol that strangers may speak.
#[derive(Clone)]
pub(crate) struct JoinProtocol {
    inner: Arc<Inner>,
}

struct Inner {
    key: NodeKey,
    replica: Replica,
    book: Book,
    lobby: Lobby,
    approvals: Approvals,
    slots: Semaphore,
    /// Held from the check of an invite to the durable grant that spends it.
    redeem: Mutex<()>,
}

impl std::fmt::Debug for JoinProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinProtocol").finish_non_exhaustive()
    }
}

impl ProtocolHandler for JoinProtocol {
    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let joiner = node_of_endpoint(&connection.remote_id());
        let span = debug_span!("join", joiner = %joiner.fmt_short());
        self.serve(connection, joiner).instrument(span).await;
        Ok(())
    }
}

impl JoinProtocol {
    /// Makes the handler of node `key`.
    pub(crate) fn new(key: NodeKey, replica: Replica, book: Book, approvals: Approvals) -> Self {
        Self {
            inner: Arc::new(Inner {
                key,
                replica,
                book,
                lobby: Lobby::default(),
                approvals,
                slots: Semaphore::new(MAX_JOINS),
                redeem: Mutex::new(()),
            }),
        }
    }

    async fn serve(&self, connection: Connection, joiner: NodeId) {
        let conversation = self.converse(&connection, joiner);
        match tokio::time::timeout(JOIN_TIMEOUT, conversation).await {
            Ok(Ok(())) => {}
            Ok(Err(JoinFault::Crowded)) => Close::Busy.apply(&connection),
            Ok(Err(fault)) => {
                debug!(error = &fault as &dyn std::error::Error, "join broke off");
                Close::Misbehaved.apply(&connection);
            }
            Err(_) => Close::TooSlow.apply(&connection),
        }
    }

    async fn converse(&self, connection: &Connection, joiner: NodeId) -> Result<(), JoinFault> {
        let seat = self.inner.lobby.enter();
        let heard = seat
            .taken
            .run_until_cancelled(self.hear(connection, joiner));
        let (mut send, claim) = heard.await.ok_or(JoinFault::Crowded)??;
        let slot = claim.and_then(|claim| match self.inner.slots.try_acquire() {
            Ok(slot) => Ok((claim, slot)),
            Err(_) => Err(Refusal::Busy),
        });
        let refusal = match slot {
            Err(refusal) => refusal,
            Ok((claim, _slot)) => {
                // From here on this is no stranger, and a crowd of them can't end it.
                drop(seat);
                match self.redeem(joiner, claim).await {
                    Err(refusal) => {
                        refuse(&mut send, refusal).await?;
                    }
                    Ok(()) => self.welcome(&mut send).await?,
                }
                finish(connection, send).await;
                return Ok(());
            }
        };
        let refused = async {
            refuse(&mut send, refusal).await?;
            finish(connection, send).await;
            Ok(())
        };
        let refused = seat.taken.run_until_cancelled(refused);
        refused.await.unwrap_or(Err(JoinFault::Crowded))
    }

    /// Reads the request and checks, from memory alone, that there is something to decide.
    async fn hear(
        &self,
        connection: &Connection,
        joiner: NodeId,
    ) -> Result<(SendStream, Result<Claim, Refusal>), JoinFault> {
        let (send, mut recv) = connection.accept_bi().await.map_err(JoinFault::lost)?;
        let first = frame::read(&mut recv, MAX_REQUEST).await?;
        let request: Request = match first.kind {
            kind::REQUEST => minicbor::decode(&first.payload).map_err(|_| JoinFault::Request)?,
            _ => return Err(JoinFault::Request),
        };
        if request.version != VERSION || request.node_name.len() > MAX_NAME {
            return Err(JoinFault::Request);
        }
        let mut binding = [0; 32];
        connection
            .export_keying_material(&mut binding, BINDING_LABEL, request.invite.as_bytes())
            .map_err(|_| JoinFault::Request)?;
        let vouched = self.inner.vouch(joiner, &request, &binding);
        Ok((send, vouched.map(|()| Claim(request))))
    }

    /// Decides a claim; `Ok` means that the grant is durable.
    async fn redeem(&self, joiner: NodeId, Claim(request): Claim) -> Result<(), Refusal> {
        let info = Bytes::from(request.node_info.clone());
        // Decided on a task of its own: a joiner that hangs up can't stop a grant half way.
        let this = self.clone();
        let decided = tokio::spawn(async move { this.decide(joiner, request).await });
        decided.await.unwrap_or(Err(Refusal::Failed))?;
        if !info.is_empty() {
            self.inner.book.learn(None, vec![info]).await;
        }
        Ok(())
    }

    async fn decide(self, joiner: NodeId, request: Request) -> Result<(), Refusal> {
        let inner = Arc::clone(&self.inner);
        let _redeem = inner.redeem.lock().await;
        let this = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || this.redeem(joiner, &request))
            .await
            .unwrap_or(Err(Refusal::Failed))
    }

    async fn welcome(&self, send: &mut SendStream) -> Result<(), JoinFault> {
        let replica = self.inner.replica.clone();
        let all = tokio::task::spawn_blocking(move || all_items(&replica, Lane::Authority))
            .await
            .unwrap_or_default();
        for payload in records::encode(&all) {
            frame::write(send, kind::RECORDS, &payload).await?;
        }
        for payload in encode_infos(&self.inner.book.infos()) {
            frame::write(send, kind::NODE_INFOS, &payload).await?;
        }
        frame::write(send, kind::WELCOME, &Bytes::new()).await?;
        Ok(())
    }
}

impl Inner {
    /// Says whether `joiner` proves to hold an invite that is worth a place; cheap, and decides
    /// nothing.
    fn vouch(&self, joiner: NodeId, request: &Request, binding: &[u8; 32]) -> Result<(), Refusal> {
        let authority = self.replica.authority();
        if authority.mesh() != Some(request.mesh) {
            return Err(Refusal::WrongMesh);
        }
        // Looked up first, so that only a known invite costs the check of a signature.
        let Some(invite) = authority.invite(&request.invite) else {
            return Err(Refusal::Unknown);
        };
        let me = self.key.id();
        let message = wire::proof_message(&request.mesh, &request.invite, &joiner, &me, binding);
        let proof: [u8; 64] = request
            .proof
            .as_slice()
            .try_into()
            .map_err(|_| Refusal::Unknown)?;
        PublicKey::from(invite.id)
            .verify(&message, &proof)
            .map_err(|_| Refusal::Unknown)?;
        // A member may be asking again for what was lost on the way.
        if !authority.is_member(&joiner) {
            check_redeem(&authority, &invite.id, now_ms()).map_err(refusal)?;
        }
        Ok(())
    }

    /// Records the grant of a claim that was vouched for; blocks until it is durable.
    fn redeem(&self, joiner: NodeId, request: &Request) -> Result<(), Refusal> {
        let authority = self.replica.authority();
        if authority.is_member(&joiner) {
            debug!("answering a member");
            return Ok(());
        }
        let now = now_ms();
        let invite = check_redeem(&authority, &request.invite, now).map_err(refusal)?;
        if invite.issuer != self.key.id() {
            return Err(Refusal::NotIssuer);
        }
        let name = &request.node_name;
        if invite.approve && !self.approvals.ask(invite.id, joiner, name, now) {
            info!(joiner = %joiner.fmt_short(), ?name, "a node asks to be let in");
            return Err(Refusal::ApprovalNeeded);
        }
        let keys = |space: &_, epoch| self.replica.space_key(space, epoch);
        let grant = issue::grant(
            &self.key,
            &authority,
            joiner,
            &request.node_name,
            invite.role,
            &invite.spaces,
            &keys,
            Some(request.invite),
            now,
        );
        let grant = grant.map_err(|error| {
            info!(%error, "cannot grant what an invite promises");
            Refusal::Failed
        })?;
        self.replica.append_records(vec![grant]).map_err(|error| {
            warn!(%error, "cannot record a grant");
            Refusal::Failed
        })?;
        self.approvals.done(&joiner);
        info!(joiner = %joiner.fmt_short(), ?name, "a node joined");
        Ok(())
    }
}

/// A request whose proof of the invite key was checked on this very connection.
struct Claim(Request);

async fn refuse(send: &mut SendStream, refusal: Refusal) -> Result<(), FrameError> {
    debug!(%refusal, "join refused");
    let refused =
        minicbor::to_vec(Refused::from(refusal)).expect("encoding into memory cannot fail");
    frame::write(send, kind::REFUSED, &refused.into()).await
}

/// Waits for the joiner to close: closing first could cut off what it still reads.
async fn finish(connection: &Connection, mut send: SendStream) {
    let _ = send.finish();
    connection.closed().await;
}

fn refusal(error: RedeemError) -> Refusal {
    match error {
        RedeemError::Expired { .. } => Refusal::Expired,
        RedeemError::Spent { .. } => Refusal::Spent,
        RedeemError::Closed => Refusal::Closed,
        _ => Refusal::Unknown,
    }
}

#[derive(Debug, thiserror::Error)]
enum JoinFault {
    #[error("the joiner's request is not one")]
    Request,
    #[error("the stream failed")]
    Frame(#[from] FrameError),
    #[error("too many strangers are waiting")]
    Crowded,
    #[error("the joiner is gone")]
    Lost(#[source] iroh::endpoint::ConnectionError),
}

impl JoinFault {
    fn lost(error: iroh::endpoint::ConnectionError) -> Self {
        Self::Lost(error)
    }
}
