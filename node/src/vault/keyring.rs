//! The keyring of the operating system, by the operating system's own program: `secret-tool` for the
//! Secret Service, `security` on macOS. So nothing of D-Bus is linked into a node that needs none.
use std::{
    io::{self, Read, Write},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use zeroize::Zeroizing;

use super::VaultError;

/// How long the user may take to unlock the keyring.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether the program has ended.
const LOOK: Duration = Duration::from_millis(50);
/// How much of what it says is read, in bytes.
const MAX_SAID: u64 = 4 * 1024;
/// What our items are filed under.
const SERVICE: &str = "rhizome";

#[cfg(target_os = "macos")]
const PROGRAM: (&str, &str) = ("security", "macOS, which has it");
#[cfg(not(target_os = "macos"))]
const PROGRAM: (&str, &str) = (
    "secret-tool",
    "`libsecret-tools` (Debian, Ubuntu) or `libsecret` (Fedora, Arch)",
);

/// Keeps a secret under the name `item`.
pub(super) fn store(item: &str, secret: &str) -> Result<(), VaultError> {
    let output = match cfg!(target_os = "macos") {
        // Its commands come from standard input, so that no list of processes shows the secret.
        true => {
            let line = format!("add-generic-password -U -s {SERVICE} -a {item} -w {secret}\n");
            run(&["-i"], &Zeroizing::new(line))?
        }
        false => {
            let label = "--label=Keys of a Rhizome node";
            run(&["store", label, "service", SERVICE, "item", item], secret)?
        }
    };
    answered("keep", output).map(drop)
}

/// Returns the secret that was kept as `item`.
pub(super) fn look_up(item: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let output = match cfg!(target_os = "macos") {
        true => run(
            &["find-generic-password", "-s", SERVICE, "-a", item, "-w"],
            "",
        )?,
        false => run(&["lookup", "service", SERVICE, "item", item], "")?,
    };
    let secret = answered("give", output)?;
    match secret.is_empty() {
        true => Err(VaultError::Keyring {
            what: "give",
            said: "it knows nothing of it".to_owned(),
        }),
        false => Ok(secret),
    }
}

/// Forgets `item`; one that stays is of no use without the files.
pub(super) fn forget(item: &str) {
    let asked = match cfg!(target_os = "macos") {
        true => run(&["delete-generic-password", "-s", SERVICE, "-a", item], ""),
        false => run(&["clear", "service", SERVICE, "item", item], ""),
    };
    if let Err(error) = asked.and_then(|output| answered("forget", output)) {
        tracing::warn!(%error, "an old lock stays in the keyring");
    }
}

fn answered(what: &'static str, output: Output) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let secret = Zeroizing::new(output.stdout);
    if output.status.success() {
        return Ok(secret);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().chars().filter(|c| !c.is_control());
    Err(VaultError::Keyring {
        what,
        said: match said.take(200).collect::<String>() {
            said if said.is_empty() => output.status.to_string(),
            said => said,
        },
    })
}

/// Runs the program with `input` on its standard input.
fn run(args: &[&str], input: &str) -> Result<Output, VaultError> {
    let (program, package) = PROGRAM;
    let failed = |error: io::Error| VaultError::Keyring {
        what: "answer about",
        said: error.to_string(),
    };
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => VaultError::NoKeyring { program, package },
        _ => failed(error),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ended without reading says why on its own.
        let _ = stdin.write_all(input.as_bytes());
    }
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(VaultError::Keyring {
                what: "answer about",
                said: format!("`{program}` did not end within {} s", PATIENCE.as_secs()),
            });
        }
        std::thread::sleep(LOOK);
    };
    // It has ended, so what it said is here; it fits a pipe.
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let Some(said) = child.stdout.take() {
        said.take(MAX_SAID)
            .read_to_end(&mut stdout)
            .map_err(failed)?;
    }
    if let Some(said) = child.stderr.take() {
        said.take(MAX_SAID)
            .read_to_end(&mut stderr)
            .map_err(failed)?;
    }
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}
