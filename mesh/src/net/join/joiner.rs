//! The joiner's side.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use iroh::endpoint::{ApplicationClose, Connection, ConnectionError};
use rhizome_identity::{Invite, MeshId, NodeId, RecordLog, SignedRecord, SpaceId};
use rhizome_memory::{RecordOutcome, Replica, now_ms};
use tokio::task::JoinSet;
use tracing::debug;

use crate::net::{
    JoinError, Refusal,
    book::Book,
    connections::Close,
    endpoint::{JOIN_ALPN, Net, endpoint_addr},
    frame::{self, FrameError, MAX_FRAME},
    ids::node_of_endpoint,
    pump::other_members,
    relay::guest,
    sync::decode_infos,
};

use super::{
    records,
    wire::{self, BINDING_LABEL, Refused, Request, VERSION, kind},
};

/// How long all inviters together have to answer a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(7);
/// How long a whole join may take.
const JOIN_TIMEOUT: Duration = Duration::from_secs(11);
/// The most bytes of records that an inviter may send: a log of 100,000 records.
const MAX_RECORD_BYTES: usize = 64 * 1024 * 1024;
/// The most addresses that an inviter may send.
const MAX_INFOS: usize = 10_000;

/// What a join brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The mesh this node is a member of now.
    pub mesh: MeshId,
    /// The spaces it may use.
    pub spaces: Vec<SpaceId>,
    /// The node that let it in.
    pub by: NodeId,
}

/// Redeems `invite` at the first of its inviters that answers.
///
/// A node that was revoked may not have heard of it: what it is in the mesh of the invite, the
/// inviter knows.
pub(crate) async fn join(
    net: &Net,
    replica: &Replica,
    book: &Book,
    invite: &Invite,
    node_name: &str,
) -> Result<Joined, JoinError> {
    let authority = replica.authority();
    let me = replica.node();
    let held = authority.member(&me).map(|member| member.grant);
    let elsewhere = authority.mesh().filter(|mesh| *mesh != invite.mesh);
    if let Some(mesh) = elsewhere.filter(|_| held.is_some()) {
        return Err(JoinError::AlreadyMember { mesh });
    }
    let now = now_ms();
    if now > invite.not_after_ms {
        return Err(JoinError::Expired {
            not_after_ms: invite.not_after_ms,
            now_ms: now,
        });
    }
    if invite.endpoints.iter().any(|inviter| inviter.node == me) {
        return Err(JoinError::OwnInvite);
    }
    // A member has its relays by the address book, and would lose them with the guest's.
    let relays = match held {
        None => Some(Guest::enter(net, invite, &me).await),
        Some(_) => None,
    };
    let asked = ask(net, book, invite, me, node_name).await;
    // Before anyone announces a relay: from then on it is the address book's.
    if let Some(relays) = relays {
        relays.leave().await;
    }
    let (by, welcome) = asked?;
    let spaces = take_in(replica, me, by, invite, welcome.records).await?;
    // Members first, so that the book takes their addresses for what they are.
    book.members(other_members(replica)).await;
    book.learn(None, welcome.infos).await;
    let granted = replica.authority().member(&me).map(|member| member.grant);
    if held.is_some() && held == granted {
        return Err(JoinError::AlreadyMember { mesh: invite.mesh });
    }
    Ok(Joined {
        mesh: invite.mesh,
        spaces,
        by,
    })
}

/// The relays that an invite names, used as a guest.
struct Guest<'a> {
    net: &'a Net,
    urls: BTreeSet<&'a str>,
}

impl<'a> Guest<'a> {
    async fn enter(net: &'a Net, invite: &'a Invite, me: &NodeId) -> Self {
        let ends = invite.endpoints.iter();
        let urls: BTreeSet<&str> = ends
            .flat_map(|end| end.relays.iter().map(String::as_str))
            .collect();
        for url in &urls {
            net.use_relay(url, Some(guest::token(invite, me))).await;
        }
        Self { net, urls }
    }

    async fn leave(self) {
        for url in self.urls {
            self.net.leave_relay(url).await;
        }
    }
}

/// Dials an inviter and hands it the invite.
async fn ask(
    net: &Net,
    book: &Book,
    invite: &Invite,
    me: NodeId,
    node_name: &str,
) -> Result<(NodeId, Welcome), JoinError> {
    let started = Instant::now();
    let connection = dial(net, invite).await?;
    let by = node_of_endpoint(&connection.remote_id());
    let left = JOIN_TIMEOUT.saturating_sub(started.elapsed());
    let redeemed = redeem(&connection, me, by, book, invite, node_name);
    let welcome = tokio::time::timeout(left, redeemed)
        .await
        .unwrap_or(Err(JoinError::TimedOut(JOIN_TIMEOUT)));
    Close::Done.apply(&connection);
    Ok((by, welcome?))
}

