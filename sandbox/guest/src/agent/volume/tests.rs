use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rhizome_guest::wire::{VolumeEntry, VolumeKind};
use rustix::io::Errno;

use super::{
    fuse::answer_one,
    kernel::{self, Op, Request},
    scan,
    tree::{ROOT, Source, Tree},
};

fn entry(name: &str, kind: VolumeKind, size: u64) -> VolumeEntry {
    VolumeEntry {
        path: name.into(),
        kind,
        mode: 0o640,
        uid: 7,
        gid: 8,
        size,
        mtime_ns: 1_500_000_001,
        stamp: [0, 0],
        target: if kind == VolumeKind::Symlink {
            b"there".to_vec()
        } else {
            Vec::new()
        },
        attributes: Some(if kind == VolumeKind::File {
            vec![
                (b"user.a".to_vec(), b"one".to_vec()),
                (b"user.b".to_vec(), Vec::new()),
            ]
        } else {
            Vec::new()
        }),
    }
}

/// `d/`, `d/f` (5 bytes), `l` → there.
#[derive(Default)]
struct Little {
    lists: AtomicUsize,
}

impl Source for Little {
    fn list(&self, path: &[u8]) -> io::Result<Vec<VolumeEntry>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        match path {
            b"" => Ok(vec![
                entry("d", VolumeKind::Directory, 0),
                entry("l", VolumeKind::Symlink, 5),
            ]),
            b"d" => Ok(vec![entry("f", VolumeKind::File, 5)]),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn read(&self, path: &[u8], offset: u64, len: u32) -> io::Result<Vec<u8>> {
        assert_eq!(path, b"d/f");
        let bytes = &b"hello"[offset.min(5) as usize..];
        Ok(bytes[..bytes.len().min(len as usize)].to_vec())
    }
}

fn ask(tree: &Tree<Little>, node: u64, op: Op) -> Result<Vec<u8>, Errno> {
    let request = Request {
        unique: 1,
        node,
        op,
    };
    answer_one(tree, request).unwrap()
}

fn look_up(tree: &Tree<Little>, node: u64, name: &str) -> u64 {
    let answer = ask(tree, node, Op::Lookup { name: name.into() }).unwrap();
    assert_eq!(answer.len(), 128);
    u64::from_le_bytes(answer[..8].try_into().unwrap())
}

#[test]
fn the_kernel_finds_reads_and_forgets() {
    let source = Arc::new(Little::default());
    let tree = Tree::new(Arc::clone(&source));
    let dir = look_up(&tree, ROOT, "d");
    let file = look_up(&tree, dir, "f");
    let link = look_up(&tree, ROOT, "l");
    assert_eq!(look_up(&tree, ROOT, "nothing"), 0);
    assert_eq!(
        ask(&tree, file, Op::Read { offset: 1, size: 3 }).unwrap(),
        b"ell"
    );
    assert_eq!(
        ask(&tree, file, Op::Read { offset: 9, size: 3 }).unwrap(),
        b""
    );
    assert_eq!(ask(&tree, link, Op::ReadLink).unwrap(), b"there");
    assert_eq!(ask(&tree, file, Op::ReadLink), Err(Errno::INVAL));
    let attr = ask(&tree, file, Op::GetAttr).unwrap();
    assert_eq!(attr.len(), 104);
    let at = |at: usize| u32::from_le_bytes(attr[16 + at..20 + at].try_into().unwrap());
    // Size, mtime and its nanoseconds, mode, links, owner, group.
    assert_eq!(
        [at(8), at(32), at(52), at(60), at(64), at(68), at(72)],
        [5, 1, 500_000_001, 0o100_640, 1, 7, 8]
    );
    let get = |size, name: &str| {
        let name = name.into();
        ask(&tree, file, Op::GetXattr { size, name })
    };
    assert_eq!(get(8, "user.a").unwrap(), b"one");
    assert_eq!(get(0, "user.a").unwrap(), [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(get(8, "user.b").unwrap(), b"");
    assert_eq!(get(2, "user.a"), Err(Errno::RANGE));
    assert_eq!(get(8, "user.c"), Err(Errno::NODATA));
    let list = |node, size| ask(&tree, node, Op::ListXattr { size });
    assert_eq!(list(file, 64).unwrap(), b"user.a\0user.b\0");
    assert_eq!(list(file, 0).unwrap()[0], 14);
    assert_eq!(list(file, 13), Err(Errno::RANGE));
    assert_eq!(list(ROOT, 64).unwrap(), b"");
    assert_eq!(ask(&tree, ROOT, Op::Change), Err(Errno::ROFS));
    assert_eq!(ask(&tree, ROOT, Op::Other), Err(Errno::NOSYS));
    assert_eq!(ask(&tree, ROOT, Op::StatFs).unwrap().len(), 80);
    let init = Op::Init {
        major: 7,
        max_readahead: 1 << 20,
        flags: u32::MAX,
    };
    assert_eq!(ask(&tree, ROOT, init).unwrap().len(), 64);
    // Directories are listed once.
    assert_eq!(source.lists.load(Ordering::Relaxed), 2);
    let forget = Op::Forget {
        nodes: vec![(file, 1), (ROOT, 5)],
    };
    assert!(
        answer_one(
            &tree,
            Request {
                unique: 1,
                node: file,
                op: forget
            }
        )
        .is_none()
    );
    assert_eq!(ask(&tree, file, Op::GetAttr), Err(Errno::NOENT));
    assert!(ask(&tree, ROOT, Op::GetAttr).is_ok());
    // It has the same number again.
    assert_eq!(look_up(&tree, dir, "f"), file);
}

#[test]
fn directories_come_in_pieces() {
    let tree = Tree::new(Arc::new(Little::default()));
    let mut names = Vec::new();
    let mut offset = 0;
    loop {
        // Room for one entry.
        let bytes = ask(&tree, ROOT, Op::ReadDir { offset, size: 40 }).unwrap();
        if bytes.is_empty() {
            break;
        }
        assert_eq!(bytes.len() % 8, 0);
        let len = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
        names.push(String::from_utf8(bytes[24..24 + len].to_vec()).unwrap());
        offset = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    }
    assert_eq!(names, [".", "..", "d", "l"]);
}

#[test]
fn requests_of_any_length_are_read_or_refused() {
    let mut lookup = vec![0; 40];
    lookup[4..8].copy_from_slice(&1u32.to_le_bytes());
    lookup[8..16].copy_from_slice(&9u64.to_le_bytes());
    lookup[16..24].copy_from_slice(&1u64.to_le_bytes());
    lookup.extend_from_slice(b"name\0");
    let name = b"name".to_vec();
    let op = Op::Lookup { name };
    assert_eq!(
        Request::parse(&lookup),
        Some(Request {
            unique: 9,
            node: 1,
            op
        })
    );
    for opcode in 0..60u32 {
        for len in 0..120 {
            let mut bytes = vec![255; len];
            if len >= 8 {
                bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
            }
            let _ = Request::parse(&bytes);
        }
    }
    assert_eq!(
        kernel::answer(9, Err(Errno::NOENT))[4..8],
        (-2i32).to_le_bytes()
    );
}

#[test]
fn a_walk_names_what_was_changed() {
    let dir = std::env::temp_dir().join(format!("rhizome-scan-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/f"), "12345").unwrap();
    symlink("there", dir.join("l")).unwrap();
    let mut seen = BTreeMap::new();
    let mut order = Vec::new();
    scan::walk(&dir, false, &mut |entry| {
        let path = String::from_utf8(entry.path.clone()).unwrap();
        order.push(path.clone());
        seen.insert(path, entry.clone());
        true
    })
    .unwrap();
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["d", "d/e", "d/f", "l"]);
    assert!(
        order.iter().position(|path| path == "d") < order.iter().position(|path| path == "d/f")
    );
    assert_eq!(seen["d"].kind, VolumeKind::Directory);
    assert_eq!((seen["d/f"].kind, seen["d/f"].size), (VolumeKind::File, 5));
    assert_eq!(seen["l"].target, b"there");
    // A walk that is told to stop does.
    let mut count = 0;
    scan::walk(&dir, false, &mut |_| {
        count += 1;
        false
    })
    .unwrap();
    assert_eq!(count, 1);
    scan::walk(Path::new("/nowhere/at/all"), false, &mut |_| true).unwrap();
    fs::remove_dir_all(dir).unwrap();
}
