//! Cold boot to the first command in the minimal image, beside the plain boot of the same kernel.
//!
//! The plain boot is QEMU with the same machine, kernel and processor and the smallest program as
//! `/init`: it writes a word to the console and powers off. What lies between the two is ours:
//! the guest agent, its modules, the channel, the state on disk and one exec.
//!
//! `cargo bench -p rhizome-sandbox --bench boot`; `RHIZOME_BENCH_RUNS` sets the number of runs.

use std::{
    error::Error,
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rhizome_sandbox::{
    Accel, OnShutdown, SandboxConfig, SandboxSpec, Sandboxes,
    channel::{ExecRequest, ExitStatus},
    driver::{VmmDriver, qemu::Qemu},
    kernel, silent,
};

const RUNS: usize = 5;
/// What the plain boot's program says.
const WORD: &[u8] = b"READY\n";

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let Ok(qemu) = Qemu::new(None).program() else {
        writeln!(out, "boot: skipped: qemu-system-x86_64 is not installed")?;
        return Ok(());
    };
    let runs = std::env::var("RHIZOME_BENCH_RUNS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(RUNS)
        .max(1);
    let home = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut config = SandboxConfig::new(home.path());
    config.images_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    // Both sides the same way, whatever the host has.
    config.accel = Accel::Tcg;
    let kernel = runtime.block_on(kernel::ensure(&config, &silent()))?;
    let (sandboxes, _doors) = runtime.block_on(Sandboxes::open(config))?;
    // The first one builds the image and asks for the tools; neither is part of a boot.
    runtime.block_on(first_command(&sandboxes))?;

    let initramfs = home.path().join("plain.cpio");
    fs::write(&initramfs, plain_initramfs())?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        // In turns, so that a busy minute of the host falls on both.
        plain.push(plain_boot(&qemu, &kernel.image, &initramfs)?);
        ours.push(runtime.block_on(first_command(&sandboxes))?);
    }
    runtime.block_on(sandboxes.shutdown(OnShutdown::Kill));
    let (ours_median, plain_median) = (median(&mut ours), median(&mut plain));
    writeln!(
        out,
        "boot: Linux {}, emulation, 1 CPU, 256 MiB, {runs} runs in turns",
        kernel.release
    )?;
    row(&mut out, "create to first command", &ours, ours_median)?;
    row(&mut out, "plain QEMU boot", &plain, plain_median)?;
    writeln!(
        out,
        "  ratio {:.2}; the sandbox adds {} ms",
        ours_median.as_secs_f64() / plain_median.as_secs_f64(),
        ours_median.saturating_sub(plain_median).as_millis()
    )?;
    Ok(())
}

fn row(
    out: &mut impl Write,
    name: &str,
    sorted: &[Duration],
    median: Duration,
) -> std::io::Result<()> {
    writeln!(
        out,
        "  {name:<24} median {:>5} ms   min {:>5} ms   max {:>5} ms",
        median.as_millis(),
        sorted[0].as_millis(),
        sorted[sorted.len() - 1].as_millis()
    )
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// From the request to the end of the first command; ending the sandbox is not counted.
async fn first_command(sandboxes: &Sandboxes) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    let info = sandboxes.create(SandboxSpec::default(), silent()).await?;
    let request = ExecRequest {
        argv: vec!["true".to_owned()],
        ..ExecRequest::default()
    };
    let output = sandboxes
        .exec(&info.id, request)
        .await?
        .output(1024)
        .await?;
    let taken = begun.elapsed();
    if output.status != ExitStatus::Code(0) {
        return Err(format!("`true` ended with {:?}", output.status).into());
    }
    sandboxes.kill(&info.id).await?;
    Ok(taken)
}

fn plain_boot(qemu: &Path, kernel: &Path, initramfs: &Path) -> Result<Duration, Box<dyn Error>> {
    let cpu = Qemu::new(None).cpu_model(Accel::Tcg);
    let tsc = tsc_khz().ok_or("the host tells no bogomips")?;
    let begun = Instant::now();
    let mut child = Command::new(qemu)
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-M", "microvm,rtc=on,pit=off,pic=off", "-bios", "qboot.rom"])
        .args(["-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "1", "-m", "256"])
        .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet panic=-1 reboot=t no_timer_check random.trust_cpu=on \
             cryptomgr.notests 8250.nr_uarts=1 tsc_early_khz={tsc} tsc=reliable mitigations=off nokaslr"
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut console = child.stdout.take().ok_or("stdout is piped")?;
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    // The console turns the line's end into two characters, so the word is looked for without it.
    let word = &WORD[..WORD.len() - 1];
    while !said.windows(word.len()).any(|window| window == word) {
        let size = console.read(&mut buffer)?;
        if size == 0 {
            let _ = child.wait();
            return Err("the plain boot said nothing".into());
        }
        said.extend_from_slice(&buffer[..size]);
    }
    let taken = begun.elapsed();
    let _ = child.kill();
    child.wait()?;
    Ok(taken)
}

fn tsc_khz() -> Option<u64> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpuinfo.lines().find(|line| line.starts_with("bogomips"))?;
    let (whole, part) = line.split_once(':')?.1.trim().split_once('.')?;
    Some((whole.parse::<u64>().ok()? * 1000 + part.parse::<u64>().ok()? * 10) / 2)
}

/// An archive with nothing but the program below.
fn plain_initramfs() -> Vec<u8> {
    let mut archive = Vec::new();
    let program = plain_program();
    for (name, mode, content) in [("init", 0o100_755, &program[..]), ("TRAILER!!!", 0, &[])] {
        let fields = [
            1,
            mode,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        ];
        archive.extend_from_slice(b"070701");
        for field in fields {
            archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        for part in [[name.as_bytes(), b"\0"].concat().as_slice(), content] {
            archive.extend_from_slice(part);
            archive.resize(archive.len().next_multiple_of(4), 0);
        }
    }
    archive
}

/// The smallest Linux program that says a word and ends the machine: `write(1, WORD, 6)`, then
/// `reboot(RB_AUTOBOOT)`. One segment of an ELF file made by hand, so that the measurement needs
/// no compiler for another target.
fn plain_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let mut code: Vec<u8> = vec![
        0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1 (write)
        0xbf, 0x01, 0x00, 0x00, 0x00, // mov edi, 1
        0x48, 0x8d, 0x35, 0x1f, 0x00, 0x00, 0x00, // lea rsi, [rip + 31] (the word)
        0xba, 0x06, 0x00, 0x00, 0x00, // mov edx, 6
        0x0f, 0x05, // syscall
        0xb8, 0xa9, 0x00, 0x00, 0x00, // mov eax, 169 (reboot)
        0xbf, 0xad, 0xde, 0xe1, 0xfe, // mov edi, 0xfee1dead
        0xbe, 0x69, 0x19, 0x12, 0x28, // mov esi, 0x28121969
        0xba, 0x67, 0x45, 0x23, 0x01, // mov edx, 0x01234567
        0x0f, 0x05, // syscall
        0xeb, 0xfe, // jmp $
    ];
    code.extend_from_slice(WORD);
    let size = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, 62] {
        file.extend_from_slice(&half.to_le_bytes()); // type, machine
    }
    file.extend_from_slice(&1_u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes()); // entry, program headers, sections
    }
    file.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1_u32.to_le_bytes()); // PT_LOAD
    file.extend_from_slice(&5_u32.to_le_bytes()); // readable, executable
    for word in [0, BASE, BASE, size, size, 0x1000] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&code);
    file
}
