//! Falling asleep and waking up: what a guest is told before and after it is copied.

use super::{MAX_NAME, MAX_TEXT, MAX_WARNINGS, Payload, clip};
use crate::wire::{Decoder, Encoder, MAX_PAYLOAD, WireError};

/// Makes the guest fit to be copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quiesce {
    /// A program that is run before all else, and its arguments; empty for none.
    pub hook: Vec<Vec<u8>>,
    /// Milliseconds that the program may take.
    pub hook_ms: u64,
    /// Milliseconds after which the guest thaws by itself.
    pub hold_ms: u64,
}

impl Payload for Quiesce {
    fn encode(&self, out: &mut Encoder) {
        out.len(self.hook.len());
        for word in &self.hook {
            out.bytes(word);
        }
        out.u64(self.hook_ms);
        out.u64(self.hold_ms);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let words = from.count(4, "hook")?;
        Ok(Self {
            hook: (0..words)
                .map(|_| from.os_bytes(MAX_PAYLOAD, "hook"))
                .collect::<Result<_, _>>()?,
            hook_ms: from.u64()?,
            hold_ms: from.u64()?,
        })
    }
}

/// How far the guest is fit to be copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quiesced {
    /// Whether no program runs.
    pub programs: bool,
    /// Disks that take no writes.
    pub disks: u32,
    /// What could not be done, without making the copy useless.
    pub notes: Vec<String>,
}

impl Payload for Quiesced {
    fn encode(&self, out: &mut Encoder) {
        out.u8(self.programs.into());
        out.u32(self.disks);
        let kept = self.notes.len().min(MAX_WARNINGS);
        out.len(kept);
        for note in &self.notes[..kept] {
            out.bytes(clip(note).as_bytes());
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        let programs = from.flag("programs")?;
        let disks = from.u32()?;
        let count = from.count(4, "notes")?;
        if count > MAX_WARNINGS {
            return Err(WireError::Invalid { field: "notes" });
        }
        let notes = (0..count)
            .map(|_| from.text(MAX_TEXT, "notes"))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            programs,
            disks,
            notes,
        })
    }
}

/// The guest runs again from a copy. It sets its clock, takes the randomness, takes its name if
/// there is one, counts its generation up, and only then lets programs run.
#[derive(Clone, PartialEq, Eq)]
pub struct Resumed {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Drawn by the host for this guest alone.
    pub seed: [u8; 32],
    /// Whether others run from the same copy.
    pub fork: bool,
    /// Its host name from now on; empty to keep the one it has.
    pub hostname: String,
    /// Its machine's number from now on; only to a guest whose greeting has
    /// [`crate::wire::FLAG_MACHINE_ID`].
    pub machine: Option<[u8; 16]>,
}

impl std::fmt::Debug for Resumed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resumed")
            .field("unix_ns", &self.unix_ns)
            .field("fork", &self.fork)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

impl Payload for Resumed {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.unix_ns);
        out.array(&self.seed);
        out.u8(self.fork.into());
        out.bytes(self.hostname.as_bytes());
        if let Some(machine) = &self.machine {
            out.array(machine);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, WireError> {
        Ok(Self {
            unix_ns: from.u64()?,
            seed: from.array()?,
            fork: from.flag("fork")?,
            hostname: from.text(MAX_NAME, "hostname")?,
            machine: match from.is_empty() {
                true => None,
                false => Some(from.array()?),
            },
        })
    }
}
