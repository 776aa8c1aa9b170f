//! How fast chunks are stored and read, beside plain `zstd -1` and a plain copy with fsync.
//!
//! The bytes are like those of a guest's memory: some pages of zeros, some of text, some that
//! don't compress. Chunks of 64 KiB, as snapshots use them.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use rhizome_sandbox::chunks::{ChunkStore, StoreKey};

const MIB: usize = 1024 * 1024;
/// Bytes stored in each round.
const TOTAL: usize = 256 * MIB;
const CHUNK: usize = 64 * 1024;
/// Rounds of each, of which the best counts: the disk's mood is not what is measured.
const ROUNDS: usize = 3;

fn main() -> ExitCode {
    // `cargo test` builds benches and runs them with this flag.
    if std::env::args().any(|arg| arg == "--test") {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let bytes = memory_like(TOTAL);
    let source = dir.path().join("source");
    fs::write(&source, &bytes)?;
    let key = StoreKey::from_bytes([7; 32]);
    let mut out = io::stdout().lock();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(
        out,
        "chunks: {} MiB, {cores} cores, best of {ROUNDS}",
        TOTAL / MIB
    )?;

    let copy = best(|| copy_with_sync(&source, &dir.path().join("copy")))?;
    line(&mut out, "copy with fsync", copy, "")?;
    let mut packed = 0;
    let plain = best(|| {
        packed = zstd::bulk::compress(&bytes, 1)?.len();
        Ok(())
    })?;
    line(
        &mut out,
        "zstd -1, one thread, in memory",
        plain,
        &percent(packed),
    )?;
    let hash = best(|| {
        std::hint::black_box(blake3::hash(&bytes));
        Ok(())
    })?;
    line(&mut out, "BLAKE3, one thread", hash, "")?;

    let mut round = 0;
    let (mut stored, mut packs, mut ids) = (0, Vec::new(), Vec::new());
    let mut store = None;
    let first = best(|| {
        round += 1;
        store = None;
        let fresh = ChunkStore::open(&dir.path().join(format!("store-{round}")))
            .map_err(io::Error::other)?;
        let mut writer = fresh.writer(&key);
        ids = bytes
            .chunks(CHUNK)
            .map(|chunk| writer.put(chunk))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let (written, stats) = writer.finish_with_stats().map_err(io::Error::other)?;
        (packs, stored) = (written, stats.stored_bytes);
        store = Some(fresh);
        Ok(())
    })?;
    let store = store.ok_or("no round ran")?;
    line(
        &mut out,
        "store, durable",
        first,
        &percent(usize::try_from(stored)?),
    )?;
    let again = best(|| {
        let mut writer = store.writer(&key);
        for chunk in bytes.chunks(CHUNK) {
            writer.put(chunk).map_err(io::Error::other)?;
        }
        writer.finish().map(drop).map_err(io::Error::other)
    })?;
    line(&mut out, "store what is there", again, "")?;
    let read = best(|| {
        let reader = store.reader(&key, &packs).map_err(io::Error::other)?;
        for id in &ids {
            std::hint::black_box(reader.read(id).map_err(io::Error::other)?);
        }
        Ok(())
    })?;
    line(&mut out, "read, verified, one thread", read, "")?;
    drop(store);
    let path = dir.path().join(format!("store-{round}"));
    let open = best(|| ChunkStore::open(&path).map(drop).map_err(io::Error::other))?;
    writeln!(out, "  {:<32} {:>8.1} ms", "open", open.as_secs_f64() * 1e3)?;
    writeln!(
        out,
        "  store takes {:.2} times the slower of the copy and zstd -1 on {cores} cores (limit 3)",
        first.as_secs_f64() / copy.max(plain / u32::try_from(cores)?).as_secs_f64()
    )?;
    Ok(())
}

fn best(mut body: impl FnMut() -> io::Result<()>) -> io::Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        body()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn line(out: &mut impl Write, what: &str, took: Duration, note: &str) -> io::Result<()> {
    let rate = (TOTAL / MIB) as f64 / took.as_secs_f64();
    writeln!(
        out,
        "  {what:<32} {:>8.1} ms  {rate:>6.0} MiB/s  {note}",
        took.as_secs_f64() * 1e3
    )
}

fn percent(stored: usize) -> String {
    format!("{:.0} % of the bytes", stored as f64 * 100.0 / TOTAL as f64)
}

fn copy_with_sync(from: &Path, to: &Path) -> io::Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// A quarter of pages compresses to nothing, half to about a third, a quarter not at all.
fn memory_like(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&number.to_le_bytes());
        let mut noise = hasher.finalize_xof();
        match number % 4 {
            0 => page[..8].copy_from_slice(&number.to_le_bytes()),
            1 => noise.fill(page),
            _ => {
                let mut seed = [0; 1024];
                noise.fill(&mut seed);
                for (at, byte) in page.iter_mut().enumerate() {
                    *byte = b"rhizome keeps what sleeps "[at % 26] ^ (seed[at / 4] & 3);
                }
            }
        }
    }
    bytes
}
