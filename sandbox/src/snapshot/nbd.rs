//! The one way in which a monitor asks for a disk: NBD, as its specification says, of one export.
//!
//! The guest may have taken its monitor over, so nothing that comes is trusted: lengths are
//! bounded before anything is allocated, so are the requests at work, and whatever is out of line
//! ends the session. Replies are simple ones; each request is answered when its bytes are there,
//! so one that waits holds up no other.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Mutex, Semaphore},
    task::JoinSet,
};

/// Most bytes of one request; the monitor is told.
const MAX_BYTES: u32 = 1024 * 1024;
/// Requests at work at once.
const MAX_REQUESTS: usize = 16;
/// Longest option of the opening, and how many.
const MAX_OPTION_BYTES: u32 = 4096;
const MAX_OPTIONS: usize = 32;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Fixed newstyle, without padding after the opening.
const OPENING_FLAGS: u16 = 0b11;
/// It has flags; it takes flushes, discards and zeroing.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 5 | 1 << 6;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;
const REPLY_UNKNOWN: u32 = 1 << 31 | 6;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_DISCARD: u16 = 4;
const COMMAND_ZERO: u16 = 6;
/// Of [`COMMAND_ZERO`]: not as a hole.
const FLAG_NO_HOLE: u16 = 1 << 1;

/// What is refused with.
const EIO: u32 = 5;
const EINVAL: u32 = 22;

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Read { at: u64, length: u32 },
    Write { at: u64, bytes: Vec<u8> },
    Discard { at: u64, length: u32 },
    Zero { at: u64, length: u32, keep: bool },
}

/// Answers requests.
pub(super) trait Export: Send + Sync + 'static {
    /// The name that the monitor asks for.
    fn name(&self) -> String;
    fn size(&self) -> u64;
    /// Returns the bytes of a read, and nothing for the others; `None` if it cannot be done now.
    fn answer(&self, request: Request) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// Serves one connection until it ends. No request is at work any more when this returns.
pub(super) async fn serve<E: Export>(
    mut reader: impl AsyncRead + Unpin + Send,
    mut writer: impl AsyncWrite + Unpin + Send + 'static,
    export: &Arc<E>,
) -> io::Result<()> {
    if !open(&mut reader, &mut writer, &**export).await? {
        return Ok(());
    }
    let writer = Arc::new(Mutex::new(writer));
    let room = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut at_work = JoinSet::new();
    let ended = loop {
        let permit = Arc::clone(&room).acquire_owned().await;
        let permit = permit.expect("nobody closes it");
        // What ended is of no interest; a set that only grew would be.
        while at_work.try_join_next().is_some() {}
        let (handle, request) = match next(&mut reader, export.size()).await {
            Ok(Some(next)) => next,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let (export, writer) = (Arc::clone(export), Arc::clone(&writer));
        at_work.spawn(async move {
            let (error, bytes) = match request {
                Asked::For(request) => match export.answer(request).await {
                    Some(bytes) => (0, bytes),
                    None => (EIO, Vec::new()),
                },
                Asked::Flush => (0, Vec::new()),
                Asked::Nonsense => (EINVAL, Vec::new()),
            };
            let mut reply = Vec::with_capacity(16 + bytes.len());
            reply.extend(REPLY_MAGIC.to_be_bytes());
            reply.extend(error.to_be_bytes());
            reply.extend(handle);
            reply.extend(bytes);
            // A monitor that went is noticed where it is read from.
            let _ = writer.lock().await.write_all(&reply).await;
            drop(permit);
        });
    };
    while at_work.join_next().await.is_some() {}
    ended
}

enum Asked {
    For(Request),
    Flush,
    Nonsense,
}

/// Reads the next request; `None` if there will be none.
async fn next(
    reader: &mut (impl AsyncRead + Unpin),
    size: u64,
) -> io::Result<Option<([u8; 8], Asked)>> {
    let mut head = [0; 28];
    match reader.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => drop(read?),
    }
    let word = |at: usize| u32::from_be_bytes(*head[at..].first_chunk().expect("28 bytes"));
    let half = |at: usize| u16::from_be_bytes(*head[at..].first_chunk().expect("28 bytes"));
    if word(0) != REQUEST_MAGIC {
        return Err(invalid("a request has another beginning"));
    }
    let (flags, command, length) = (half(4), half(6), word(24));
    let handle: [u8; 8] = *head[8..].first_chunk().expect("28 bytes");
    let at = u64::from_be_bytes(*head[16..].first_chunk().expect("28 bytes"));
    let fits = at.checked_add(length.into()).is_some_and(|end| end <= size);
    let asked = match command {
        COMMAND_DISCONNECT => return Ok(None),
        COMMAND_FLUSH => Asked::Flush,
        COMMAND_READ | COMMAND_WRITE if length > MAX_BYTES => {
            return Err(invalid("a request is longer than was agreed"));
        }
        COMMAND_WRITE => {
            let mut bytes = vec![0; length as usize];
            reader.read_exact(&mut bytes).await?;
            match fits {
                true => Asked::For(Request::Write { at, bytes }),
                false => Asked::Nonsense,
            }
        }
        _ if !fits => Asked::Nonsense,
        COMMAND_READ => Asked::For(Request::Read { at, length }),
        COMMAND_DISCARD => Asked::For(Request::Discard { at, length }),
        COMMAND_ZERO => Asked::For(Request::Zero {
            at,
            length,
            keep: flags & FLAG_NO_HOLE != 0,
        }),
        _ => Asked::Nonsense,
    };
    Ok(Some((handle, asked)))
}

