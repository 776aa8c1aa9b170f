//! `rhizome mcp`: the standard streams of a client of MCP, carried to the node and back.
//!
//! Nothing of what passes is understood here: the server is the node's, and so is what its client may
//! touch, which follows from whose sandbox this is.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    thread,
};

use super::{
    Args, CliError,
    door::{Door, Target},
    print::Out,
};

/// What the connection speaks after its upgrade (`docs/mcp.md`).
const PROTOCOL: &str = "rhizome-mcp/1";
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves MCP until the client or the node ends it.
pub(crate) fn serve(out: &mut Out<impl Write>, args: &Args) -> Result<(), CliError> {
    let mut target = Target::new("/v1/mcp/pipe");
    for name in ["profile", "space", "task"] {
        target = target.with(name, args.one(name)?);
    }
    target = target.with("prefix", args.flag("prefix").then_some(1));
    let door = Door::from_env()?;
    let (mut from_node, to_node) = door.upgrade(&target, PROTOCOL)?;
    thread::spawn(move || {
        // A client that says no more still gets its answers; the node then closes.
        let _ = carry(&mut io::stdin().lock(), &mut &to_node);
        let _ = to_node.shutdown(Shutdown::Write);
    });
    match carry(&mut from_node, out.raw()) {
        Ok(()) => Ok(()),
        Err(Broken::Read(error)) => Err(door.lost(error)),
        Err(Broken::Write(error)) => Err(CliError::Output(error)),
    }
}

/// Which side of a copy failed.
#[derive(Debug)]
enum Broken {
    Read(io::Error),
    Write(io::Error),
}

/// Copies what comes as it comes: whoever reads waits for an answer, not for a full buffer.
fn carry(from: &mut impl Read, to: &mut impl Write) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => to
                .write_all(&buffer[..len])
                .and_then(|()| to.flush())
                .map_err(Broken::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::Read(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says one piece a call, and keeps when it was flushed.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = self.0.pop() else {
                return Ok(0);
            };
            buf[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[derive(Default)]
    struct Flushed(Vec<u8>, Vec<Vec<u8>>);

    impl Write for Flushed {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(buf);
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.1.push(std::mem::take(&mut self.0));
            Ok(())
        }
    }

    #[test]
    fn each_piece_is_handed_on_before_the_next_is_waited_for() {
        let mut to = Flushed::default();
        carry(&mut Pieces(vec![b"two\n", b"one\n"]), &mut to).unwrap();
        assert_eq!(to.1, [b"one\n".to_vec(), b"two\n".to_vec()]);
    }

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_node_that_has() {
        struct Gone;
        impl Read for Gone {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let read = carry(&mut Gone, &mut Vec::new());
        assert!(matches!(read, Err(Broken::Read(_))), "{read:?}");
        let write = carry(&mut Pieces(vec![b"x"]), &mut Gone);
        assert!(matches!(write, Err(Broken::Write(_))), "{write:?}");
    }
}
