//! Backups of a node that runs, whole, changed and made up.
use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use age::{secrecy::ExposeSecret, x25519};
use rhizome_identity::keyfile::{self, KeyKind};
use rhizome_memory::{Replica, ReplicaConfig};

use super::{
    BackupError, Checked, Opener, Pack, Sealer,
    contents::{CONTENTS, COUNTS, SUMS},
    restore, verify,
};
use crate::world::World;

/// Who may open what the tests make.
struct Owner {
    identity: x25519::Identity,
}

impl Owner {
    fn new() -> Self {
        Self {
            identity: x25519::Identity::generate(),
        }
    }

    fn sealer(&self) -> Sealer {
        Sealer::for_recipients(&[self.identity.to_public().to_string()]).unwrap()
    }

    fn opener(&self, dir: &Path) -> Opener {
        let path = dir.join("identity.txt");
        let line = self.identity.to_string();
        fs::write(&path, format!("# a comment\n{}\n", line.expose_secret())).unwrap();
        Opener::from_identities(&path).unwrap()
    }
}

/// A world with something in it, and a backup of it.
async fn backed_up(owner: &Owner) -> (World, Vec<u8>) {
    let world = World::new().await;
    for number in 0..20 {
        world
            .publish(&world.findings, &format!("finding {number}"))
            .await;
    }
    let pack = collect(&world);
    let sealed = pack
        .write(owner.sealer().seal(Vec::new()).unwrap())
        .unwrap();
    (world, sealed.finish().unwrap())
}

fn collect(world: &World) -> Pack {
    let node = world.node();
    let (dir, vault) = (node.data.path(), &node.vault);
    Pack::collect(dir, vault, &node.key, "laptop", &node.replica, false).unwrap()
}

/// Fails to restore, and leaves nothing.
fn refused(bytes: &[u8], opener: &Opener) -> BackupError {
    let temp = tempfile::tempdir().unwrap();
    let error = restore(bytes, opener, &temp.path().join("node")).unwrap_err();
    let left: Vec<_> = fs::read_dir(temp.path()).unwrap().collect();
    assert!(left.is_empty(), "{error}: {left:?}");
    error
}

#[tokio::test]
async fn a_backup_of_a_node_that_runs_becomes_that_node() {
    let (owner, temp) = (Owner::new(), tempfile::tempdir().unwrap());
    let (world, bytes) = backed_up(&owner).await;
    let opener = owner.opener(temp.path());
    world.publish(&world.findings, "after the backup").await;
    let Checked { counts, mesh, .. } = verify(&bytes[..], &opener).unwrap();
    assert_eq!(mesh.unwrap().2, 1);
    assert_eq!(counts.damaged, 0);
    assert!(counts.fragments >= 20 && counts.records >= 5, "{counts:?}");
    let dir = temp.path().join("deep/node");
    restore(&bytes[..], &opener, &dir).unwrap();
    let node = world.node();
    for (name, kind) in [
        ("node.key", KeyKind::Node),
        ("agent.key", KeyKind::Agent),
        ("agents/mender.key", KeyKind::Agent),
        ("root.key", KeyKind::Root),
        ("next-root.key", KeyKind::Root),
    ] {
        let read = |dir: &Path| keyfile::load(&dir.join(name), kind).unwrap().public();
        assert_eq!(read(&dir), read(node.data.path()), "{name}");
    }
    let replica = Replica::open(
        &dir.join("store"),
        node.key.clone(),
        ReplicaConfig::default(),
    );
    let replica = replica.unwrap();
    assert!(replica.recovery().is_clean(), "{:?}", replica.recovery());
    assert!(replica.is_unconfirmed_copy(), "it knows what it is");
    let fragments = replica.sync_state(&world.findings).fragments;
    assert_eq!(
        fragments + 1,
        node.replica.sync_state(&world.findings).fragments
    );
    // Into what is not empty nothing is restored, and nothing of it is lost.
    let error = restore(&bytes[..], &opener, &dir).unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty(_)), "{error}");
    assert!(dir.join("node.key").exists());
    // What an interrupted run left is no hindrance.
    let again = temp.path().join("again");
    fs::create_dir(&again).unwrap();
    fs::create_dir_all(temp.path().join(".again.restoring/store")).unwrap();
    fs::write(temp.path().join(".again.restoring/node.key"), "half").unwrap();
    restore(&bytes[..], &opener, &again).unwrap();
    assert!(!temp.path().join(".again.restoring").exists());
}

