//! Whose request it is.
//!
//! Asked in this order: does the host name a sandbox and a port; is the path the control plane's;
//! do headers name a sandbox; whose token is it; whose signature. Older clients send a sandbox's
//! headers with requests of the control plane too, so paths come before headers, and newer ones
//! send files with nothing but a token or a signature.
use std::{
    net::IpAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tower::ServiceExt;

use super::{
    Access, Door, ENVD_PORT, INTERPRETER_PORT, Standing, Target, control, envd,
    error::{Answer, E2bError},
    forward, interpreter, lent,
    registry::Record,
    signature::{Signed, Unsigned, constant_time_eq},
};

/// The first part of every path of the control plane.
const CONTROL: [&str; 9] = [
    "sandboxes",
    "v2",
    "v3",
    "snapshots",
    "templates",
    "volumes",
    "volumecontent",
    "secrets",
    "teams",
];
/// Paths of `envd` that are for its host alone.
const HOST_ONLY: [&str; 3] = ["/init", "/freeze", "/upgrade"];
const TOKEN_HEADER: &str = "x-access-token";
const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";
const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";

struct Routes {
    door: Arc<Door>,
    control: Router,
    envd: Router,
    interpreter: Router,
}

/// Whose a request is.
#[derive(Debug, Clone, PartialEq)]
enum Whose {
    Control,
    /// A sandbox's, if there is one of that id.
    Sandbox(String, u16),
    /// Nobody said whose; the path is one that says so otherwise.
    Unsaid,
}

/// Returns the whole door.
pub(super) fn router(door: &Arc<Door>) -> Router {
    let routes = Arc::new(Routes {
        door: Arc::clone(door),
        control: control::router(Arc::clone(door)),
        envd: envd::router().with_state(Arc::clone(door)),
        interpreter: interpreter::router().with_state(Arc::clone(door)),
    });
    Router::new().fallback(dispatch).with_state(routes)
}

async fn dispatch(State(routes): State<Arc<Routes>>, request: Request) -> Response {
    let (request, left) = lent::lend(request);
    let mut response = match routes.dispatch(request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    };
    let is_refused = response.status().is_client_error() || response.status().is_server_error();
    // A connection on which a body was left unread ends, and a client that does not know sends its
    // next request into that end.
    if is_refused && !left.read_up().await {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

impl Routes {
    async fn dispatch(&self, request: Request) -> Answer {
        let at = &self.door.at;
        let host = host(&request).unwrap_or_default().to_ascii_lowercase();
        let is_open_to_any = self.door.node.config.e2b.key.is_some();
        if !is_open_to_any && !is_ours(&host, at.domain.as_deref()) {
            // A page of a stranger whose name resolves to this machine.
            let message = "this host name does not lead here; use the address itself";
            return Err(E2bError::new(StatusCode::FORBIDDEN, "bad_host", message));
        }
        match whose(
            &host,
            at.domain.as_deref(),
            request.uri(),
            request.headers(),
        ) {
            Whose::Control => Ok(self.control.clone().oneshot(request).await.into_response()),
            Whose::Sandbox(id, port) => self.to_sandbox(&id, port, request).await,
            Whose::Unsaid => self.to_whoever_it_opens(request).await,
        }
    }

    /// Finds the sandbox by what opens it.
    async fn to_whoever_it_opens(&self, request: Request) -> Answer {
        if let Some(token) = text(request.headers(), TOKEN_HEADER) {
            return match self.door.registry.by_token(token) {
                Some(record) => self.to_sandbox(&record.id, ENVD_PORT, request).await,
                // A sandbox that is over took its token with it.
                None => Err(E2bError::gone("")),
            };
        }
        match request.uri().path() {
            "/files" => {
                let query = Query::of(request.uri());
                let (writes, now) = (*request.method() == Method::POST, now_secs());
                let fits = |record: &&Arc<Record>| {
                    // An expired one is found too, so that it is told why it is refused.
                    let checked = query.signed().check(&record.access_token, writes, now);
                    checked != Err(Unsigned::Wrong)
                };
                let all = self.door.registry.sandboxes.all();
                match all.iter().find(fits) {
                    Some(record) => self.to_sandbox(&record.id, ENVD_PORT, request).await,
                    None => Err(unauthorized("the signature is of no sandbox here")),
                }
            }
            "/health" => Ok(health(&self.door)),
            path => {
                let path = crate::daemon::memory::clip(path);
                let message = format!("there is nothing at `{path}`, and no sandbox is named");
                Err(E2bError::not_found(message))
            }
        }
    }

    async fn to_sandbox(&self, id: &str, port: u16, mut request: Request) -> Answer {
        let Some((record, info, standing)) = self.door.known(id) else {
            return Err(E2bError::gone(id));
        };
        let path = request.uri().path();
        if port == ENVD_PORT && HOST_ONLY.contains(&path) {
            return Err(E2bError::not_found("there is nothing here"));
        }
        let access = self.access(&record, port, &request)?;
        if standing == Standing::Paused {
            // Asking how a sandbox is wakes nobody.
            if !record.auto_resume || path == "/health" {
                return Err(E2bError::gone(id));
            }
            control::wake(&self.door, &record, None).await?;
        }
        let sandbox = info.id.to_string();
        if port != ENVD_PORT && port != INTERPRETER_PORT {
            return forward::forward(&self.door, &record, port, request).await;
        }
        request.extensions_mut().insert(Target {
            sandbox,
            record,
            access,
        });
        let router = match port {
            ENVD_PORT => &self.envd,
            _ => &self.interpreter,
        };
        Ok(router.clone().oneshot(request).await.into_response())
    }

    fn access(&self, record: &Record, port: u16, request: &Request) -> Answer<Access> {
        let headers = request.headers();
        let is = |name, token: &str| {
            text(headers, name)
                .is_some_and(|sent| constant_time_eq(sent.as_bytes(), token.as_bytes()))
        };
        if port != ENVD_PORT && port != INTERPRETER_PORT {
            return match &record.traffic_token {
                None => Ok(Access::Nothing),
                Some(token) if is(TRAFFIC_TOKEN_HEADER, token) => Ok(Access::Token),
                Some(_) => Err(E2bError::new(
                    StatusCode::FORBIDDEN,
                    "denied",
                    "this sandbox takes no public traffic; send `e2b-traffic-access-token`",
                )),
            };
        }
        if is(TOKEN_HEADER, &record.access_token) {
            return Ok(Access::Token);
        }
        let path = request.uri().path();
        if port == ENVD_PORT && path == "/health" {
            return Ok(Access::Nothing);
        }
        if port == INTERPRETER_PORT {
            // With what is about contexts clients send at most the token of the other ports, and
            // the interpreter says itself what is not for everybody.
            return match &record.traffic_token {
                Some(token) if is(TRAFFIC_TOKEN_HEADER, token) => Ok(Access::Nothing),
                Some(_) => Err(unauthorized("the access token is missing or wrong")),
                None => Ok(Access::Nothing),
            };
        }
        let query = Query::of(request.uri());
        if port == ENVD_PORT && path == "/files" && !query.signature.is_empty() {
            let writes = *request.method() == Method::POST;
            return match query
                .signed()
                .check(&record.access_token, writes, now_secs())
            {
                Ok(()) => Ok(Access::Signature),
                Err(Unsigned::Expired) => Err(unauthorized("the signature has expired")),
                Err(Unsigned::Wrong) => Err(unauthorized("the signature is wrong")),
            };
        }
        Err(unauthorized("the access token is missing or wrong"))
    }
}

/// Says how the node is, not how a sandbox is.
fn health(door: &Door) -> Response {
    let version = env!("CARGO_PKG_VERSION");
    match door.node.sandboxes() {
        Ok(_) => Json(json!({"status": "ok", "version": version})).into_response(),
        Err(error) => E2bError::from(error).into_response(),
    }
}

fn unauthorized(message: &str) -> E2bError {
    E2bError::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
}

fn whose(host: &str, domain: Option<&str>, uri: &Uri, headers: &HeaderMap) -> Whose {
    if let Some((id, port)) = named_by_host(host, domain) {
        return Whose::Sandbox(id, port);
    }
    let first = uri.path().split('/').nth(1).unwrap_or_default();
    let port = text(headers, PORT_HEADER).map(str::parse::<u16>);
    let other_port = matches!(port, Some(Ok(port)) if port != ENVD_PORT);
    // A program in a sandbox may have paths like ours: then a port is named, and no key is sent.
    if CONTROL.contains(&first) && (!other_port || headers.contains_key("x-api-key")) {
        return Whose::Control;
    }
    match (text(headers, ID_HEADER), port) {
        (Some(id), Some(Ok(port))) => Whose::Sandbox(id.to_owned(), port),
        (Some(id), None) => Whose::Sandbox(id.to_owned(), ENVD_PORT),
        _ => Whose::Unsaid,
    }
}

/// Reads `<port>-<sandbox>.<domain>`.
fn named_by_host(host: &str, domain: Option<&str>) -> Option<(String, u16)> {
    let name = without_port(host);
    let (label, rest) = name.split_once('.')?;
    if rest != "localhost" && Some(rest) != domain {
        return None;
    }
    let (port, id) = label.split_once('-')?;
    Some((id.to_owned(), port.parse().ok()?))
}

/// Whether a name in `Host` is this door's: an address, `localhost` or the domain, or one below.
fn is_ours(host: &str, domain: Option<&str>) -> bool {
    let name = without_port(host);
    let is_below = |domain: &str| {
        name == domain
            || name
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    name.is_empty()
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || is_below("localhost")
        || domain.is_some_and(is_below)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

fn host(request: &Request) -> Option<&str> {
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    authority.or_else(|| request.headers().get(header::HOST)?.to_str().ok())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .filter(|text| !text.is_empty())
}

fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The query of `/files`, as far as a signature is about it.
#[derive(Debug, Default)]
struct Query {
    path: String,
    user: String,
    signature: String,
    expires: Option<String>,
}

impl Query {
    fn of(uri: &Uri) -> Self {
        let mut read = Self::default();
        for pair in uri.query().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_encoding::percent_decode_str(&value)
                .decode_utf8_lossy()
                .into_owned();
            match name {
                "path" => read.path = value,
                "username" => read.user = value,
                // Base64 has a `+`, which some clients do not write as `%2B`.
                "signature" => read.signature = value.replace(' ', "+"),
                "signature_expiration" => read.expires = Some(value),
                _ => {}
            }
        }
        read
    }

    fn signed(&self) -> Signed<'_> {
        Signed {
            path: &self.path,
            user: &self.user,
            signature: &self.signature,
            expires: self.expires.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(host: &str, path: &str, headers: &[(&'static str, &str)]) -> Whose {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        whose(host, Some("box.test"), &path.parse().unwrap(), &map)
    }

    #[test]
    fn paths_come_before_headers_and_hosts_that_name_a_sandbox_before_both() {
        let of = |port| Whose::Sandbox("abc".to_owned(), port);
        let headers = [("e2b-sandbox-id", "abc"), ("e2b-sandbox-port", "49983")];
        assert_eq!(ask("127.0.0.1:1", "/files?path=a", &headers), of(49983));
        // As the client 2.20 does.
        assert_eq!(ask("127.0.0.1:1", "/sandboxes/x", &headers), Whose::Control);
        assert_eq!(ask("127.0.0.1:1", "/v2/sandboxes", &[]), Whose::Control);
        assert_eq!(ask("3000-abc.localhost:1", "/sandboxes", &[]), of(3000));
        assert_eq!(ask("49983-abc.box.test", "/files", &[]), of(49983));
        assert_eq!(ask("api.box.test", "/templates", &[]), Whose::Control);
        assert_eq!(ask("3000-abc.other.test", "/files", &[]), Whose::Unsaid);
        assert_eq!(ask("127.0.0.1", "/files", &[]), Whose::Unsaid);
        let app = [("e2b-sandbox-id", "abc"), ("e2b-sandbox-port", "3000")];
        assert_eq!(ask("127.0.0.1", "/templates", &app), of(3000));
        let bad = [("e2b-sandbox-id", "abc"), ("e2b-sandbox-port", "x")];
        assert_eq!(ask("127.0.0.1", "/files", &bad), Whose::Unsaid);
    }

    #[test]
    fn a_page_of_a_stranger_does_not_get_here_by_its_own_name() {
        for ours in [
            "127.0.0.1:80",
            "[::1]:80",
            "localhost",
            "1-a.localhost:9",
            "api.box.test",
            "",
        ] {
            assert!(is_ours(ours, Some("box.test")), "{ours}");
        }
        for strange in ["evil.test:80", "xbox.test", "localhost.evil.test"] {
            assert!(!is_ours(strange, Some("box.test")), "{strange}");
        }
        assert!(!is_ours("api.box.test", None));
    }

    #[test]
    fn a_query_is_read_as_clients_write_it() {
        let uri = "/files?path=%2Fa%20b&username=u&signature=v1_a%2Bb&signature_expiration=7";
        let query = Query::of(&uri.parse().unwrap());
        assert_eq!(query.path, "/a b");
        assert_eq!(query.signature, "v1_a+b");
        let raw = Query::of(&"/files?path=a&signature=v1_a+b".parse().unwrap());
        assert_eq!(raw.signature, "v1_a+b");
        assert_eq!(query.expires.as_deref(), Some("7"));
    }
}
