//! What it costs to take a guest, to start it again, and to have it twice, beside QEMU's own
//! `migrate` to a file doing the same.
//!
//! Every number is of an idle guest of the minimal image, in emulation. Ours goes on while it is
//! stored: the pause is what a copy of its memory takes. QEMU's own stands still for as long as
//! its file is written. Times to the first command end when `true` has ended in the guest.
//!
//! `cargo bench -p rhizome-sandbox --bench snapshot`; `RHIZOME_BENCH_RUNS` sets the number of
//! runs, `RHIZOME_BENCH_MIB` the sizes (`256,512,1024`).

#[path = "snapshot/plain.rs"]
mod plain;

use std::{
    error::Error,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, SandboxConfig, SandboxId,
    channel::{ChannelLimits, ExecRequest, ExitStatus, GuestChannel},
    chunks::{ChunkStore, StoreKey},
    driver::{Disk, Vm, VmRequest, VmmDriver, qemu::Qemu},
    image::ImageStore,
    silent,
    snapshot::{About, Freeze, Frozen, capture, freeze, wake},
};
use tokio::net::UnixStream;

const RUNS: usize = 5;
const SIZES_MIB: &[u32] = &[256, 512, 1024];
/// Guests forked from one, to see what one more costs.
const FORKS: u8 = 4;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    if Qemu::new(None).program().is_err() {
        writeln!(
            out,
            "snapshot: skipped: qemu-system-x86_64 is not installed"
        )?;
        return Ok(());
    }
    let runs = setting("RHIZOME_BENCH_RUNS").and_then(|text| text.parse().ok());
    let runs: usize = runs.unwrap_or(RUNS).max(1);
    let sizes: Vec<u32> = setting("RHIZOME_BENCH_MIB")
        .map(|text| {
            text.split(',')
                .filter_map(|size| size.parse().ok())
                .collect()
        })
        .unwrap_or_else(|| SIZES_MIB.to_vec());
    let runtime = tokio::runtime::Runtime::new()?;
    writeln!(out, "snapshot: emulation, 1 CPU, idle, medians of {runs}")?;
    for size in sizes {
        runtime.block_on(measure(&mut out, size, runs))?;
    }
    Ok(())
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

async fn measure(out: &mut impl Write, memory_mib: u32, runs: usize) -> Result<()> {
    let host = Host::new(memory_mib).await?;
    let qemu = Qemu::new(None);

    // Cold, in turns with nothing else: each is a boot.
    let (mut cold, mut guest) = (Vec::new(), None);
    for run in 0..runs {
        let request = host.request(0)?;
        let begun = Instant::now();
        let vm = qemu.start(&request).await?;
        let channel = first_command(vm.connect().await?).await?;
        cold.push(begun.elapsed());
        if run + 1 == runs {
            guest = Some((request, vm, channel));
        }
    }
    let (request, vm, channel) = guest.ok_or("there is a run")?;

    // The pause, and what was copied in it.
    let (mut pauses, mut frozen): (Vec<Duration>, Option<Frozen>) = (Vec::new(), None);
    for _ in 0..runs {
        drop(frozen.take());
        let taken = freeze(&vm, &request, &host.copies, Freeze::Copy).await?;
        pauses.push(taken.pause);
        frozen = Some(taken);
    }
    let frozen = Arc::new(frozen.ok_or("there is a run")?);

    // Into the store; and once more, of the guest as it is a moment later.
    let store = ChunkStore::open(&host.home.path().join("chunks"))?;
    let key = StoreKey::from_bytes([1; 32]);
    let about = About::of(&qemu, &request).await?;
    let begun = Instant::now();
    let mut writer = store.writer(&key);
    let first = capture(&frozen, about.clone(), &mut writer, &silent())?;
    let (packs, first_stats) = writer.finish_with_stats()?;
    let stored = begun.elapsed();
    let later = host.home.path().join("later");
    fs::create_dir(&later)?;
    let second = freeze(&vm, &request, &later, Freeze::Copy).await?;
    let begun = Instant::now();
    let mut writer = store.writer(&key);
    capture(&second, about, &mut writer, &silent())?;
    let (_, second_stats) = writer.finish_with_stats()?;
    let stored_again = begun.elapsed();
    drop((second, channel));
    vm.kill().await;

    // From the store, and from the copies.
    let manifest = Arc::new(first.manifest);
    let (mut restored, mut answers, mut forked) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let request = host.request(1)?;
        let begun = Instant::now();
        let reader = store.reader(&key, &packs)?;
        let manifest = Arc::clone(&manifest);
        let (vm, _) = wake(&qemu, &request, manifest, Arc::new(reader), silent()).await?;
        let (answered, _channel) = go_on(&vm, begun).await?;
        restored.push(begun.elapsed());
        answers.push(answered);
        vm.kill().await;
        let request = host.request(2)?;
        let begun = Instant::now();
        let vm = frozen.fork(&qemu, &request).await?;
        let _channel = go_on(&vm, begun).await?;
        forked.push(begun.elapsed());
        vm.kill().await;
    }

    // Several at once: what one more takes of the host.
    let mut forks = Vec::new();
    let mut again = Duration::ZERO;
    for number in 0..FORKS {
        let request = host.request(10 + number)?;
        let vm = frozen.fork(&qemu, &request).await?;
        let (_, channel) = go_on(&vm, Instant::now()).await?;
        if number == 0 {
            // One that shares its memory is taken, too: what it wrote is read from its monitor.
            let copies = host.home.path().join("again");
            fs::create_dir(&copies)?;
            again = freeze(&vm, &request, &copies, Freeze::Copy).await?.pause;
        }
        forks.push((vm, channel));
    }
    let mut each: Vec<u64> = forks.iter().map(|(vm, _)| pss(vm.pid)).collect();
    each.sort_unstable();
    for (vm, _channel) in forks {
        vm.kill().await;
    }

    let theirs = plain::measure(&host, runs).await?;
    let cold = median(cold);
    let restored = median(restored);
    writeln!(out, "  {memory_mib} MiB")?;
    row(out, "cold boot to first command", cold, "")?;
    row(out, "  QEMU alone", theirs.boot, "the same guest")?;
    let pause = format!("{} MB copied", mb(frozen.copied));
    row(out, "snapshot: pause", median(pauses), &pause)?;
    row(out, "  of a fork", again, "which shares its memory")?;
    let file = format!("{} MB written, the guest stands still", mb(theirs.bytes));
    row(out, "  QEMU migrate to a file", theirs.save, &file)?;
    let bytes = format!(
        "{} MB read, {} new, {} stored",
        mb(first.bytes_read),
        mb(first_stats.new_bytes),
        mb(first_stats.stored_bytes)
    );
    row(out, "  chunked while it runs", stored, &bytes)?;
    let bytes = format!(
        "{} MB new, {} stored",
        mb(second_stats.new_bytes),
        mb(second_stats.stored_bytes)
    );
    row(out, "  chunked again", stored_again, &bytes)?;
    let ratio = format!(
        "{:.1} % of cold; the guest answers after {} ms",
        100.0 * restored.as_secs_f64() / cold.as_secs_f64(),
        median(answers).as_millis()
    );
    row(out, "store to first command", restored, &ratio)?;
    row(
        out,
        "fork to first command",
        median(forked),
        "from the copies",
    )?;
    row(out, "  QEMU from its file", theirs.restore, "")?;
    let marginal = each[each.len() / 2];
    writeln!(
        out,
        "    {:<28} {:>6} MB   of {FORKS} at once; QEMU from its file {} MB",
        "memory of one more fork",
        mb(marginal),
        mb(theirs.resident)
    )?;
    Ok(())
}

