//! A guest is hostile: what it may do, and all that it may not.
use std::{sync::Arc, time::Duration};

use rhizome_identity::Hash;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    task::JoinHandle,
};

use super::*;
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(20);

/// A node, and a sandbox of its agent `mender` with the space `findings`.
struct Sandboxed {
    world: World,
    limits: Arc<Limits>,
}

impl Sandboxed {
    async fn new() -> Self {
        Self {
            world: World::new().await,
            limits: Arc::new(Limits::new(Instant::now())),
        }
    }

    fn guest(&self) -> Guest {
        Guest {
            sandbox: "sandboxsandboxsandboxsandb".into(),
            image: "debian".into(),
            agent: Some(self.world.mender),
            spaces: vec![self.world.findings],
            fingerprint: Hash::of(b"runtime"),
            limits: Arc::clone(&self.limits),
        }
    }

    fn connect(
        &self,
        guest: Guest,
        buffer: usize,
        stall: Duration,
    ) -> (DuplexStream, JoinHandle<()>) {
        let (ours, theirs) = duplex(buffer);
        let node = self.world.node();
        let (routes, stop) = (routes::guest(Arc::clone(&node)), node.stop.clone());
        let serving = serve_guest(routes, guest, ours, stall, stop);
        (theirs, tokio::spawn(serving))
    }

    async fn ask_as(
        &self,
        guest: Guest,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let (mut stream, _task) = self.connect(guest, 64 * 1024, STALL_TIMEOUT);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: door\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // A refusal may come before all of the request is read.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        parse(&answer)
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.ask_as(self.guest(), method, path, body).await
    }
}

