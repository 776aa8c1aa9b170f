//! Connections of the host to ports of the guest.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rhizome_guest::wire::{Connect, FailureCode, Frame, Kind};

use super::{
    door::carry,
    failure::{self, Failed},
    stream::Stream,
};

/// How long a server may take to accept; its backlog is full then.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// Connects to a port, and carries the connection to its end.
pub(crate) fn run(stream: &Arc<Stream>, frame: &Frame) {
    let socket = match frame.message() {
        Ok(Connect { port }) => connect(port),
        Err(error) => Err(Failed::from(error)),
    };
    match socket {
        Ok(socket) => {
            if stream.send_empty(Kind::Connected) {
                carry(stream, socket);
            }
        }
        Err(Failed(failure)) => {
            stream.send(Kind::Failed, &failure);
        }
    }
}

fn connect(port: u16) -> Result<TcpStream, Failed> {
    let mut refused = None;
    // Some servers listen on one of them only.
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ] {
        match TcpStream::connect_timeout(&address, CONNECTS_WITHIN) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let error = refused.unwrap_or_else(|| io::Error::other("no address"));
    Err(match error.kind() {
        io::ErrorKind::ConnectionRefused => Failed(failure::of(FailureCode::Refused, error)),
        io::ErrorKind::TimedOut => Failed(failure::of(FailureCode::TimedOut, error)),
        _ => Failed::from(error),
    })
}
