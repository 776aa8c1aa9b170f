//! Programs: started, listened to, given input, ended.
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::e2b::wire::{Frames, Sandbox, encoded, frame};

pub(super) fn a_program_says_its_number_its_output_and_its_end(sandbox: &Sandbox) {
    let script = "ps -o pid= -p $$ | tr -d ' '; echo $FOO; echo err >&2; exit 3";
    let mut frames = sandbox.start(script, json!({}), &[]);
    let pid = frames.pid();
    let (output, end, error) = frames.finish();
    assert!(output.contains(&format!("{pid}\n")), "{pid}: {output}");
    assert!(
        output.contains("bar\n") && output.contains("err\n"),
        "{output}"
    );
    assert_eq!((&end["exitCode"], &error), (&json!(3), &Value::Null));

    let mut frames = sandbox.start("exec sleep 100", json!({"tag": "napper"}), &[]);
    let pid = frames.pid();
    let listed = sandbox.process("List", &json!({}));
    let all = listed["processes"].as_array().unwrap();
    let found = all.iter().find(|one| one["pid"] == pid).unwrap();
    assert_eq!(found["tag"], "napper");
    assert_eq!(found["config"]["args"][2], "exec sleep 100");
    let kill = json!({"process": {"tag": "napper"}, "signal": "SIGNAL_SIGKILL"});
    sandbox.process("SendSignal", &kill);
    let (_, end, _) = frames.finish();
    assert_eq!(end["exitCode"], -1);
    assert_eq!(end["status"], "signal: killed");
    let missing = json!({"process": {"pid": 99_999_999}, "signal": "SIGNAL_SIGKILL"});
    let (status, answer) = sandbox.call("/process.Process/SendSignal", &missing);
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));

    // Errors of streams come in a stream.
    let user = format!("Basic {}", encoded("nobody-at-all:"));
    let frames = sandbox.start("true", json!({}), &[("authorization", &user)]);
    assert_eq!(frames.finish().2["code"], "unauthenticated");
    let connect = json!({"process": {"pid": 99_999_999}});
    let frames = sandbox.stream("/process.Process/Connect", &connect, &[]);
    assert_eq!(frames.finish().2["code"], "not_found");
    let headers = [("content-type", "application/connect+json")];
    for body in [
        &b"\x00\xff\xff\xff\xff"[..],
        b"\x01\0\0\0\0",
        b"\0\0\0\0\x05{",
    ] {
        let answer = sandbox.ask("POST", "/process.Process/Start", &headers, body);
        assert_eq!(answer.status, 200);
        let error = Frames(answer.body).finish().2;
        assert!(error["code"].is_string(), "{error}");
    }
}

pub(super) fn a_client_that_goes_away_ends_nothing(sandbox: &Sandbox) {
    let mut frames = sandbox.start("sleep 2; echo late", json!({}), &[]);
    let pid = frames.pid();
    drop(frames);
    let connect = json!({"process": {"pid": pid}});
    let mut again = sandbox.stream("/process.Process/Connect", &connect, &[]);
    let mut third = sandbox.stream("/process.Process/Connect", &connect, &[]);
    assert_eq!((again.pid(), third.pid()), (pid, pid));
    assert_eq!(again.finish().0, "late\n");
    assert_eq!(third.finish().0, "late\n");
    let interval = [("keepalive-ping-interval", "1")];
    let mut quiet = sandbox.start("sleep 3", json!({}), &interval);
    quiet.until(|said| said["event"]["keepalive"].is_object());
}

pub(super) fn time_that_is_over_ends_a_program(sandbox: &Sandbox) {
    let begun = Instant::now();
    let limit = [("connect-timeout-ms", "1500")];
    let frames = sandbox.start("exec sleep 31", json!({}), &limit);
    let (_, _, error) = frames.finish();
    assert_eq!(error["code"], "deadline_exceeded");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(!sandbox.run("ps ax -o args").contains("sleep 31"));
}

pub(super) fn input_arrives_and_ends(sandbox: &Sandbox) {
    let mut frames = sandbox.start("cat", json!({"stdin": true}), &[]);
    let process = json!({"pid": frames.pid()});
    let input = json!({"process": process, "input": {"stdin": encoded("one\n")}});
    sandbox.process("SendInput", &input);
    let start = frame(&json!({"start": {"process": process}}));
    let more = frame(&json!({"data": {"input": {"stdin": encoded("two\n")}}}));
    let keepalive = frame(&json!({"keepalive": {}}));
    let headers = [("content-type", "application/connect+json")];
    let body = [start, keepalive, more].concat();
    let fed = sandbox.ask("POST", "/process.Process/StreamInput", &headers, &body);
    assert_eq!(Frames(fed.body).finish().2, Value::Null);
    sandbox.process("CloseStdin", &json!({"process": process}));
    assert_eq!(frames.finish().0, "one\ntwo\n");
    let (status, answer) = sandbox.call("/process.Process/SendInput", &input);
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
}

pub(super) fn a_terminal_has_the_size_it_was_given(sandbox: &Sandbox) {
    let message = json!({
        "process": {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm"}},
        "pty": {"size": {"cols": 80, "rows": 24}},
    });
    let mut frames = sandbox.stream("/process.Process/Start", &message, &[]);
    let process = json!({"pid": frames.pid()});
    let size = json!({"process": process, "pty": {"size": {"cols": 100, "rows": 30}}});
    sandbox.process("Update", &size);
    let input = json!({"process": process, "input": {"pty": encoded("stty size; exit\n")}});
    sandbox.process("SendInput", &input);
    let (output, _, _) = frames.finish();
    assert!(output.contains("30 100"), "{output}");
}
