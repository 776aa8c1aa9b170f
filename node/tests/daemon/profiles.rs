//! The profiles `kg` and `mem0`, through MCP as a client speaks it.
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    support::Daemon,
    views::{mesh, until},
};

/// A client of an MCP server: a message a line.
struct Mcp<R, W> {
    reader: R,
    writer: W,
    last: u64,
    notes: Vec<Value>,
}

impl Mcp<BufReader<UnixStream>, UnixStream> {
    fn open(daemon: &Daemon, query: &str) -> Self {
        let path = format!("/v1/mcp/pipe?{query}");
        // Without a body: what is left of one would stand before the first message.
        let mut writer = UnixStream::connect(daemon.dir.join("api.sock")).unwrap();
        writer
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        write!(
            writer,
            "POST {path} HTTP/1.1\r\nhost: node\r\nconnection: upgrade\r\n\
             upgrade: rhizome-mcp/1\r\ncontent-length: 0\r\n\r\n"
        )
        .unwrap();
        let mut reader = BufReader::new(writer.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 101"), "{query}: {line}");
        while line != "\r\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0);
        }
        Self::greet(reader, writer)
    }
}

impl<R: BufRead, W: Write> Mcp<R, W> {
    fn greet(reader: R, writer: W) -> Self {
        let mut client = Self {
            reader,
            writer,
            last: 0,
            notes: Vec::new(),
        };
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        client.ask("initialize", hello);
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.writer, "{message}").unwrap();
        self.writer.flush().unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(
            self.reader.read_line(&mut line).unwrap(),
            0,
            "the server is gone"
        );
        serde_json::from_str(&line).unwrap()
    }

    /// Asks and returns the whole answer.
    fn try_ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let answer = self.receive();
            if answer["id"] == id {
                return answer;
            }
            self.notes.push(answer);
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let answer = self.try_ask(method, params);
        assert_eq!(answer["error"], Value::Null, "{method}");
        answer["result"].clone()
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool that has to succeed, and returns its structure.
    fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_ne!(result["isError"], true, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool that has to fail, and returns what it says.
    fn failed(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

fn entity(name: &str, observations: &[&str]) -> Value {
    json!({"name": name, "entityType": "thing", "observations": observations})
}

fn names(graph: &Value) -> Vec<&str> {
    let entities = graph["entities"].as_array().unwrap().iter();
    entities
        .map(|entity| entity["name"].as_str().unwrap())
        .collect()
}

/// Adds `entities` at once, each by a client of its own.
fn create_at_once(daemon: &Daemon, prefix: &str, entities: usize) {
    std::thread::scope(|scope| {
        for n in 0..entities {
            scope.spawn(move || {
                let mut client = Mcp::open(daemon, "profile=kg");
                let name = format!("{prefix}{n}");
                let new = entity(&name, &["one", "two"]);
                let created = client.done("create_entities", json!({"entities": [new]}));
                assert_eq!(names(&created), [name.as_str()]);
            });
        }
    });
}

#[test]
fn twenty_at_once_stay_and_four_nodes_have_eighty() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["one", "two", "three", "four"]);
    std::thread::scope(|scope| {
        for (n, daemon) in daemons.iter().enumerate() {
            scope.spawn(move || create_at_once(daemon, &format!("n{n}-"), 20));
        }
    });
    let mut own = Mcp::open(&daemons[0], "profile=kg");
    let graph = own.done("read_graph", json!({}));
    let mine = names(&graph)
        .iter()
        .filter(|name| name.starts_with("n0-"))
        .count();
    assert_eq!(mine, 20);
    for daemon in &daemons {
        let mut client = Mcp::open(daemon, "profile=kg");
        let graph = until("eighty entities are on every node", || {
            let graph = client.done("read_graph", json!({}));
            let is_whole = |entity: &Value| entity["observations"].as_array().unwrap().len() == 2;
            let entities = graph["entities"].as_array().unwrap();
            (entities.len() == 80 && entities.iter().all(is_whole)).then_some(graph)
        });
        let mut all = names(&graph);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 80);
    }
}

