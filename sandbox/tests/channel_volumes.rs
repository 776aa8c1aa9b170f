//! A volume in the real agent, with the host's own FUSE and overlay, in namespaces of its own.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rhizome_sandbox::{
    channel::{ChannelLimits, ExecRequest, GuestChannel},
    chunks::{ChunkStore, PackId, StoreKey},
    volume::{
        Content, Node, Side, Trees,
        attach::{AttachError, Attachment, Mount, Taken, Target},
        import, merge,
    },
};
use tokio::net::{UnixListener, UnixStream};

const VOLUME: [u8; 16] = [7; 16];

fn key() -> StoreKey {
    StoreKey::from_bytes([1; 32])
}

/// An agent that may mount, behind a socket to which hosts connect one after another.
struct Machine {
    process: Child,
    dir: tempfile::TempDir,
}

impl Machine {
    /// Returns `None`, and says so, where the host lets nobody mount.
    fn start() -> Option<Self> {
        let enter = ["--mount", "--propagation", "private"];
        let may = Command::new("unshare")
            .args(enter)
            .args([
                "sh",
                "-c",
                "mount -t tmpfs none /run && grep -qw fuse /proc/filesystems",
            ])
            .status();
        if !may.is_ok_and(|status| status.success()) || !Path::new("/dev/fuse").exists() {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "skipped: mounting needs root and FUSE here"
            );
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent");
        let script = "mount -t tmpfs none /run && exec \"$0\" serve --socket \"$1\"";
        let mut process = Command::new("unshare")
            .args(enter)
            .args(["sh", "-c", script, env!("RHIZOME_GUEST_BINARY")])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::{BufRead, BufReader};
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("door "), "{line}");
        Some(Self { process, dir })
    }

    async fn connect(&self) -> GuestChannel {
        let socket = self.dir.path().join("agent");
        // It says where the door is before it listens here.
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (channel, _doors) = GuestChannel::connect(&socket, ChannelLimits::default())
            .await
            .unwrap();
        channel
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn sh(channel: &GuestChannel, script: &str) -> String {
    let request = ExecRequest {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let output = channel
        .exec(request)
        .await
        .unwrap()
        .output(1 << 20)
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stderr), "", "{script}");
    text(&output.stdout)
}

struct Stored {
    store: ChunkStore,
    root: Content,
    packs: Vec<PackId>,
}

impl Stored {
    fn of(store: ChunkStore, folder: &Path) -> Self {
        let mut writer = store.writer(&key());
        let root = import(folder, &mut writer, &mut |_| {}).unwrap().root;
        let packs = writer.finish().unwrap();
        Self { store, root, packs }
    }

    fn target(&self) -> Target {
        Target {
            store: self.store.clone(),
            key: key(),
            base_packs: self.packs.clone(),
            max_bytes: 1 << 30,
            pin: "volume".to_owned(),
        }
    }

    async fn attach(&self, channel: &GuestChannel, path: &str, writable: bool) -> Attachment {
        self.try_attach(channel, path, writable).await.unwrap()
    }

    async fn try_attach(
        &self,
        channel: &GuestChannel,
        path: &str,
        writable: bool,
    ) -> Result<Attachment, AttachError> {
        let mount = Mount {
            volume: VOLUME,
            path: path.to_owned(),
            writable,
        };
        let chunks = Arc::new(self.store.reader(&key(), &self.packs).unwrap());
        Attachment::open(channel, mount, self.root.clone(), chunks).await
    }
}

fn files(store: &ChunkStore, root: &Content, packs: &[PackId]) -> BTreeMap<String, String> {
    let reader = store.reader(&key(), packs).unwrap();
    let mut files = BTreeMap::new();
    Trees::new(&reader)
        .walk(root, &mut |path, entry| {
            let text = match &entry.node {
                Node::Dir(_) => "/".to_owned(),
                Node::Symlink(target) => format!("->{}", String::from_utf8_lossy(target)),
                Node::File(content) if content.size() > 100 => format!("{} bytes", content.size()),
                Node::File(content) => String::from_utf8(content.read(&reader, 0, 100)?).unwrap(),
            };
            files.insert(path.to_string(), text);
            Ok(())
        })
        .unwrap();
    files
}

