//! A connection of the host to a port of the guest.

use super::Payload;
use crate::wire::{Decoder, Encoder, WireError};

/// A port to connect to, on the guest's loopback device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// The TCP port; never 0.
    pub port: u16,
}

impl Payload for Connect {
    fn encode(&self, out: &mut Encoder) {
        out.u16(self.port);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        match from.u16()? {
            0 => Err(WireError::Invalid { field: "port" }),
            port => Ok(Self { port }),
        }
    }
}
