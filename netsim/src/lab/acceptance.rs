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
/// Versions of E2B's client in Python that are older than the newest and still in use.
const E2B_OLDER: &[&str] = &["2.20.0", "2.50.0"];
/// Public clients in JavaScript.
const NPM: &[&str] = &[
    "@e2b/cli",
    "@modelcontextprotocol/conformance",
    "@modelcontextprotocol/inspector",
    "@modelcontextprotocol/server-memory",
    "e2b",
];
/// The tests of the library that need them: the conformance suite of MCP.
const LIBRARY: &[&str] = &["mcp::conformance::"];
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
    for version in E2B_OLDER {
        let target = older(cache).join(version);
        if target.is_dir() {
            continue;
        }
        say(&format!("installing e2b {version}"));
        // Beside its place until it is whole: what is there is not looked into again.
        let beside = older(cache).join(format!("{version}.new"));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check", "--upgrade", "--target"])
            .arg(&beside)
            .arg(format!("e2b=={version}"))
            .stdin(Stdio::null());
        run(&mut pip)?;
        std::fs::rename(&beside, &target).map_err(|source| LabError::File {
            path: target,
            source,
        })?;
    }
    Ok(python)
}

/// Returns where older versions of a client are, each in a directory of its own.
fn older(cache: &Path) -> PathBuf {
    cache.join("e2b")
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
    let mut outcomes = BTreeMap::new();
    let mut all = String::new();
    for (target, filters) in [(&["--test", "daemon"][..], MODULES), (&["--lib"], LIBRARY)] {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(target)
            .arg("--")
            .args(filters)
            .args(["--nocapture", "--test-threads", "1"])
            .env("RHIZOME_TEST_PYTHON", python)
            .env("RHIZOME_TEST_E2B", older(cache))
            .env("RHIZOME_TEST_NPM", cache.join("npm"))
            .stdin(Stdio::null());
        if let Some(bin) = bin {
            // With an npm there is an npx, too.
            command.env("RHIZOME_TEST_NPX", "1");
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
        let mut read = read(&stdout);
        if read.is_empty() {
            return Err(LabError::Output {
                command: "cargo test".to_owned(),
                found: stderr.lines().rev().take(20).collect::<Vec<_>>().join("\n"),
            });
        }
        pass_over(&mut read, &stderr);
        outcomes.extend(read);
        all.push_str(&format!("{stdout}\n{stderr}\n"));
    }
    Ok((outcomes, all))
}

/// Adds what tests said that they skipped, on their standard error: `skipped: name: what`.
fn pass_over(outcomes: &mut BTreeMap<String, Outcome>, stderr: &str) {
    for line in stderr.lines() {
        let Some(said) = line
            .strip_prefix("skipped")
            .and_then(|said| said.strip_prefix(": ").or_else(|| said.strip_prefix(' ')))
        else {
            continue;
        };
        let (name, what) = said.split_once(": ").unwrap_or((said, ""));
        // Its own name, or that of what it would have needed.
        let test = outcomes
            .keys()
            .find(|test| test.rsplit("::").next() == Some(name))
            .cloned();
        let outcome = outcomes
            .entry(test.unwrap_or_else(|| name.to_owned()))
            .or_insert_with(|| Outcome::Skipped(Vec::new()));
        match outcome {
            Outcome::Passed => *outcome = Outcome::Skipped(vec![what.to_owned()]),
            Outcome::Skipped(all) => all.push(what.to_owned()),
            Outcome::Failed => {}
        }
    }
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

    #[test]
    fn a_test_that_skips_its_work_has_not_passed() {
        let mut read = read("\ntest e2b::clients::a ... ok\ntest e2b::b ... FAILED\n");
        let said = "skipped: a: pip install e2b\nskipped b: no qemu\nskipped: inspector: npx\n";
        pass_over(&mut read, said);
        let skipped = |what: &str| Outcome::Skipped(vec![what.to_owned()]);
        assert_eq!(read["e2b::clients::a"], skipped("pip install e2b"));
        assert_eq!(read["e2b::b"], Outcome::Failed);
        assert_eq!(read["inspector"], skipped("npx"));
    }
}