#[tokio::test]
async fn a_file_that_was_changed_or_cut_short_anywhere_is_refused() {
    let (owner, temp) = (Owner::new(), tempfile::tempdir().unwrap());
    let (_world, bytes) = backed_up(&owner).await;
    let opener = owner.opener(temp.path());
    // The head, bit by bit; the rest in steps that hit each piece many times.
    let head = 300.min(bytes.len());
    let places = (0..head).chain((head..bytes.len()).step_by(bytes.len() / 150));
    for at in places.chain([bytes.len() - 1]) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed, &opener);
    }
    for length in (0..head).chain((head..bytes.len()).step_by(bytes.len() / 100)) {
        refused(&bytes[..length], &opener);
    }
    let last = refused(&bytes[..bytes.len() - 1], &opener);
    assert!(matches!(last, BackupError::Damaged { .. }), "{last}");
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(
        refused(&longer, &opener),
        BackupError::Damaged { .. }
    ));
}

#[test]
fn what_opens_another_file_does_not_open_this_one() {
    let temp = tempfile::tempdir().unwrap();
    let sealed = Owner::new().sealer().seal_all(b"for somebody").unwrap();
    let error = refused(&sealed, &Owner::new().opener(temp.path()));
    assert!(
        matches!(error, BackupError::WrongKey { with: "identity" }),
        "{error}"
    );
    let error = refused(&sealed, &Opener::from_passphrase("a passphrase"));
    assert!(matches!(error, BackupError::WrongKey { .. }), "{error}");
    let sealed = Sealer::for_passphrase("right")
        .seal_all(b"under a passphrase")
        .unwrap();
    let error = refused(&sealed, &Opener::from_passphrase("wrong"));
    assert!(
        matches!(error, BackupError::WrongKey { with: "passphrase" }),
        "{error}"
    );
    let plain = Opener::from_passphrase("right")
        .open_all(&sealed, 100)
        .unwrap();
    assert_eq!(&plain[..], b"under a passphrase");
    let error = Opener::from_passphrase("right")
        .open_all(&sealed, 3)
        .unwrap_err();
    assert!(
        matches!(error, BackupError::TooLarge { limit: 3, .. }),
        "{error}"
    );
    // Somebody's file asks for hours of work.
    let text = String::from_utf8_lossy(&sealed).replacen(" 18\n", " 40\n", 1);
    let error = refused(text.as_bytes(), &Opener::from_passphrase("right"));
    assert!(
        matches!(
            error,
            BackupError::TooMuchWork { required: 40, .. } | BackupError::NotAge
        ),
        "{error}"
    );
    let recipients = ["age1nobody".to_owned()];
    let error = Sealer::for_recipients(&recipients).unwrap_err();
    assert!(matches!(error, BackupError::Recipient(_)) && error.hint().is_some());
    assert!(matches!(
        Sealer::for_recipients(&[]),
        Err(BackupError::NoRecipient)
    ));
}

