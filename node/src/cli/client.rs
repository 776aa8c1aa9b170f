//! Speaks to the daemon: HTTP/1.1 over its Unix socket, one connection a request.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    client::conn::http1,
    header,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::{ReaderStream, StreamReader},
};

use super::failure::Failure;

/// The longest line of an event stream that is read, in bytes; a memory's text is at most 256 KiB.
const MAX_LINE_BYTES: usize = 2 * 1024 * 1024;
/// The largest answer that is read as one piece, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of an upload that are read at once.
const UPLOAD_BYTES: usize = 64 * 1024;

type Body = BoxBody<Bytes, io::Error>;

/// A way to the daemon that owns one data directory.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
    /// What every path is put behind: nothing, or the name of another node.
    prefix: String,
}

impl Client {
    /// Returns a client of the daemon that listens on `socket`; nothing is connected yet.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            prefix: String::new(),
        }
    }

    /// Returns a client whose requests the daemon passes on to `node`, or to one it chooses for
    /// `any` or `label=…`.
    pub(crate) fn on(&self, node: &str) -> Self {
        Self {
            socket: self.socket.clone(),
            prefix: format!("/v1/on/{}", encode(node)),
        }
    }

    /// Returns whether requests go to another node.
    pub(crate) fn is_elsewhere(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// Returns the socket this client speaks to.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for `path` and returns the answer.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.answer(self.send(Method::GET, path, empty(), None).await?)
            .await
    }

    /// Sends `body` to `path` and returns the answer.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.answer(self.post_raw(path, body).await?).await
    }

    /// Makes what `path` names.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.answer(self.send(Method::PUT, path, empty(), None).await?)
            .await
    }

    /// Deletes what `path` names.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.answer(self.send(Method::DELETE, path, empty(), None).await?)
            .await
    }

    /// Asks for `path` and returns its lines of JSON as they come.
    pub(crate) async fn get_lines(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<String, Failure>> + Unpin + use<>, Failure> {
        let response = self.send(Method::GET, path, empty(), None).await?;
        Ok(lines(self.accepted(response).await?))
    }

    /// Sends `body` to `path` and returns the answer's lines of JSON as they come.
    pub(crate) async fn post_lines<B: Serialize>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<impl Stream<Item = Result<String, Failure>> + Unpin + use<B>, Failure> {
        let response = self.post_raw(path, body).await?;
        Ok(lines(self.accepted(response).await?))
    }

    /// Asks for `path` and returns the answer's bytes as they come, with its headers.
    pub(crate) async fn download(&self, path: &str) -> Result<Response<Incoming>, Failure> {
        let response = self.send(Method::GET, path, empty(), None).await?;
        self.accepted(response).await
    }

    /// Sends `body` to `path` and returns the answer's bytes as they come.
    pub(crate) async fn post_download(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self.post_raw(path, body).await?;
        self.accepted(response).await
    }

    /// Puts what `reader` gives to `path`.
    pub(crate) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        reader: impl tokio::io::AsyncRead + Send + Sync + 'static,
    ) -> Result<T, Failure> {
        let frames = ReaderStream::with_capacity(reader, UPLOAD_BYTES).map_ok(Frame::data);
        let body = BodyExt::boxed(StreamBody::new(frames));
        self.answer(self.send(Method::PUT, path, body, None).await?)
            .await
    }

    /// Sends `body` to `path` and takes over the connection for `protocol`.
    pub(crate) async fn upgrade(
        &self,
        path: &str,
        protocol: &str,
        body: &impl Serialize,
    ) -> Result<TokioIo<hyper::upgrade::Upgraded>, Failure> {
        let body = serde_json::to_vec(body).expect("request types have string keys");
        let response = self
            .send(Method::POST, path, full(body), Some(protocol))
            .await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refused(response).await);
        }
        let upgraded = hyper::upgrade::on(response).await;
        upgraded
            .map(TokioIo::new)
            .map_err(|source| self.broken(source))
    }

    async fn post_raw(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Response<Incoming>, Failure> {
        let body = serde_json::to_vec(body).expect("request types have string keys");
        self.send(Method::POST, path, full(body), None).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
        upgrade: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let stream =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| Failure::Unreachable {
                    socket: self.socket.clone(),
                    source,
                })?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|source| self.broken(source))?;
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::HOST, "rhizome")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(protocol) = upgrade {
            request = request
                .header(header::CONNECTION, "upgrade")
                .header(header::UPGRADE, protocol);
        }
        let request = request
            .body(body)
            .expect("paths are built from encoded parts");
        sender
            .send_request(request)
            .await
            .map_err(|source| self.broken(source))
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        response: Response<Incoming>,
    ) -> Result<T, Failure> {
        let response = self.accepted(response).await?;
        let body = http_body_util::Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let bytes = body
            .collect()
            .await
            .map_err(|error| Failure::Protocol(error.to_string()))?;
        serde_json::from_slice(&bytes.to_bytes())
            .map_err(|error| Failure::Protocol(error.to_string()))
    }

    async fn accepted(&self, response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(response).await)
    }

    async fn refused(&self, response: Response<Incoming>) -> Failure {
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_LINE_BYTES);
        match body.collect().await {
            Ok(bytes) => Failure::from_answer(status, &bytes.to_bytes()),
            Err(error) => Failure::Protocol(error.to_string()),
        }
    }

    fn broken(&self, source: hyper::Error) -> Failure {
        Failure::Broken {
            socket: self.socket.clone(),
            source,
        }
    }
}

/// Encodes one part of a path or the value of a query parameter.
pub(crate) fn encode(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns `path` with those of `parameters` that have a value.
pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters
        .iter()
        .filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let query: Vec<_> = given
        .map(|(name, value)| format!("{name}={}", encode(value)))
        .collect();
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", query.join("&"))
    }
}

fn empty() -> Body {
    full(Vec::new())
}

fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes))
        .map_err(|never| match never {})
        .boxed()
}

/// Returns the data of a body as a reader.
pub(crate) fn reader(body: Incoming) -> impl tokio::io::AsyncRead + Unpin {
    let data = TryStreamExt::map_err(BodyStream::new(body), io::Error::other)
        .try_filter_map(|frame| async move { Ok(frame.into_data().ok()) });
    StreamReader::new(Box::pin(data))
}

fn lines(
    response: Response<Incoming>,
) -> impl Stream<Item = Result<String, Failure>> + Unpin + use<> {
    let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
    FramedRead::new(reader(response.into_body()), codec)
        .map(|line| line.map_err(|error| Failure::Protocol(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_encoded_and_absent_ones_left_out() {
        let query = [
            ("space", Some("a b&c".to_owned())),
            ("kind", None),
            ("task", Some("é".to_owned())),
        ];
        assert_eq!(
            with_query("/v1/memory", &query),
            "/v1/memory?space=a%20b%26c&task=%C3%A9"
        );
        assert_eq!(with_query("/v1/status", &[]), "/v1/status");
    }
}
