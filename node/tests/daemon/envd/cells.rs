//! Cells of the code interpreter.
use std::{
    io::Read,
    time::{Duration, Instant},
};

use serde_json::json;

use super::of_kind;
use crate::e2b::wire::Sandbox;

pub(super) fn cells_keep_their_state(sandbox: &Sandbox) {
    let cell = |code: &str| sandbox.cell(&json!({ "code": code }));
    let said = cell("print(6*7)");
    assert_eq!(of_kind(&said, "stdout")["text"], "42\n");
    cell("x = 41");
    let said = cell("x + 1");
    let result = of_kind(&said, "result");
    assert_eq!(
        (&result["text"], &result["is_main_result"]),
        (&json!("42"), &json!(true))
    );
    let said = cell("1/0");
    assert_eq!(of_kind(&said, "error")["name"], "ZeroDivisionError");
    assert_eq!(of_kind(&said, "number_of_executions")["execution_count"], 4);
    let said = cell("from IPython.display import HTML\nHTML('<b>1</b>')");
    assert_eq!(of_kind(&said, "result")["html"], "<b>1</b>");
    let said = sandbox.cell(
        &json!({"code": "import os; os.environ['A'], os.environ['FOO']", "env_vars": {"A": "b"}}),
    );
    assert_eq!(of_kind(&said, "result")["text"], "('b', 'bar')");
    let said = cell("import subprocess; subprocess.run(['echo', 'below'])");
    assert_eq!(of_kind(&said, "stdout")["text"], "below\n");

    // A client that goes away interrupts its cell, and nothing of the state is lost.
    let headers = [
        ("content-type", "application/json"),
        ("e2b-sandbox-port", "49999"),
    ];
    let endless = json!({"code": "import time\nprint('on')\nwhile True: time.sleep(0.1)"});
    let mut running = sandbox.ask("POST", "/execute", &headers, endless.to_string().as_bytes());
    running.body.read_exact(&mut [0; 8]).unwrap();
    drop(running);
    let begun = Instant::now();
    assert_eq!(of_kind(&cell("x"), "result")["text"], "41");
    assert!(begun.elapsed() < Duration::from_secs(15));

    let ask =
        |method: &str, path: &str, body: &[u8]| sandbox.ask(method, path, &headers, body).json();
    let (status, made) = ask("POST", "/contexts", b"{\"cwd\": \"/tmp\"}");
    assert_eq!((status, &made["cwd"]), (201, &json!("/tmp")), "{made}");
    let id = made["id"].as_str().unwrap();
    let other = |code: &str| sandbox.cell(&json!({"code": code, "context_id": id}));
    assert_eq!(of_kind(&other("x"), "error")["name"], "NameError");
    assert_eq!(
        of_kind(&other("import os; y = 1; os.getcwd()"), "result")["text"],
        "'/tmp'"
    );
    let listed = ask("GET", "/contexts", b"").1;
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(ask("POST", &format!("/contexts/{id}/restart"), b"").0, 200);
    assert_eq!(of_kind(&other("y"), "error")["name"], "NameError");
    assert_eq!(ask("DELETE", &format!("/contexts/{id}"), b"").0, 204);
    let gone = json!({"code": "1", "context_id": id}).to_string();
    assert_eq!(ask("POST", "/execute", gone.as_bytes()).0, 404);
    let js = json!({"code": "1", "language": "javascript"}).to_string();
    assert_eq!(ask("POST", "/execute", js.as_bytes()).0, 400);
    // They are no processes of the client's.
    let listed = sandbox.process("List", &json!({})).to_string();
    assert!(!listed.contains("driver.py"), "{listed}");
}
