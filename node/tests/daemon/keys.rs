//! Keys at rest: sealed under a passphrase or by the keyring's program, opened at the start.
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use rhizome_identity::keyfile::{self, KeyKind};
use serde_json::{Value, json};

use crate::{
    backup::{files, ok},
    epochs::{holding, spellings},
    support::{Daemon, code, command},
};

/// Returns the secrets of a node, as they may be spelled.
fn secrets(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut secrets = Vec::new();
    for (name, kind) in [
        ("node.key", KeyKind::Node),
        ("agent.key", KeyKind::Agent),
        ("agents/mender.key", KeyKind::Agent),
        ("root.key", KeyKind::Root),
        ("next-root.key", KeyKind::Root),
    ] {
        let key = keyfile::load(&dir.join(name), kind).unwrap();
        let key = rhizome_identity::NodeKey::from(key);
        secrets.extend(spellings(name, &key.secret_bytes()));
    }
    secrets
}

/// Starts `rhizome up` where this is set, and returns what it says before it gives up.
fn does_not_start(dir: &Path, key: &str, value: &Path) -> String {
    let mut up = command(dir, "laptop");
    up.arg("--no-sandboxes").env(key, value);
    let output = up
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn start_with(dir: &Path, key: &str, value: &Path) -> Daemon {
    let mut up = command(dir, "laptop");
    up.arg("--no-sandboxes").env(key, value);
    Daemon::spawn(up, dir)
}

fn id(daemon: &Daemon) -> Value {
    daemon.get("/v1/status")["node"].clone()
}

#[test]
fn keys_under_a_passphrase_are_nowhere_in_the_data_directory() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let laptop = Daemon::start(&dir, "laptop");
    laptop.found("findings");
    laptop.post("/v1/agents", json!({"name": "mender"}));
    assert_eq!(laptop.get("/v1/keys")["with"], "plain");
    let secrets = secrets(&dir);
    assert!(
        !holding(&dir, &secrets).is_empty(),
        "they are found where they are"
    );
    let (pass, file) = files(temp.path());
    let none = laptop.ask("POST", "/v1/keys", Some(json!({"with": "passphrase"})));
    assert_eq!((none.0, code(&none)), (400, "no_passphrase"));
    let unknown = laptop.ask("POST", "/v1/keys", Some(json!({"with": "hope"})));
    assert_eq!((unknown.0, code(&unknown)), (400, "bad_request"));
    let protect = [
        "keys",
        "protect",
        "--with",
        "passphrase",
        "--passphrase-file",
        &pass,
    ];
    assert_eq!(ok(&protect, &dir)["with"], "passphrase");
    assert_eq!(holding(&dir, &secrets), Vec::<String>::new());
    // It goes on with what it holds, and what it makes now is sealed from the start.
    laptop.post("/v1/agents", json!({"name": "late"}));
    let late = fs::read_to_string(dir.join("agents/late.key")).unwrap();
    assert!(late.contains(", sealed\n"), "{late}");
    let space = json!({"kind": "fact", "title": "x", "space": "findings", "agent": "late"});
    laptop.post("/v1/memory", space);
    let me = id(&laptop);
    // A backup is of use on another machine.
    ok(&["backup", "--to", &file, "--passphrase-file", &pass], &dir);
    let again = temp.path().join("again");
    ok(&["restore", &file, "--passphrase-file", &pass], &again);
    keyfile::load(&again.join("node.key"), KeyKind::Node).unwrap();
    laptop.stop();
    assert_eq!(holding(&dir, &secrets), Vec::<String>::new());
    // The environment says where the passphrase is, or systemd does.
    let wrong = temp.path().join("wrong");
    fs::write(&wrong, "another\n").unwrap();
    let said = does_not_start(&dir, "RHIZOME_PASSPHRASE_FILE", &wrong);
    assert!(
        said.contains("does not open the keys") && said.contains("hint"),
        "{said}"
    );
    let said = does_not_start(
        &dir,
        "RHIZOME_PASSPHRASE_FILE",
        &temp.path().join("nowhere"),
    );
    assert!(said.contains("cannot take the passphrase"), "{said}");
    let laptop = start_with(&dir, "RHIZOME_PASSPHRASE_FILE", Path::new(&pass));
    assert_eq!(id(&laptop), me);
    laptop.stop();
    let credentials = temp.path().join("credentials");
    fs::create_dir(&credentials).unwrap();
    fs::copy(&pass, credentials.join("rhizome-passphrase")).unwrap();
    let laptop = start_with(&dir, "CREDENTIALS_DIRECTORY", &credentials);
    assert_eq!(id(&laptop), me);
    // And back.
    assert_eq!(
        ok(&["keys", "protect", "--with", "plain"], &dir)["with"],
        "plain"
    );
    laptop.stop();
    assert!(!holding(&dir, &secrets).is_empty());
    let laptop = Daemon::start(&dir, "laptop");
    assert_eq!(id(&laptop), me);
}

