//! What a sandbox may reach, by the API and as seen from inside.
use serde_json::{Value, json};

use crate::{
    sandbox::run,
    support::{Daemon, code},
};

const VALUE: &str = "sk-live-0123456789abcdef";

/// Needs the sandbox `bench`, whose network is as made without a word about it.
pub(crate) fn its_owner_says_what_a_sandbox_may_reach(daemon: &Daemon) {
    nothing_is_reached_and_both_sides_are_told(daemon);
    let policy = "/v1/sandboxes/bench/policy";
    let post = |body: Value| daemon.ask("POST", policy, Some(body));
    for (body, status, what) in [
        (json!({"allow": ["https://example.org"]}), 400, "bad_policy"),
        (json!({"forget": ["example.org"]}), 404, "unknown_rule"),
        (json!({"secrets": ["API_KEY"]}), 404, "unknown_secret"),
        (json!({"policy": {"default": "maybe"}}), 400, "bad_request"),
    ] {
        let answer = post(body);
        assert_eq!((answer.0, code(&answer)), (status, what), "{answer:?}");
    }
    let secret = json!({"name": "API_KEY", "domain": "api.example.org", "value": VALUE});
    let made = daemon.post("/v1/secrets", secret);
    assert_eq!(made["variable"], "RHIZOME_SECRET_API_KEY");
    let short = json!({"name": "A", "domain": "a.example", "value": "short"});
    let refused = daemon.ask("POST", "/v1/secrets", Some(short));
    assert_eq!((refused.0, code(&refused)), (400, "bad_secret"));
    let listed = daemon.get("/v1/secrets");
    assert_eq!(listed["secrets"][0]["format"], "Bearer {}");
    assert!(!listed.to_string().contains(VALUE) && !made.to_string().contains(VALUE));

    let rules = json!({"allow": ["*.Example.org", "192.0.2.0/24:80"], "deny": ["bad.example.org"], "secrets": ["API_KEY"]});
    let (_, set) = post(rules);
    assert_eq!(
        set["shown"], "allow *.example.org, 192.0.2.0/24:80; deny bad.example.org",
        "{set}"
    );
    assert_eq!(set["secrets"], json!(["API_KEY"]));
    let (env, _, _) = run(daemon, &["sh", "-c", "env; cat $SSL_CERT_FILE"]);
    assert!(
        env.contains("RHIZOME_SECRET_API_KEY=rz-secret-api_key-"),
        "{env}"
    );
    assert!(
        env.contains("BEGIN CERTIFICATE") && !env.contains(VALUE),
        "{env}"
    );
    let (_, left) = post(json!({"forget": ["192.0.2.0/24:80"], "secrets": []}));
    assert_eq!(left["shown"], "allow *.example.org; deny bad.example.org");
    assert_eq!(
        daemon.get(policy)["policy"]["allow"],
        json!(["*.example.org"])
    );
    // Back to what it was made with, by which its memories know it.
    let (_, none) = post(json!({"policy": {}}));
    assert_eq!(none["shown"], "none");
    let gone = daemon.ask("DELETE", "/v1/secrets/API_KEY", None);
    assert_eq!(gone.0, 200, "{gone:?}");
    assert_eq!(daemon.get("/v1/secrets")["secrets"], json!([]));
}

fn nothing_is_reached_and_both_sides_are_told(daemon: &Daemon) {
    assert_eq!(daemon.get("/v1/sandboxes/bench/policy")["shown"], "none");
    run(daemon, &["nslookup", "example.org"]);
    let (inside, err, _) = run(daemon, &["rhizome", "net", "denials"]);
    assert!(
        inside.contains("network: none") && inside.contains("dns example.org"),
        "{inside}{err}"
    );
    assert!(
        inside.contains("ask: ask the sandbox's owner for"),
        "{inside}"
    );
    let outside = daemon.get("/v1/sandboxes/bench/egress/denials");
    assert_eq!(
        outside["denials"][0]["rule"], "the policy `none`",
        "{outside}"
    );
    let log = daemon.get("/v1/audit?after=0&limit=1000");
    let entries = log["entries"].as_array().unwrap();
    let denied = entries
        .iter()
        .find(|entry| entry["action"] == "egress.denied");
    let detail = denied.unwrap_or_else(|| panic!("{log}"))["detail"]
        .as_str()
        .unwrap();
    assert!(detail.starts_with("dns example.org: "), "{detail}");
}
