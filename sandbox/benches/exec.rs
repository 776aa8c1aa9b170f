//! A command's round trip and 64 MiB of output, in a microVM and with the same agent as an
//! ordinary process: what lies between the two is the machine.
//!
//! `cargo bench -p rhizome-sandbox --bench exec`; `RHIZOME_BENCH_RUNS` sets the number of runs.

use std::{
    error::Error,
    fs,
    io::Write,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, OnShutdown, SandboxConfig, SandboxSpec, Sandboxes,
    channel::{ChannelLimits, ExecEvent, ExecRequest, ExitStatus, GuestChannel},
    driver::qemu::Qemu,
    guest_binary, silent,
};

const RUNS: usize = 50;
const OUTPUT_RUNS: usize = 3;
const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let runs = std::env::var("RHIZOME_BENCH_RUNS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(RUNS)
        .max(1);
    let home = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut process, channel) = runtime.block_on(as_process(home.path()))?;
    measure(&mut out, "agent as a process", &runtime, &channel, runs)?;
    channel.close();
    process.kill()?;
    process.wait()?;
    if Qemu::new(None).program().is_err() {
        writeln!(
            out,
            "exec: microVM skipped: qemu-system-x86_64 is not installed"
        )?;
        return Ok(());
    }
    let mut config = SandboxConfig::new(home.path().join("sandboxes"));
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    config.accel = Accel::Tcg;
    let (sandboxes, _doors) = runtime.block_on(Sandboxes::open(config))?;
    let info = runtime.block_on(sandboxes.create(SandboxSpec::default(), silent()))?;
    let channel = runtime.block_on(sandboxes.channel(&info.id))?;
    measure(
        &mut out,
        "microVM, emulation, 1 CPU",
        &runtime,
        &channel,
        runs,
    )?;
    runtime.block_on(sandboxes.kill(&info.id))?;
    runtime.block_on(sandboxes.shutdown(OnShutdown::Kill));
    Ok(())
}

/// Starts the agent that guests have, without a guest.
async fn as_process(home: &Path) -> Result<(Child, GuestChannel), Box<dyn Error>> {
    let binary = home.join("agent");
    fs::write(&binary, guest_binary())?;
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    let process = Command::new(binary)
        .args(["serve", "--fd", "0"])
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .spawn()?;
    near.set_nonblocking(true)?;
    let stream = tokio::net::UnixStream::from_std(near)?;
    let (channel, _doors) = GuestChannel::start(stream, ChannelLimits::default()).await?;
    Ok((process, channel))
}

fn measure(
    out: &mut impl Write,
    name: &str,
    runtime: &tokio::runtime::Runtime,
    channel: &GuestChannel,
    runs: usize,
) -> Result<(), Box<dyn Error>> {
    writeln!(out, "exec: {name}")?;
    let mut pings = Vec::new();
    let mut execs = Vec::new();
    // The first one finds nothing in any cache.
    runtime.block_on(run(channel, &["true"]))?;
    for _ in 0..runs {
        pings.push(runtime.block_on(channel.ping())?);
        execs.push(runtime.block_on(run(channel, &["true"]))?.0);
    }
    row(out, "ping", &mut pings)?;
    row(out, "exec `true` to its end", &mut execs)?;
    // The guest's `head` writes 4 KiB at a time, and takes each byte by itself.
    let bytes = OUTPUT_BYTES.to_string();
    let head = ["head", "-c", &bytes, "/dev/zero"];
    let dd = ["sh", "-c", "dd if=/dev/zero bs=64k count=1024 2>/dev/null"];
    for (name, words) in [
        ("64 MiB of output, `head`", head.as_slice()),
        ("  `dd bs=64k`", &dd),
    ] {
        let mut streams = Vec::new();
        for _ in 0..OUTPUT_RUNS {
            let (taken, bytes) = runtime.block_on(run(channel, words))?;
            if bytes != OUTPUT_BYTES {
                return Err(format!("{bytes} bytes of output came").into());
            }
            streams.push(taken);
        }
        row(out, name, &mut streams)?;
        let median = streams[streams.len() / 2].as_secs_f64();
        writeln!(out, "  {:<26} {:>8.1} MiB/s", "", 64.0 / median)?;
    }
    Ok(())
}

/// Runs a command to its end; returns how long that took and how much it said.
async fn run(channel: &GuestChannel, argv: &[&str]) -> Result<(Duration, u64), Box<dyn Error>> {
    let begun = Instant::now();
    let request = ExecRequest {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecRequest::default()
    };
    let mut handle = channel.exec(request).await?;
    let mut bytes = 0;
    while let Some(event) = handle.events.recv().await {
        match event? {
            ExecEvent::Stdout(data) | ExecEvent::Stderr(data) => bytes += data.len() as u64,
            ExecEvent::Exit(ExitStatus::Code(0)) => return Ok((begun.elapsed(), bytes)),
            ExecEvent::Exit(status) => return Err(format!("{argv:?} ended with {status:?}").into()),
        }
    }
    Err("a command had no end".into())
}

fn row(out: &mut impl Write, name: &str, times: &mut [Duration]) -> std::io::Result<()> {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    writeln!(
        out,
        "  {name:<26} median {:>8.2} ms   min {:>8.2} ms   max {:>8.2} ms",
        ms(times[times.len() / 2]),
        ms(times[0]),
        ms(times[times.len() - 1])
    )
}