/// What speaks to a keyring here: it answers as `secret-tool` does, and keeps what it is given in a
/// directory of its own. The real one needs a desktop.
const SECRET_TOOL: &str = r#"#!/bin/sh
dir="$(dirname "$0")/kept"
mkdir -p "$dir"
case "$1" in
  store) shift 2; [ "$1 $3" = "service item" ] || exit 2; cat > "$dir/$4" ;;
  lookup) [ "$2 $4" = "service item" ] || exit 2; cat "$dir/$5" 2>/dev/null || exit 1 ;;
  clear) rm -f "$dir/$5" ;;
  *) exit 2 ;;
esac
"#;

#[test]
fn the_keyring_is_asked_by_its_own_program() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("laptop");
    let tools = temp.path().join("tools");
    fs::create_dir(&tools).unwrap();
    let path = format!("{}:/usr/bin:/bin", tools.display());
    let start = || start_with(&dir, "PATH", Path::new(&path));
    let laptop = start_with(&dir, "PATH", &temp.path().join("empty"));
    laptop.found("findings");
    laptop.post("/v1/agents", json!({"name": "mender"}));
    let secrets = secrets(&dir);
    let me = id(&laptop);
    // It is not there.
    let refused = laptop.ask("POST", "/v1/keys", Some(json!({"with": "keyring"})));
    assert_eq!(
        (refused.0, code(&refused)),
        (409, "no_keyring"),
        "{refused:?}"
    );
    let hint = refused.1["error"]["hint"].to_string();
    assert!(hint.contains("libsecret-tools"), "{hint}");
    assert_eq!(laptop.get("/v1/keys")["with"], "plain");
    laptop.stop();
    let program = tools.join("secret-tool");
    fs::write(&program, SECRET_TOOL).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let laptop = start();
    laptop.post("/v1/keys", json!({"with": "keyring"}));
    laptop.stop();
    assert_eq!(holding(&dir, &secrets), Vec::<String>::new());
    let kept = || fs::read_dir(tools.join("kept")).unwrap().count();
    assert_eq!(kept(), 1);
    let laptop = start();
    assert_eq!(id(&laptop), me);
    // From the keyring to a passphrase: the keyring forgets.
    let body = json!({"with": "passphrase", "passphrase": "a long one"});
    assert_eq!(laptop.post("/v1/keys", body)["with"], "passphrase");
    assert_eq!(kept(), 0);
    laptop.post("/v1/keys", json!({"with": "keyring"}));
    laptop.stop();
    // A keyring that knows nothing of it.
    fs::remove_dir_all(tools.join("kept")).unwrap();
    let said = does_not_start(&dir, "PATH", Path::new(&path));
    assert!(said.contains("the keyring does not give"), "{said}");
    let shown = Command::new(env!("CARGO_BIN_EXE_rhizome"))
        .arg("--data-dir")
        .arg(&dir)
        .args(["keys", "show"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("keyring"));
}