/// Every call with which the two servers are compared.
fn calls() -> Vec<(&'static str, Value)> {
    let relation =
        |from: &str, to: &str, what: &str| json!({"from": from, "to": to, "relationType": what});
    let knows = relation("Ada", "Grace", "knows");
    let lost = relation("Grace", "nobody", "seeks");
    vec![
        ("read_graph", json!({})),
        ("search_nodes", json!({"query": "Ada"})),
        (
            "create_entities",
            json!({"entities": [
                entity("Ada", &["wrote the first program", "met Babbage"]),
                entity("Grace", &[]),
                entity("ENIAC/2", &["has 18,000 valves", "适者生存"]),
            ]}),
        ),
        (
            "create_entities",
            json!({"entities": [entity("Ada", &["again"]), entity("Zuse", &["built the Z3"])]}),
        ),
        ("create_relations", json!({"relations": [knows, lost]})),
        (
            "create_relations",
            json!({"relations": [knows, relation("Ada", "Zuse", "precedes")]}),
        ),
        (
            "add_observations",
            json!({"observations": [
                {"entityName": "Grace", "contents": ["found a moth", "wrote A-0"]},
                {"entityName": "Ada", "contents": ["met Babbage", "counted"]},
            ]}),
        ),
        (
            "add_observations",
            json!({"observations": [
                {"entityName": "Grace", "contents": ["x"]},
                {"entityName": "Nobody", "contents": ["y"]},
            ]}),
        ),
        ("read_graph", json!({})),
        ("open_nodes", json!({"names": ["Zuse", "Ada", "missing"]})),
        ("open_nodes", json!({"names": []})),
        ("search_nodes", json!({"query": "BABBAGE"})),
        ("search_nodes", json!({"query": "18,000 val"})),
        ("search_nodes", json!({"query": "适者"})),
        ("search_nodes", json!({"query": "no such word"})),
        (
            "delete_observations",
            json!({"deletions": [
                {"entityName": "Ada", "observations": ["counted", "not there"]},
                {"entityName": "not there", "observations": ["x"]},
            ]}),
        ),
        (
            "delete_relations",
            json!({"relations": [knows, relation("a", "b", "c")]}),
        ),
        (
            "delete_entities",
            json!({"entityNames": ["Zuse", "not there"]}),
        ),
        ("read_graph", json!({})),
        (
            "create_entities",
            json!({"entities": [entity("Zuse", &["is back"])]}),
        ),
        ("read_graph", json!({})),
        ("create_entities", json!({"entities": [{"name": "half"}]})),
        ("search_nodes", json!({})),
    ]
}

/// The answers of the reference server (npm 2026.8.31) to [`calls`], as it gave them.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/kg-reference.json")
}

/// Checks an answer of ours against the reference's.
fn compare(tool: &str, arguments: &Value, theirs: &Value, ours: &Value) {
    let what = format!("{tool} {arguments}\ntheirs: {theirs}\n  ours: {ours}");
    if theirs["isError"] == true {
        assert_eq!(ours["isError"], true, "{what}");
        let text = |answer: &Value| answer["content"][0]["text"].as_str().unwrap().to_owned();
        // What a validator says of missing arguments is its own; that it says so is not.
        let first = |text: String| text.split(": Invalid input").next().unwrap().to_owned();
        let theirs = first(text(theirs));
        assert!(text(ours).starts_with(&theirs), "{what}");
        return;
    }
    assert_eq!(ours["isError"], theirs["isError"], "{what}");
    if tool == "search_nodes" {
        // Ours are ranked, and a query of several words also finds what has one of them.
        for entity in theirs["structuredContent"]["entities"].as_array().unwrap() {
            let ours = ours["structuredContent"]["entities"].as_array().unwrap();
            assert!(ours.contains(entity), "{what}");
        }
        for relation in theirs["structuredContent"]["relations"].as_array().unwrap() {
            let ours = ours["structuredContent"]["relations"].as_array().unwrap();
            assert!(ours.contains(relation), "{what}");
        }
        return;
    }
    assert_eq!(
        ours["structuredContent"], theirs["structuredContent"],
        "{what}"
    );
    assert_eq!(ours["content"], theirs["content"], "{what}");
}

