//! `rhizome runtime`: what a program in this sandbox finds around it.
//!
//! The node asks for it once a sandbox is up, and makes of it the fingerprint that memories name.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

use super::{Args, CliError, print::Out};
use crate::agent::MACHINE_ID;

/// Programs that are asked for their versions when they are there, and how.
const TOOLS: &[(&str, &[&str])] = &[
    ("bash", &["--version"]),
    ("busybox", &[]),
    ("cargo", &["--version"]),
    ("clang", &["--version"]),
    ("cmake", &["--version"]),
    ("curl", &["--version"]),
    ("g++", &["-dumpfullversion"]),
    ("gcc", &["-dumpfullversion"]),
    ("git", &["--version"]),
    ("go", &["version"]),
    ("java", &["--version"]),
    ("make", &["--version"]),
    ("node", &["--version"]),
    ("npm", &["--version"]),
    ("perl", &["-e", "print $^V"]),
    ("pip", &["--version"]),
    ("python3", &["--version"]),
    ("ruby", &["--version"]),
    ("rustc", &["--version"]),
];
/// Time one tool has; the first program that reads a cold disk under emulation is slow.
const TOOL_LIMIT: Duration = Duration::from_secs(30);
/// How often a tool that has not answered is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What is read of a tool's answer, in bytes.
const MAX_ANSWER: u64 = 64 * 1024;
/// File systems of the kernel's own.
const KERNEL_MOUNTS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Where [`mark_clean`] writes down how the root began.
const CLEAN_MARK: &str = "/run/rhizome/clean";

/// Writes down how many files the root has before anybody uses it.
///
/// A file that is made, changed or removed on an overlay takes an inode of its upper layer: as
/// long as their number is the same, the root is as the image made it.
pub(crate) fn mark_clean() -> io::Result<()> {
    let mark = Path::new(CLEAN_MARK);
    fs::create_dir_all(mark.parent().unwrap_or(mark))?;
    fs::write(mark, used_inodes("/")?.to_string())
}

pub(super) fn show(out: &mut Out<impl Write>, args: &Args) -> Result<(), CliError> {
    let tools = if args.flag("no-tools") {
        Map::new()
    } else {
        tools()
    };
    let runtime = json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "arch": env::consts::ARCH,
        "cpu": cpu("model name"),
        "cpu_features": cpu("flags").split_whitespace().collect::<Vec<_>>(),
        "memory_mib": memory_mib(),
        "tools": tools,
        "mounts": mounts(),
        "env": env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .collect::<Vec<_>>(),
        "locale": locale(),
        "clock_source": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    });
    if args.flag("json") {
        out.json(&runtime)?;
        return Ok(());
    }
    for name in [
        "kernel",
        "arch",
        "cpu",
        "memory_mib",
        "locale",
        "clock_source",
    ] {
        let value = match &runtime[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        out.line(format!("{name:<14}{value}"))?;
    }
    for (name, version) in runtime["tools"].as_object().into_iter().flatten() {
        out.line(format!(
            "tool {name:<9}{}",
            version.as_str().unwrap_or_default()
        ))?;
    }
    for (path, mount) in runtime["mounts"].as_object().into_iter().flatten() {
        let access = if mount["writable"] == true {
            "rw"
        } else {
            "ro"
        };
        let state = match mount["clean"].as_bool() {
            Some(true) => " clean",
            Some(false) => " changed",
            None => "",
        };
        let kind = mount["fs"].as_str().unwrap_or_default();
        out.line(format!("mount {path:<8}{kind} {access}{state}"))?;
    }
    Ok(())
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns a field of the first processor.
fn cpu(field: &str) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == field).then(|| value.trim().to_owned())
    });
    line.unwrap_or_default()
}

fn memory_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// Returns the locale of a program that asks for it, in the order in which it looks.
fn locale() -> String {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| env::var(name).ok())
        .find(|value| !value.is_empty())
        .unwrap_or_else(|| "C".to_owned())
}

fn mounts() -> Map<String, Value> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts_in(&text, clean_root())
}