/// Makes up a backup from entries as they are given.
fn made_up(owner: &Owner, entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(owner.sealer().seal(Vec::new()).unwrap());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // As a path, the library would refuse some of them.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o777);
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn list(files: &str) -> Vec<u8> {
    let node = "0".repeat(64);
    format!(
        r#"{{"format":1,"made_by":"x","made_ms":1,"node":"{node}","name":"x","files":{files}}}"#
    )
    .into_bytes()
}

#[test]
fn what_a_hostile_archive_says_is_not_done() {
    use tar::EntryType::{Directory, Link, Regular, Symlink};
    let (owner, temp) = (Owner::new(), tempfile::tempdir().unwrap());
    let opener = owner.opener(temp.path());
    let refused =
        |entries: &[(&str, tar::EntryType, &[u8])]| refused(&made_up(&owner, entries), &opener);
    let key = r#"{"path":"node.key","bytes":4}"#;
    for path in [
        "../evil",
        "/etc/evil",
        "agents/../../evil.key",
        "store/replica.place",
        "daemon.pid",
    ] {
        let files = list(&format!(r#"[{key},{{"path":"{path}","bytes":4}}]"#));
        let error = refused(&[(CONTENTS, Regular, &files)]);
        assert!(matches!(error, BackupError::Path { .. }), "{path}: {error}");
    }
    for (path, bytes) in [
        ("node.key", u64::MAX),
        ("agent.key", 10_000),
        ("config.json", 1 << 40),
        ("store/segments/00000001.seg", 1 << 40),
    ] {
        let files = list(&format!(r#"[{{"path":"{path}","bytes":{bytes}}}]"#));
        let error = refused(&[(CONTENTS, Regular, &files)]);
        assert!(
            matches!(error, BackupError::TooLarge { .. }),
            "{path}: {error}"
        );
    }
    // Packs may be large, but not larger than there is room.
    let files = list(&format!(
        r#"[{key},{{"path":"chunks/own/a","bytes":{}}}]"#,
        1_u64 << 62
    ));
    let error = refused(&[(CONTENTS, Regular, &files)]);
    assert!(matches!(error, BackupError::NoRoom { .. }), "{error}");
    let two = format!(
        r#"{{"path":"chunks/own/a","bytes":{0}}},{{"path":"chunks/own/b","bytes":{0}}}"#,
        u64::MAX
    );
    let files = list(&format!("[{key},{two}]"));
    let error = refused(&[(CONTENTS, Regular, &files)]);
    assert!(matches!(error, BackupError::TooLarge { .. }), "{error}");
    let files = list(&format!("[{key}]"));
    for (what, entries) in [
        (
            "a link",
            vec![
                (CONTENTS, Regular, &files[..]),
                ("node.key", Symlink, b"root"),
            ],
        ),
        (
            "a hard link",
            vec![(CONTENTS, Regular, &files[..]), ("node.key", Link, b"root")],
        ),
        (
            "a directory",
            vec![
                (CONTENTS, Regular, &files[..]),
                ("node.key", Directory, b"root"),
            ],
        ),
        (
            "another file",
            vec![
                (CONTENTS, Regular, &files[..]),
                ("root.key", Regular, b"root"),
            ],
        ),
        (
            "another length",
            vec![
                (CONTENTS, Regular, &files[..]),
                ("node.key", Regular, b"five!"),
            ],
        ),
        ("no list", vec![("node.key", Regular, b"root")]),
    ] {
        let error = refused(&entries);
        assert!(
            matches!(error, BackupError::Contents { .. }),
            "{what}: {error}"
        );
    }
    let error = refused(&[(CONTENTS, Regular, &files), ("node.key", Regular, b"root")]);
    assert!(matches!(error, BackupError::Key { .. }), "{error}");
    let error = refused(&[(CONTENTS, Regular, &files)]);
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    let error = refused(&[(CONTENTS, Regular, br#"{"format":2,"shape":"another"}"#)]);
    assert!(
        matches!(error, BackupError::Version { found: 2 }),
        "{error}"
    );
    let error = refused(&[(CONTENTS, Regular, b"no json")]);
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    let twice = list(&format!("[{key},{key}]"));
    let error = refused(&[(CONTENTS, Regular, &twice)]);
    assert!(matches!(error, BackupError::Contents { .. }), "{error}");
    let error = refused(&[(CONTENTS, Regular, &list("[]"))]);
    assert!(matches!(error, BackupError::Contents { .. }), "{error}");
}

#[tokio::test]
async fn what_was_swapped_by_somebody_who_may_encrypt_is_found() {
    let (owner, temp) = (Owner::new(), tempfile::tempdir().unwrap());
    let (world, _) = backed_up(&owner).await;
    let opener = owner.opener(temp.path());
    let plain = collect(&world).write(Vec::new()).unwrap();
    let seal = |plain: &[u8]| owner.sealer().seal_all(plain).unwrap();
    verify(&seal(&plain)[..], &opener).unwrap();
    // Each file, with one byte of its content changed, and each of the two lists behind them.
    let mut found = Vec::new();
    for entry in tar::Archive::new(io::Cursor::new(&plain))
        .entries()
        .unwrap()
    {
        let entry = entry.unwrap();
        let at = usize::try_from(entry.raw_file_position() + entry.size() / 2).unwrap();
        found.push((entry.path().unwrap().display().to_string(), at));
    }
    assert!(
        found.iter().any(|(path, _)| path == SUMS) && found.iter().any(|(path, _)| path == COUNTS)
    );
    for (path, at) in found {
        let mut changed = plain.clone();
        changed[at] ^= 1;
        let error = refused(&seal(&changed), &opener);
        assert!(error.hint().is_some(), "{path}: {error}");
    }
    // And one that was cut within its padding, whole as an age file.
    let mut cut = owner.sealer().seal(Vec::new()).unwrap();
    cut.write_all(&plain[..plain.len() / 2]).unwrap();
    let cut = cut.finish().unwrap();
    assert!(matches!(
        refused(&cut, &opener),
        BackupError::Damaged { .. }
    ));
}
