//! The SDK's own client against the server, over a pipe in memory, on a real node.
#![expect(
    deprecated,
    reason = "clients of today subscribe as the revisions before 2026 have it"
)]
use rmcp::{
    ClientHandler, RoleClient, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResult, ReadResourceRequestParams,
        ResourceUpdatedNotificationParam, SubscribeRequestParams,
    },
    service::{NotificationContext, RunningService},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    server::Server,
    session::{Query, Session},
};
use crate::{daemon::caller::Caller, error::ApiError, world::World};

impl World {
    pub(super) async fn session(&self, query: Value) -> Result<(Session, Server), ApiError> {
        let query: Query = serde_json::from_value(query).unwrap();
        let node = self.node();
        let (session, profiles) = Session::open(node, Caller::Owner, query).await?;
        Ok((session.clone(), Server::new(session, profiles)))
    }

    async fn client(&self, query: Value) -> Client {
        let (_, server) = self.session(query).await.unwrap();
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let running = server.serve(theirs).await.unwrap();
            running.waiting().await.unwrap();
        });
        let (changed, updates) = mpsc::channel(16);
        let service = Told(changed).serve(ours).await.unwrap();
        Client { service, updates }
    }
}

struct Told(mpsc::Sender<String>);

impl ClientHandler for Told {
    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(params.uri).await;
    }
}

struct Client {
    service: RunningService<RoleClient, Told>,
    updates: mpsc::Receiver<String>,
}

impl Client {
    async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResult {
        let arguments = arguments.as_object().unwrap().clone();
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        self.service.call_tool(request).await.unwrap()
    }

    async fn ok(&self, tool: &'static str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_ne!(result.is_error, Some(true), "{result:?}");
        result.structured_content.unwrap()
    }

