//! Programs of the guest, whoever started them and whenever.

use std::sync::Arc;

use rhizome_guest::wire::{self, Attach, Attached, ExecEntry, ExecId, ExecSignal, Kind, Payload};

use super::{
    ExecError, ExitStatus,
    error::printable,
    exec::{self, ExecHandle, checked_signal, fail},
    mux::{self, Purpose, Shared},
};

/// Programs that are listed at most; the guest holds fewer.
const MAX_EXECS: usize = 4096;

/// One program of a guest, running or ended, as the guest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecStatus {
    /// Its id.
    pub id: ExecId,
    /// Its arguments, quoted where they need it and cut where they are long.
    pub command: String,
    /// Who it runs as.
    pub user: String,
    /// Process number of its leader in the guest.
    pub pid: u32,
    /// When it was started, in milliseconds since 1970 by the guest's clock.
    pub started_ms: u64,
    /// For how long it has run, or ran, in milliseconds; time asleep does not count.
    pub ran_ms: u64,
    /// How it ended, if it did.
    pub exit: Option<ExitStatus>,
    /// Whether it runs on when nobody reads it any more.
    pub keep: bool,
    /// Whether it runs on a terminal.
    pub pty: bool,
    /// Whether somebody reads it.
    pub attached: bool,
    /// Bytes of output that are no longer there.
    pub dropped: u64,
    /// Bytes of output in all.
    pub position: u64,
}

pub(super) async fn list(shared: &Arc<Shared>) -> Result<Vec<ExecStatus>, ExecError> {
    let mut stream = shared
        .open(Purpose::ExecList, Kind::ExecList, Vec::new())
        .await?;
    let mut all = Vec::new();
    loop {
        let frame = stream.expect().await?;
        match frame.kind {
            Kind::ExecEntries => {
                let entries = ExecEntry::decode_all(&frame.payload)
                    .map_err(|error| malformed(shared, error))?;
                if all.len() + entries.len() > MAX_EXECS {
                    return Err(fail(shared, "it has more programs than may be"));
                }
                all.extend(entries.into_iter().map(status));
            }
            Kind::Done => break,
            _ => return Err(failed(&frame, None)),
        }
    }
    all.sort_by_key(|status| std::cmp::Reverse(status.started_ms));
    Ok(all)
}

pub(super) async fn attach(
    shared: &Arc<Shared>,
    id: ExecId,
    from: u64,
) -> Result<ExecHandle, ExecError> {
    let request = Attach { id, from }.to_payload();
    let mut stream = shared.open(Purpose::Attach, Kind::Attach, request).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Attached => {
            let attached: Attached = mux::decode(&frame).inspect_err(|error| {
                shared.close(error.clone());
            })?;
            Ok(exec::handle(stream, id, attached, id.to_string()))
        }
        Kind::Failed => Err(failed(&frame, Some(id))),
        _ => Err(fail(shared, "a command speaks before it is attached")),
    }
}

pub(super) async fn signal(shared: &Arc<Shared>, id: ExecId, number: i32) -> Result<(), ExecError> {
    checked_signal(number)?;
    let request = ExecSignal { id, number }.to_payload();
    tell(shared, Kind::ExecSignal, request, id).await
}

pub(super) async fn keep(shared: &Arc<Shared>, id: ExecId, keep: bool) -> Result<(), ExecError> {
    let request = wire::Keep { id, keep }.to_payload();
    tell(shared, Kind::Keep, request, id).await
}

async fn tell(
    shared: &Arc<Shared>,
    kind: Kind,
    request: Vec<u8>,
    id: ExecId,
) -> Result<(), ExecError> {
    let mut stream = shared.open(Purpose::Ask, kind, request).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Done => Ok(()),
        Kind::Failed => Err(failed(&frame, Some(id))),
        _ => Err(fail(shared, "a request has another's answer")),
    }
}

fn failed(frame: &wire::Frame, id: Option<ExecId>) -> ExecError {
    match mux::decode::<wire::Failure>(frame) {
        Ok(failure) => {
            let name = id.map(|id| id.to_string()).unwrap_or_default();
            ExecError::from_failure(failure, &name, "", "")
        }
        Err(error) => error.into(),
    }
}

fn malformed(shared: &Shared, error: wire::WireError) -> super::ChannelError {
    let error = mux::malformed(error);
    shared.close(error.clone());
    error
}

fn status(entry: ExecEntry) -> ExecStatus {
    ExecStatus {
        id: entry.id,
        command: printable(&entry.command),
        user: printable(&entry.user),
        pid: entry.pid,
        started_ms: entry.started_ms,
        ran_ms: entry.ran_ms,
        exit: entry.exit.map(exec::status_of),
        keep: entry.keep,
        pty: entry.pty,
        attached: entry.attached,
        dropped: entry.dropped,
        position: entry.position,
    }
}
