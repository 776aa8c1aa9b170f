//! Secrets: the value reaches the named origin, and nothing else, and nobody inside.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and noise")]

#[path = "egress_support/client.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod client;
#[path = "egress_support/world.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod world;

use std::{
    io,
    sync::{Arc, Mutex},
};

use rhizome_sandbox::egress::{Secret, SecretParts};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};
use tokio_rustls::client::TlsStream;
use world::{Guarded, Origins, connector, listen, mirror};

const API: &str = "93.184.216.34";
const OTHER: &str = "151.101.1.69";
const VALUE: &str = "sk-live-0123456789abcdef";
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn secret() -> Secret {
    let parts = SecretParts {
        name: "API_KEY".into(),
        domain: "api.example.org".into(),
        header: "authorization".into(),
        format: "Bearer {}".into(),
        value: VALUE.to_owned().into(),
    };
    parts.try_into().unwrap()
}

/// A sandbox with the secret, an API that it is for, and another site.
struct Site {
    guarded: Guarded,
    seen: Arc<Mutex<Vec<String>>>,
    placeholder: String,
}

impl Site {
    async fn new() -> Self {
        Self::with_origins(Origins::new()).await
    }

    /// The node trusts one set of origins; these may be others.
    async fn with_origins(origins: Origins) -> Self {
        let guarded = Guarded::new("allow api.example.org, other.example");
        guarded.set("allow api.example.org, other.example", vec![secret()]);
        let seen = Arc::new(Mutex::new(Vec::new()));
        guarded.world.name("api.example.org", &[API]);
        guarded.world.name("other.example", &[OTHER]);
        let port = guarded
            .authority
            .serve("other.example", Arc::clone(&seen))
            .await;
        guarded.world.server(&format!("{OTHER}:443"), port);
        let port = origins.serve("api.example.org", Arc::clone(&seen)).await;
        guarded.world.server(&format!("{API}:8443"), port);
        let port = guarded
            .authority
            .serve("api.example.org", Arc::clone(&seen))
            .await;
        guarded.world.server(&format!("{API}:443"), port);
        let plain = Arc::clone(&seen);
        let port = listen(move |stream| mirror(stream, Arc::clone(&plain))).await;
        guarded.world.server(&format!("{API}:80"), port);
        guarded.client.lookup("api.example.org").await;
        guarded.client.lookup("other.example").await;
        Self {
            guarded,
            seen,
            placeholder: secret().placeholder(),
        }
    }

    /// Connects as a guest that trusts its sandbox's authority, and everybody outside.
    async fn tls(&self, address: &str, name: &str) -> io::Result<TlsStream<DuplexStream>> {
        let mut roots = self.guarded.authority.roots();
        let pem = self
            .guarded
            .boundaries
            .authority_pem(&self.guarded.id)
            .unwrap();
        let pem: String = pem
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        roots.add(base64(&pem).into()).unwrap();
        let stream = self.guarded.client.connect(address).await?;
        let name = name.to_owned().try_into().unwrap();
        let connected = timeout(PATIENCE, connector(roots).connect(name, stream)).await;
        connected.unwrap()
    }

    async fn api(&self) -> TlsStream<DuplexStream> {
        self.tls(&format!("{API}:443"), "api.example.org")
            .await
            .unwrap()
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut have) = (Vec::new(), 0_u32, 0);
    for digit in text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|&d| d == byte))
    {
        bits = (bits << 6) | digit as u32;
        have += 6;
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
        }
    }
    bytes
}