fn texts(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    owned.collect()
}

/// A few files, one of them of many chunks.
fn folder(dir: &Path) -> std::path::PathBuf {
    let from = dir.join("from");
    fs::create_dir_all(from.join("src/deep")).unwrap();
    fs::create_dir_all(from.join("old/inside")).unwrap();
    fs::write(from.join("readme"), "hello").unwrap();
    fs::write(from.join("src/main"), "one").unwrap();
    fs::write(from.join("src/deep/lib"), "two").unwrap();
    fs::write(from.join("old/inside/x"), "x").unwrap();
    std::os::unix::fs::symlink("src/main", from.join("link")).unwrap();
    let mut large = vec![0; 5_000_000];
    blake3::Hasher::new().finalize_xof().fill(&mut large);
    fs::write(from.join("large"), large).unwrap();
    from
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_read_changed_taken_back_and_read_elsewhere() {
    let Some(machine) = Machine::start() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let from = folder(dir.path());
    let store = ChunkStore::open(&dir.path().join("store")).unwrap();
    let stored = Stored::of(store, &from);
    let channel = machine.connect().await;
    let work = machine.dir.path().join("work").display().to_string();
    let attached = stored.attach(&channel, &work, true).await;

    // It is what was stored.
    let list = sh(
        &channel,
        &format!("cd {work} && find . | sort && cat readme link src/deep/lib"),
    )
    .await;
    assert_eq!(
        list,
        ".\n./large\n./link\n./old\n./old/inside\n./old/inside/x\n./readme\n./src\n./src/deep\n\
         ./src/deep/lib\n./src/main\nhelloonetwo"
    );
    sh(
        &channel,
        &format!("cmp {work}/large {}/large", from.display()),
    )
    .await;
    let stat = sh(
        &channel,
        &format!("cd {work} && stat -c '%a %Y %s' readme src"),
    )
    .await;
    let same = sh(
        &channel,
        &format!("cd {} && stat -c '%a %Y %s' readme src", from.display()),
    )
    .await;
    assert_eq!(stat.lines().next(), same.lines().next());

    // Nothing was changed: the same tree.
    let taken = attached
        .checkpoint(&channel, stored.target())
        .await
        .unwrap();
    assert_eq!(taken.root, stored.root);
    assert_eq!((taken.files_read, taken.changes), (0, 0));

    // Changed in every way there is.
    sh(
        &channel,
        &format!(
            "cd {work} && printf more >> readme && rm src/main && rm -r old && mkdir old && \
             printf new > old/file && mkdir -p new/dir && ln -s nowhere new/dangling && \
             mkfifo pipe && mv src/deep/lib src/lib && chmod 750 src/deep && \
             printf 'odd' > \"$(printf 'n\\377me')\""
        ),
    )
    .await;
    let taken = attached
        .checkpoint(&channel, stored.target())
        .await
        .unwrap();
    let expected = [
        ("large", "5000000 bytes"),
        ("link", "->src/main"),
        ("new", "/"),
        ("new/dangling", "->nowhere"),
        ("new/dir", "/"),
        ("n\\xffme", "odd"),
        ("old", "/"),
        ("old/file", "new"),
        ("readme", "hellomore"),
        ("src", "/"),
        ("src/deep", "/"),
        ("src/lib", "two"),
    ];
    assert_eq!(
        files(&stored.store, &taken.root, &taken.packs),
        texts(&expected)
    );
    assert_eq!((taken.skipped, taken.unsettled.len()), (1, 0));
    assert!(taken.stats.new_bytes < 10_000, "{:?}", taken.stats);
    assert_eq!(stored.store.pinned("volume").unwrap(), taken.packs);

    // Once more reads no file again, and a large file sends what changed in it.
    let again = attached
        .checkpoint(&channel, stored.target())
        .await
        .unwrap();
    assert_eq!((again.files_read, &again.root), (0, &taken.root));
    sh(
        &channel,
        &format!("printf x | dd of={work}/large bs=1 seek=2500000 conv=notrunc 2>/dev/null"),
    )
    .await;
    let changed = attached
        .checkpoint(&channel, stored.target())
        .await
        .unwrap();
    assert_eq!(changed.files_read, 1);
    assert!(changed.stats.new_bytes < 600_000, "{:?}", changed.stats);
    // It names the packs of files too that an earlier checkpoint stored.
    let all = files(&stored.store, &changed.root, &changed.packs);
    assert_eq!(all["readme"], "hellomore");
    assert_eq!(all.len(), expected.len());

    // While a program is in it, it stays; then it goes, and what is there below is as before.
    let busy = ExecRequest {
        argv: ["sh", "-c", "cd \"$0\" && echo in && exec sleep 1000", &work]
            .map(str::to_owned)
            .to_vec(),
        ..ExecRequest::default()
    };
    let mut busy = channel.exec(busy).await.unwrap();
    busy.events.recv().await.unwrap().unwrap();
    assert!(attached.close(&channel, false).await.is_err());
    busy.kill().await.unwrap();
    while busy.events.recv().await.is_some() {}
    attached.close(&channel, false).await.unwrap();
    attached.ended().await;
    assert_eq!(
        sh(&channel, &format!("ls {work}; ls /run/rhizome/volumes")).await,
        ""
    );

    // Elsewhere it is what was taken back.
    let there = Stored {
        store: stored.store.clone(),
        root: taken.root,
        packs: taken.packs,
    };
    let place = machine.dir.path().join("elsewhere").display().to_string();
    let attached = there.attach(&channel, &place, false).await;
    assert_eq!(
        sh(
            &channel,
            &format!("cd {place} && cat readme old/file src/lib; stat -c %a src/deep")
        )
        .await,
        "hellomorenewtwo750\n"
    );
    let refused = sh(&channel, &format!("cd {place} && touch x 2>&1 || true")).await;
    assert!(refused.contains("Read-only"), "{refused}");
    let error = attached
        .checkpoint(&channel, there.target())
        .await
        .unwrap_err();
    assert!(matches!(error, AttachError::ReadOnly));
    attached.close(&channel, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_outlives_its_session() {
    let Some(machine) = Machine::start() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let from = folder(dir.path());
    let stored = Stored::of(ChunkStore::open(&dir.path().join("store")).unwrap(), &from);
    let channel = machine.connect().await;
    let work = machine.dir.path().join("work").display().to_string();
    let attached = stored.attach(&channel, &work, true).await;
    sh(&channel, &format!("printf kept > {work}/note")).await;
    // The host goes, with all it knew.
    channel.close();
    attached.ended().await;
    drop((channel, attached));

    let channel = machine.connect().await;
    // A program that reads what was not read yet waits for whoever comes.
    let read = ExecRequest {
        argv: ["sh", "-c", "cat \"$0\"/src/deep/lib", &work]
            .map(str::to_owned)
            .to_vec(),
        ..ExecRequest::default()
    };
    let waiting = channel.exec(read).await.unwrap();
    // Another path, or another tree, is no continuation.
    let error = stored
        .try_attach(&channel, "/somewhere/else", true)
        .await
        .unwrap_err();
    assert!(matches!(error, AttachError::Guest(_)), "{error:?}");
    let attached = stored.attach(&channel, &work, true).await;
    assert_eq!(waiting.output(1000).await.unwrap().stdout, b"two");
    let taken = attached
        .checkpoint(&channel, stored.target())
        .await
        .unwrap();
    assert_eq!(
        files(&stored.store, &taken.root, &taken.packs)["note"],
        "kept"
    );
    assert_eq!((taken.changes, taken.files_read), (1, 1));
    attached.close(&channel, true).await.unwrap();
}

impl Stored {
    /// Brings packs here as files that another node sent.
    fn fetch(&self, from: &ChunkStore, packs: &[PackId], dir: &Path) {
        for pack in self.store.missing(packs) {
            let sent = dir.join(pack.to_string());
            fs::copy(from.path(&pack).unwrap(), &sent).unwrap();
            self.store.import(&pack, &sent).unwrap();
        }
    }

    /// What another node knows after it was told of a checkpoint.
    fn after(&self, taken: &Taken) -> Self {
        Self {
            store: self.store.clone(),
            root: taken.root.clone(),
            packs: taken.packs.clone(),
        }
    }
}

const SUMS: &str = "find . -type f -exec sha256sum {} + | sort; find . ! -type f | sort";

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_attached_elsewhere_after_its_node_is_gone() {
    let (Some(a), Some(b)) = (Machine::start(), Machine::start()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let from = folder(dir.path());
    let home = dir.path().join("a");
    let on_a = Stored::of(ChunkStore::open(&home).unwrap(), &from);
    let guest = a.connect().await;
    let work = a.dir.path().join("work").display().to_string();
    let attached = on_a.attach(&guest, &work, true).await;
    let script = "mkdir -p out && head -c 3000000 /dev/urandom > out/random && rm -r old && printf x > src/main";
    sh(&guest, &format!("cd {work} && {script}")).await;
    let taken = attached.checkpoint(&guest, on_a.target()).await.unwrap();
    let was = sh(&guest, &format!("cd {work} && {SUMS}")).await;

    // B has the packs; A goes, with its guest and its disk.
    let on_b = Stored {
        store: ChunkStore::open(&dir.path().join("b")).unwrap(),
        ..on_a.after(&taken)
    };
    on_b.fetch(&on_a.store, &taken.packs, dir.path());
    drop((attached, guest, a, on_a));
    fs::remove_dir_all(&home).unwrap();

    let guest = b.connect().await;
    let place = b.dir.path().join("here").display().to_string();
    let attached = on_b.attach(&guest, &place, true).await;
    assert_eq!(sh(&guest, &format!("cd {place} && {SUMS}")).await, was);
    let again = attached.checkpoint(&guest, on_b.target()).await.unwrap();
    assert_eq!(again.root.digest(), taken.root.digest());
    attached.close(&guest, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_who_were_parted_lose_no_file() {
    let (Some(a), Some(b)) = (Machine::start(), Machine::start()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let from = folder(dir.path());
    let on_a = Stored::of(ChunkStore::open(&dir.path().join("a")).unwrap(), &from);
    let on_b = Stored {
        store: ChunkStore::open(&dir.path().join("b")).unwrap(),
        root: on_a.root.clone(),
        packs: on_a.packs.clone(),
    };
    on_b.fetch(&on_a.store, &on_a.packs, dir.path());
    let base = on_a.root.clone();
    // Both write, and neither hears of the other.
    let write = async |machine: &Machine, stored: &Stored, script: &str| {
        let guest = machine.connect().await;
        let work = machine.dir.path().join("work").display().to_string();
        let attached = stored.attach(&guest, &work, true).await;
        sh(&guest, &format!("cd {work} && {script}")).await;
        let taken = attached.checkpoint(&guest, stored.target()).await.unwrap();
        attached.close(&guest, false).await.unwrap();
        taken
    };
    let ours = write(
        &a,
        &on_a,
        "printf A > readme; printf a > only-a; rm src/main; printf A > both",
    )
    .await;
    let theirs = write(
        &b,
        &on_b,
        "printf B > readme; printf b > only-b; printf B > src/main; printf B > both",
    )
    .await;
    // They meet.
    on_a.fetch(&on_b.store, &theirs.packs, dir.path());
    let mut packs = [ours.packs.clone(), theirs.packs.clone(), on_a.packs.clone()].concat();
    let chunks = on_a.store.reader(&key(), &packs).unwrap();
    let mut writer = on_a.store.writer(&key());
    let side = |root, label| Side { root, label };
    let merged = merge(
        Trees::new(&chunks),
        Some(&base),
        side(&ours.root, "a"),
        side(&theirs.root, "b"),
        &mut writer,
    )
    .unwrap();
    packs.extend(writer.finish().unwrap());
    let all = files(&on_a.store, &merged.root, &packs);
    for (path, text) in [
        ("readme", "A"),
        ("readme.from-b", "B"),
        ("both", "A"),
        ("both.from-b", "B"),
        ("only-a", "a"),
        ("only-b", "b"),
        // Removed by one and changed by the other: it stays.
        ("src/main", "B"),
        ("src/deep/lib", "two"),
    ] {
        assert_eq!(all[path], text, "{path}");
    }
    let named = merged
        .conflicts
        .iter()
        .map(|conflict| conflict.path.to_string());
    assert_eq!(named.collect::<Vec<_>>(), ["both", "readme", "src/main"]);
}

/// A guest that answers what it likes.
async fn rogue(listener: UnixListener, entries: Vec<u8>) {
    use rhizome_guest::wire::{Frame, FrameDecoder, Hello, Kind, Ready, VolumeAsk, VolumeFramer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut decoder = FrameDecoder::watching();
    let mut buffer = vec![0; 65536];
    loop {
        let Ok(len @ 1..) = stream.read(&mut buffer).await else {
            return;
        };
        decoder.extend(&buffer[..len]);
        while let Ok(Some(frame)) = decoder.next_frame() {
            let mut answers = Vec::new();
            match frame.kind {
                Kind::Hello => {
                    let hello: Hello = frame.message().unwrap();
                    answers.push(Frame::new(
                        Kind::Hello,
                        0,
                        &Hello {
                            boot: [1; 16],
                            ..hello
                        },
                    ));
                    answers.push(Frame::new(Kind::Ready, 0, &Ready::default()));
                }
                Kind::Ping => answers.push(Frame {
                    kind: Kind::Pong,
                    ..frame
                }),
                Kind::VolumeOpen => {
                    answers.push(Frame::empty(Kind::Connected, frame.stream));
                    // Something outside, something absurd, and a question that is none.
                    let asks = [
                        VolumeAsk::Read {
                            tag: 1,
                            path: b"../../etc/passwd".to_vec(),
                            offset: 0,
                            len: 100,
                        },
                        VolumeAsk::Read {
                            tag: 2,
                            path: b"readme".to_vec(),
                            offset: u64::MAX,
                            len: u32::MAX,
                        },
                        VolumeAsk::List {
                            tag: 3,
                            path: b"readme/x".to_vec(),
                            after: vec![],
                        },
                        VolumeAsk::Mounted,
                    ];
                    let payload = asks.iter().flat_map(VolumeFramer::frame).collect();
                    answers.push(Frame {
                        kind: Kind::StreamData,
                        stream: frame.stream,
                        payload,
                    });
                }
                Kind::VolumeScan => {
                    answers.push(Frame {
                        kind: Kind::VolumeEntries,
                        stream: frame.stream,
                        payload: entries.clone(),
                    });
                    answers.push(Frame::empty(Kind::Done, frame.stream));
                }
                _ => {}
            }
            for answer in answers {
                let mut bytes = Vec::new();
                answer.encode(&mut bytes).unwrap();
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test]
async fn what_a_guest_says_it_changed_stays_in_the_volume() {
    use rhizome_guest::wire::{Payload, VolumeEntry, VolumeKind};
    let dir = tempfile::tempdir().unwrap();
    let from = folder(dir.path());
    let stored = Stored::of(ChunkStore::open(&dir.path().join("store")).unwrap(), &from);
    let change = |path: &str, kind, target: &[u8]| VolumeEntry {
        path: path.into(),
        kind,
        mode: 0o777,
        uid: 0,
        gid: 0,
        size: u64::MAX,
        mtime_ns: i64::MIN,
        stamp: [0, 0],
        target: target.to_vec(),
        attributes: None,
    };
    let deep = "d/".repeat(1000);
    let hostile = [
        change("../out", VolumeKind::Symlink, b"x"),
        change("/abs//x", VolumeKind::Symlink, b"x"),
        change("", VolumeKind::Gone, b""),
        change("a/../b", VolumeKind::Directory, b""),
        change(&deep, VolumeKind::Directory, b""),
        change("link", VolumeKind::Symlink, b""),
    ];
    for (number, entry) in hostile.iter().enumerate() {
        let socket = dir.path().join(format!("rogue-{number}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let guest = tokio::spawn(rogue(listener, entry.to_payload()));
        let stream = UnixStream::connect(&socket).await.unwrap();
        let (channel, _doors) = GuestChannel::start(stream, ChannelLimits::default())
            .await
            .unwrap();
        let attached = stored.attach(&channel, "/work", true).await;
        let error = attached
            .checkpoint(&channel, stored.target())
            .await
            .unwrap_err();
        assert!(
            matches!(error, AttachError::Volume(_)),
            "{entry:?}: {error:?}"
        );
        guest.abort();
    }
}
