//! The Connect protocol with JSON, as clients of E2B's `envd` speak it: codes, frames, deadlines.
//!
//! A stream is frames in both directions, each `u8 flags | u32 length (big-endian) | JSON`. Flag 1
//! says that a frame is compressed, which no client does and we refuse; flag 2 that it is the last:
//! `{}`, or `{"error": {"code", "message"}}`. The HTTP status of a stream is 200 whatever becomes of
//! it: clients read the error in the last frame.
//!
//! Nothing here waits, and nothing trusts its input: a length is checked before anything is held
//! for it.
use std::time::Duration;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde_json::json;

/// Largest message that a client may send, in bytes: input of 4 MiB, in base64, with room.
pub(crate) const MAX_MESSAGE_BYTES: usize = 6 * 1024 * 1024;
/// Bytes of a frame before its message.
const PREFIX_BYTES: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Digits of a deadline in milliseconds, as the protocol has it.
const MAX_TIMEOUT_DIGITS: usize = 10;
/// Longest message of an error, in bytes.
const MAX_ERROR_BYTES: usize = 2048;

/// What went wrong, in the protocol's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Canceled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Code {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// Returns the HTTP status that a unary call answers with.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Canceled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub(crate) struct ConnectError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl ConnectError {
    pub(crate) fn new(code: Code, message: impl std::fmt::Display) -> Self {
        let message = message.to_string();
        Self {
            code,
            message: rhizome_sandbox::clip(&message, MAX_ERROR_BYTES).to_owned(),
        }
    }

    pub(crate) fn invalid(message: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, message)
    }

    fn json(&self) -> serde_json::Value {
        json!({ "code": self.code.as_str(), "message": self.message })
    }
}

impl IntoResponse for ConnectError {
    /// The answer of a unary call. Streams put the error into their last frame instead.
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), axum::Json(self.json())).into_response();
        // What a client can't mend by asking again, it shall not ask again.
        let retry = match self.code {
            Code::ResourceExhausted | Code::Unavailable => "true",
            _ => "false",
        };
        response
            .headers_mut()
            .insert("should-retry", HeaderValue::from_static(retry));
        response
    }
}

/// How a client sends its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One JSON message.
    Unary,
    /// Frames.
    Stream,
}

/// Checks that a request is of the encoding that is spoken here.
pub(crate) fn check_shape(headers: &HeaderMap, shape: Shape) -> Result<(), ConnectError> {
    let said = text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let said = said.split(';').next().unwrap_or_default().trim();
    let wanted = match shape {
        Shape::Unary => "application/json",
        Shape::Stream => "application/connect+json",
    };
    if !said.eq_ignore_ascii_case(wanted) {
        return Err(ConnectError::new(
            Code::Unimplemented,
            format!("this call takes `{wanted}`; the only encoding here is JSON"),
        ));
    }
    let encodings = match shape {
        Shape::Unary => "content-encoding",
        Shape::Stream => "connect-content-encoding",
    };
    match text(headers, encodings) {
        None | Some("" | "identity") => Ok(()),
        Some(_) => Err(ConnectError::new(
            Code::Unimplemented,
            "compressed messages are not spoken here",
        )),
    }
}

/// Returns how long a client gives a call; `None` for as long as it takes.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ConnectError> {
    let Some(said) = text(headers, "connect-timeout-ms") else {
        return Ok(None);
    };
    let sound = !said.is_empty()
        && said.len() <= MAX_TIMEOUT_DIGITS
        && said.bytes().all(|byte| byte.is_ascii_digit());
    match said.parse() {
        Ok(millis) if sound => Ok(Some(Duration::from_millis(millis))),
        _ => Err(ConnectError::invalid(
            "`Connect-Timeout-Ms` is a number of at most ten digits",
        )),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// One frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message.
    Message(Bytes),
    /// The client's last frame. Connect has clients end by ending the body; some send it anyway.
    End,
}

/// Finds the frames in a body, however it is cut.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
    ended: bool,
}

impl Frames {
    /// Takes some of the body.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame that is whole. All frames have to be taken before more is put in:
    /// that is what bounds the memory they wait in.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, ConnectError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [flags, length @ ..] = *prefix;
        if self.ended {
            return Err(ConnectError::invalid("a frame comes after the last one"));
        }
        if flags & COMPRESSED != 0 {
            return Err(ConnectError::new(
                Code::Unimplemented,
                "compressed frames are not spoken here",
            ));
        }
        if flags & !END != 0 {
            return Err(ConnectError::invalid("a frame has flags that nobody knows"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(ConnectError::new(
                Code::ResourceExhausted,
                format!("a message is larger than {MAX_MESSAGE_BYTES} bytes"),
            ));
        }
        if self.buffer.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX_BYTES);
        let message = self.buffer.split_to(length).freeze();
        if flags & END != 0 {
            self.ended = true;
            return Ok(Some(Frame::End));
        }
        Ok(Some(Frame::Message(message)))
    }

    /// Ends the body.
    pub(crate) fn finish(&self) -> Result<(), ConnectError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        Err(ConnectError::invalid("the stream ends inside a frame"))
    }
}