/// Makes the calls of a reference server and returns its answers, the list of its tools first.
fn ask_reference(child: &mut Reference) -> Vec<Value> {
    let mut answers = vec![child.client.ask("tools/list", json!({}))];
    for (tool, arguments) in calls() {
        answers.push(child.client.call(tool, arguments));
    }
    answers
}

struct Reference {
    child: Child,
    client: Mcp<BufReader<ChildStdout>, ChildStdin>,
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the real reference server, if there is an `npx` and a network to get it from.
fn reference(dir: &Path) -> Option<Reference> {
    let package = "@modelcontextprotocol/server-memory@2026.8.31";
    let (told, heard) = mpsc::channel();
    let file = dir.join("memory.jsonl");
    std::thread::spawn(move || {
        let started = Command::new("npx")
            .args(["-y", package])
            .env("MEMORY_FILE_PATH", &file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else { return };
        let (Some(writer), Some(reader)) = (child.stdin.take(), child.stdout.take()) else {
            return;
        };
        let mut reader = BufReader::new(reader);
        // It is there once it answers; without a network npx ends instead.
        let mut writer = writer;
        let ping = json!({"jsonrpc": "2.0", "id": 0, "method": "ping"});
        let mut line = String::new();
        let answers = writeln!(writer, "{ping}").is_ok() && reader.read_line(&mut line).is_ok();
        if !answers || line.is_empty() || told.send((child, reader, writer)).is_err() {
            drop(told);
        }
    });
    let (child, reader, writer) = heard.recv_timeout(Duration::from_secs(90)).ok()?;
    let client = Mcp::greet(reader, writer);
    Some(Reference { child, client })
}

#[test]
fn kg_answers_as_the_recorded_reference_does() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop"]);
    let mut client = Mcp::open(&daemons[0], "profile=kg");
    let recorded: Vec<Value> = serde_json::from_slice(&fs::read(recording()).unwrap()).unwrap();
    let mut listed = recorded[0]["tools"].clone();
    for tool in listed.as_array_mut().unwrap() {
        // The default, which later protocols leave out.
        tool.as_object_mut().unwrap().remove("execution");
    }
    assert_eq!(client.ask("tools/list", json!({}))["tools"], listed);
    for ((tool, arguments), theirs) in calls().into_iter().zip(&recorded[1..]) {
        let ours = client.call(tool, arguments.clone());
        compare(tool, &arguments, theirs, &ours);
    }
    assert_eq!(recorded.len(), calls().len() + 1);
}

#[test]
fn kg_answers_as_the_real_reference_does() {
    let temp = tempfile::tempdir().unwrap();
    let Some(mut reference) = reference(temp.path()) else {
        eprintln!(
            "skipped: kg_answers_as_the_real_reference_does: install npx (npm) and a way to the npm registry"
        );
        return;
    };
    let answers = ask_reference(&mut reference);
    if std::env::var_os("RHIZOME_RECORD").is_some() {
        let text = serde_json::to_string_pretty(&answers).unwrap();
        fs::write(recording(), text + "\n").unwrap();
    }
    let daemons = mesh(temp.path(), &["laptop"]);
    let mut client = Mcp::open(&daemons[0], "profile=kg");
    for ((tool, arguments), theirs) in calls().into_iter().zip(&answers[1..]) {
        let ours = client.call(tool, arguments.clone());
        compare(tool, &arguments, theirs, &ours);
    }
    let recorded: Vec<Value> = serde_json::from_slice(&fs::read(recording()).unwrap()).unwrap();
    assert_eq!(
        answers, recorded,
        "the recording is what the reference says"
    );
}

#[test]
fn kg_ranks_words_tells_authors_and_is_watched() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop"]);
    let mut client = Mcp::open(&daemons[0], "profile=kg");
    let resources = client.ask("resources/list", json!({}));
    assert_eq!(resources["resources"][0]["uri"], "memory://knowledge-graph");
    let graph = json!({"uri": "memory://knowledge-graph"});
    client.ask("resources/subscribe", graph.clone());
    let entities = [
        entity("ci", &["the deploy ends in a timeout on arm64"]),
        entity("docs", &["nothing of the sort"]),
    ];
    client.done("create_entities", json!({"entities": entities}));
    let updated = |note: &Value| note["method"] == "notifications/resources/updated";
    while !client.notes.iter().any(updated) {
        let note = client.receive();
        client.notes.push(note);
    }
    // Words in any order: as one text they are nowhere.
    let answer = client.call("search_nodes", json!({"query": "timeout deploy"}));
    assert_eq!(names(&answer["structuredContent"]), ["ci"]);
    let author = &answer["_meta"]["rhizome/authors"]["ci"];
    assert_eq!(author["author"]["name"], "laptop", "{answer}");
    assert!(author["id"].is_string());
    let read = client.ask("resources/read", graph);
    let text = read["contents"][0]["text"].as_str().unwrap();
    assert_eq!(read["contents"][0]["mimeType"], "application/json");
    let text: Value = serde_json::from_str(text).unwrap();
    assert_eq!(text, client.done("read_graph", json!({})));
}

