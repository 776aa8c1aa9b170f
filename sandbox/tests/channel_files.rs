//! Files moved over the channel, by the real agent as an ordinary process.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use std::os::unix::fs::{PermissionsExt, symlink};

use rhizome_sandbox::{
    FileKind,
    channel::{FailureCode, FileError},
};
use support::Guest;
use tokio::io::{AsyncRead, AsyncReadExt};

async fn read_all(mut reader: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// Bytes that differ everywhere, with the channel's greeting among them again and again.
fn sample(len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len)
        .map(|at| (at * 31 % 251).to_le_bytes()[0])
        .collect();
    let magic = rhizome_guest::wire::MAGIC;
    for at in (0..len.saturating_sub(magic.len())).step_by(65_000) {
        bytes[at..at + magic.len()].copy_from_slice(&magic);
    }
    bytes
}

#[tokio::test]
async fn a_file_comes_back_as_it_was_written() {
    let guest = Guest::start().await;
    for len in [0, 1, 65_536, 5_000_000] {
        let path = guest.path(&format!("deep/er/{len}"));
        let data = sample(len);
        let written = guest
            .channel
            .write_file(&path, 0o640, true, &data[..])
            .await
            .unwrap();
        assert_eq!(written, len as u64);
        assert_eq!(std::fs::read(&path).unwrap(), data);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        let reader = guest.channel.read_file(&path).await.unwrap();
        assert_eq!(reader.stat().size, len as u64);
        assert_eq!(reader.stat().mode, 0o640);
        assert!(read_all(reader).await.unwrap() == data, "{len} bytes");
    }
}

#[tokio::test]
async fn a_file_of_unknown_size_is_read_to_its_end() {
    let guest = Guest::start().await;
    let reader = guest.channel.read_file("/proc/self/status").await.unwrap();
    assert_eq!(reader.stat().size, 0);
    let text = String::from_utf8(read_all(reader).await.unwrap()).unwrap();
    assert!(
        text.starts_with("Name:\trhizome-guest\n") || text.contains("Threads:"),
        "{text}"
    );
}

#[tokio::test]
async fn failures_are_told_apart() {
    let guest = Guest::start().await;
    let dir = guest.dir.path().to_str().unwrap().to_owned();
    let code = |error| match error {
        FileError::Guest { code, .. } => code,
        other => panic!("{other:?}"),
    };
    let missing = guest.path("missing");
    let error = guest.channel.read_file(&missing).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound { path } if path == missing));
    let error = guest.channel.read_file(&dir).await.unwrap_err();
    assert_eq!(code(error), FailureCode::IsADirectory);
    let error = guest
        .channel
        .write_file(&dir, 0o600, false, &b"x"[..])
        .await
        .unwrap_err();
    assert_eq!(code(error), FailureCode::IsADirectory);
    let error = guest.channel.read_file("/dev/zero").await.unwrap_err();
    assert_eq!(code(error), FailureCode::Invalid);
    let below = guest.path("a/b");
    let error = guest
        .channel
        .write_file(&below, 0o600, false, &b"x"[..])
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::NotFound { .. }));
    let error = guest.channel.stat("relative").await.unwrap_err();
    assert!(matches!(error, FileError::InvalidPath { .. }));
    assert!(error.hint().is_some());
    let error = guest
        .channel
        .stat(&format!("/{}", "x".repeat(5000)))
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::InvalidPath { .. }));
}

#[tokio::test]
async fn a_write_that_fails_leaves_what_was_there() {
    struct Broken;
    impl AsyncRead for Broken {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("broken")))
        }
    }
    let guest = Guest::start().await;
    let path = guest.path("kept");
    std::fs::write(&path, "before").unwrap();
    let broken = AsyncReadExt::chain(&b"half of it"[..], Broken);
    let error = guest
        .channel
        .write_file(&path, 0o600, false, broken)
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::Source { .. }));
    // The guest forgets the draft on its own time; until then it is no one's business.
    while std::fs::read_dir(guest.dir.path()).unwrap().count() > 1 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
}

