//! What a monitor is held to, as its host's kernel says.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rhizome_sandbox::driver::VmRequest;

/// First of the users that monitors run as.
const FIRST_UID: u32 = 0x7000_0000;

/// Looks at the process itself: who it is, what it may, what it sees, and what it has open. `home`
/// is where the daemon's data is.
pub(crate) fn check(pid: u32, request: &VmRequest, home: &Path) {
    let status = fields(&format!("/proc/{pid}/status"));
    assert_eq!(status["NoNewPrivs"], "1");
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = thread.unwrap().path();
        let of_thread = fields(&thread.join("status").to_string_lossy());
        // A first thread that only waits for the others may be without a filter.
        let first = thread.ends_with(pid.to_string());
        let only_waits = first && of_thread["Name"].starts_with("cloud-hyper");
        assert!(of_thread["Seccomp"] == "2" || only_waits, "{of_thread:?}");
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max core file size"), "0");
    assert_eq!(limit("Max open files"), "1024");
    assert_ne!(limit("Max file size"), "unlimited");
    // A session of its own: what ends the daemon's does not end it.
    assert_eq!(stat_field(pid, 3), pid.to_string());
    has_open_only(pid, request);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let bits = u64::from_str_radix(&status[set], 16).unwrap();
        // Without new rights, what an ordinary user could have gained is no matter.
        let matters = set != "CapBnd" || rustix::process::geteuid().is_root();
        assert!(bits == 0 || !matters, "{set}: {bits:x}");
    }
    match may_part() {
        true => is_apart(pid, &["net", "ipc", "uts"]),
        false => eprintln!("skipped: a monitor's namespaces: users may have none here"),
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a monitor's own user and file systems: the daemon is not root");
        return;
    }
    is_a_user_apart(&status);
    is_apart(pid, &["mnt"]);
    sees_only_the_system(pid, home);
    is_counted(pid, request);
}

/// Returns the control groups that are there for a monitor.
pub(crate) fn groups_of(request: &VmRequest, pid: u32) -> Vec<PathBuf> {
    let name = format!("rhizome-{}-{pid}", request.id);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let roots = mounts
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4));
    let mut left: Vec<PathBuf> = roots.map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.file_name() == *name {
                true => found.push(entry.path()),
                false => left.push(entry.path()),
            }
        }
    }
    found
}

fn is_a_user_apart(status: &BTreeMap<String, String>) {
    for name in ["Uid", "Gid"] {
        let ids: Vec<u32> = status[name]
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{name}: {ids:?}");
        assert!(ids[0] >= FIRST_UID, "{name}: {ids:?}");
    }
    let groups: Vec<&str> = status["Groups"].split_whitespace().collect();
    // That of `/dev/kvm` at most.
    assert!(groups.len() <= 1, "{groups:?}");
}

/// Whether whoever runs this may have namespaces.
fn may_part() -> bool {
    let tried = Command::new("unshare")
        .args(["--user", "--net", "true"])
        .stderr(Stdio::null())
        .status();
    rustix::process::geteuid().is_root() || tried.is_ok_and(|status| status.success())
}

fn is_apart(pid: u32, namespaces: &[&str]) {
    for namespace in namespaces {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{namespace}")).unwrap();
        assert_ne!(of(&pid.to_string()), of("self"), "{namespace}");
    }
    let interfaces = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let others = interfaces.lines().skip(2).filter(|line| {
        let name = line.trim_start();
        !name.starts_with("lo:") && !name.starts_with("sit0:") && !name.starts_with("tunl0:")
    });
    assert_eq!(others.count(), 0, "{interfaces}");
}

/// The daemon's data cannot be named, and neither can what others left lying about.
fn sees_only_the_system(pid: u32, home: &Path) {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let at = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    assert!(home.is_absolute() && home.exists());
    assert!(!at(home).exists(), "it sees {}", home.display());
    for hidden in ["/root", "/home", "/var", "/run", "/dev/shm"] {
        let content = fs::read_dir(at(Path::new(hidden)));
        let count = content.map_or(0, Iterator::count);
        assert_eq!(count, 0, "it sees what is in {hidden}");
    }
    assert!(at(Path::new("/usr/bin")).exists());
    // Its own directory it is in, whatever hides the way there.
    assert!(Path::new(&format!("/proc/{pid}/cwd")).join("run").exists());
}

/// Files it has open or mapped are the system's, or lie in its own directory.
fn has_open_only(pid: u32, request: &VmRequest) {
    let dir = request.dir.canonicalize().unwrap();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mapped = maps
        .lines()
        .filter_map(|line| line.split_once('/'))
        .map(|(_, path)| PathBuf::from(format!("/{path}")));
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    for path in open.chain(mapped) {
        let text = path.to_string_lossy();
        let harmless = !text.starts_with('/') || text.starts_with("/memfd:") || path == program;
        let of_system = ["/dev/", "/usr/", "/lib", "/etc/", "/proc/", "/sys/"];
        let of_system = of_system.iter().any(|dir| text.starts_with(dir));
        assert!(
            harmless || of_system || path.starts_with(&dir),
            "it has `{text}` open"
        );
    }
}

fn is_counted(pid: u32, request: &VmRequest) {
    let groups = groups_of(request, pid);
    if groups.is_empty() {
        eprintln!("skipped: a monitor's control groups: none can be made here");
        return;
    }
    let mut bounds = 0;
    for group in groups {
        let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(inside.trim(), pid.to_string(), "{}", group.display());
        let files = [
            "memory.limit_in_bytes",
            "memory.max",
            "cpu.cfs_quota_us",
            "cpu.max",
            "pids.max",
        ];
        for bound in files.iter().filter_map(|file| {
            let text = fs::read_to_string(group.join(file)).ok()?;
            Some(text.split_whitespace().next()?.to_owned())
        }) {
            let number: u64 = bound.parse().expect("a bound is a number");
            assert!(number < 1 << 40, "{number} is no bound");
            bounds += 1;
        }
    }
    assert!(bounds > 0);
}

fn fields(path: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Returns a field of `stat` behind the name: 0 is the state, 3 the session.
fn stat_field(pid: u32, number: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    rest.split(' ').nth(number).unwrap().to_owned()
}