/// Lets a guest that was restored go on; returns when it answered, and after its first command.
async fn go_on(vm: &Vm, begun: Instant) -> Result<(Duration, GuestChannel)> {
    let stream = vm.connect().await?;
    vm.resume().await?;
    let (channel, _doors) = GuestChannel::start(stream, ChannelLimits::default()).await?;
    let answered = begun.elapsed();
    command(&channel).await?;
    Ok((answered, channel))
}

/// Waits for the guest's agent and runs `true`.
async fn first_command(stream: UnixStream) -> Result<GuestChannel> {
    let (channel, _doors) = GuestChannel::start(stream, ChannelLimits::default()).await?;
    command(&channel).await?;
    Ok(channel)
}

async fn command(channel: &GuestChannel) -> Result<()> {
    let request = ExecRequest {
        argv: vec!["true".to_owned()],
        ..ExecRequest::default()
    };
    let output = channel.exec(request).await?.output(1024).await?;
    if output.status != ExitStatus::Code(0) {
        return Err(format!("`true` ended with {:?}", output.status).into());
    }
    Ok(())
}

/// A place for guests of one size.
struct Host {
    home: tempfile::TempDir,
    copies: PathBuf,
    parts: PathBuf,
    memory_mib: u32,
}

impl Host {
    async fn new(memory_mib: u32) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let mut config = SandboxConfig::new(home.path());
        config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
        let image = ImageStore::open(&config)?.build_minimal(silent()).await?;
        let copies = home.path().join("copies");
        fs::create_dir(&copies)?;
        Ok(Self {
            parts: config.images_dir.join("images").join(&image.id[..16]),
            home,
            copies,
            memory_mib,
        })
    }

    /// Returns a request in an empty directory of its own, with a small disk.
    fn request(&self, number: u8) -> Result<VmRequest> {
        let dir = self.home.path().join(format!("vm{number}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir)?;
        let disk = dir.join("data");
        fs::File::create(&disk)?.set_len(16 << 20)?;
        Ok(VmRequest {
            id: SandboxId::from_bytes([number; 16]),
            console: self.home.path().join(format!("console-{number}.log")),
            kernel: self.parts.join("vmlinuz"),
            initramfs: self.parts.join("initramfs"),
            disks: vec![Disk {
                path: disk,
                writable: true,
            }],
            memory_mib: self.memory_mib,
            vcpus: 1,
            accel: Accel::Tcg,
            kernel_args: Vec::new(),
            dir,
        })
    }
}

/// Returns what a process takes of the host's memory: its share of what it shares.
fn pss(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Megabytes, to one decimal.
fn mb(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

fn row(out: &mut impl Write, name: &str, time: Duration, more: &str) -> std::io::Result<()> {
    writeln!(out, "    {name:<28} {:>6} ms   {more}", time.as_millis())
}
