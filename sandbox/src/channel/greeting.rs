//! The first frames of a session.

use std::{io, time::Duration};

use rhizome_guest::wire::{Frame, FrameDecoder, Hello, Kind, PROTOCOL_VERSION, Ready};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{ChannelError, mux};

/// How often the greeting is repeated. One is lost when the guest is still in the middle of a
/// frame that our predecessor never finished.
const REPEAT: Duration = Duration::from_secs(1);
/// Bytes of an older session that may come before the answer: all windows full, and more.
const MAX_STALE_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) decoder: FrameDecoder,
    pub(super) boot: [u8; 16],
    /// What the guest can do beyond its version.
    pub(super) flags: u32,
    pub(super) ready: Ready,
}

pub(super) async fn greet(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    deadline: Duration,
) -> Result<Greeted, ChannelError> {
    let mut nonce = [0; 16];
    getrandom(&mut nonce, GetRandomFlags::empty())
        .map_err(|error| ChannelError::io(io::Error::from(error)))?;
    let hello = Hello {
        version: PROTOCOL_VERSION,
        nonce,
        boot: [0; 16],
        flags: 0,
    };
    let mut greeting = Vec::new();
    Frame::new(Kind::Hello, 0, &hello)
        .encode(&mut greeting)
        .map_err(mux::malformed)?;

    let listen = listen(reader, nonce);
    let repeat = async {
        let mut ticks = interval(REPEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if writer.write_all(&greeting).await.is_err() {
                // The listener sees the end too, and says it better.
                return std::future::pending::<()>().await;
            }
        }
    };
    let greeted = async {
        tokio::select! {
            greeted = listen => greeted,
            () = repeat => unreachable!("the greeting is repeated until it is answered"),
        }
    };
    timeout(deadline, greeted)
        .await
        .unwrap_or(Err(ChannelError::NotReady { after: deadline }))
}

async fn listen(
    reader: &mut (impl AsyncRead + Unpin),
    nonce: [u8; 16],
) -> Result<Greeted, ChannelError> {
    let mut decoder = FrameDecoder::seeking();
    let mut boot = None;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        while let Some(frame) = decoder.next_frame().map_err(mux::malformed)? {
            match (frame.kind, boot) {
                (Kind::Hello, _) => {
                    let hello: Hello = mux::decode(&frame)?;
                    if hello.nonce != nonce {
                        // Left over from an older session, or chosen to look so.
                        boot = None;
                        decoder.lose_sync();
                        continue;
                    }
                    if hello.version != PROTOCOL_VERSION {
                        return Err(ChannelError::Version {
                            guest: hello.version,
                            host: PROTOCOL_VERSION,
                        });
                    }
                    boot = Some((hello.boot, hello.flags));
                }
                (Kind::Ready, Some((boot, flags))) => {
                    let mut ready: Ready = mux::decode(&frame)?;
                    for warning in &mut ready.warnings {
                        *warning = super::error::printable(warning);
                    }
                    return Ok(Greeted {
                        decoder,
                        boot,
                        flags,
                        ready,
                    });
                }
                _ => return Err(mux::misbehaved("it speaks before it is ready")),
            }
        }
        if decoder.dropped() > MAX_STALE_BYTES {
            return Err(ChannelError::Garbage {
                bytes: decoder.dropped(),
            });
        }
        match reader.read(&mut buffer).await {
            Ok(0) => return Err(ChannelError::Gone),
            Ok(len) => decoder.extend(&buffer[..len]),
            Err(error) => return Err(ChannelError::io(error)),
        }
    }
}
