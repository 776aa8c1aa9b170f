//! The command line without a daemon: help, usage, exit codes, errors with hints.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::process::{Command, Output};

fn rhizome(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rhizome"));
    command
        .env_remove("RHIZOME_SOCKET")
        .env("RHIZOME_DATA", dir.path());
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn without_a_daemon_the_error_says_how_to_start_one() {
    for args in [
        &["status"][..],
        &["peers"],
        &["memory", "recall", "x"],
        &["sandbox", "list", "--json"],
    ] {
        let output = rhizome(args);
        assert_eq!(output.status.code(), Some(3), "{args:?}");
        let stderr = text(&output.stderr);
        assert!(
            stderr.starts_with("error: cannot reach the daemon at `"),
            "{stderr}"
        );
        assert!(
            stderr.contains("  cause: ") && stderr.contains("   hint: start it with `rhizome up`"),
            "{stderr}"
        );
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn wrong_usage_ends_with_two() {
    for args in [
        &[][..],
        &["nonsense"],
        &["memory", "recall"],
        &["memory", "publish", "--kind", "fact"],
        &["sandbox", "exec", "bench"],
        &["invite", "create", "--expires", "soon"],
        &[
            "memory",
            "publish",
            "--kind",
            "fact",
            "--title",
            "x",
            "--field",
            "no-equals",
        ],
        &["sandbox", "cp", "here", "there"],
    ] {
        let output = rhizome(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn every_command_has_help_that_prints_to_stdout() {
    let nouns = [
        "invite", "space", "agent", "memory", "context", "sandbox", "image",
    ];
    let verbs = [
        "init",
        "up",
        "down",
        "status",
        "doctor",
        "join",
        "peers",
        "completions",
    ];
    for word in nouns.into_iter().chain(verbs) {
        let output = rhizome(&[word, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{word}");
        assert!(text(&output.stdout).contains("Usage: rhizome"), "{word}");
    }
    let help = text(&rhizome(&["--help"]).stdout);
    for word in nouns.into_iter().chain(verbs) {
        assert!(help.contains(&format!("\n  {word} ")), "{word}: {help}");
    }
    assert!(help.contains("Examples:") && help.contains("Exit codes:"));
}

#[test]
fn completions_name_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let output = rhizome(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        assert!(
            script.contains("checkpoint") && script.contains("rhizome"),
            "{shell}"
        );
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let script = format!(
        "'{}' completions bash | head -n 1",
        env!("CARGO_BIN_EXE_rhizome")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}
