//! Volumes of the guest: attaching them, asking what was changed in them.

use std::sync::Arc;

use rhizome_guest::wire::{
    Kind, Payload, VolumeClose, VolumeEntry, VolumeOpen, VolumeScan, contains_magic,
};

use super::{
    DoorStream, FileError, FileReader,
    door::carry,
    files,
    mux::{self, Purpose, Shared},
};

/// Most changes that a guest may name at once.
const MAX_CHANGES: usize = 2_000_000;
/// Most bytes of their paths and targets.
const MAX_CHANGE_BYTES: usize = 512 * 1024 * 1024;
/// Longest path that goes to a guest, in bytes.
const MAX_PATH: usize = 4096;

/// Asks the guest to mount a volume; it asks for what is in it over the stream.
pub(super) async fn open(shared: &Arc<Shared>, open: &VolumeOpen) -> Result<DoorStream, FileError> {
    let path = String::from_utf8_lossy(&open.path).into_owned();
    let request = open.to_payload();
    // What the guest would refuse to parse is not sent.
    if VolumeOpen::from_payload(&request).is_err() || contains_magic(&request) {
        return Err(FileError::InvalidPath { path });
    }
    let mut stream = (shared.open(Purpose::Volume, Kind::VolumeOpen, request)).await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Connected => {
            let (near, far) = DoorStream::pair();
            tokio::spawn(carry(stream, far));
            Ok(near)
        }
        Kind::Failed => Err(FileError::from_failure(mux::decode(&frame)?, &path)),
        _ => Err(files::fail(shared, "a volume speaks before it is open").into()),
    }
}

/// Returns every change, as the guest says; nothing of it is checked but its amount.
pub(super) async fn scan(
    shared: &Arc<Shared>,
    volume: [u8; 16],
    shown: &str,
) -> Result<Vec<VolumeEntry>, FileError> {
    let request = VolumeScan { volume }.to_payload();
    let mut stream = shared
        .open(Purpose::VolumeScan, Kind::VolumeScan, request)
        .await?;
    let (mut changes, mut bytes) = (Vec::new(), 0);
    loop {
        let frame = stream.expect().await?;
        match frame.kind {
            Kind::VolumeEntries => {
                bytes += frame.payload.len();
                changes.extend(VolumeEntry::decode_all(&frame.payload).map_err(mux::malformed)?);
                if changes.len() > MAX_CHANGES || bytes > MAX_CHANGE_BYTES {
                    return Err(FileError::TooManyEntries {
                        path: shown.to_owned(),
                        limit: MAX_CHANGES,
                    });
                }
            }
            Kind::Done => return Ok(changes),
            _ => return Err(FileError::from_failure(mux::decode(&frame)?, shown)),
        }
    }
}

/// Opens a changed file; `path` is relative to the volume.
pub(super) async fn read(
    shared: &Arc<Shared>,
    volume: &[u8; 16],
    path: &[u8],
) -> Result<FileReader, FileError> {
    let volume: String = volume.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut full = format!("/run/rhizome/volumes/{volume}/upper/").into_bytes();
    full.extend_from_slice(path);
    let shown = String::from_utf8_lossy(path).into_owned();
    if full.len() > MAX_PATH || contains_magic(&full) {
        return Err(FileError::InvalidPath { path: shown });
    }
    files::read_bytes(shared, full, &shown, 0).await
}

pub(super) async fn close(
    shared: &Arc<Shared>,
    volume: [u8; 16],
    force: bool,
    shown: &str,
) -> Result<(), FileError> {
    let request = VolumeClose { volume, force }.to_payload();
    let mut stream = shared
        .open(Purpose::Ask, Kind::VolumeClose, request)
        .await?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Done => Ok(()),
        Kind::Failed => Err(FileError::from_failure(mux::decode(&frame)?, shown)),
        _ => Err(files::fail(shared, "a request has another's answer").into()),
    }
}
