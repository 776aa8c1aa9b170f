//! What a driver reads from its host.

use std::{fs, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Returns the frequency of the host's time stamp counter in kHz.
///
/// The kernel's `bogomips` is twice that frequency in MHz on every x86 processor whose counter
/// it trusts, to two decimals. Reading the counter ourselves would take an `unsafe` instruction
/// and a second of measuring to be as exact.
pub(crate) fn tsc_khz() -> Option<u64> {
    parse_bogomips(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Returns the model of the host's processor with a hash of what it can do.
pub(crate) fn host_cpu() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let flags = blake3::hash(field("flags")?.as_bytes()).to_hex();
    Some(format!("{} ({})", field("model name")?, &flags[..12]))
}

fn parse_bogomips(cpuinfo: &str) -> Option<u64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("bogomips"))?;
    let (whole, part) = line.split_once(':')?.1.trim().split_once('.')?;
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    let khz = (whole.checked_mul(1000)? + part) / 2;
    (100_000..20_000_000).contains(&khz).then_some(khz)
}

/// Returns when a process started, in clock ticks since the host's boot; `None` once it is gone.
pub(crate) fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, start) = parse_stat(&stat)?;
    // A zombie is gone for our purposes: it runs nothing and holds no memory.
    (state != 'Z').then_some(start)
}

/// Reads state (field 3) and start time (field 22) of proc(5)'s `stat`. The name in field 2 may
/// hold spaces and parentheses, so fields are counted from its end.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Returns the processor time of a process and those that it waited for, in milliseconds; `None`
/// if it is not the one that started then. One that has ended counts until somebody takes note.
pub(crate) fn process_cpu_ms(pid: u32, started: u64) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, start) = parse_stat(&stat)?;
    // Hundredths of a second, on every architecture.
    (start == started).then(|| parse_cpu_ticks(&stat).map(|ticks| ticks.saturating_mul(10)))?
}

/// Adds up fields 14 to 17 of proc(5)'s `stat`: in user mode, in the kernel, and the same of
/// children that were waited for.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(11)
        .take(4)
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    (ticks.len() == 4).then(|| ticks.into_iter().fold(0, u64::saturating_add))
}

/// Kills a process that another daemon started, if it still is that process; tells whether it was.
pub(crate) fn end_process(pid: u32, started: u64) -> bool {
    let Some(pid_nonzero) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    // The descriptor pins the process: whatever has the number afterwards is not signalled.
    let Ok(process) = pidfd_open(pid_nonzero, PidfdFlags::empty()) else {
        return false;
    };
    if process_start(pid) != Some(started) {
        return false;
    }
    pidfd_send_signal(&process, Signal::KILL).is_ok()
}

/// Returns the monitors that work in `dir`, each by process id and start time.
///
/// A daemon that dies between starting a monitor and writing down which one it is leaves it to
/// whoever looks for it here.
pub(crate) fn monitors_in(dir: &Path) -> Vec<(u32, u64)> {
    let Ok(dir) = dir.canonicalize() else {
        return Vec::new();
    };
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            let started = process_start(pid)?;
            (works_in == dir).then_some((pid, started))
        })
        .collect()
}

/// Returns the group that may use KVM.
pub(super) fn kvm_group() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(Path::new("/dev/kvm")).ok()?.gid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bogomips_give_the_counter_frequency() {
        assert_eq!(
            parse_bogomips("x: 1\nbogomips\t: 5192.26\n"),
            Some(2_596_130)
        );
        assert_eq!(parse_bogomips("bogomips\t: 5200.00\n"), Some(2_600_000));
        for hostile in [
            "",
            "bogomips",
            "bogomips : x.y",
            "bogomips : 1.0",
            "bogomips : 99999999999999999999.0",
        ] {
            assert_eq!(parse_bogomips(hostile), None, "{hostile}");
        }
    }

    #[test]
    fn a_process_is_named_by_its_start() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        let stat = format!("77 (qemu) sys) (x) {tail}");
        assert_eq!(parse_stat(&stat), Some(('S', 4242)));
        assert_eq!(parse_stat("77 (x) S"), None);
        assert!(process_start(std::process::id()).is_some());
    }

    #[test]
    fn the_processor_time_is_that_of_the_same_process() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        // Fields 14 to 17 are 11 to 14 here.
        let stat = format!("77 (qemu) sys) (x) {tail}");
        assert_eq!(parse_cpu_ticks(&stat), Some(11 + 12 + 13 + 14));
        assert_eq!(parse_cpu_ticks("77 (x) S 1 2 3"), None);
        assert_eq!(parse_cpu_ticks(&stat.replace(" 12 ", " x ")), None);
        let pid = std::process::id();
        let started = process_start(pid).unwrap();
        assert!(process_cpu_ms(pid, started).is_some());
        assert_eq!(process_cpu_ms(pid, started + 1), None);
    }

    #[test]
    fn a_process_is_found_by_where_it_works() {
        let dir = tempfile::tempdir().unwrap();
        assert!(monitors_in(dir.path()).is_empty());
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        let found = monitors_in(dir.path());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, child.id());
    }

    #[test]
    fn only_the_same_process_is_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let started = process_start(child.id()).unwrap();
        assert!(!end_process(child.id(), started + 1));
        assert!(child.try_wait().unwrap().is_none());
        assert!(end_process(child.id(), started));
        assert!(!child.wait().unwrap().success());
        assert!(!end_process(0, 0));
    }
}
