//! The guest itself: its clock, its randomness, what it is.

use super::{MAX_TEXT, Payload, clip};
use crate::wire::{Decoder, Encoder, WireError};

/// The time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetTime {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

impl Payload for SetTime {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.unix_ns);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            unix_ns: from.u64()?,
        })
    }
}

/// Fresh randomness.
#[derive(Clone, PartialEq, Eq)]
pub struct Reseed {
    /// Drawn by the host for this guest alone.
    pub seed: [u8; 32],
}

impl std::fmt::Debug for Reseed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reseed")
    }
}

impl Payload for Reseed {
    fn encode(&self, out: &mut Encoder) {
        out.array(&self.seed);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            seed: from.array()?,
        })
    }
}

/// What a guest is, as it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info {
    /// Version of the agent.
    pub agent: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture, as `uname -m` says.
    pub arch: String,
    /// Model of the processor.
    pub cpu: String,
    /// Host name.
    pub hostname: String,
    /// Processors.
    pub cpus: u32,
    /// Memory in all, in bytes.
    pub memory_total: u64,
    /// Memory that can still be had, in bytes.
    pub memory_available: u64,
    /// Milliseconds since the kernel's start.
    pub uptime_ms: u64,
    /// Programs running for the host at this moment.
    pub execs: u32,
}

impl Payload for Info {
    fn encode(&self, out: &mut Encoder) {
        for text in [
            &self.agent,
            &self.kernel,
            &self.arch,
            &self.cpu,
            &self.hostname,
        ] {
            out.bytes(clip(text).as_bytes());
        }
        out.u32(self.cpus);
        out.u64(self.memory_total);
        out.u64(self.memory_available);
        out.u64(self.uptime_ms);
        out.u32(self.execs);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            agent: from.text(MAX_TEXT, "agent")?,
            kernel: from.text(MAX_TEXT, "kernel")?,
            arch: from.text(MAX_TEXT, "arch")?,
            cpu: from.text(MAX_TEXT, "cpu")?,
            hostname: from.text(MAX_TEXT, "hostname")?,
            cpus: from.u32()?,
            memory_total: from.u64()?,
            memory_available: from.u64()?,
            uptime_ms: from.u64()?,
            execs: from.u32()?,
        })
    }
}
