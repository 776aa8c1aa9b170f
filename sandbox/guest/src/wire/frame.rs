use super::{HEADER_LEN, Hello, MAGIC, MAX_PAYLOAD, Payload, WireError};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a frame says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $value,)* }

        impl TryFrom<u8> for Kind {
            type Error = WireError;

            fn try_from(kind: u8) -> Result<Self, WireError> {
                match kind {
                    $($value => Ok(Self::$name),)*
                    _ => Err(WireError::UnknownKind { kind }),
                }
            }
        }

        #[cfg(test)]
        pub(crate) const ALL_KINDS: &[Kind] = &[$(Kind::$name,)*];
    };
}

// One table for every frame. Numbers come in rooms, so that additions don't collide:
// 01-0f the session, 10-1f programs, 20-2f sleep and waking, 30-3f files, 40-4f connections,
// 50-5f the network boundary, 60-6f volumes.
kinds! {
    /// First frame of a session, both ways: [`Hello`].
    Hello = 0x01,
    /// The guest takes requests: [`super::Ready`].
    Ready = 0x02,
    /// Asks for a `Pong` with the same payload.
    Ping = 0x03,
    /// Answers a `Ping`.
    Pong = 0x04,
    /// Asks what the guest is; answered with `InfoReply` on the same stream.
    Info = 0x05,
    /// Answers `Info`: [`super::Info`].
    InfoReply = 0x06,
    /// Sets the clock: [`super::SetTime`]; answered with `Done`.
    SetTime = 0x07,
    /// Mixes fresh randomness into the kernel's: [`super::Reseed`]; answered with `Done`.
    Reseed = 0x08,
    /// Ends the guest: it syncs its disks and powers off. Answered with `Done`.
    Shutdown = 0x09,
    /// A request without other answer is done; the last frame of its stream.
    Done = 0x0a,
    /// A request failed: [`super::Failure`]; the last frame of its stream.
    Failed = 0x0b,
    /// More credit for the receiver: [`super::Credit`].
    Credit = 0x0c,

    /// Runs a program: [`super::Exec`].
    Exec = 0x10,
    /// The program runs.
    Started = 0x11,
    /// Data for its standard input.
    Stdin = 0x12,
    /// The end of its standard input.
    StdinEof = 0x13,
    /// Data of its standard output.
    Stdout = 0x14,
    /// Data of its standard error.
    Stderr = 0x15,
    /// Signals its process group: [`super::Signal`].
    Signal = 0x16,
    /// Size of its terminal: [`super::PtySize`].
    Resize = 0x17,
    /// How the program ended: [`super::Exit`]; the last frame of its stream.
    Exit = 0x18,
    /// Reads a program that runs, or has ended, from some point on: [`super::Attach`].
    Attach = 0x19,
    /// Answers `Attach`; output follows: [`super::Attached`].
    Attached = 0x1a,
    /// Whether a program outlives its host's interest: [`super::Keep`]; answered with `Done`.
    Keep = 0x1b,
    /// Asks for all programs; answered with `ExecEntries`…, `Done`.
    ExecList = 0x1c,
    /// Some programs, [`super::ExecEntry`] after [`super::ExecEntry`].
    ExecEntries = 0x1d,
    /// Signals a program that is not attached: [`super::ExecSignal`]; answered with `Done`.
    ExecSignal = 0x1e,

    /// Makes the guest fit to be copied, and keeps it so: [`super::Quiesce`].
    Quiesce = 0x20,
    /// Answers `Quiesce`: [`super::Quiesced`].
    Quiesced = 0x21,
    /// Undoes `Quiesce`; answered with `Done`.
    Thaw = 0x22,
    /// The guest runs again from a copy: [`super::Resumed`]; answered with `Done`.
    Resumed = 0x23,

    /// Asks for a `FileStat`: [`super::PathOnly`].
    FileStat = 0x30,
    /// Asks for the entries of a directory: [`super::PathOnly`].
    FileList = 0x31,
    /// Asks for `FileMeta`, `FileData`…, `FileEnd`: [`super::FileRead`].
    FileRead = 0x32,
    /// Writes a file from `FileData`…, `FileEnd`: [`super::FileWrite`]; answered with `Done`.
    FileWrite = 0x33,
    /// Makes a directory: [`super::MakeDir`]; answered with `Done`.
    FileMakeDir = 0x34,
    /// Removes a file or directory: [`super::Remove`]; answered with `Done`.
    FileRemove = 0x35,
    /// Answers `FileStat`, and comes before the data of `FileRead`: [`super::Stat`].
    FileMeta = 0x36,
    /// Some bytes of a file.
    FileData = 0x37,
    /// The end of a file: [`super::FileEnd`].
    FileEnd = 0x38,
    /// Some entries of a directory, [`super::Entry`] after [`super::Entry`].
    FileEntries = 0x39,
    /// Watches a directory: [`super::Watch`]; answered with `Started`, `WatchEvents`….
    Watch = 0x3a,
    /// Some changes, [`super::WatchEvent`] after [`super::WatchEvent`].
    WatchEvents = 0x3b,
    /// Does something with a path as a user names it: [`super::FileAct`]; answered with
    /// `FileFacts`…, `Done`. Only to a guest whose greeting has [`super::FLAG_ACTS`].
    FileAct = 0x3c,
    /// What some paths are, [`super::Facts`] after [`super::Facts`].
    FileFacts = 0x3d,
    /// As `Watch`, and what is moved away is told apart from what is removed. Only to a guest
    /// whose greeting has [`super::FLAG_ACTS`].
    WatchMoves = 0x3e,

    /// The guest opens a stream to its node.
    StreamOpen = 0x40,
    /// Some bytes of a stream.
    StreamData = 0x41,
    /// No more bytes in this direction.
    StreamEof = 0x42,
    /// The end of a stream in both directions; also ends an exec or a transfer early.
    StreamReset = 0x43,
    /// The host opens a stream to a port of the guest: [`super::Connect`].
    Connect = 0x44,
    /// Something listens there, and the stream is open.
    Connected = 0x45,

    /// Opens the guest's network device: [`super::NetOpen`]; answered with `Started`, then packets
    /// in `StreamData` both ways, each behind its length (`u16`).
    NetOpen = 0x50,

    /// Attaches a volume: [`super::VolumeOpen`]; answered with `Connected`, then a stream of
    /// [`super::VolumeAsk`] from the guest and [`super::VolumeAnswer`] from the host.
    VolumeOpen = 0x60,
    /// Asks what was changed in a volume: [`super::VolumeScan`]; answered with
    /// `VolumeEntries`…, `Done`.
    VolumeScan = 0x61,
    /// Some changes, [`super::VolumeEntry`] after [`super::VolumeEntry`].
    VolumeEntries = 0x62,
    /// Detaches a volume: [`super::VolumeClose`]; answered with `Done`.
    VolumeClose = 0x63,
}

