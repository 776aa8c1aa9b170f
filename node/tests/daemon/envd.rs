//! E2B's data plane by raw HTTP: a real daemon, a real guest, none of their clients.
#[path = "envd/cells.rs"]
mod cells;
#[path = "envd/files.rs"]
mod files;
#[path = "envd/processes.rs"]
mod processes;

use std::{
    io::Read,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    e2b::wire::{Door, PATIENCE, Sandbox, debian_is_missing, send, start},
    sandbox::qemu_is_missing,
};

#[test]
fn programs_files_and_cells_answer_as_e2b_has_it() {
    let name = "programs_files_and_cells_answer_as_e2b_has_it";
    if qemu_is_missing(name) {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let daemon = start(&temp.path().join("node"), &[]);
    if debian_is_missing(name, &daemon) {
        return;
    }
    let wanted = json!({"templateID": "base", "timeout": 900, "envVars": {"FOO": "bar"}});
    let sandbox = Door::of(&daemon).create(wanted);

    nothing_is_answered_without_the_token(&sandbox);
    processes::a_program_says_its_number_its_output_and_its_end(&sandbox);
    processes::a_client_that_goes_away_ends_nothing(&sandbox);
    processes::time_that_is_over_ends_a_program(&sandbox);
    processes::input_arrives_and_ends(&sandbox);
    processes::a_terminal_has_the_size_it_was_given(&sandbox);
    files::files_come_back_as_they_were_sent(&sandbox);
    files::paths_are_made_moved_listed_and_removed(&sandbox);
    files::parts_become_one_file(&sandbox);
    files::changes_are_kept_and_streamed(&sandbox);
    cells::cells_keep_their_state(&sandbox);
    all_of_it_goes_on_after_a_pause(&sandbox);
    a_sandbox_that_dies_ends_its_streams(&sandbox);
    daemon.kill();
}

fn of_kind<'a>(said: &'a [Value], kind: &str) -> &'a Value {
    let found = said.iter().find(|said| said["type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {said:?}"))
}

fn nothing_is_answered_without_the_token(sandbox: &Sandbox) {
    let headers = [
        ("e2b-sandbox-id", &*sandbox.id),
        ("content-type", "application/json"),
    ];
    for path in ["/process.Process/List", "/files?path=a", "/envs"] {
        let method = if path.starts_with("/p") {
            "POST"
        } else {
            "GET"
        };
        let refused = send(&sandbox.addr, method, path, &headers, b"{}");
        assert_eq!(refused.status, 401, "{path}");
    }
    let health = send(&sandbox.addr, "GET", "/health", &headers[..1], b"");
    assert_eq!(health.status, 204);
    assert_eq!(sandbox.ask("POST", "/init", &[], b"{}").status, 404);
    let envs = sandbox.ask("GET", "/envs", &[], b"").json();
    assert_eq!(envs, (200, json!({"FOO": "bar"})));
    let metrics = sandbox.ask("GET", "/metrics", &[], b"").json().1;
    assert!(metrics["mem_total"].as_u64().unwrap() > metrics["mem_used"].as_u64().unwrap());
}

fn all_of_it_goes_on_after_a_pause(sandbox: &Sandbox) {
    let mut frames = sandbox.start(
        "for i in $(seq 600); do echo $i; sleep 0.2; done",
        json!({}),
        &[],
    );
    let process = json!({"process": {"pid": frames.pid()}});
    sandbox.run("mkdir -p v");
    let (_, watcher) = sandbox.filesystem("CreateWatcher", &json!({"path": "v"}));
    assert_eq!(sandbox.control("POST", "/pause", &json!({})), 204);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "unavailable", "{error}");
    let refused = sandbox.ask("GET", "/health", &[], b"").json();
    assert_eq!(refused.0, 502);
    assert!(
        refused.1["message"]
            .as_str()
            .unwrap()
            .contains("was not found")
    );
    assert_eq!(
        sandbox.control("POST", "/connect", &json!({"timeout": 900})),
        200
    );
    let mut again = sandbox.stream("/process.Process/Connect", &process, &[]);
    again.pid();
    again.until(|said| said["event"]["data"].is_object());
    sandbox.process(
        "SendSignal",
        &json!({"process": process["process"], "signal": "SIGNAL_SIGTERM"}),
    );
    assert_eq!(again.finish().1["status"], "signal: terminated");
    assert_eq!(
        of_kind(&sandbox.cell(&json!({"code": "x"})), "result")["text"],
        "41"
    );
    assert_eq!(sandbox.filesystem("GetWatcherEvents", &watcher).0, 200);
    sandbox.run("touch v/new");
    let begun = Instant::now();
    while !sandbox
        .filesystem("GetWatcherEvents", &watcher)
        .1
        .to_string()
        .contains("new")
    {
        assert!(begun.elapsed() < PATIENCE);
    }
}

fn a_sandbox_that_dies_ends_its_streams(sandbox: &Sandbox) {
    let mut frames = sandbox.start("sleep 600", json!({}), &[]);
    frames.pid();
    let headers = [
        ("content-type", "application/json"),
        ("e2b-sandbox-port", "49999"),
    ];
    let code = json!({"code": "import time\nprint('on')\ntime.sleep(600)"}).to_string();
    let mut cell = sandbox.ask("POST", "/execute", &headers, code.as_bytes());
    cell.body.read_exact(&mut [0; 8]).unwrap();
    let begun = Instant::now();
    assert_eq!(sandbox.control("DELETE", "", &json!({})), 204);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "unavailable");
    let mut rest = Vec::new();
    assert!(
        cell.body.read_to_end(&mut rest).is_err(),
        "no end that looks whole"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(sandbox.ask("GET", "/health", &[], b"").status, 502);
}
