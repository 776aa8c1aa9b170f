//! One sync session: hello, then frames both ways until either side ends it.

use std::time::Duration;

use bytes::Bytes;
use iroh::endpoint::{Connection, ConnectionError, RecvStream, SendStream};
use minicbor::{Decode, Encode};
use rhizome_identity::{Hash, MeshId, NodeId};
use rhizome_memory::{FragmentId, Lane, RecordOutcome, Replica, now_ms};
use tokio::sync::mpsc;
use tracing::{Instrument, debug, debug_span};

use crate::{
    net::{
        acks,
        connections::Close,
        frame::{self, FrameError, MAX_FRAME},
        ids::node_of_endpoint,
    },
    proto::replication::{Input, ItemOutcome},
};

use super::{Batch, Handle, Inbound, SEND_QUEUE_FRAMES, Sync, kind, next_session};

/// The version of the frames and of what they carry.
const VERSION: u8 = 1;
/// The largest hello: a signed address-book entry and little else.
const MAX_HELLO: usize = 4 * 1024;
/// A peer that takes no bytes for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Who opened the connection, and so opens the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// We dialled.
    Dialled,
    /// The peer did.
    Accepted,
}

/// The first frame on each side.
#[derive(Debug, Encode, Decode)]
struct Hello {
    #[n(0)]
    version: u8,
    #[n(1)]
    mesh: MeshId,
    /// The sender's signed address-book entry.
    #[cbor(n(2), with = "minicbor::bytes")]
    node_info: Vec<u8>,
}