impl Kind {
    /// Whether frames of this kind use credit.
    #[must_use]
    pub fn is_data(self) -> bool {
        matches!(
            self,
            Self::Stdin
                | Self::Stdout
                | Self::Stderr
                | Self::ExecEntries
                | Self::FileData
                | Self::FileEntries
                | Self::FileFacts
                | Self::WatchEvents
                | Self::StreamData
                | Self::VolumeEntries
        )
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it says.
    pub kind: Kind,
    /// Which stream it belongs to: 0 is the session, odd ones are opened by the host, even ones
    /// by the guest.
    pub stream: u32,
    /// What it carries, at most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns a frame that carries `message`.
    pub fn new<P: Payload>(kind: Kind, stream: u32, message: &P) -> Self {
        Self {
            kind,
            stream,
            payload: message.to_payload(),
        }
    }

    /// Returns a frame that carries nothing.
    #[must_use]
    pub fn empty(kind: Kind, stream: u32) -> Self {
        Self {
            kind,
            stream,
            payload: Vec::new(),
        }
    }

    /// Returns the header that goes before the payload.
    ///
    /// # Errors
    /// [`WireError::FrameTooLong`] if the payload is over [`MAX_PAYLOAD`].
    pub fn header(&self) -> Result<[u8; HEADER_LEN], WireError> {
        let len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        if self.payload.len() > MAX_PAYLOAD {
            return Err(WireError::FrameTooLong { len });
        }
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4] = self.kind as u8;
        header[5..].copy_from_slice(&self.stream.to_le_bytes());
        Ok(header)
    }

    /// Appends the whole frame to `out`.
    ///
    /// # Errors
    /// [`WireError::FrameTooLong`] if the payload is over [`MAX_PAYLOAD`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        out.extend_from_slice(&self.header()?);
        out.extend_from_slice(&self.payload);
        Ok(())
    }

    /// Decodes the payload as the message `P`.
    ///
    /// # Errors
    /// Any [`WireError`] but those of frames.
    pub fn message<P: Payload>(&self) -> Result<P, WireError> {
        P::from_payload(&self.payload)
    }
}

/// Whether `bytes` hold [`MAGIC`]; such data must go out in two frames, cut inside it.
#[must_use]
pub fn contains_magic(bytes: &[u8]) -> bool {
    find_magic(bytes).is_some()
}