/// Dials all inviters at once and keeps the first that answers: the invite itself is shown to
/// one of them only.
async fn dial(net: &Net, invite: &Invite) -> Result<Connection, JoinError> {
    let mut dials = JoinSet::new();
    let mut tried: Vec<(NodeId, SocketAddr)> = Vec::new();
    let mut relays: Vec<String> = Vec::new();
    for inviter in &invite.endpoints {
        tried.extend(inviter.addrs.iter().map(|addr| (inviter.node, *addr)));
        relays.extend(inviter.relays.iter().cloned());
        let through = inviter.relays.iter().map(String::as_str);
        let Some(addr) = endpoint_addr(&inviter.node, &inviter.addrs, through) else {
            continue;
        };
        let endpoint = net.endpoint.clone();
        dials.spawn(async move { endpoint.connect(addr, JOIN_ALPN).await });
    }
    let first = async {
        while let Some(dialled) = dials.join_next().await {
            match dialled {
                Ok(Ok(connection)) => return Some(connection),
                Ok(Err(error)) => debug!(%error, "inviter not reached"),
                Err(_) => {}
            }
        }
        None
    };
    let first = tokio::time::timeout(DIAL_TIMEOUT, first).await;
    let unreachable = JoinError::Unreachable { tried, relays };
    first.ok().flatten().ok_or(unreachable)
}

struct Welcome {
    records: Vec<Bytes>,
    infos: Vec<Bytes>,
}

async fn redeem(
    connection: &Connection,
    me: NodeId,
    by: NodeId,
    book: &Book,
    invite: &Invite,
    node_name: &str,
) -> Result<Welcome, JoinError> {
    let key = invite.key();
    let invite_id = invite.id();
    let mut binding = [0; 32];
    connection
        .export_keying_material(&mut binding, BINDING_LABEL, invite_id.as_bytes())
        .map_err(|error| JoinError::Connection(format!("{error:?}").into()))?;
    let proof = key.sign(&wire::proof_message(
        &invite.mesh,
        &invite_id,
        &me,
        &by,
        &binding,
    ));
    let request = Request {
        version: VERSION,
        mesh: invite.mesh,
        invite: invite_id,
        proof: proof.to_vec(),
        node_name: node_name.to_owned(),
        node_info: book.own_info().to_vec(),
    };
    let request = minicbor::to_vec(&request).expect("encoding into memory cannot fail");
    let (mut send, mut recv) = connection.open_bi().await.map_err(lost)?;
    frame::write(&mut send, kind::REQUEST, &request.into())
        .await
        .map_err(|error| broken(connection, error))?;
    let mut welcome = Welcome {
        records: Vec::new(),
        infos: Vec::new(),
    };
    let mut bytes = 0;
    loop {
        let frame = frame::read(&mut recv, MAX_FRAME)
            .await
            .map_err(|error| broken(connection, error))?;
        bytes += frame.payload.len();
        if bytes > MAX_RECORD_BYTES || welcome.infos.len() > MAX_INFOS {
            return Err(bad("it never ends"));
        }
        match frame.kind {
            kind::REFUSED => {
                let refused: Refused =
                    minicbor::decode(&frame.payload).map_err(|_| bad("a broken refusal"))?;
                return Err(JoinError::Refused(refused.refusal()));
            }
            kind::RECORDS => {
                let more = records::decode(&frame.payload).ok_or_else(|| bad("broken records"))?;
                welcome.records.extend(more);
            }
            kind::NODE_INFOS => {
                let more = decode_infos(&frame.payload).ok_or_else(|| bad("broken addresses"))?;
                welcome.infos.extend(more);
            }
            kind::WELCOME => return Ok(welcome),
            _ => return Err(bad("an unknown frame")),
        }
    }
}

/// Checks that the records make this node a member of the invited mesh, then stores them.
async fn take_in(
    replica: &Replica,
    me: NodeId,
    by: NodeId,
    invite: &Invite,
    records: Vec<Bytes>,
) -> Result<Vec<SpaceId>, JoinError> {
    let (replica, mesh) = (replica.clone(), invite.mesh);
    let taken = tokio::task::spawn_blocking(move || {
        // On a log of their own first: a false inviter must leave nothing behind.
        let mut log = RecordLog::for_mesh(mesh);
        for bytes in &records {
            let record = SignedRecord::parse(bytes).map_err(|error| bad(error.to_string()))?;
            log.insert(record).map_err(|error| bad(error.to_string()))?;
        }
        let promised = log.resolve();
        if promised.mesh() != Some(mesh) {
            return Err(bad("its records are of another mesh"));
        }
        if !promised.is_member(&me) {
            return Err(bad("its records do not make this node a member"));
        }
        for outcome in replica.admit_records(Some(by), records) {
            match outcome {
                RecordOutcome::Rejected(error) => return Err(JoinError::Store(error.into())),
                RecordOutcome::Refused => {
                    return Err(JoinError::Store("the replica has no room".into()));
                }
                _ => {}
            }
        }
        let authority = replica.authority();
        let member = authority.member(&me);
        let member = member.ok_or_else(|| bad("its records do not make this node a member"))?;
        Ok(member.spaces.keys().copied().collect())
    });
    taken
        .await
        .unwrap_or_else(|error| Err(JoinError::Store(error.into())))
}

fn bad(what: impl Into<String>) -> JoinError {
    JoinError::BadAnswer { what: what.into() }
}

fn lost(error: ConnectionError) -> JoinError {
    match &error {
        ConnectionError::ApplicationClosed(ApplicationClose { error_code, .. })
            if *error_code == Close::Busy.code() =>
        {
            JoinError::Refused(Refusal::Busy)
        }
        _ => JoinError::Connection(error.into()),
    }
}

/// Prefers the reason why the connection closed over what that did to the stream.
fn broken(connection: &Connection, error: FrameError) -> JoinError {
    match connection.close_reason() {
        Some(reason) => lost(reason),
        None => JoinError::Connection(error.into()),
    }
}
