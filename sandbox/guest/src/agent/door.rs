//! The door: connections of programs in the guest, carried to the host as streams.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use rhizome_guest::wire::Kind;

use super::{
    Agent, spawn,
    stream::{Cause, Stream},
};

/// Bytes read from a connection at once.
const READ_BYTES: usize = 32 * 1024;
/// How long to wait when the system has no room for one more connection.
const RETRY: Duration = Duration::from_millis(100);

/// Carries every connection to the host. With no host, or too many connections, they are closed.
pub(crate) fn listen(agent: &Arc<Agent>, door: &TcpListener) {
    loop {
        match door.accept() {
            Ok((socket, _)) => {
                let Some(session) = agent.session() else {
                    continue;
                };
                let Some(stream) = session.open_door() else {
                    continue;
                };
                let id = stream.id;
                let carried = {
                    let stream = Arc::clone(&stream);
                    spawn("door", move || {
                        carry(&stream, socket);
                        stream.session.forget(stream.id);
                    })
                };
                if carried.is_err() {
                    stream.send_empty(Kind::StreamReset);
                    stream.reset(Cause::Session);
                    session.forget(id);
                }
            }
            // Out of descriptors or memory: accepting at once would only spin.
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Carries a connection over a stream until both directions have ended, or either is cut.
pub(super) fn carry(stream: &Arc<Stream>, socket: TcpStream) {
    // Requests and answers are small, and someone waits for each.
    let _ = socket.set_nodelay(true);
    let socket = Arc::new(socket);
    {
        let socket = Arc::clone(&socket);
        stream.on_reset(move |_| {
            let _ = socket.shutdown(Shutdown::Both);
        });
    }
    let outward = {
        let (stream, socket) = (Arc::clone(stream), Arc::clone(&socket));
        spawn("to host", move || to_host(&stream, &socket))
    };
    let whole = outward.is_ok() && to_guest(stream, &socket);
    if !whole {
        let _ = socket.shutdown(Shutdown::Both);
    }
    let outward_whole = outward.is_ok_and(|outward| outward.join().unwrap_or(false));
    // Two ends make an end; anything else must be said.
    if !(whole && outward_whole) {
        stream.send_empty(Kind::StreamReset);
    }
}

/// Returns whether the connection's data reached the host to its end.
fn to_host(stream: &Stream, mut socket: &TcpStream) -> bool {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return !stream.is_reset() && stream.send_empty(Kind::StreamEof),
            Ok(len) => {
                if !stream.send_data(Kind::StreamData, &buffer[..len]) {
                    return false;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => {
                // The other direction waits for the host, which may have nothing to say.
                stream.close_input();
                return false;
            }
        }
    }
}

/// Returns whether the host's data reached the connection to its end.
fn to_guest(stream: &Stream, mut socket: &TcpStream) -> bool {
    while let Some(frame) = stream.next() {
        match frame.kind {
            Kind::StreamData => {
                if socket.write_all(&frame.payload).is_err() {
                    return false;
                }
            }
            _ => return socket.shutdown(Shutdown::Write).is_ok(),
        }
    }
    false
}
