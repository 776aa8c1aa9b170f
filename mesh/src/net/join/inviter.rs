//! The inviter's side.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use iroh::{
    endpoint::{Connection, RecvStream, SendStream},
    protocol::{AcceptError, ProtocolHandler},
};
use rhizome_identity::{
    Authority, InviteId, NodeId, NodeKey, PublicKey, RecordBody, RedeemError, SignedRecord,
    check_redeem, issue,
};
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
    records,
    wire::{self, BINDING_LABEL, MAX_NAME, MAX_REQUEST, Refused, Request, VERSION, kind},
};

/// Joins served at the same time; more are refused as busy.
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
    pub(crate) fn new(key: NodeKey, replica: Replica, book: Book) -> Self {
        Self {
            inner: Arc::new(Inner {
                key,
                replica,
                book,
                slots: Semaphore::new(MAX_JOINS),
                redeem: Mutex::new(()),
            }),
        }
    }

    async fn serve(&self, connection: Connection, joiner: NodeId) {
        let busy = self.inner.slots.try_acquire();
        let conversation = async {
            let (mut send, mut recv) = connection.accept_bi().await.map_err(JoinFault::lost)?;
            let answer = match &busy {
                Ok(_slot) => self.hear(&connection, joiner, &mut recv).await?,
                Err(_) => Err(Refusal::Busy),
            };
            match answer {
                Ok(()) => self.welcome(&mut send).await?,
                Err(refusal) => {
                    debug!(%refusal, "join refused");
                    let refused = minicbor::to_vec(Refused::from(refusal))
                        .expect("encoding into memory cannot fail");
                    frame::write(&mut send, kind::REFUSED, &refused.into()).await?;
                }
            }
            // The joiner closes when it has read everything; closing first could cut it off.
            let _ = send.finish();
            connection.closed().await;
            Ok::<(), JoinFault>(())
        };
        match tokio::time::timeout(JOIN_TIMEOUT, conversation).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                debug!(error = &fault as &dyn std::error::Error, "join broke off");
                Close::Misbehaved.apply(&connection);
            }
            Err(_) => Close::TooSlow.apply(&connection),
        }
    }

    /// Reads the request and decides it; `Ok(Ok(()))` means the grant is durable.
    async fn hear(
        &self,
        connection: &Connection,
        joiner: NodeId,
        recv: &mut RecvStream,
    ) -> Result<Result<(), Refusal>, JoinFault> {
        let first = frame::read(recv, MAX_REQUEST).await?;
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
        let info = Bytes::from(request.node_info.clone());
        // Decided on a task of its own: a joiner that hangs up can't stop a grant half way.
        let this = self.clone();
        let decided = tokio::spawn(async move { this.decide(joiner, request, binding).await });
        let answer = decided.await.unwrap_or(Err(Refusal::Failed));
        if answer.is_ok() && !info.is_empty() {
            self.inner.book.learn(None, vec![info]).await;
        }
        Ok(answer)
    }

    async fn decide(
        self,
        joiner: NodeId,
        request: Request,
        binding: [u8; 32],
    ) -> Result<(), Refusal> {
        let inner = Arc::clone(&self.inner);
        let _redeem = inner.redeem.lock().await;
        let this = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || this.redeem(joiner, &request, &binding))
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
    /// Checks the invite and records the grant; blocks until it is durable.
    fn redeem(&self, joiner: NodeId, request: &Request, binding: &[u8; 32]) -> Result<(), Refusal> {
        let authority = self.replica.authority();
        if authority.mesh() != Some(request.mesh) {
            return Err(Refusal::WrongMesh);
        }
        let me = self.key.id();
        let message = wire::proof_message(&request.mesh, &request.invite, &joiner, &me, binding);
        let proof: [u8; 64] = request
            .proof
            .as_slice()
            .try_into()
            .map_err(|_| Refusal::Unknown)?;
        if PublicKey::from(request.invite)
            .verify(&message, &proof)
            .is_err()
        {
            return Err(Refusal::Unknown);
        }
        if self.granted(&authority, &joiner, &request.invite) {
            debug!("answering a repeated join");
            return Ok(());
        }
        let now = now_ms();
        let invite = check_redeem(&authority, &request.invite, now).map_err(refusal)?;
        if invite.issuer != me {
            return Err(Refusal::NotIssuer);
        }
        if invite.approve {
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
        info!(joiner = %joiner.fmt_short(), name = ?request.node_name, "a node joined");
        Ok(())
    }

    /// Whether `joiner` is a member already, through this very invite.
    fn granted(&self, authority: &Authority, joiner: &NodeId, invite: &InviteId) -> bool {
        let Some(member) = authority.member(joiner) else {
            return false;
        };
        let grant = self
            .replica
            .wires(Lane::Authority, &[member.grant.into()], usize::MAX);
        let record = grant.first().map(|bytes| SignedRecord::parse(bytes));
        match record {
            Some(Ok(record)) => match &record.record().body {
                RecordBody::Grant(grant) => grant.invite == Some(*invite),
                _ => false,
            },
            _ => false,
        }
    }
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
    #[error("the joiner is gone")]
    Lost(#[source] iroh::endpoint::ConnectionError),
}

impl JoinFault {
    fn lost(error: iroh::endpoint::ConnectionError) -> Self {
        Self::Lost(error)
    }
}