fn mounts_in(text: &str, clean: Option<bool>) -> Map<String, Value> {
    let mut found = Map::new();
    for line in text.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(path), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let below = |top: &str| path == top || path.starts_with(&format!("{top}/"));
        if path == MACHINE_ID || KERNEL_MOUNTS.iter().any(|top| below(top)) {
            continue;
        }
        let clean = clean.filter(|_| path == "/");
        let writable = options.split(',').any(|option| option == "rw");
        // What is mounted last on a path hides what was there.
        found.insert(
            path.to_owned(),
            json!({"fs": kind, "writable": writable, "clean": clean}),
        );
    }
    found
}

fn clean_root() -> Option<bool> {
    let began: u64 = fs::read_to_string(CLEAN_MARK).ok()?.trim().parse().ok()?;
    Some(used_inodes("/").ok()? == began)
}

fn used_inodes(path: &str) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_files.saturating_sub(stat.f_ffree))
}

fn tools() -> Map<String, Value> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| {
        env::split_paths(&path).any(|dir| {
            let file = fs::metadata(dir.join(name));
            file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
    };
    TOOLS
        .iter()
        .filter(|(name, _)| is_there(name))
        .map(|(name, words)| {
            // One that is there and does not say its version is there all the same.
            let version = ask(name, words).and_then(|said| version_in(&said));
            ((*name).to_owned(), version.unwrap_or("0".to_owned()).into())
        })
        .collect()
}

fn ask(name: &str, words: &[&str]) -> Option<String> {
    let mut child = Command::new(name)
        .args(words)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut pipe = child.stdout.take()?;
    // The pipe is read elsewhere: a tool that hangs, or one with children that do, holds no one up.
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let _ = pipe.by_ref().take(MAX_ANSWER).read_to_end(&mut said);
        said
    });
    let ended = wait(&mut child, Instant::now() + TOOL_LIMIT);
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let said = reader.join().ok()?;
    Some(String::from_utf8_lossy(&said).into_owned())
}

fn wait(child: &mut Child, until: Instant) -> bool {
    while Instant::now() < until {
        match child.try_wait() {
            Ok(None) => thread::sleep(LOOK_AGAIN),
            Ok(Some(_)) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Returns the first word of a text that looks like a version.
fn version_in(text: &str) -> Option<String> {
    let word = text.lines().next()?.split_whitespace().find_map(|word| {
        let word = word.trim_start_matches("go");
        let word = word.strip_prefix('v').unwrap_or(word);
        word.starts_with(|c: char| c.is_ascii_digit())
            .then_some(word)
    })?;
    let plain = |c: &char| c.is_ascii_alphanumeric() || ".+-~_:".contains(*c);
    Some(word.chars().take_while(plain).take(64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_tools_say() {
        for (said, version) in [
            ("Python 3.11.2\n", "3.11.2"),
            ("git version 2.39.5\n", "2.39.5"),
            (
                "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nCopyright",
                "5.2.15",
            ),
            (
                "BusyBox v1.35.0 (Debian 1:1.35.0-4) multi-call binary.\n",
                "1.35.0",
            ),
            ("go version go1.22.1 linux/amd64\n", "1.22.1"),
            ("12.2.0\n", "12.2.0"),
        ] {
            assert_eq!(version_in(said).as_deref(), Some(version));
        }
        assert_eq!(version_in("no version here\n1.2"), None);
        assert_eq!(version_in(""), None);
    }

    #[test]
    fn mounts_are_those_that_a_program_would_ask_about() {
        let text = "overlay / overlay rw,relatime 0 0\nproc /proc proc rw 0 0\n\
                    cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ntmpfs /tmp tmpfs rw,nosuid 0 0\n\
                    /dev/vdc /data erofs ro 0 0\n\
                    tmpfs /etc/machine-id tmpfs rw 0 0\nbroken\n";
        let found = mounts_in(text, Some(true));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["/", "/data", "/tmp"]);
        assert_eq!(found["/"]["clean"], true);
        assert_eq!(found["/data"]["writable"], false);
        assert_eq!(found["/tmp"]["clean"], Value::Null);
    }

    #[test]
    fn this_very_machine_can_be_described() {
        assert!(memory_mib() > 0);
        assert!(!read("/proc/sys/kernel/osrelease").is_empty());
        assert!(ask("sh", &["-c", "echo sh 1.2.3"]).is_some_and(|said| said.contains("1.2.3")));
        assert_eq!(ask("no-such-tool-anywhere", &[]), None);
    }
}