#[test]
fn what_one_profile_writes_every_other_finds_with_author_and_id() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop", "cloud"]);
    let (laptop, cloud) = (&daemons[0], &daemons[1]);
    let mut kg = Mcp::open(laptop, "profile=kg");
    kg.done(
        "create_entities",
        json!({"entities": [entity("heron", &["the heron nests in April"])]}),
    );
    let mut mem0 = Mcp::open(laptop, "profile=mem0");
    mem0.done(
        "add_memory",
        json!({"text": "the heron nests near the weir", "user_id": "ann"}),
    );
    laptop.post(
        "/v1/memory",
        json!({"kind": "fact", "title": "heron nests", "text": "are watched by camera", "replicas": 1}),
    );
    let wanted = ["April", "weir", "camera"];
    let has_all = |text: &str| wanted.iter().all(|word| text.contains(word));
    // Natively, on another node.
    let found = cloud.post("/v1/recall", json!({"query": "heron nests"}));
    assert!(has_all(&found.to_string()), "{found}");
    for hit in found["hits"].as_array().unwrap() {
        assert_eq!(hit["author"]["name"], "laptop");
        assert_eq!(hit["trust"], "member");
    }
    let mut kg = Mcp::open(cloud, "profile=kg,native");
    let answer = kg.call("search_nodes", json!({"query": "heron nests"}));
    let text = answer["content"][0]["text"].as_str().unwrap();
    assert!(has_all(text), "{text}");
    assert!(text.contains("said by laptop on laptop"), "{text}");
    let other = names(&answer["structuredContent"])
        .into_iter()
        .find(|name| name.starts_with("memory:"))
        .unwrap()
        .to_owned();
    let opened = kg.done("open_nodes", json!({"names": [other]}));
    assert_eq!(names(&opened), [other.as_str()]);
    let answer = kg.call("recall", json!({"query": "heron nests"}));
    assert!(
        has_all(answer["content"][0]["text"].as_str().unwrap()),
        "{answer}"
    );
    let mut mem0 = Mcp::open(cloud, "profile=mem0");
    let found = mem0.done("search_memories", json!({"query": "heron nests"}));
    assert!(has_all(&found.to_string()), "{found}");
    for hit in found["results"].as_array().unwrap() {
        assert_eq!(hit["rhizome"]["author"], "laptop");
        assert!(hit["rhizome"]["fragment"].is_string());
    }
    assert!(
        found["note"]
            .as_str()
            .unwrap()
            .contains("never instructions")
    );
}

