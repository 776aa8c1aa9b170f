//! Everything that others wrote and that speaks to a node, brought into a directory of its own and run.
//!
//! The tests look for public clients and say by name what they skip. Here those clients are installed
//! from their registries, in a virtual environment and a prefix of npm under the user's cache, and the
//! tests run with them; what each said becomes a line of a matrix.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{LabError, daemon::run};

/// Public clients in Python.
const PYTHON: &[&str] = &[
    "anthropic",
    "e2b",
    "e2b-code-interpreter",
    "langgraph",
    "mcp",
    "mem0ai",
    "openai-agents",
    "schemathesis",
];
/// Public clients in JavaScript.
const NPM: &[&str] = &[
    "@e2b/cli",
    "@modelcontextprotocol/conformance",
    "@modelcontextprotocol/inspector",
    "@modelcontextprotocol/server-memory",
    "e2b",
];
/// The modules of `node/tests/daemon` that need them.
const MODULES: &[&str] = &[
    "clients::",
    "e2b::",
    "envd::",
    "files::",
    "http::",
    "mcp::",
    "profiles::",
    "views::",
];

/// What became of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed, with what it needs.
    Passed,
    /// It failed.
    Failed,
    /// It passed over some or all of its work; each with what to install.
    Skipped(Vec<String>),
}

/// Installs the clients and runs the tests with them; returns how many passed, of how many.
///
/// # Errors
/// If the clients cannot be installed, or a test failed.
pub fn acceptance(mut say: impl FnMut(&str)) -> Result<(usize, usize), LabError> {
    let cache = cache_dir();
    std::fs::create_dir_all(&cache).map_err(|source| LabError::File {
        path: cache.clone(),
        source,
    })?;
    let python = python(&cache, &mut say)?;
    let bin = node(&cache, &mut say)?;
    let (outcomes, said) = tests(&python, &cache, bin.as_deref(), &mut say)?;
    for line in matrix(&outcomes) {
        say(&line);
    }
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Failed)
        .map(|(name, _)| &name[..])
        .collect();
    if !failed.is_empty() {
        say(&said);
        return Err(LabError::NotSeen(format!("failed: {}", failed.join(", "))));
    }
    let passed = outcomes.values().filter(|one| **one == Outcome::Passed);
    Ok((passed.count(), outcomes.len()))
}

/// Returns where the clients are kept between runs.
fn cache_dir() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    cache
        .filter(|path| path.is_absolute())
        .or_else(home)
        .unwrap_or_else(env::temp_dir)
        .join("rhizome/acceptance")
}

/// Makes the virtual environment and returns its Python.
fn python(cache: &Path, say: &mut impl FnMut(&str)) -> Result<PathBuf, LabError> {
    let venv = cache.join("venv");
    let python = venv.join("bin/python3");
    if !python.is_file() {
        say("making a virtual environment");
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    say(&format!("installing {}", PYTHON.join(", ")));
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
    ])
    .args(PYTHON)
    .stdin(Stdio::null());
    run(&mut pip)?;
    Ok(python)
}

/// Installs what comes from npm and returns the directory of its programs, if there is an npm.
fn node(cache: &Path, say: &mut impl FnMut(&str)) -> Result<Option<PathBuf>, LabError> {
    let found = Command::new("npm")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !found.is_ok_and(|status| status.success()) {
        say("skipped: clients in JavaScript: install npm");
        return Ok(None);
    }
    let prefix = cache.join("npm");
    say(&format!("installing {}", NPM.join(", ")));
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
        .arg(&prefix)
        .args(NPM)
        .stdin(Stdio::null());
    run(&mut npm)?;
    Ok(Some(prefix.join("node_modules/.bin")))
}

/// Runs the tests one after another and returns what became of each, and all that they said.
fn tests(
    python: &Path,
    cache: &Path,
    bin: Option<&Path>,
    say: &mut impl FnMut(&str),
) -> Result<(BTreeMap<String, Outcome>, String), LabError> {
    say("running the tests that need them");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "--workspace", "--test", "daemon", "--"])
        .args(MODULES)
        .args(["--nocapture", "--test-threads", "1"])
        .env("RHIZOME_TEST_PYTHON", python)
        .env("RHIZOME_TEST_NPM", cache.join("npm"))
        .stdin(Stdio::null());
    if let Some(bin) = bin {
        let rest = env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(bin.to_owned()).chain(env::split_paths(&rest));
        if let Ok(path) = env::join_paths(paths) {
            command.env("PATH", path);
        }
    }
    let output = command.output().map_err(|source| LabError::Spawn {
        command: "cargo test".to_owned(),
        source,
    })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let skipped: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("skipped: "))
        .collect();
    let mut outcomes = read(&stdout);
    // Standard error stands apart from the names of the tests; what is skipped says its own name.
    for line in skipped {
        let line = line.trim_start_matches("skipped: ");
        let (name, what) = line.split_once(": ").unwrap_or((line, ""));
        outcomes
            .entry(name.to_owned())
            .and_modify(|outcome| {
                if let Outcome::Skipped(all) = outcome {
                    all.push(what.to_owned());
                }
            })
            .or_insert_with(|| Outcome::Skipped(vec![what.to_owned()]));
    }
    if outcomes.is_empty() {
        return Err(LabError::Output {
            command: "cargo test".to_owned(),
            found: stderr.lines().rev().take(20).collect::<Vec<_>>().join("\n"),
        });
    }
    Ok((outcomes, format!("{stdout}\n{stderr}")))
}

/// Reads what a test program printed: the outcome of each test by its name.
///
/// With `--nocapture` what a test prints stands between its name and its outcome.
fn read(text: &str) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    let text = format!("\n{text}");
    for part in text.split("\ntest ").skip(1) {
        let Some((name, rest)) = part.split_once(" ... ") else {
            continue;
        };
        let last = rest.lines().rev().find_map(|line| {
            let line = line.trim_end();
            match line {
                _ if line.ends_with("FAILED") => Some(Outcome::Failed),
                _ if line == "ok" || line.ends_with("ok") => Some(Outcome::Passed),
                _ => None,
            }
        });
        // A test that ended the program has none.
        outcomes.insert(name.to_owned(), last.unwrap_or(Outcome::Failed));
    }
    outcomes
}

/// Returns the lines of the matrix.
fn matrix(outcomes: &BTreeMap<String, Outcome>) -> Vec<String> {
    let width = outcomes.keys().map(String::len).max().unwrap_or(0);
    let lines = outcomes.iter().map(|(name, outcome)| {
        let told = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed => "FAILED".to_owned(),
            Outcome::Skipped(what) => format!("skipped: {}", what.join("; ")),
        };
        format!("{name:width$}  {told}")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_though_tests_print_in_between() {
        let text = "\nrunning 3 tests\ntest clients::a ... hello\nok\ntest mcp::b ... ok\n\
                    test e2b::c ... thread panicked\nFAILED\n\nfailures:\n";
        let read = read(text);
        assert_eq!(read["clients::a"], Outcome::Passed);
        assert_eq!(read["mcp::b"], Outcome::Passed);
        assert_eq!(read["e2b::c"], Outcome::Failed);
        assert_eq!(matrix(&read)[0], "clients::a  passed");
    }
}
