//! Requests to the node through the door.

use std::{
    env, fmt,
    io::{self, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use rhizome_guest::wire::DOOR_PORT;
use serde_json::Value;

use super::{
    CliError,
    http::{self, Body},
};

/// How long the node may take to accept a connection, and to answer one that it will answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest answer that is read whole, in bytes.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// Where the node is reached from inside the sandbox.
#[derive(Debug)]
pub(crate) struct Door {
    url: String,
    address: SocketAddr,
}

impl Door {
    pub(crate) fn from_env() -> Result<Self, CliError> {
        let url =
            env::var("RHIZOME_URL").unwrap_or_else(|_| format!("http://127.0.0.1:{DOOR_PORT}"));
        // Names would need a resolver, and the door is a local address.
        let wrong = || CliError::Usage(format!("RHIZOME_URL is `{url}`, not http://ADDRESS:PORT"));
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(wrong)?
            .trim_end_matches('/');
        let address = match rest.strip_prefix("localhost:") {
            Some(port) => SocketAddr::new(
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                port.parse().map_err(|_| wrong())?,
            ),
            None => rest.parse().map_err(|_| wrong())?,
        };
        Ok(Self { url, address })
    }

    pub(crate) fn get(&self, target: &Target) -> Result<Value, CliError> {
        self.whole("GET", &target.0, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.whole("POST", path, Some(body))
    }

    /// Opens an answer that comes in lines, for as long as it takes.
    pub(crate) fn lines(&self, target: &Target) -> Result<Body<TcpStream>, CliError> {
        self.ask("GET", &target.0, None, None)
    }

    /// Opens a connection that speaks `protocol` from here on; what comes is read from the first half.
    pub(crate) fn upgrade(
        &self,
        target: &Target,
        protocol: &str,
    ) -> Result<(BufReader<TcpStream>, TcpStream), CliError> {
        let bytes = http::upgrade(&target.0, &self.address.to_string(), protocol);
        let opened = TcpStream::connect_timeout(&self.address, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&bytes)?;
            let back = stream.try_clone()?;
            let answer = http::switched(stream)?;
            back.set_read_timeout(None)?;
            Ok((answer, back))
        });
        match opened.map_err(|error| self.lost(error))? {
            (Ok(read), back) => Ok((read, back)),
            (Err(answer), _) => Err(self.refused(answer.status, answer.body)),
        }
    }

    pub(crate) fn lost(&self, source: io::Error) -> CliError {
        match source.kind() {
            io::ErrorKind::InvalidData => self.no_node(source),
            _ => CliError::Unreachable {
                url: self.url.clone(),
                source,
            },
        }
    }

    fn whole(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, CliError> {
        let answer = self.ask(method, path, body, Some(PATIENCE))?;
        self.json(answer)
    }

    fn ask(
        &self,
        method: &str,
        target: &str,
        body: Option<&Value>,
        patience: Option<Duration>,
    ) -> Result<Body<TcpStream>, CliError> {
        let body = body.map(Value::to_string);
        let bytes = http::request(
            method,
            target,
            &self.address.to_string(),
            body.as_deref().map(str::as_bytes),
        );
        let answer = TcpStream::connect_timeout(&self.address, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(patience)?;
            // The node may refuse before it has read all; its answer says why.
            let sent = stream.write_all(&bytes);
            http::response(stream).or_else(|error| sent.and(Err(error)))
        });
        let answer = answer.map_err(|error| self.lost(error))?;
        match answer.status {
            200..300 => Ok(answer.body),
            status => Err(self.refused(status, answer.body)),
        }
    }

    fn refused(&self, status: u16, body: Body<TcpStream>) -> CliError {
        let answer = match self.json(body) {
            Ok(answer) => answer,
            Err(error) => return error,
        };
        let error = &answer["error"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        CliError::Refused {
            code: text(&error["code"]).unwrap_or_default(),
            message: text(&error["message"])
                .unwrap_or_else(|| format!("the node answered with status {status}")),
            causes: error["causes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(text)
                .collect(),
            hint: text(&error["hint"]),
        }
    }

    fn json(&self, body: impl Read) -> Result<Value, CliError> {
        let mut bytes = Vec::new();
        body.take(MAX_ANSWER + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.lost(error))?;
        if bytes.len() as u64 > MAX_ANSWER {
            return Err(self.no_node("its answer has no end"));
        }
        serde_json::from_slice(&bytes).map_err(|error| self.no_node(error))
    }

    fn no_node(&self, what: impl fmt::Display) -> CliError {
        CliError::Protocol {
            url: self.url.clone(),
            what: what.to_string(),
        }
    }
}

/// A path with a query.
#[derive(Debug)]
pub(crate) struct Target(String);

impl Target {
    pub(crate) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// Adds a parameter, if there is one.
    pub(crate) fn with(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(name);
            self.0.push('=');
            self.0.push_str(&http::escape(&value.to_string()));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_take_what_is_given() {
        let target = Target::new("/v1/watch")
            .with("space", None::<&str>)
            .with("after", Some(7))
            .with("task", Some("a b"));
        assert_eq!(target.0, "/v1/watch?after=7&task=a%20b");
    }
}