#[tokio::test]
async fn a_link_is_written_through_and_stays_a_link() {
    let guest = Guest::start().await;
    std::fs::write(guest.path("target"), "old").unwrap();
    symlink("target", guest.path("link")).unwrap();
    guest
        .channel
        .write_file(&guest.path("link"), 0o644, false, &b"new"[..])
        .await
        .unwrap();
    assert_eq!(std::fs::read(guest.path("target")).unwrap(), b"new");
    let stat = guest.channel.stat(&guest.path("link")).await.unwrap();
    assert_eq!(
        (stat.kind, stat.link.as_deref()),
        (FileKind::Symlink, Some("target"))
    );
}

#[tokio::test]
async fn directories_are_made_listed_and_removed() {
    let guest = Guest::start().await;
    let dir = guest.path("one/two");
    guest.channel.make_dir(&dir, 0o750, true).await.unwrap();
    guest.channel.make_dir(&dir, 0o750, true).await.unwrap();
    assert!(guest.channel.make_dir(&dir, 0o750, false).await.is_err());
    let stat = guest.channel.stat(&dir).await.unwrap();
    assert_eq!((stat.kind, stat.mode), (FileKind::Directory, 0o750));
    for index in 0..3000 {
        std::fs::write(format!("{dir}/{index:04}-{}", "n".repeat(60)), "x").unwrap();
    }
    let entries = guest.channel.list(&dir).await.unwrap();
    assert_eq!(entries.len(), 3000);
    assert!(entries.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(
        (entries[0].stat.kind, entries[0].stat.size),
        (FileKind::File, 1)
    );
    assert!(guest.channel.remove(&dir, false).await.is_err());
    guest
        .channel
        .remove(&guest.path("one"), true)
        .await
        .unwrap();
    let error = guest.channel.list(&dir).await.unwrap_err();
    assert!(matches!(error, FileError::NotFound { .. }));
}

#[tokio::test]
async fn a_reader_that_is_dropped_ends_the_transfer() {
    let guest = Guest::start().await;
    let path = guest.path("large");
    std::fs::write(&path, vec![1; 8_000_000]).unwrap();
    // More of them than may be open at once, so each must be given back.
    for _ in 0..100 {
        let mut reader = loop {
            match guest.channel.read_file(&path).await {
                Ok(reader) => break reader,
                Err(FileError::Guest {
                    code: FailureCode::TooMany,
                    ..
                }) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error:?}"),
            }
        };
        let mut some = [0; 10];
        reader.read_exact(&mut some).await.unwrap();
        drop(reader);
    }
    guest.channel.ping().await.unwrap();
}

#[tokio::test]
async fn the_guest_says_what_it_is() {
    let guest = Guest::start().await;
    let info = guest.channel.info().await.unwrap();
    assert_eq!(info.agent, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.arch, "x86_64");
    assert!(info.cpus >= 1 && info.memory_total > 0 && info.uptime_ms > 0);
    assert_eq!(info.execs, 0);
}

/// Most memory that a process had so far, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// `RHIZOME_TEST_FILE_BYTES=2147483648` for the size that is asked for; less is as telling.
#[tokio::test]
async fn a_large_file_goes_both_ways_in_little_memory() {
    let size: u64 = std::env::var("RHIZOME_TEST_FILE_BYTES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(96 << 20);
    let guest = Guest::start().await;
    let before = (peak_memory(std::process::id()), peak_memory(guest.pid()));
    let source = guest.path("source");
    // Without blocks on the disk, but for a word at its end.
    let file = std::fs::File::create(&source).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"the end", size - 7).unwrap();
    let reader = guest.channel.read_file(&source).await.unwrap();
    assert_eq!(reader.stat().size, size);
    let copy = guest.path("copy");
    let begun = std::time::Instant::now();
    // Out and in again at the same time: both directions, each with its checksum.
    let written = guest.channel.write_file(&copy, 0o600, false, reader).await;
    assert_eq!(written.unwrap(), size);
    let taken = begun.elapsed();
    let after = (peak_memory(std::process::id()), peak_memory(guest.pid()));
    let grown = (after.0 - before.0, after.1 - before.1);
    eprintln!("{size} bytes out and in: {taken:?}, grown by {grown:?} bytes (node, guest)");
    // The windows of two streams, their queues and buffers.
    // Other tests of this process hold files of their own.
    assert!(grown.0 < 48 << 20 && grown.1 < 16 << 20, "{grown:?}");
    let tail = guest.channel.read_file_from(&copy, size - 7).await.unwrap();
    let mut end = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut { tail }, &mut end)
        .await
        .unwrap();
    assert_eq!(end, "the end");
}
