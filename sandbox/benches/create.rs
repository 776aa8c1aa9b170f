//! From the request for a sandbox to the end of its first command: booted, copied from a guest
//! that waits, woken, made from a snapshot, forked. And what the driver costs a program that only
//! computes.
//!
//! Plain QEMU doing the same is measured by `boot` (a boot) and `snapshot` (a state from a file).
//!
//! `cargo bench -p rhizome-sandbox --bench create`; `RHIZOME_BENCH_RUNS` sets the number of runs,
//! `RHIZOME_BENCH_MIB` the memory of a guest.

use std::{
    error::Error,
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, ForkOptions, OnShutdown, ResumeOptions, SandboxConfig, SandboxId, SandboxSpec,
    Sandboxes, SnapshotOptions,
    channel::{ExecRequest, ExitStatus},
    chunks::StoreKey,
    driver::qemu::Qemu,
    silent,
};

const RUNS: usize = 5;
const MEMORY_MIB: u32 = 256;
/// Restoring takes at most this share of booting, in per cent.
const LIMIT_PERCENT: f64 = 10.0;
/// Turns of a loop that does nothing but count.
const TURNS: u32 = 200_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    if Qemu::new(None).program().is_err() {
        writeln!(out, "create: skipped: qemu-system-x86_64 is not installed")?;
        return Ok(());
    }
    let runs = setting("RHIZOME_BENCH_RUNS", RUNS).max(1);
    let memory_mib = setting("RHIZOME_BENCH_MIB", MEMORY_MIB);
    tokio::runtime::Runtime::new()?.block_on(measure(&mut out, runs, memory_mib))
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let said = std::env::var(name).ok().and_then(|text| text.parse().ok());
    said.unwrap_or(default)
}

async fn measure(out: &mut impl Write, runs: usize, memory_mib: u32) -> Result<()> {
    let home = tempfile::tempdir()?;
    let spec = SandboxSpec {
        memory_mib,
        ..SandboxSpec::default()
    };
    let booting = open(&home.path().join("booting"), 0).await?;
    let copying = open(&home.path().join("copying"), 1).await?;
    // The image is built and its tools are asked for before anything is measured.
    let first = booting.create(spec.clone(), silent()).await?;
    let penalty = penalty(&booting, &first.id, home.path(), runs).await?;
    booting.kill(&first.id).await?;
    copying.warm(spec.clone(), silent()).await?;
    let key = StoreKey::from_bytes([1; 32]);
    let options = SnapshotOptions::new(key.clone());
    let sleeper = copying.create(spec.clone(), silent()).await?.id;
    let taken = copying
        .snapshot(&sleeper, options.clone(), silent())
        .await?;

    let mut cold = Vec::new();
    let [mut pool, mut woken, mut made, mut forked] = [const { Vec::new() }; 4];
    let mut memory = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        let info = booting.create(spec.clone(), silent()).await?;
        command(&booting, &info.id, &["true"]).await?;
        cold.push(begun.elapsed());
        booting.kill(&info.id).await?;

        let begun = Instant::now();
        let info = copying.create(spec.clone(), silent()).await?;
        command(&copying, &info.id, &["true"]).await?;
        pool.push(begun.elapsed());
        memory.push(
            copying
                .usage(&info.id)?
                .monitor
                .map_or(0, |monitor| own(monitor.monitor.pid)),
        );
        copying.kill(&info.id).await?;

        copying
            .hibernate(&sleeper, options.clone(), silent())
            .await?;
        let begun = Instant::now();
        copying.resume(&sleeper, &key, silent()).await?;
        command(&copying, &sleeper, &["true"]).await?;
        woken.push(begun.elapsed());

        let new = ResumeOptions {
            as_new: true,
            ..ResumeOptions::default()
        };
        let begun = Instant::now();
        let info = copying.restore(&taken, &key, new, silent()).await?;
        command(&copying, &info.id, &["true"]).await?;
        made.push(begun.elapsed());
        copying.kill(&info.id).await?;

        let one = ForkOptions {
            count: 1,
            ..ForkOptions::default()
        };
        let begun = Instant::now();
        let copies = copying.fork(&sleeper, one, options.clone(), silent());
        let copies = copies.await?;
        command(&copying, &copies[0].id, &["true"]).await?;
        forked.push(begun.elapsed());
        copying.kill(&copies[0].id).await?;
    }
    let waiting = copying.pool();
    booting.shutdown(OnShutdown::Kill).await;
    copying.shutdown(OnShutdown::Kill).await;

    let cold = median(&mut cold);
    writeln!(
        out,
        "create: emulation, 1 CPU, {memory_mib} MiB, to the end of the first command, medians of {runs}"
    )?;
    writeln!(out, "  {:<28} {:>6} ms", "booted", cold.as_millis())?;
    for (name, times) in [
        ("from the pool", &mut pool),
        ("woken where it slept", &mut woken),
        ("made from a snapshot", &mut made),
        ("forked, freezing included", &mut forked),
    ] {
        let time = median(times);
        let share = 100.0 * time.as_secs_f64() / cold.as_secs_f64();
        let verdict = if share <= LIMIT_PERCENT {
            "within"
        } else {
            "over"
        };
        writeln!(
            out,
            "  {name:<28} {:>6} ms   {share:>5.1} % of booted, {verdict} {LIMIT_PERCENT} %",
            time.as_millis()
        )?;
    }
    memory.sort_unstable();
    writeln!(
        out,
        "  {:<28} {:>6} MB   what waits takes {} MB for all of them",
        "memory of one from the pool",
        memory[memory.len() / 2] / 1_000_000,
        waiting.first().map_or(0, |guest| guest.resident_bytes) / 1_000_000
    )?;
    let [host, guest] = penalty;
    writeln!(
        out,
        "  {:<28} {:>6.1} x   {} ms in the guest, {} ms on the host: a shell counts to {TURNS}",
        "penalty of the processor",
        guest.as_secs_f64() / host.as_secs_f64(),
        guest.as_millis(),
        host.as_millis()
    )?;
    Ok(())
}