/// Why a session did not begin or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("the connection failed")]
    Connection(#[from] ConnectionError),
    #[error("the stream failed")]
    Frame(#[from] FrameError),
    #[error("the peer's hello is not one")]
    Hello,
    #[error("the peer speaks version {0}, this node {VERSION}")]
    Version(u8),
    #[error("the peer belongs to another mesh")]
    OtherMesh,
    #[error("the peer sent a frame of unknown or broken kind {0}")]
    Kind(u8),
    #[error("the node is stopping")]
    Stopping,
}

/// A session whose hellos are exchanged.
pub(super) struct Session {
    sync: Sync,
    peer: NodeId,
    id: u64,
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    node_info: Bytes,
}

/// Opens the stream and exchanges hellos; the caller bounds the time.
///
/// # Cancel safety
/// A dropped future leaves nothing behind but the connection, which closes when it is dropped.
pub(super) async fn open(
    sync: &Sync,
    connection: Connection,
    side: Side,
) -> Result<Session, SessionError> {
    let shared = &sync.shared;
    let peer = node_of_endpoint(&connection.remote_id());
    let mesh = shared.replica.authority().mesh();
    let mesh = mesh.ok_or(SessionError::OtherMesh)?;
    let (mut send, mut recv) = match side {
        Side::Dialled => connection.open_bi().await?,
        Side::Accepted => connection.accept_bi().await?,
    };
    let hello = Hello {
        version: VERSION,
        mesh,
        node_info: shared.book.own_info().to_vec(),
    };
    let hello = minicbor::to_vec(&hello).expect("encoding into memory cannot fail");
    frame::write(&mut send, kind::HELLO, &hello.into()).await?;
    let first = frame::read(&mut recv, MAX_HELLO).await?;
    if first.kind != kind::HELLO {
        return Err(SessionError::Hello);
    }
    let theirs: Hello = minicbor::decode(&first.payload).map_err(|_| SessionError::Hello)?;
    if theirs.version != VERSION {
        return Err(SessionError::Version(theirs.version));
    }
    if theirs.mesh != mesh {
        return Err(SessionError::OtherMesh);
    }
    Ok(Session {
        sync: sync.clone(),
        peer,
        id: next_session(shared),
        connection,
        send,
        recv,
        node_info: theirs.node_info.into(),
    })
}

impl Session {
    /// Carries frames until the peer, the network or this node ends the session.
    pub(super) async fn run(self) {
        let span = debug_span!("sync", peer = %self.peer.fmt_short(), session = self.id);
        self.carry().instrument(span).await;
    }

    async fn carry(self) {
        debug!("session is up");
        let Self {
            sync,
            peer,
            id,
            connection,
            send,
            recv,
            node_info,
        } = self;
        let (frames_in, frames) = mpsc::channel(SEND_QUEUE_FRAMES);
        let handle = Handle {
            id,
            frames: frames_in,
            connection: connection.clone(),
        };
        let replaced = sync.sessions().insert(peer, handle);
        if let Some(old) = replaced {
            Close::Duplicate.apply(&old.connection);
        }
        let shared = &sync.shared;
        shared.peers.up(peer, now_ms());
        shared.book.learn(Some(peer), vec![node_info]).await;
        shared.book.up(peer).await;
        // The core learns of the peer before any of its frames; a stopped core needs no news.
        let _ = shared.inbox.send(Inbound::Up(peer, id)).await;
        for ids in sync.acks().wanted().chunks(acks::MAX_IDS) {
            sync.send(&peer, kind::ASK, acks::encode(ids).into());
        }
        let stop = shared.stop.clone();
        let end = tokio::select! {
            () = stop.cancelled() => Err(SessionError::Stopping),
            // Each half keeps its stream to itself and dies with the session, so that dropping
            // it in the middle of a frame harms nobody.
            end = write_all(send, frames) => end,
            end = read_all(&sync, peer, id, recv) => end,
        };
        let close = match &end {
            Ok(()) | Err(SessionError::Stopping | SessionError::Connection(_)) => Close::Done,
            Err(SessionError::Frame(FrameError::TimedOut)) => Close::TooSlow,
            Err(SessionError::Frame(FrameError::Length { .. })) | Err(SessionError::Kind(_)) => {
                Close::Misbehaved
            }
            Err(_) => Close::Done,
        };
        close.apply(&connection);
        match end {
            Ok(()) => debug!("session ended"),
            Err(error) => debug!(error = &error as &dyn std::error::Error, "session ended"),
        }
        let last = {
            let mut sessions = sync.sessions();
            let current = sessions.get(&peer).is_some_and(|handle| handle.id == id);
            if current {
                sessions.remove(&peer);
            }
            current
        };
        if last {
            sync.shared.peers.down(peer, now_ms());
            sync.acks().gone(&peer);
            sync.shared.book.down(peer).await;
        }
        // A stopped core needs no news.
        let _ = sync.shared.inbox.send(Inbound::Down(peer, id)).await;
    }
}

async fn write_all(
    mut send: SendStream,
    mut frames: mpsc::Receiver<(u8, Bytes)>,
) -> Result<(), SessionError> {
    while let Some((kind, payload)) = frames.recv().await {
        let write = frame::write(&mut send, kind, &payload);
        tokio::time::timeout(WRITE_TIMEOUT, write)
            .await
            .map_err(|_| FrameError::TimedOut)??;
    }
    Ok(())
}

async fn read_all(
    sync: &Sync,
    peer: NodeId,
    id: u64,
    mut recv: RecvStream,
) -> Result<(), SessionError> {
    loop {
        let frame = match frame::read(&mut recv, MAX_FRAME).await {
            Err(FrameError::Ended) => return Ok(()),
            other => other?,
        };
        let shared = &sync.shared;
        match frame.kind {
            kind::RECONCILE => {
                // A full inbox stops this stream, and QUIC stops the peer.
                let told = shared.inbox.send(Inbound::Frame(peer, id, frame.payload));
                told.await.map_err(|_| SessionError::Stopping)?;
            }
            kind::NODE_INFOS => {
                let infos = decode_infos(&frame.payload).ok_or(SessionError::Kind(frame.kind))?;
                shared.book.learn(Some(peer), infos).await;
            }
            kind::ASK => {
                let ids = acks::decode(&frame.payload).ok_or(SessionError::Kind(frame.kind))?;
                answer(sync, peer, ids).await;
            }
            kind::HELD => {
                let ids = acks::decode(&frame.payload).ok_or(SessionError::Kind(frame.kind))?;
                sync.acks().held(peer, &ids);
            }
            other => return Err(SessionError::Kind(other)),
        }
    }
}

/// Tells `peer` which of `ids` are durable here and notes the rest.
async fn answer(sync: &Sync, peer: NodeId, ids: Vec<Hash>) {
    // Noted first: what becomes durable between the two steps is then told twice, not never.
    for id in &ids {
        sync.acks().ask(peer, *id);
    }
    let replica = sync.shared.replica.clone();
    let held = tokio::task::spawn_blocking(move || {
        let mut ids = ids;
        ids.retain(|id| replica.holds(&FragmentId::from(*id)));
        ids
    });
    let held = held.await.unwrap_or_default();
    if !held.is_empty() {
        for id in &held {
            sync.acks().forget(peer, id);
        }
        sync.send(&peer, kind::HELD, acks::encode(&held).into());
    }
}

/// Spells signed addresses for one or more frames.
pub(crate) fn encode_infos(infos: &[Bytes]) -> Vec<Bytes> {
    let mut frames = Vec::new();
    let mut payload = Vec::new();
    for info in infos {
        let Ok(length) = u16::try_from(info.len()) else {
            continue;
        };
        if payload.len() + info.len() + 2 > MAX_FRAME - 1 {
            frames.push(std::mem::take(&mut payload).into());
        }
        payload.extend_from_slice(&length.to_be_bytes());
        payload.extend_from_slice(info);
    }
    if !payload.is_empty() {
        frames.push(payload.into());
    }
    frames
}

/// Reads the signed addresses of one frame; `None` when it breaks off.
pub(crate) fn decode_infos(payload: &Bytes) -> Option<Vec<Bytes>> {
    let mut rest = payload.clone();
    let mut infos = Vec::new();
    while !rest.is_empty() {
        if rest.len() < 2 {
            return None;
        }
        let length = rest.split_to(2);
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        if length == 0 || length > rest.len() {
            return None;
        }
        infos.push(rest.split_to(length));
    }
    Some(infos)
}

/// Offers what a peer sent to the replica; blocks until what was admitted is durable.
pub(super) fn admit(replica: &Replica, batch: Batch) -> Input {
    let Batch {
        from,
        lane,
        batch,
        items,
    } = batch;
    let outcomes = match lane {
        Lane::Authority => {
            let outcomes = replica.admit_records(Some(from), items).into_iter();
            outcomes.map(|outcome| record_outcome(&outcome)).collect()
        }
        Lane::Space(_) => {
            let outcomes = replica.admit(from, items).into_iter();
            outcomes
                .map(|outcome| ItemOutcome::from(&outcome.verdict))
                .collect()
        }
    };
    Input::AdmitDone {
        from,
        lane,
        batch,
        outcomes,
    }
}

fn record_outcome(outcome: &RecordOutcome) -> ItemOutcome {
    match outcome {
        RecordOutcome::Stored => ItemOutcome::Stored,
        RecordOutcome::Duplicate => ItemOutcome::Known,
        RecordOutcome::Waiting => ItemOutcome::Waiting,
        RecordOutcome::Rejected(_) => ItemOutcome::Refused,
        // For want of room here.
        _ => ItemOutcome::Declined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_frames() {
        let infos: Vec<Bytes> = (1_u16..2000)
            .map(|n| vec![7; usize::from(n % 300 + 1)].into())
            .collect();
        let frames = encode_infos(&infos);
        assert!(frames.len() > 1 && frames.iter().all(|frame| frame.len() < MAX_FRAME));
        let back: Vec<Bytes> = frames
            .iter()
            .flat_map(|frame| decode_infos(frame).unwrap())
            .collect();
        assert_eq!(back, infos);
    }

    #[test]
    fn broken_address_frames_are_refused() {
        for broken in [&[0][..], &[0, 0], &[0, 2, 1], &[255, 255, 1]] {
            assert_eq!(decode_infos(&Bytes::copy_from_slice(broken)), None);
        }
    }
}