#[test]
fn sessions_side_by_side_see_their_own_space_alone() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop"]);
    let laptop = &daemons[0];
    laptop.post("/v1/spaces", json!({"name": "private"}));
    let spaces = ["findings", "private"];
    let mut clients =
        spaces.map(|space| Mcp::open(laptop, &format!("profile=native,mem0&space={space}")));
    for n in 0..10 {
        for (client, space) in clients.iter_mut().zip(spaces) {
            let text = format!("a pelican was seen in {space}, {n} times");
            client.done("add_memory", json!({"text": text, "user_id": "ann"}));
        }
    }
    for ((client, own), other) in clients.iter_mut().zip(spaces).zip(["private", "findings"]) {
        let asked = [
            ("recall", json!({"query": "pelican", "limit": 50})),
            (
                "search_memories",
                json!({"query": "pelican", "user_id": "ann"}),
            ),
            ("get_memories", json!({"filters": {"user_id": "*"}})),
        ];
        for (tool, arguments) in asked {
            let answer = client.call(tool, arguments).to_string();
            assert!(
                answer.contains(&format!("pelican of {own}"))
                    || answer.contains(&format!("seen in {own}")),
                "{tool}: {answer}"
            );
            assert!(!answer.contains(&format!("pelican of {other}")), "{tool}");
            assert!(!answer.contains(&format!("seen in {other}")), "{tool}");
        }
    }
}

#[test]
fn an_import_serves_what_is_whole_and_names_what_is_not() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop"]);
    let laptop = &daemons[0];
    let file = temp.path().join("memory.jsonl");
    let whole = r#"{"type":"entity","name":"kept","entityType":"t","observations":["x","y"]}"#;
    let cut = r#"{"type":"entity","name":"lost","enti"#;
    let relation = r#"{"type":"relation","from":"kept","to":"kept","relationType":"is"}"#;
    fs::write(&file, format!("{whole}\n{cut}\n\n{relation}")).unwrap();
    let import = |json: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
        command.arg("--data-dir").arg(&laptop.dir);
        if json {
            command.arg("--json");
        }
        let done = command
            .args(["memory", "import"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&import(true)).unwrap();
    assert_eq!(
        (
            &report["entities"],
            &report["observations"],
            &report["relations"]
        ),
        (&json!(1), &json!(2), &json!(1)),
        "{report}"
    );
    assert_eq!(report["damaged"].as_array().unwrap().len(), 1);
    assert_eq!(report["damaged"][0]["line"], 2);
    let mut client = Mcp::open(laptop, "profile=kg");
    let graph = client.done("read_graph", json!({}));
    assert_eq!(
        graph["entities"],
        json!([{"name": "kept", "entityType": "t", "observations": ["x", "y"]}])
    );
    assert_eq!(graph["relations"].as_array().unwrap().len(), 1);
    // Once more: nothing is new, and nothing is said twice.
    let again = import(false);
    assert!(
        again.contains("imported 0 entities, 0 observations and 0 relations"),
        "{again}"
    );
    assert!(
        again.contains("line 2: the line ends in the middle of its JSON"),
        "{again}"
    );
    assert_eq!(client.done("read_graph", json!({})), graph);
}

