//! The guest's network device.

use super::Payload;
use crate::wire::{Decoder, Encoder, WireError};

/// Longest certificate, as PEM, in bytes.
const MAX_AUTHORITY: usize = 16 * 1024;

/// What the guest's network device is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetOpen {
    /// Its IPv4 address.
    pub address: [u8; 4],
    /// Bits of the network that it is in.
    pub prefix: u8,
    /// The way to everything else, and the resolver.
    pub gateway: [u8; 4],
    /// Longest packet, in bytes.
    pub mtu: u16,
    /// A certificate that the guest is to trust, as PEM; empty for none.
    pub authority: String,
}

impl Payload for NetOpen {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.address);
        out.u8(self.prefix);
        out.array(&self.gateway);
        out.u16(self.mtu);
        out.bytes(self.authority.as_bytes());
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let message = Self {
            address: from.array()?,
            prefix: from.u8()?,
            gateway: from.array()?,
            mtu: from.u16()?,
            authority: from.text(MAX_AUTHORITY, "authority")?,
        };
        if message.prefix > 32 {
            return Err(WireError::Invalid { field: "prefix" });
        }
        Ok(message)
    }
}
