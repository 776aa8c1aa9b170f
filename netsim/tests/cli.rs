//! The command line of the simulator: its flags are wired, and it says what went wrong.

use std::process::{Command, Output};

use serde_json::Value;

fn netsim(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_rhizome-netsim");
    let mut command = Command::new(program);
    command.env_remove("SEED").args(args);
    command.output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_run_says_as_json_what_came_of_it() {
    let args = ["run", "clocks", "--nodes", "5", "--seed", "3", "--json"];
    let output = netsim(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["schema"], 1);
    assert_eq!((&report["nodes"], &report["seed"]), (&5.into(), &3.into()));
    assert_eq!(report["violation"], Value::Null);
    assert_eq!(report["acked"], 200);
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let path = std::env::temp_dir().join(format!("netsim-cli-{}.toml", std::process::id()));
    std::fs::write(&path, "about = \"x\"\nnodes = 8\nlasts = \"soon\"\n").expect("a file");
    let output = netsim(&["run", path.to_str().expect("a plain path")]);
    let _ = std::fs::remove_file(&path);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("line 3: `lasts` must be a time") && said.contains("hint:"),
        "{said}"
    );
}

#[test]
fn unknown_names_and_impossible_numbers_are_usage() {
    for args in [
        &["run", "nothing"][..],
        &["run", "halved", "--nodes", "1"],
        &["run", "nat", "--nodes", "99999"],
        &["sweep", "halved", "--seeds", "9..1"],
        &["fly"],
    ] {
        let output = netsim(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            !output.stderr.is_empty() && output.stdout.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn the_list_and_the_help_lead_on() {
    let listed = text(&netsim(&["list"]).stdout);
    assert!(
        listed.lines().any(|line| line.starts_with("halved ")),
        "{listed}"
    );
    let help = text(&netsim(&["--help"]).stdout);
    assert!(help.contains("rhizome-netsim replay churn"), "{help}");
}
