//! What a token opens, and all that it does not.
use axum::http::{Method, header::HeaderName};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::{api::types::token::TokenBody, world::World};

#[test]
fn only_this_machine_is_this_machine() {
    for good in [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1",
        "127.8.9.1:4581",
        "[::1]",
        "[::1]:4581",
    ] {
        assert!(is_loopback(good), "{good}");
    }
    for bad in [
        "",
        "evil.example",
        "evil.example:4581",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1:x",
        "127.0.0.1:80@evil.example",
        "[::1",
        "[::1]x",
        "::1",
        "0.0.0.0",
        "10.0.0.1:80",
        "localhost:99999",
    ] {
        assert!(!is_loopback(bad), "{bad}");
    }
}

#[test]
fn pages_of_other_places_are_refused() {
    let uri: Uri = "/v1/self".parse().unwrap();
    let with = |pairs: &[(&str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: header::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        is_local(&headers, &uri).is_ok()
    };
    assert!(with(&[("host", "127.0.0.1:1")]));
    assert!(with(&[
        ("host", "localhost"),
        ("origin", "http://localhost:3000")
    ]));
    assert!(!with(&[]));
    assert!(!with(&[("host", "rebound.example")]));
    assert!(!with(&[("host", "localhost"), ("host", "localhost")]));
    assert!(!with(&[
        ("host", "localhost"),
        ("origin", "https://evil.example")
    ]));
    assert!(!with(&[("host", "localhost"), ("origin", "null")]));
    assert!(!with(&[("host", "localhost"), ("origin", "file://")]));
}

#[test]
fn a_token_is_sent_in_one_way() {
    let with = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        bearer(&headers).map(str::to_owned).ok()
    };
    assert_eq!(with(&["Bearer rzt_a"]), Some("rzt_a".to_owned()));
    assert_eq!(with(&["bearer  rzt_a "]), Some("rzt_a".to_owned()));
    assert_eq!(with(&["Basic rzt_a"]), None);
    assert_eq!(with(&["rzt_a"]), None);
    assert_eq!(with(&["Bearer a", "Bearer b"]), None);
    assert_eq!(with(&[]), None);
}

/// A node, and what it answers to those who have a token.
struct Tokens {
    world: World,
    router: Router,
}

impl Tokens {
    async fn new() -> Self {
        let world = World::new().await;
        Self {
            router: router(world.node()),
            world,
        }
    }

    async fn token(&self, name: &str, sandboxes: bool) -> String {
        let body = TokenBody {
            name: name.into(),
            agent: Some("mender".into()),
            spaces: vec!["findings".into()],
            sandboxes,
            expires_secs: None,
        };
        let made = self.world.node().create_token(body).await.unwrap();
        assert!(made.secret.starts_with("rzt_"));
        made.secret
    }

    async fn ask(&self, token: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut request = Request::new(Body::from(match body {
            Value::Null => String::new(),
            body => body.to_string(),
        }));
        *request.method_mut() = method.parse::<Method>().unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let headers = request.headers_mut();
        headers.insert(header::HOST, "127.0.0.1:4581".parse().unwrap());
        let bearer = format!("Bearer {token}").parse().unwrap();
        headers.insert(header::AUTHORIZATION, bearer);
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_speaks_as_its_agent_in_its_spaces_and_sees_no_others() {
    let tokens = Tokens::new().await;
    let token = tokens.token("ci", false).await;
    let (status, me) = tokens.ask(&token, "GET", "/v1/self", Value::Null).await;
    assert_eq!((status, &me["agent"]["name"]), (200, &json!("mender")));
    assert_eq!(me["spaces"].as_array().unwrap().len(), 1, "{me}");
    let world = &tokens.world;
    let hidden = world.publish(&world.secrets, "the password").await;
    let body = json!({"kind": "fact", "title": "the build needs a clean cache"});
    let (status, made) = tokens.ask(&token, "POST", "/v1/memory", body).await;
    assert_eq!(status, 200, "{made}");
    let (_, listed) = tokens.ask(&token, "GET", "/v1/memory", Value::Null).await;
    let listed = listed["memories"].as_array().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["author"]["name"], "mender");
    for (method, path, body, code) in [
        (
            "POST",
            "/v1/memory",
            json!({"kind": "fact", "title": "x", "agent": "laptop"}),
            "denied",
        ),
        (
            "POST",
            "/v1/memory",
            json!({"kind": "fact", "title": "x", "space": "secrets"}),
            "denied",
        ),
        ("GET", "/v1/memory?space=secrets", Value::Null, "denied"),
        ("GET", "/v1/memory?space=nonesuch", Value::Null, "denied"),
        (
            "GET",
            &format!("/v1/why/{}", hidden.id)[..],
            Value::Null,
            "not_found",
        ),
        (
            "GET",
            &format!("/v1/memory/{}", hidden.doc)[..],
            Value::Null,
            "not_found",
        ),
        ("GET", "/v1/sandboxes", Value::Null, "denied"),
        ("POST", "/v1/sandboxes", json!({}), "denied"),
        (
            "POST",
            "/v1/sandboxes/x/exec",
            json!({"argv": ["id"]}),
            "denied",
        ),
        ("GET", "/v1/context?task=t&sandbox=x", Value::Null, "denied"),
        ("GET", "/v1/status", Value::Null, "no_route"),
        ("GET", "/v1/tokens", Value::Null, "no_route"),
        ("POST", "/v1/tokens", json!({"name": "more"}), "no_route"),
        ("POST", "/v1/down", json!({}), "no_route"),
        (
            "POST",
            "/v1/snapshots/import",
            json!({"path": "/etc"}),
            "no_route",
        ),
        ("POST", "/v1/on/laptop/v1/down", json!({}), "no_route"),
    ] {
        let (status, answer) = tokens.ask(&token, method, path, body).await;
        assert_eq!(
            answer["error"]["code"], code,
            "{method} {path} {status} {answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_none_or_was_revoked_opens_nothing_and_its_streams_end() {
    let tokens = Tokens::new().await;
    let token = tokens.token("ci", true).await;
    for bad in ["", "rzt_", &token[1..], &format!("{token}0")] {
        let (status, answer) = tokens.ask(bad, "GET", "/v1/self", Value::Null).await;
        assert_eq!(status, 401, "{answer}");
    }
    // With no sandboxes here the answer says that, not that the token may not.
    let (_, answer) = tokens
        .ask(&token, "GET", "/v1/sandboxes", Value::Null)
        .await;
    assert_eq!(answer["error"]["code"], "no_sandboxes", "{answer}");
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = "/v1/watch?follow=1".parse().unwrap();
    for (name, value) in [
        ("host", "localhost"),
        ("authorization", &format!("Bearer {token}")),
    ] {
        let name: HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let watched = tokens.router.clone().oneshot(request).await.unwrap();
    assert_eq!(watched.status(), 200);
    let node = tokens.world.node();
    node.revoke_token("ci".into()).await.unwrap();
    // Would wait for ever if the stream went on.
    watched.into_body().collect().await.unwrap();
    let (status, answer) = tokens.ask(&token, "GET", "/v1/self", Value::Null).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (401, &json!("bad_token"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_token_is_slowed() {
    let tokens = Tokens::new().await;
    let token = tokens.token("ci", false).await;
    let mut limited = false;
    for _ in 0..3_000 {
        let (status, answer) = tokens.ask(&token, "GET", "/v1/nothing", Value::Null).await;
        if status == 429 {
            assert_eq!(answer["error"]["code"], "rate_limited");
            limited = true;
            break;
        }
    }
    assert!(limited);
}