pub(crate) fn find_magic(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = position(&bytes[from..], MAGIC[0]) {
        let at = from + found;
        if bytes[at..].starts_with(&MAGIC) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Finds a byte. All that a guest sends is searched, and a guest may be emulated: eight bytes at a
/// time, in instructions that every processor has.
fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_ne_bytes([0x80; 8]);
    let all = ONES * u64::from(wanted);
    let (words, _) = bytes.as_chunks::<8>();
    let has = |word: &[u8; 8]| {
        // Zero where it is that byte; a borrow out of a byte that is zero reaches its top bit.
        let differs = u64::from_ne_bytes(*word) ^ all;
        differs.wrapping_sub(ONES) & !differs & TOPS != 0
    };
    let whole = words.iter().position(has).unwrap_or(words.len()) * 8;
    let found = bytes[whole..].iter().position(|byte| *byte == wanted);
    found.map(|at| whole + at)
}

/// Finds the frames in a byte stream.
///
/// It starts by seeking a HELLO and drops what comes before. The guest keeps looking out for a
/// HELLO in all that follows ([`Self::watching`]), because its host may be replaced in the
/// middle of a frame without the guest being told; the host, whose every connection is new,
/// seeks once ([`Self::seeking`]).
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    start: usize,
    /// Everything before this was searched for [`MAGIC`].
    searched: usize,
    synced: bool,
    watch: bool,
    dropped: u64,
}

impl FrameDecoder {
    /// Seeks a HELLO once.
    #[must_use]
    pub fn seeking() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            synced: false,
            watch: false,
            dropped: 0,
        }
    }

    /// Seeks a HELLO now and looks out for one ever after.
    #[must_use]
    pub fn watching() -> Self {
        Self {
            watch: true,
            ..Self::seeking()
        }
    }

    /// Drops everything up to the next HELLO.
    pub fn lose_sync(&mut self) {
        self.synced = false;
        self.searched = self.start;
    }

    /// Bytes dropped so far while seeking.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds bytes that came in.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            // What is left is less than one frame, unless the caller reads without decoding.
            self.buffer.drain(..self.start);
            self.searched = self.searched.saturating_sub(self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole frame.
    ///
    /// # Errors
    /// [`WireError::FrameTooLong`] or [`WireError::UnknownKind`]; the decoder stands where it
    /// stood, and only [`Self::lose_sync`] gets it further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        if !self.synced {
            return Ok(self.seek());
        }
        let magic = if self.watch { self.hello_ahead() } else { None };
        if let Some(at) = magic
            && at != self.start + HEADER_LEN
            && self.frame_end().is_none_or(|end| at < end)
        {
            // The frame in hand was cut and a new session begins inside it.
            self.synced = false;
            return Ok(self.seek());
        }
        let rest = &self.buffer[self.start..];
        let Some((header, _)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (len, kind, stream) = split_header(header);
        if len as usize > MAX_PAYLOAD {
            return Err(WireError::FrameTooLong { len });
        }
        let kind = Kind::try_from(kind)?;
        let Some(payload) = rest.get(HEADER_LEN..HEADER_LEN + len as usize) else {
            return Ok(None);
        };
        let frame = Frame {
            kind,
            stream,
            payload: payload.to_vec(),
        };
        self.start += HEADER_LEN + len as usize;
        self.searched = self.searched.max(self.start);
        Ok(Some(frame))
    }

    /// Where the frame in hand ends, if its header is there and makes sense.
    fn frame_end(&self) -> Option<usize> {
        let header = self.buffer[self.start..].first_chunk::<HEADER_LEN>()?;
        let (len, kind, _) = split_header(header);
        let known = Kind::try_from(kind).is_ok() && len as usize <= MAX_PAYLOAD;
        known.then_some(self.start + HEADER_LEN + len as usize)
    }

    /// Where the next [`MAGIC`] stands in what is buffered; each byte is searched once.
    fn hello_ahead(&mut self) -> Option<usize> {
        let from = self.searched.max(self.start);
        if let Some(found) = find_magic(&self.buffer[from..]) {
            // Not past it: it must be found again until its frame is taken.
            self.searched = from + found;
            return Some(from + found);
        }
        self.searched = self.buffer.len().saturating_sub(MAGIC.len() - 1).max(from);
        None
    }

    /// Drops bytes up to a HELLO and returns that. Its header may be gone (swallowed by a frame
    /// that was cut), so the length is the fixed one.
    fn seek(&mut self) -> Option<Frame> {
        let Some(at) = self.hello_ahead() else {
            let keep = self.searched.min(self.buffer.len());
            self.drop_to(keep);
            return None;
        };
        self.drop_to(at);
        let payload = self.buffer.get(at..at + Hello::LEN)?.to_vec();
        self.start = at + Hello::LEN;
        self.searched = self.start;
        self.synced = true;
        Some(Frame {
            kind: Kind::Hello,
            stream: 0,
            payload,
        })
    }

    fn drop_to(&mut self, at: usize) {
        self.dropped += (at - self.start.min(at)) as u64;
        self.start = self.start.max(at);
    }
}

fn split_header(header: &[u8; HEADER_LEN]) -> (u32, u8, u32) {
    let [a, b, c, d, kind, e, f, g, h] = *header;
    (
        u32::from_le_bytes([a, b, c, d]),
        kind,
        u32::from_le_bytes([e, f, g, h]),
    )
}