fn parse(answer: &[u8]) -> (u16, Value) {
    let text = String::from_utf8_lossy(answer);
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_default();
    let body = text
        .split_once("\r\n\r\n")
        .map(|(_, body)| body)
        .unwrap_or_default();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn code(answer: &(u16, Value)) -> &str {
    answer.1["error"]["code"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_guest_says_is_signed_by_its_agent_and_stamped_by_its_node() {
    let sandboxed = Sandboxed::new().await;
    let (status, me) = sandboxed.ask("GET", "/v1/self", None).await;
    assert_eq!(status, 200, "{me}");
    assert_eq!(me["agent"]["name"], "mender");
    assert_eq!(me["node"]["name"], "laptop");
    assert_eq!(me["spaces"].as_array().unwrap().len(), 1);
    let body = json!({"kind": "fix", "title": "pin the parser", "fields": {"lines": "3"}});
    let (status, receipt) = sandboxed.ask("POST", "/v1/memory", Some(body)).await;
    assert_eq!(status, 200, "{receipt}");
    assert_eq!(receipt["space"], sandboxed.world.findings.to_string());
    let path = format!("/v1/memory/{}", receipt["doc"].as_str().unwrap());
    let (_, memory) = sandboxed.ask("GET", &path, None).await;
    assert_eq!(memory["author"]["id"], sandboxed.world.mender.to_string());
    assert_eq!(
        memory["fields"]["rhizome.sandbox"],
        "sandboxsandboxsandboxsandb"
    );
    assert_eq!(memory["fields"]["rhizome.image"], "debian");
    assert_eq!(memory["fields"]["lines"], "3");
    assert_eq!(memory["fingerprint"], Hash::of(b"runtime").to_string());
    assert_eq!(memory["trust"], "own");
    let (_, hits) = sandboxed
        .ask("POST", "/v1/recall", Some(json!({"query": "parser pin"})))
        .await;
    assert_eq!(hits["hits"][0]["doc"], receipt["doc"], "{hits}");
    let body = json!({"task": "mend", "goal": "green tests", "next": ["run them"]});
    let (status, saved) = sandboxed
        .ask("POST", "/v1/context/checkpoint", Some(body))
        .await;
    assert_eq!(status, 200, "{saved}");
    let (_, context) = sandboxed.ask("GET", "/v1/context?task=mend", None).await;
    assert_eq!(context["goal"], "green tests");
    assert_eq!(context["next"][0]["what"], "run them");
    assert_eq!(context["sandbox"]["id"], "sandboxsandboxsandboxsandb");
    assert_eq!(
        context["verification"]["ok"],
        context["verification"]["total"]
    );
    let missing = sandboxed.ask("GET", "/v1/context?task=nothing", None).await;
    assert_eq!((missing.0, code(&missing)), (404, "not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_nobody_else_and_nowhere_else() {
    let sandboxed = Sandboxed::new().await;
    let secret = sandboxed
        .world
        .publish(&sandboxed.world.secrets, "the password")
        .await;
    let (doc, id) = (&secret.doc, &secret.id);
    let hidden = sandboxed.world.secrets.to_string();
    let fact = |more: Value| {
        let mut body = json!({"kind": "fact", "title": "t"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        Some(body)
    };
    let forged = [
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"agent": "other"})),
            "denied",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"agent": "laptop"})),
            "denied",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"space": "secrets"})),
            "denied",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"space": hidden})),
            "denied",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"fields": {"rhizome.sandbox": "x"}})),
            "denied",
        ),
        (
            "POST",
            "/v1/memory".to_owned(),
            fact(json!({"author": "other"})),
            "bad_request",
        ),
        (
            "POST",
            "/v1/recall".to_owned(),
            Some(json!({"query": "password", "space": "secrets"})),
            "denied",
        ),
        (
            "POST",
            "/v1/context/checkpoint".to_owned(),
            Some(json!({"task": "t", "goal": "g", "agent": "other"})),
            "denied",
        ),
        (
            "POST",
            "/v1/context/checkpoint".to_owned(),
            Some(json!({"task": "t", "sandbox": {"id": "x"}})),
            "bad_request",
        ),
        ("GET", "/v1/memory?space=secrets".to_owned(), None, "denied"),
        ("GET", format!("/v1/memory/{doc}"), None, "not_found"),
        (
            "GET",
            format!("/v1/memory/{doc}?space={hidden}"),
            None,
            "denied",
        ),
        ("GET", format!("/v1/why/{id}"), None, "not_found"),
        (
            "GET",
            "/v1/watch?space=secrets&follow=1".to_owned(),
            None,
            "denied",
        ),
        (
            "GET",
            "/v1/context?task=t&space=secrets".to_owned(),
            None,
            "denied",
        ),
        (
            "GET",
            "/v1/contexts?space=secrets".to_owned(),
            None,
            "denied",
        ),
    ];
    for (method, path, body, wanted) in forged {
        let answer = sandboxed.ask(method, &path, body.clone()).await;
        assert_eq!(
            code(&answer),
            wanted,
            "{method} {path} {body:?}: {answer:?}"
        );
    }
    let (_, hits) = sandboxed
        .ask("POST", "/v1/recall", Some(json!({"query": "password"})))
        .await;
    assert_eq!(hits["hits"], json!([]));
    let (_, events) = sandboxed.ask("GET", "/v1/watch", None).await;
    // All that is left of the body is the end of its chunks.
    assert!(
        !events.is_object(),
        "nothing of another space arrives: {events}"
    );
    for path in [
        "/v1/status",
        "/v1/peers",
        "/v1/agents",
        "/v1/invites",
        "/v1/spaces",
        "/v1/sandboxes",
        "/v1/images",
        "/v1/doctor",
    ] {
        let answer = sandboxed.ask("GET", path, None).await;
        assert_eq!(code(&answer), "no_route", "{path}");
    }
    for path in ["/v1/down", "/v1/mesh/init", "/v1/mesh/join"] {
        let answer = sandboxed.ask("POST", path, Some(json!({}))).await;
        assert_eq!(code(&answer), "no_route", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_without_an_agent_can_ask_who_it_is_and_no_more() {
    let sandboxed = Sandboxed::new().await;
    let nobody = || Guest {
        agent: None,
        ..sandboxed.guest()
    };
    let (status, me) = sandboxed.ask_as(nobody(), "GET", "/v1/self", None).await;
    assert_eq!((status, &me["agent"]), (200, &Value::Null));
    let body = json!({"kind": "fact", "title": "t"});
    let answer = sandboxed
        .ask_as(nobody(), "POST", "/v1/memory", Some(body))
        .await;
    assert_eq!((answer.0, code(&answer)), (403, "no_agent"));
    let answer = sandboxed.ask_as(nobody(), "GET", "/v1/memory", None).await;
    assert_eq!(code(&answer), "no_agent");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_too_large_or_no_requests_are_refused() {
    let sandboxed = Sandboxed::new().await;
    let body = json!({"kind": "fact", "title": "t", "text": "x".repeat(2 << 20)});
    let answer = sandboxed.ask("POST", "/v1/memory", Some(body)).await;
    assert_eq!((answer.0, code(&answer)), (413, "too_large"));
    let body = json!({"kind": "fact", "title": "x".repeat(10_000)});
    let answer = sandboxed.ask("POST", "/v1/memory", Some(body)).await;
    assert_eq!((answer.0, code(&answer)), (400, "bad_draft"), "{answer:?}");
    let garbage: [&[u8]; 5] = [
        b"\0\xff\xfe garbage \r\n\r\n",
        b"GET /v1/self HTTP/9.9\r\n\r\n",
        b"POST /v1/memory HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/memory HTTP/1.1\r\nhost: d\r\nconnection: close\r\ncontent-length: 3\r\n\r\n{{{",
        b"POST /v1/memory HTTP/1.1\r\nhost: d\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ];
    let endless = [
        &b"GET /v1/self HTTP/1.1\r\nx: "[..],
        &[b'a'; 200_000],
        b"\r\n\r\n",
    ]
    .concat();
    for bytes in garbage.into_iter().chain([&endless[..]]) {
        let (mut stream, task) = sandboxed.connect(sandboxed.guest(), 64 * 1024, STALL_TIMEOUT);
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        let (status, _) = parse(&answer);
        assert!(
            !(200..300).contains(&status),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(sandboxed.ask("GET", "/v1/self", None).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_never_reads_loses_its_connection_and_nothing_else() {
    let sandboxed = Sandboxed::new().await;
    sandboxed
        .world
        .publish(&sandboxed.world.findings, "the password")
        .await;
    let stall = Duration::from_millis(50);
    let (mut stream, task) = sandboxed.connect(sandboxed.guest(), 256, stall);
    let request = "GET /v1/watch?follow=1 HTTP/1.1\r\nhost: door\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::time::timeout(PATIENCE, task)
        .await
        .expect("the connection ends")
        .unwrap();
    assert_eq!(
        sandboxed.limits.connections.available_permits(),
        limit::MAX_CONNECTIONS
    );
    // The stream's own place comes back once its task has seen the end.
    let streams = Arc::clone(&sandboxed.limits.streams);
    let all = streams.acquire_many(u32::try_from(limit::MAX_STREAMS).unwrap());
    drop(tokio::time::timeout(PATIENCE, all).await.unwrap().unwrap());
    assert_eq!(sandboxed.ask("GET", "/v1/self", None).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_has_so_many_connections_streams_and_requests() {
    let sandboxed = Sandboxed::new().await;
    let mut open: Vec<_> = (0..limit::MAX_CONNECTIONS)
        .map(|_| sandboxed.connect(sandboxed.guest(), 4096, STALL_TIMEOUT))
        .collect();
    while sandboxed.limits.connections.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let (mut one_more, task) = sandboxed.connect(sandboxed.guest(), 4096, STALL_TIMEOUT);
    let mut nothing = Vec::new();
    one_more.read_to_end(&mut nothing).await.unwrap();
    assert!(
        nothing.is_empty(),
        "a connection over the limit is closed unanswered"
    );
    task.await.unwrap();
    for (stream, _) in open.iter_mut().take(limit::MAX_STREAMS) {
        stream
            .write_all(b"GET /v1/watch?follow=1 HTTP/1.1\r\nhost: d\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    open.truncate(limit::MAX_STREAMS);
    let answer = loop {
        // The connections just closed give their places back in their own time.
        let answer = sandboxed.ask("GET", "/v1/watch?follow=1", None).await;
        if answer.0 != 0 {
            break answer;
        }
    };
    assert_eq!((answer.0, code(&answer)), (429, "too_many_streams"));
    // A guest that goes away while it follows gives its places back without an event to wake it.
    drop(open);
    let streams = Arc::clone(&sandboxed.limits.streams);
    let all = streams.acquire_many(u32::try_from(limit::MAX_STREAMS).unwrap());
    drop(tokio::time::timeout(PATIENCE, all).await.unwrap().unwrap());
    // The budget of an hour to come is spent, so nothing is earned before that.
    let later = Instant::now() + Duration::from_secs(3_600);
    while sandboxed.limits.take(later).is_ok() {}
    let answer = sandboxed.ask("GET", "/v1/self", None).await;
    assert_eq!((answer.0, code(&answer)), (429, "rate_limited"));
}
