//! Requests of HTTP/1.1, read strictly enough that we and the server can't read them differently.
//!
//! Lines end with CR LF, header names are tokens, no line is folded, a body has one length. What
//! is passed on is written anew from what was read (RFC 9112), without what is between the guest
//! and us alone: `Upgrade` and the headers that go with it, so that a connection never turns into
//! something whose requests can't be read.

mod body;
mod head;

pub(super) use body::{BodyReader, Piece};
pub(super) use head::{Head, HeadError, Length, MAX_HEAD};

/// Returns the answer that tells a guest's tool why its request went nowhere.
pub(super) fn refusal(status: &str, text: &str) -> Vec<u8> {
    let body = format!("{text}\n");
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\nx-rhizome-denied: 1\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
