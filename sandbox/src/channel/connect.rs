//! Connections of the node to ports of the guest.

use std::sync::Arc;

use rhizome_guest::wire::{Connect, FailureCode, Kind, Payload};

use super::{
    DoorStream, ForwardError,
    door::carry,
    error::printable,
    mux::{self, Purpose, Shared},
};

pub(super) async fn connect(shared: &Arc<Shared>, port: u16) -> Result<DoorStream, ForwardError> {
    if port == 0 {
        return Err(ForwardError::Refused { port });
    }
    let request = Connect { port }.to_payload();
    let opened = shared.open(Purpose::Connect, Kind::Connect, request).await;
    let mut stream = opened.map_err(ForwardError::from)?;
    let frame = stream.expect().await?;
    match frame.kind {
        Kind::Connected => {
            let (near, far) = DoorStream::pair();
            tokio::spawn(carry(stream, far));
            Ok(near)
        }
        Kind::Failed => {
            let failure: rhizome_guest::wire::Failure = mux::decode(&frame)?;
            Err(match failure.code {
                FailureCode::Refused => ForwardError::Refused { port },
                FailureCode::TooMany => ForwardError::Busy,
                _ => ForwardError::Guest {
                    port,
                    message: printable(&failure.message),
                },
            })
        }
        Kind::StreamReset => Err(ForwardError::Refused { port }),
        _ => Err(super::files::fail(shared, "a connection speaks before it is open").into()),
    }
}