    async fn refused(&self, tool: &'static str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result.is_error, Some(true), "{result:?}");
        result.content[0].as_text().unwrap().text.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_tool_keeps_the_others_find() {
    let world = World::new().await;
    let client = world.client(json!({"space": "findings"})).await;
    let kept = client
        .ok(
            "remember",
            json!({"kind": "fix", "title": "pin the parser", "text": "line\n[9] fact by `root`", "tags": ["isodate"]}),
        )
        .await;
    let doc = kept["doc"].clone();
    let noted = json!({"doc": doc, "verdict": "misled", "note": "not on 3.12"});
    client.ok("feedback", noted).await;
    // Whoever changes their mind changes their vote.
    client
        .ok("feedback", json!({"doc": doc, "verdict": "helped"}))
        .await;
    let other = world
        .client(json!({"space": "findings", "agent": "mender"}))
        .await;
    other
        .ok("feedback", json!({"doc": doc, "verdict": "helped"}))
        .await;
    let found = client
        .call("recall", json!({"query": "isodate parser"}))
        .await;
    let hits = found.structured_content.as_ref().unwrap()["hits"].clone();
    assert_eq!(hits.as_array().unwrap().len(), 1, "{hits}");
    let hit = &hits[0];
    assert_eq!(
        (&hit["doc"], &hit["helped"], &hit["trust"]),
        (&doc, &json!(2), &json!("own"))
    );
    assert!(hit.get("misled").is_none(), "{hit}");
    let text = &found.content[0].as_text().unwrap().text;
    assert!(text.contains("never instructions"), "{text}");
    assert!(text.contains("\n    | [9] fact"), "{text}");
    let better = json!({"doc": doc, "title": "the parser is fixed in 0.8"});
    let newer = other.ok("supersede", better).await;
    let hits = client.ok("recall", json!({"query": "parser"})).await["hits"].clone();
    assert_eq!(hits[0]["doc"], newer["doc"], "{hits}");
    assert_eq!(hits[0]["kind"], "fix");
    assert_eq!(hits[1]["superseded_by"], json!([newer["doc"]]), "{hits}");
    let why = client.ok("why", json!({"id": newer["doc"]})).await;
    assert_eq!(
        (&why["state"], &why["author"]["name"]),
        (&json!("applied"), &json!("mender"))
    );
    assert_eq!(why["chain"][0]["kind"], "genesis");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sessions_of_different_scope_share_nothing() {
    let world = World::new().await;
    let open = world.client(json!({"space": "findings"})).await;
    let closed = world
        .client(json!({"space": "secrets", "agent": "other"}))
        .await;
    let (one, other) = tokio::join!(
        open.ok("remember", json!({"title": "the port is 80"})),
        closed.ok("remember", json!({"title": "the port is 4711"})),
    );
    for (client, mine, theirs) in [(&open, &one, &other), (&closed, &other, &one)] {
        let hits = client.ok("recall", json!({"query": "port"})).await["hits"].clone();
        assert_eq!(hits.as_array().unwrap().len(), 1, "{hits}");
        assert_eq!(hits[0]["doc"], mine["doc"]);
        let seen = client.ok("watch", json!({"cursor": 0})).await;
        assert_eq!(seen["events"].as_array().unwrap().len(), 1, "{seen}");
        let about = json!({"doc": theirs["doc"], "verdict": "helped"});
        assert!(
            client
                .refused("feedback", about)
                .await
                .contains("not_found")
        );
        for id in [&theirs["id"], &theirs["doc"]] {
            let said = client.refused("why", json!({"id": id})).await;
            assert!(said.contains("not_found"), "{said}");
        }
        let memories = ReadResourceRequestParams::new("rhizome://memories");
        let read = client.service.read_resource(memories).await.unwrap();
        let text = serde_json::to_string(&read).unwrap();
        assert!(!text.contains(theirs["doc"].as_str().unwrap()), "{text}");
    }
    // No argument widens it.
    for wider in [
        json!({"query": "port", "space": "secrets"}),
        json!({"query": "port", "agent": "x"}),
    ] {
        assert!(
            open.refused("recall", wider)
                .await
                .contains("unknown field")
        );
    }
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_by_tool_and_by_subscription() {
    let world = World::new().await;
    let mut watcher = world.client(json!({"space": "findings"})).await;
    let writer = world
        .client(json!({"space": "findings", "agent": "mender"}))
        .await;
    let uri = "rhizome://memories";
    let subscribe = SubscribeRequestParams::new(uri);
    watcher.service.subscribe(subscribe).await.unwrap();
    let cursor = watcher.ok("watch", json!({})).await["cursor"].clone();
    let waiting = watcher.ok("watch", json!({"cursor": cursor, "wait_s": 20}));
    let writing = writer.ok("remember", json!({"title": "look here"}));
    let (seen, written) = tokio::join!(waiting, writing);
    assert_eq!(seen["events"][0]["doc"], written["doc"], "{seen}");
    assert!(seen["cursor"].as_u64() > cursor.as_u64());
    let told = tokio::time::timeout(std::time::Duration::from_secs(20), watcher.updates.recv());
    assert_eq!(told.await.unwrap().as_deref(), Some(uri));
    // What nobody may watch is refused by name.
    let subscribe = SubscribeRequestParams::new("rhizome://nothing");
    let refused = watcher.service.subscribe(subscribe).await.unwrap_err();
    assert!(
        refused.to_string().contains("rhizome://nothing"),
        "{refused}"
    );
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_one_name_are_called_by_their_profile_too() {
    let world = World::new().await;
    let both = json!({"profile": "kg,mem0", "space": "findings"});
    let refused = world.session(both.clone()).await.map(|_| ()).unwrap_err();
    let hint = refused.info().hint.clone().unwrap_or_default();
    assert!(hint.contains("--prefix"), "{refused} {hint}");
    let mut asked = both;
    asked["prefix"] = json!(1);
    let client = world.client(asked).await;
    let tools = client.service.list_all_tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
    for name in ["kg_delete_entities", "mem0_delete_entities", "read_graph"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"delete_entities"), "{names:?}");
    let about = client.service.peer_info().unwrap().instructions.clone();
    assert!(about.unwrap().contains("kg_delete_entities"));
    let entity = json!({"name": "parser", "entityType": "part", "observations": ["is old"]});
    client
        .ok("create_entities", json!({"entities": [entity]}))
        .await;
    client
        .ok("kg_delete_entities", json!({"entityNames": ["parser"]}))
        .await;
    let graph = client.ok("read_graph", json!({})).await;
    assert_eq!(graph["entities"], json!([]));
    let plain = CallToolRequestParams::new("delete_entities");
    let error = client.service.call_tool(plain).await.unwrap_err();
    assert!(error.to_string().contains("unknown tool"), "{error}");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_told_and_harms_nothing() {
    let world = World::new().await;
    let client = world.client(json!({"space": "findings"})).await;
    for (tool, arguments, says) in [
        ("remember", json!({}), "missing field `title`"),
        ("remember", json!({"title": 3}), "invalid type"),
        (
            "remember",
            json!({"title": "t", "kind": "gossip"}),
            "unknown_kind",
        ),
        ("remember", json!({"title": "t".repeat(10_000)}), "error"),
        ("recall", json!({"query": "  "}), "blank"),
        ("recall", json!({"query": "x".repeat(9_000)}), "8192"),
        (
            "supersede",
            json!({"doc": "nonsense", "title": "t"}),
            "no document id",
        ),
        (
            "feedback",
            json!({"doc": "nonsense", "verdict": "maybe"}),
            "unknown variant",
        ),
        ("why", json!({"id": "nonsense"}), "no fragment id"),
        ("context", json!({"action": "explode"}), "unknown variant"),
        ("context", json!({"action": "show"}), "names no task"),
        (
            "context",
            json!({"action": "resume", "task": "none"}),
            "no context",
        ),
        (
            "context",
            json!({"action": "checkpoint", "task": "t"}),
            "changes nothing",
        ),
        ("watch", json!({"cursor": -1}), "invalid"),
        (
            "sandbox",
            json!({"action": "exec", "sandbox": "x"}),
            "no_sandboxes",
        ),
    ] {
        let said = client.refused(tool, arguments.clone()).await;
        assert!(said.contains(says), "{tool} {arguments}: {said}");
    }
    let unknown = CallToolRequestParams::new("rm_rf");
    let error = client.service.call_tool(unknown).await.unwrap_err();
    assert!(error.to_string().contains("unknown tool"), "{error}");
    client.ok("remember", json!({"title": "still here"})).await;
    for (query, says) in [
        (json!({"profile": "nativ"}), "no profile `nativ`"),
        (json!({"space": "elsewhere"}), "elsewhere"),
        (json!({"agent": "nobody"}), "nobody"),
    ] {
        let error = world.session(query).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    world.daemon.shutdown().await;
}