/// Returns a frame with a message.
pub(crate) fn message(message: &impl Serialize) -> Bytes {
    frame(0, message)
}

/// Returns the last frame of a stream.
pub(crate) fn end(error: Option<&ConnectError>) -> Bytes {
    match error {
        None => frame(END, &json!({})),
        Some(error) => frame(END, &json!({ "error": error.json() })),
    }
}

fn frame(flags: u8, message: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(message).expect("what we say is plain data");
    let length = u32::try_from(json.len()).expect("what we say is bounded");
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + json.len());
    bytes.push(flags);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&json);
    bytes.into()
}

/// A body has the same frames however it is cut; the first byte says how.
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some((how, body)) = bytes.split_first() else {
        return;
    };
    let read = |piece: usize| {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for bytes in body.chunks(piece.max(1)) {
            frames.extend(bytes);
            loop {
                match frames.next() {
                    Ok(Some(frame)) => found.push(frame),
                    Ok(None) => break,
                    Err(error) => return (found, Err(error)),
                }
            }
        }
        let end = frames.finish();
        (found, end)
    };
    assert_eq!(
        read(body.len()),
        read(usize::from(*how) + 1),
        "frames depend on how the body was cut"
    );
}

/// Seeds of [`fuzz`].
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let start = message(&json!({"process": {"cmd": "/bin/bash", "args": ["-l"]}}));
    let error = end(Some(&ConnectError::not_found("no such process")));
    vec![
        [&[0], &start[..], &end(None)[..]].concat(),
        [&[6], &start[..], &message(&json!({}))[..], &error[..]].concat(),
        vec![3, 0, 0xff, 0xff, 0xff, 0xff, b'{'],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(frames: &mut Frames) -> Result<Vec<Frame>, ConnectError> {
        let mut found = Vec::new();
        while let Some(frame) = frames.next()? {
            found.push(frame);
        }
        Ok(found)
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let body = [message(&json!({"a": 1})), message(&json!({})), end(None)].concat();
        for piece in 1..=body.len() {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for bytes in body.chunks(piece) {
                frames.extend(bytes);
                found.extend(all(&mut frames).unwrap());
            }
            frames.finish().unwrap();
            let expected = [
                Frame::Message(Bytes::from_static(b"{\"a\":1}")),
                Frame::Message(Bytes::from_static(b"{}")),
                Frame::End,
            ];
            assert_eq!(found, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn hostile_frames_are_typed_errors() {
        let refused = |bytes: &[u8]| {
            let mut frames = Frames::default();
            frames.extend(bytes);
            match all(&mut frames) {
                Ok(_) => frames.finish().unwrap_err().code,
                Err(error) => error.code,
            }
        };
        // Four GiB are claimed, nothing is held for them.
        assert_eq!(
            refused(&[0, 0xff, 0xff, 0xff, 0xff]),
            Code::ResourceExhausted
        );
        assert_eq!(refused(&[1, 0, 0, 0, 0]), Code::Unimplemented);
        assert_eq!(refused(&[4, 0, 0, 0, 0]), Code::InvalidArgument);
        assert_eq!(refused(&[0, 0, 0, 0, 2, b'{']), Code::InvalidArgument);
        assert_eq!(refused(&[0, 0]), Code::InvalidArgument);
        let after = [end(None), message(&json!({}))].concat();
        assert_eq!(refused(&after), Code::InvalidArgument);
    }

    #[test]
    fn an_end_says_what_went_wrong() {
        assert_eq!(&end(None)[..], b"\x02\0\0\0\x02{}");
        let error = ConnectError::not_found("no process 7");
        let said = end(Some(&error));
        assert_eq!(said[0], 2);
        let body: serde_json::Value = serde_json::from_slice(&said[5..]).unwrap();
        assert_eq!(body["error"]["code"], "not_found");
        assert_eq!(body["error"]["message"], "no process 7");
    }

    #[test]
    fn deadlines_are_numbers() {
        let of = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("Connect-Timeout-Ms", said.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(of("60000"), Ok(Some(Duration::from_secs(60))));
        assert_eq!(of("9999999999").unwrap().unwrap().as_secs(), 9_999_999);
        for wrong in ["", "-1", "+5", "1e3", "12345678901"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        let of = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            headers
        };
        let json = of("application/json; charset=utf-8");
        assert_eq!(check_shape(&json, Shape::Unary), Ok(()));
        assert!(check_shape(&json, Shape::Stream).is_err());
        assert_eq!(
            check_shape(&of("application/connect+json"), Shape::Stream),
            Ok(())
        );
        assert!(check_shape(&of("application/proto"), Shape::Unary).is_err());
        let mut packed = of("application/json");
        packed.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(check_shape(&packed, Shape::Unary).is_err());
    }

    #[test]
    fn no_body_depends_on_how_it_is_cut() {
        let body = [message(&json!({"k": "v"})), end(None)].concat();
        for at in 0..body.len() {
            for value in [0, 1, 2, 3, 0x7f, 0xff] {
                let mut bytes = body.clone();
                bytes[at] = value;
                for how in [0, 3] {
                    fuzz(&[&[how], &bytes[..]].concat());
                }
            }
        }
    }
}