/// Sends a request and returns what comes back, up to an answer's end or the connection's.
async fn ask(stream: &mut TlsStream<DuplexStream>, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes()).await;
    let _ = stream.flush().await;
    let mut bytes = Vec::new();
    let whole = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            length.is_some_and(|length| body.len() >= length.parse::<usize>().unwrap())
        })
    };
    while !whole(&bytes) {
        match timeout(PATIENCE, stream.read_buf(&mut bytes))
            .await
            .unwrap()
        {
            Ok(len) if len > 0 => {}
            _ => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn the_value_reaches_its_origin_in_place_of_the_placeholder() {
    let site = Site::new().await;
    let env = site.guarded.boundaries.env(&site.guarded.id);
    assert_eq!(env["RHIZOME_SECRET_API_KEY"], site.placeholder);
    assert!(env["SSL_CERT_FILE"].ends_with(".pem"));
    let mut tls = site.api().await;
    for authorization in [
        site.placeholder.clone(),
        format!("Bearer {}", site.placeholder),
    ] {
        let answer = ask(&mut tls, &format!(
            "POST /v1 HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: {authorization}\r\nAccept-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"
        )).await;
        assert!(answer.ends_with("hello"), "{answer}");
    }
    for request in site.seen() {
        assert!(
            request.contains(&format!("authorization: Bearer {VALUE}\r\n")),
            "{request}"
        );
        assert!(
            request.contains("accept-encoding: identity\r\n") && !request.contains("rz-secret")
        );
    }
    // Without the placeholder a request is what it is.
    let answer = ask(
        &mut tls,
        "GET /mirror HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: Basic eA==\r\n\r\n",
    )
    .await;
    assert!(
        answer.contains("authorization: Basic eA==") && !answer.contains(VALUE),
        "{answer}"
    );
}

#[tokio::test]
async fn an_answer_that_holds_the_value_is_cut() {
    let mut site = Site::new().await;
    let mut tls = site.api().await;
    let answer = ask(
        &mut tls,
        &format!(
            "GET /mirror HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: {}\r\n\r\n",
            site.placeholder
        ),
    )
    .await;
    assert!(!answer.contains(&VALUE[..8]), "{answer}");
    let event = site.guarded.event().await;
    assert_eq!(
        event,
        "secret an answer of api.example.org that holds it: secret API_KEY, whose value never enters a sandbox"
    );
    assert_eq!(site.seen().len(), 1);
}

#[tokio::test]
async fn a_placeholder_anywhere_else_stops_the_request() {
    let mut site = Site::new().await;
    let placeholder = site.placeholder.clone();
    for request in [
        format!("GET /?key={placeholder} HTTP/1.1\r\nHost: api.example.org\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: api.example.org\r\nX-Key: {placeholder}\r\n\r\n"),
    ] {
        let mut tls = site.api().await;
        let answer = ask(&mut tls, &request).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("API_KEY"),
            "{answer}"
        );
    }
    assert!(
        site.guarded
            .event()
            .await
            .starts_with("secret GET api.example.org: secret API_KEY")
    );
    assert!(site.seen().is_empty());
    // In a body, also across chunks: what came before it is out, and the connection is cut.
    let mut tls = site.api().await;
    let (front, back) = placeholder.split_at(12);
    let answer = ask(&mut tls, &format!(
        "POST / HTTP/1.1\r\nHost: api.example.org\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{front}\r\n{:x}\r\n{back}\r\n0\r\n\r\n",
        back.len()
    )).await;
    assert_eq!(answer, "");
    assert!(
        site.guarded
            .event()
            .await
            .starts_with("secret the body of a request")
    );
    // Over plain HTTP there are no secrets, not even to their own domain.
    let mut plain = site
        .guarded
        .client
        .connect(format!("{API}:80"))
        .await
        .unwrap();
    let request =
        format!("GET / HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: {placeholder}\r\n\r\n");
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let seen = site.seen();
    assert!(
        seen.iter()
            .all(|request| request.starts_with("POST / ") && !request.contains("rz-secret")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_sealed_connection_is_for_its_name_alone() {
    let mut site = Site::new().await;
    let mut tls = site.api().await;
    let answer = ask(
        &mut tls,
        &format!(
            "GET / HTTP/1.1\r\nHost: other.example\r\nAuthorization: {}\r\n\r\n",
            site.placeholder
        ),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        site.guarded
            .event()
            .await
            .starts_with("http other.example over TLS to api.example.org")
    );
    // To another site TLS passes through us unread: the placeholder is all that gets there.
    let mut tls = site
        .tls(&format!("{OTHER}:443"), "other.example")
        .await
        .unwrap();
    let answer = ask(
        &mut tls,
        &format!(
            "GET / HTTP/1.1\r\nHost: other.example\r\nAuthorization: {}\r\n\r\n",
            site.placeholder
        ),
    )
    .await;
    assert!(answer.ends_with("hello"), "{answer}");
    let seen = site.seen();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].contains(VALUE), "{seen:?}");
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_gets_nothing() {
    let mut site = Site::with_origins(Origins::new()).await;
    site.guarded
        .set("allow api.example.org:443,8443", vec![secret()]);
    assert!(
        site.tls(&format!("{API}:8443"), "api.example.org")
            .await
            .is_err()
    );
    let event = site.guarded.event().await;
    assert!(
        event.starts_with(
            "secret api.example.org:8443: secrets, which go to verified servers alone"
        ),
        "{event}"
    );
    assert!(site.seen().is_empty());
}

#[tokio::test]
async fn a_secret_that_is_taken_away_is_gone_for_open_connections_too() {
    let site = Site::new().await;
    let mut tls = site.api().await;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: {}\r\n\r\n",
        site.placeholder
    );
    assert!(ask(&mut tls, &request).await.ends_with("hello"));
    site.guarded
        .set("allow api.example.org, other.example", Vec::new());
    assert_eq!(ask(&mut tls, &request).await, "");
    assert_eq!(site.seen().len(), 1);
}

#[test]
fn the_key_of_an_authority_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let id = rhizome_sandbox::SandboxId::from_bytes([7; 16]);
    let own = dir.path().join(id.to_string());
    std::fs::create_dir(&own).unwrap();
    let open = || {
        let config = rhizome_sandbox::egress::EgressConfig::new(dir.path());
        let (boundaries, _) = rhizome_sandbox::egress::Boundaries::new(config);
        let policy = "allow api.example.org".parse().unwrap();
        boundaries.define(&id, &policy, vec![secret()]).unwrap();
        boundaries
    };
    open();
    let path = own.join("authority.pem");
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let before = std::fs::read(&path).unwrap();
    open();
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