async fn open(dir: &Path, waiting: usize) -> Result<Sandboxes> {
    let mut config = SandboxConfig::new(dir);
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    config.accel = Accel::Tcg;
    config.limits.max_waiting = waiting;
    Ok(Sandboxes::open(config).await?.0)
}

/// Runs the same program on the host and in the guest, and returns how long each took.
async fn penalty(
    sandboxes: &Sandboxes,
    id: &SandboxId,
    home: &Path,
    runs: usize,
) -> Result<[Duration; 2]> {
    let channel = sandboxes.channel(id).await?;
    let mut reader = channel.read_file("/bin/busybox").await?;
    let program = home.join("busybox");
    let mut file = tokio::fs::File::create(&program).await?;
    tokio::io::copy(&mut reader, &mut file).await?;
    tokio::io::AsyncWriteExt::shutdown(&mut file).await?;
    drop(file);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let script = format!("i=0; while [ $i -lt {TURNS} ]; do i=$((i+1)); done");
    let (mut host, mut guest) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let begun = Instant::now();
        let status = Command::new(&program)
            .args(["sh", "-c", &script])
            .stdin(Stdio::null())
            .status()?;
        if !status.success() {
            return Err("the loop does not run on the host".into());
        }
        host.push(begun.elapsed());
        guest.push(command(sandboxes, id, &["/bin/busybox", "sh", "-c", &script]).await?);
    }
    Ok([median(&mut host), median(&mut guest)])
}

/// Runs a command to its end and returns how long that took.
async fn command(sandboxes: &Sandboxes, id: &SandboxId, argv: &[&str]) -> Result<Duration> {
    let begun = Instant::now();
    let request = ExecRequest {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecRequest::default()
    };
    let output = sandboxes.exec(id, request).await?.output(1024).await?;
    match output.status {
        ExitStatus::Code(0) => Ok(begun.elapsed()),
        status => Err(format!("{argv:?} ended with {status:?}").into()),
    }
}

/// Returns the memory that a process has to itself.
fn own(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
    };
    let own = ["Private_Clean:", "Private_Dirty:"].map(|name| kib(name).unwrap_or(0));
    own.iter().sum::<u64>() * 1024
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