/// Agrees on the export; `false` if the monitor goes without one.
async fn open<E: Export>(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    export: &E,
) -> io::Result<bool> {
    let mut hello = Vec::new();
    hello.extend(MAGIC.to_be_bytes());
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OPENING_FLAGS.to_be_bytes());
    writer.write_all(&hello).await?;
    if reader.read_u32().await? & !u32::from(OPENING_FLAGS) != 0 {
        return Err(invalid("flags that were not offered"));
    }
    let described = |size: u64| {
        let mut info = size.to_be_bytes().to_vec();
        info.extend(EXPORT_FLAGS.to_be_bytes());
        info
    };
    for _ in 0..MAX_OPTIONS {
        if reader.read_u64().await? != OPTION_MAGIC {
            return Err(invalid("an option has another beginning"));
        }
        let (option, length) = (reader.read_u32().await?, reader.read_u32().await?);
        if length > MAX_OPTION_BYTES {
            return Err(invalid("an option is too long"));
        }
        let mut data = vec![0; length as usize];
        reader.read_exact(&mut data).await?;
        let reply = |kind: u32, data: &[u8]| {
            let mut reply = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend(option.to_be_bytes());
            reply.extend(kind.to_be_bytes());
            reply.extend(u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
            reply.extend(data);
            reply
        };
        match option {
            OPTION_ABORT => {
                writer.write_all(&reply(REPLY_ACK, &[])).await?;
                return Ok(false);
            }
            OPTION_EXPORT_NAME => {
                if data != export.name().as_bytes() {
                    return Err(invalid("no such export"));
                }
                writer.write_all(&described(export.size())).await?;
                return Ok(true);
            }
            OPTION_INFO | OPTION_GO => {
                if wanted_name(&data) != Some(export.name().as_bytes()) {
                    writer.write_all(&reply(REPLY_UNKNOWN, &[])).await?;
                    continue;
                }
                let mut info = INFO_EXPORT.to_be_bytes().to_vec();
                info.extend(described(export.size()));
                let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                for size in [512_u32, 64 * 1024, MAX_BYTES] {
                    sizes.extend(size.to_be_bytes());
                }
                let mut all = reply(REPLY_INFO, &info);
                all.extend(reply(REPLY_INFO, &sizes));
                all.extend(reply(REPLY_ACK, &[]));
                writer.write_all(&all).await?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            _ => writer.write_all(&reply(REPLY_UNSUPPORTED, &[])).await?,
        }
    }
    Err(invalid("options without end"))
}

/// Returns the name in the data of [`OPTION_GO`].
fn wanted_name(data: &[u8]) -> Option<&[u8]> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex, split};

    struct Memory(std::sync::Mutex<Vec<u8>>);

    impl Export for Memory {
        fn name(&self) -> String {
            "disk1".to_owned()
        }

        fn size(&self) -> u64 {
            4096
        }

        async fn answer(&self, request: Request) -> Option<Vec<u8>> {
            let mut memory = self.0.lock().unwrap();
            match request {
                Request::Read { at: 1024, .. } => None,
                Request::Read { at, length } => {
                    let at = usize::try_from(at).unwrap();
                    Some(memory[at..at + length as usize].to_vec())
                }
                Request::Write { at, bytes } => {
                    let at = usize::try_from(at).unwrap();
                    memory[at..at + bytes.len()].copy_from_slice(&bytes);
                    Some(Vec::new())
                }
                _ => Some(Vec::new()),
            }
        }
    }

    type Served = tokio::task::JoinHandle<io::Result<()>>;

    async fn begin() -> (DuplexStream, Served) {
        let (mut ours, theirs) = duplex(1 << 16);
        let export = Arc::new(Memory(std::sync::Mutex::new(vec![7; 4096])));
        let served = tokio::spawn(async move {
            let (reader, writer) = split(theirs);
            serve(reader, writer, &export).await
        });
        let mut hello = [0; 18];
        ours.read_exact(&mut hello).await.unwrap();
        ours.write_u32(OPENING_FLAGS.into()).await.unwrap();
        (ours, served)
    }

    async fn option(stream: &mut DuplexStream, option: u32, name: &[u8]) {
        let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        data.extend(name);
        data.extend([0; 2]);
        stream.write_u64(OPTION_MAGIC).await.unwrap();
        stream.write_u32(option).await.unwrap();
        stream
            .write_u32(u32::try_from(data.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(&data).await.unwrap();
    }

    /// Reads replies until one that is not information.
    async fn replied(stream: &mut DuplexStream) -> u32 {
        loop {
            assert_eq!(stream.read_u64().await.unwrap(), OPTION_REPLY_MAGIC);
            stream.read_u32().await.unwrap();
            let kind = stream.read_u32().await.unwrap();
            let mut data = vec![0; stream.read_u32().await.unwrap() as usize];
            stream.read_exact(&mut data).await.unwrap();
            if kind != REPLY_INFO {
                return kind;
            }
        }
    }

    async fn request(stream: &mut DuplexStream, command: u16, at: u64, length: u32, data: &[u8]) {
        let mut head = REQUEST_MAGIC.to_be_bytes().to_vec();
        head.extend(0_u16.to_be_bytes());
        head.extend(command.to_be_bytes());
        head.extend(at.to_be_bytes());
        head.extend(at.to_be_bytes());
        head.extend(length.to_be_bytes());
        head.extend(data);
        stream.write_all(&head).await.unwrap();
    }

    async fn error_of(stream: &mut DuplexStream, handle: u64) -> u32 {
        assert_eq!(stream.read_u32().await.unwrap(), REPLY_MAGIC);
        let error = stream.read_u32().await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), handle);
        error
    }

    #[tokio::test]
    async fn an_export_is_opened_read_and_written() {
        let (mut stream, served) = begin().await;
        option(&mut stream, 8, b"").await;
        assert_eq!(replied(&mut stream).await, REPLY_UNSUPPORTED);
        option(&mut stream, OPTION_GO, b"another").await;
        assert_eq!(replied(&mut stream).await, REPLY_UNKNOWN);
        option(&mut stream, OPTION_GO, b"disk1").await;
        assert_eq!(replied(&mut stream).await, REPLY_ACK);
        request(&mut stream, COMMAND_WRITE, 512, 3, b"abc").await;
        assert_eq!(error_of(&mut stream, 512).await, 0);
        request(&mut stream, COMMAND_READ, 511, 5, b"").await;
        assert_eq!(error_of(&mut stream, 511).await, 0);
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"\x07abc\x07");
        // What cannot be had, what is outside, what there is not.
        request(&mut stream, COMMAND_READ, 1024, 1, b"").await;
        assert_eq!(error_of(&mut stream, 1024).await, EIO);
        request(&mut stream, COMMAND_READ, 4096, 1, b"").await;
        assert_eq!(error_of(&mut stream, 4096).await, EINVAL);
        request(&mut stream, COMMAND_READ, u64::MAX, 2, b"").await;
        assert_eq!(error_of(&mut stream, u64::MAX).await, EINVAL);
        request(&mut stream, 77, 0, 0, b"").await;
        assert_eq!(error_of(&mut stream, 0).await, EINVAL);
        request(&mut stream, COMMAND_DISCONNECT, 0, 0, b"").await;
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_monitor_out_of_line_is_given_up() {
        let (mut stream, served) = begin().await;
        stream.write_all(&[0; 64]).await.unwrap();
        assert!(served.await.unwrap().is_err());

        let (mut stream, served) = begin().await;
        stream.write_u64(OPTION_MAGIC).await.unwrap();
        stream.write_u32(OPTION_GO).await.unwrap();
        stream.write_u32(u32::MAX).await.unwrap();
        assert!(served.await.unwrap().is_err());

        let (mut stream, served) = begin().await;
        option(&mut stream, OPTION_GO, b"disk1").await;
        replied(&mut stream).await;
        request(&mut stream, COMMAND_WRITE, 0, MAX_BYTES + 1, b"").await;
        assert!(served.await.unwrap().is_err());
    }
}
