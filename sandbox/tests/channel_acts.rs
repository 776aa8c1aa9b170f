//! What is done with paths as users name them, by the real agent as an ordinary process.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    time::Duration,
};

use rhizome_guest::wire::{Frame, Hello, Kind, PROTOCOL_VERSION, Ready};
use rhizome_sandbox::{
    FileKind,
    channel::{ChannelLimits, FailureCode, FileError, GuestChannel, WatchOp},
};
use support::Guest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn code(error: &FileError) -> FailureCode {
    match error {
        FileError::Guest { code, .. } => *code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_is_told_of_a_path() {
    let guest = Guest::start().await;
    let path = guest.path("a");
    fs::write(&path, b"hello").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let found = fs::metadata(&path).unwrap();
    let facts = guest.channel.look("", &path).await.unwrap();
    assert_eq!((facts.name(), &facts.path), ("a", &path));
    assert_eq!((facts.kind, facts.is_link), (FileKind::File, false));
    assert_eq!((facts.mode, facts.size), (0o640, 5));
    assert_eq!((facts.uid, facts.gid), (found.uid(), found.gid()));
    if found.uid() == 0 {
        assert_eq!((&*facts.owner, &*facts.group), ("root", "root"));
    }
    let modified = found.mtime() * 1_000_000_000 + found.mtime_nsec();
    assert_eq!((facts.modified_ns, facts.target), (modified, None));

    symlink("a", guest.path("link")).unwrap();
    symlink("nowhere", guest.path("broken")).unwrap();
    let link = guest.channel.look("", &guest.path("link")).await.unwrap();
    assert_eq!((link.kind, link.is_link), (FileKind::File, true));
    let end = fs::canonicalize(&path).unwrap();
    assert_eq!(link.target.as_deref(), end.to_str());
    let broken = guest.channel.look("", &guest.path("broken")).await.unwrap();
    assert_eq!((broken.kind, broken.is_link), (FileKind::Symlink, true));
    assert_eq!(broken.target.as_deref(), Some("nowhere"));

    let missing = guest.channel.look("", &guest.path("none")).await;
    assert!(matches!(missing, Err(FileError::NotFound { .. })));
    let nobody = guest.channel.look("no such user", "a").await.unwrap_err();
    assert_eq!(code(&nobody), FailureCode::NoSuchUser);
    let home = guest.channel.look("", "~").await.unwrap();
    assert_eq!(guest.channel.look("", "").await.unwrap(), home);
}

#[tokio::test]
async fn trees_are_listed_as_deep_as_was_asked() {
    let guest = Guest::start().await;
    for dir in ["d/b/c/e", "d/a"] {
        fs::create_dir_all(guest.path(dir)).unwrap();
    }
    fs::write(guest.path("d/b/f"), b"").unwrap();
    symlink(guest.path("d"), guest.path("d/loop")).unwrap();
    let names = async |depth| {
        let all = guest
            .channel
            .look_below("", &guest.path("d"), depth)
            .await
            .unwrap();
        let root = format!("{}/", guest.path("d"));
        let below = |path: &str| path.strip_prefix(&root).unwrap().to_owned();
        all.iter()
            .map(|facts| below(&facts.path))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(1).await, ["a", "b", "loop"]);
    assert_eq!(names(2).await, ["a", "b", "b/c", "b/f", "loop"]);
    assert_eq!(names(9).await, ["a", "b", "b/c", "b/c/e", "b/f", "loop"]);
    let file = guest
        .channel
        .look_below("", &guest.path("d/b/f"), 1)
        .await
        .unwrap_err();
    assert_eq!(code(&file), FailureCode::NotADirectory);
    // More than fits a frame.
    for n in 0..2000 {
        fs::write(guest.path(&format!("d/a/{n:04}")), b"").unwrap();
    }
    let many = guest
        .channel
        .look_below("", &guest.path("d/a"), 1)
        .await
        .unwrap();
    assert_eq!((many.len(), many[1999].name()), (2000, "1999"));
}

#[tokio::test]
async fn files_are_made_moved_and_removed_with_what_is_above_them() {
    let guest = Guest::start().await;
    let channel = &guest.channel;
    let made = channel.make_dir_of("", &guest.path("n/m")).await.unwrap();
    assert_eq!((made.kind, made.mode), (FileKind::Directory, 0o755));
    let again = channel.make_dir_of("", &guest.path("n/m")).await;
    assert_eq!(code(&again.unwrap_err()), FailureCode::AlreadyExists);

    let attributes = vec![(b"user.e2b.k".to_vec(), b"v".to_vec())];
    let long = guest.path("p/q/file");
    let written = channel
        .write_file_of("", &long, Vec::new(), &b"one"[..])
        .await
        .unwrap();
    assert_eq!((written.size, written.mode), (3, 0o644));
    fs::set_permissions(&long, fs::Permissions::from_mode(0o755)).unwrap();
    // Not every file system a test may run on holds attributes.
    match channel
        .write_file_of("", &long, attributes.clone(), &b"two"[..])
        .await
    {
        Ok(written) => assert_eq!(written.attributes, attributes),
        Err(error) => assert_eq!(code(&error), FailureCode::Unsupported),
    }
    let written = channel
        .write_file_of("", &long, Vec::new(), &b"three"[..])
        .await
        .unwrap();
    assert_eq!(written.mode, 0o755, "of the file that was there");
    assert_eq!(written.attributes, [], "all are replaced");
    let unsorted = vec![
        (b"user.b".to_vec(), Vec::new()),
        (b"user.a".to_vec(), Vec::new()),
    ];
    let refused = channel.write_file_of("", &long, unsorted, &b""[..]).await;
    assert_eq!(code(&refused.unwrap_err()), FailureCode::Invalid);

    let to = guest.path("r/s");
    let moved = channel.rename("", &guest.path("p"), &to).await.unwrap();
    assert_eq!(moved.path, to);
    assert_eq!(fs::read(guest.path("r/s/q/file")).unwrap(), b"three");
    let gone = channel.rename("", &guest.path("p"), &to).await;
    assert!(matches!(gone, Err(FileError::NotFound { .. })));

    channel.remove_all("", &guest.path("r")).await.unwrap();
    assert!(!fs::exists(guest.path("r")).unwrap());
    let all = channel.remove_all("", "/").await.unwrap_err();
    assert_eq!(code(&all), FailureCode::Invalid);
}

#[tokio::test]
async fn a_tree_is_moved_to_another_file_system_whole() {
    let guest = Guest::start().await;
    let elsewhere = match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(error) => return eprintln!("skipped: no second file system: {error}"),
    };
    fs::create_dir(guest.path("tree")).unwrap();
    fs::write(guest.path("tree/a"), b"a").unwrap();
    fs::set_permissions(guest.path("tree/a"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("a", guest.path("tree/link")).unwrap();
    let to = elsewhere.path().join("moved");
    let to = to.to_str().unwrap();
    let moved = guest.channel.rename("", &guest.path("tree"), to).await;
    assert_eq!(moved.unwrap().kind, FileKind::Directory);
    assert!(!fs::exists(guest.path("tree")).unwrap());
    let file = fs::metadata(elsewhere.path().join("moved/a")).unwrap();
    assert_eq!(file.mode() & 0o7777, 0o600);
    let link = fs::read_link(elsewhere.path().join("moved/link")).unwrap();
    assert_eq!(link.to_str(), Some("a"));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn moves_are_told_apart_from_removals() {
    let guest = Guest::start().await;
    let path = guest.dir.path().to_str().unwrap().to_owned();
    let mut watch = guest.channel.watch_moves(&path, false).await.unwrap();
    fs::write(guest.path("a"), b"").unwrap();
    fs::rename(guest.path("a"), guest.path("b")).unwrap();
    fs::remove_file(guest.path("b")).unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&(WatchOp::Removed, "b".to_owned())) {
        let changes = watch.changes.recv().await.unwrap().unwrap();
        seen.extend(changes.into_iter().map(|change| (change.op, change.path)));
    }
    assert!(seen.contains(&(WatchOp::Moved, "a".to_owned())), "{seen:?}");
    assert!(
        seen.contains(&(WatchOp::Created, "b".to_owned())),
        "{seen:?}"
    );
}

/// A guest that was copied before its agent knew these requests would take them for noise.
#[tokio::test]
async fn an_older_guest_is_not_asked_what_it_does_not_know() {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let host = tokio::spawn(GuestChannel::start(near, ChannelLimits::default()));
    let mut decoder = rhizome_guest::wire::FrameDecoder::seeking();
    let mut buffer = vec![0; 4096];
    let hello: Hello = loop {
        if let Some(frame) = decoder.next_frame().unwrap() {
            break frame.message().unwrap();
        }
        let len = far.read(&mut buffer).await.unwrap();
        decoder.extend(&buffer[..len]);
    };
    let answer = Hello {
        version: PROTOCOL_VERSION,
        boot: [1; 16],
        flags: 0,
        ..hello
    };
    let mut bytes = Vec::new();
    Frame::new(Kind::Hello, 0, &answer)
        .encode(&mut bytes)
        .unwrap();
    Frame::new(Kind::Ready, 0, &Ready::default())
        .encode(&mut bytes)
        .unwrap();
    far.write_all(&bytes).await.unwrap();
    let (channel, _doors) = host.await.unwrap().unwrap();
    let error = channel.look("", "/a").await.unwrap_err();
    assert!(matches!(error, FileError::OldGuest { .. }));
    assert!(error.hint().unwrap().contains("stop and start"));
    let watch = channel.watch_moves("/a", false).await.unwrap_err();
    assert!(matches!(watch, FileError::OldGuest { .. }));
    // Nothing was sent of it: what comes next is a ping or nothing.
    let quiet = tokio::time::timeout(Duration::from_millis(50), far.read(&mut buffer)).await;
    if let Ok(len) = quiet {
        decoder.extend(&buffer[..len.unwrap()]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            assert!(matches!(frame.kind, Kind::Ping | Kind::Hello), "{frame:?}");
        }
    }
}