#[test]
fn mem0_keeps_what_is_said_by_scope() {
    let temp = tempfile::tempdir().unwrap();
    let daemons = mesh(temp.path(), &["laptop"]);
    let mut client = Mcp::open(&daemons[0], "profile=mem0");
    let mut add = |arguments: Value| {
        let done = client.done("add_memory", arguments);
        let results = done["results"].as_array().unwrap().clone();
        (results, done)
    };
    let (first, _) = add(
        json!({"text": "Ann likes tea", "user_id": "ann", "metadata": {"topic": "drinks", "rank": 3}}),
    );
    assert_eq!(first[0]["event"], "ADD");
    let id = first[0]["id"].clone();
    let (again, _) = add(
        json!({"text": "Ann  likes TEA", "user_id": "ann", "metadata": {"topic": "drinks", "rank": 3}}),
    );
    assert_eq!((&again[0]["event"], &again[0]["id"]), (&json!("NONE"), &id));
    let (other, _) = add(json!({"text": "Ann likes tea", "user_id": "bob"}));
    assert_ne!(other[0]["id"], id, "another user, another memory");
    let (messages, done) = add(json!({
        "text": "ignored", "user_id": "ann", "run_id": "r1", "infer": true, "enable_graph": true,
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "I moved to Lisbon"},
            {"role": "assistant", "content": "Noted: Lisbon"},
        ],
    }));
    assert_eq!(messages.len(), 2);
    assert_eq!(done["not_done"].as_array().unwrap().len(), 2, "{done}");
    add(json!({"text": "the trial ends", "user_id": "ann", "expiration_date": "2020-01-31"}));

    let listed = |client: &mut Mcp<_, _>, arguments: Value| {
        let found = client.done("get_memories", arguments);
        let texts = found["results"].as_array().unwrap().iter();
        texts
            .map(|one| one["memory"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let all = ["Noted: Lisbon", "I moved to Lisbon", "Ann likes tea"];
    assert_eq!(listed(&mut client, json!({"user_id": "ann"})), all);
    assert_eq!(
        listed(
            &mut client,
            json!({"filters": {"user_id": "ann"}, "page": 2, "page_size": 2})
        ),
        [all[2]]
    );
    assert_eq!(
        listed(
            &mut client,
            json!({"filters": {"AND": [{"user_id": "ann"}, {"run_id": "*"}]}})
        )
        .len(),
        2
    );
    assert_eq!(
        listed(
            &mut client,
            json!({"filters": {"metadata": {"rank": {"gte": 3}}}})
        ),
        [all[2]]
    );
    assert_eq!(
        listed(
            &mut client,
            json!({"filters": {"NOT": [{"user_id": "ann"}]}})
        ),
        [all[2]]
    );
    assert_eq!(
        listed(
            &mut client,
            json!({"filters": {"keywords": {"icontains": "lisbon"}}})
        )
        .len(),
        2
    );
    assert_eq!(
        listed(&mut client, json!({"user_id": "ann", "show_expired": true})).len(),
        4
    );
    let refused = client.failed(
        "get_memories",
        json!({"filters": {"user_id": {"like": "a"}}}),
    );
    assert!(refused.contains("`like` is no operator"), "{refused}");

    let found = client.done(
        "search_memories",
        json!({"query": "where does she live: Lisbon", "user_id": "ann", "limit": 1}),
    );
    let found = &found["results"][0];
    assert_eq!(
        (&found["score"], &found["user_id"]),
        (&json!(1.0), &json!("ann")),
        "{found}"
    );

    let updated = client.done(
        "update_memory",
        json!({"memory_id": id, "text": "Ann likes coffee"}),
    );
    assert_eq!(
        (&updated["id"], &updated["memory"]),
        (&id, &json!("Ann likes coffee"))
    );
    assert_eq!(updated["metadata"]["topic"], "drinks");
    let updated = client.done(
        "update_memory",
        json!({"memory_id": id, "text": "Ann likes mate"}),
    );
    assert_eq!(updated["id"], id);
    let got = client.done("get_memory", json!({"memory_id": id}));
    assert_eq!(got["memory"], "Ann likes mate");
    let now = listed(&mut client, json!({"user_id": "ann"}));
    assert_eq!(now, ["Ann likes mate", all[0], all[1]]);

    let entities = client.done("list_entities", json!({}));
    let ann = entities["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["id"] == "ann");
    assert_eq!(ann.unwrap()["total_memories"], 4, "{entities}");
    client.done("delete_memory", json!({"memory_id": id}));
    assert!(
        client
            .failed("get_memory", json!({"memory_id": id}))
            .contains("no memory")
    );
    assert_eq!(
        listed(&mut client, json!({"user_id": "ann"})),
        [all[0], all[1]]
    );
    let unnamed = client.failed("delete_all_memories", json!({}));
    assert!(unnamed.contains("at least one of"), "{unnamed}");
    let deleted = client.done("delete_all_memories", json!({"user_id": "ann"}));
    assert_eq!(deleted["deleted"], 3);
    assert_eq!(listed(&mut client, json!({})), [all[2]], "bob's is there");
    assert!(
        client
            .failed("get_event_status", json!({"event_id": "e"}))
            .contains("no events")
    );
}
