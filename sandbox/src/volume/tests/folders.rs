//! Directories of this machine.

use super::*;

#[test]
fn folders_go_in_and_come_out_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::create_dir(from.join("empty")).unwrap();
    fs::write(from.join("file"), "text").unwrap();
    fs::write(from.join("deep/er/large"), noise(1, 1_000_000)).unwrap();
    fs::write(from.join("deep/zero"), "").unwrap();
    fs::hard_link(from.join("file"), from.join("second name")).unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    symlink("nowhere", from.join("deep/dangling")).unwrap();
    fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o751)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let mut bench = Bench::new();
    let mut read = 0;
    let imported = bench.write(|writer, _| import(&from, writer, &mut |len| read += len).unwrap());
    assert_eq!(
        (imported.skipped, imported.hard_links, imported.entries),
        (1, 1, 9)
    );
    assert_eq!((imported.bytes, read), (1_000_008, 1_000_008));
    let to = dir.path().join("to");
    let reader = bench.reader();
    let trees = Trees::new(&reader);
    export(trees, &imported.root, &to, &mut |_| {}).unwrap();
    assert_eq!(
        fs::read(to.join("deep/er/large")).unwrap(),
        noise(1, 1_000_000)
    );
    assert_eq!(
        fs::read_link(to.join("link")).unwrap().to_str(),
        Some("/etc/passwd")
    );
    assert_eq!(
        fs::metadata(to.join("file")).unwrap().mode() & 0o7777,
        0o751
    );
    assert!(to.join("empty").is_dir());
    let time = |path: &std::path::Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(time(&from.join("deep")), time(&to.join("deep")));
    // What came out goes in as the same tree.
    let again = bench.write(|writer, _| import(&to, writer, &mut |_| {}).unwrap());
    let same_but_for = |root: &Content| {
        let mut files = Vec::new();
        let reader = bench.reader();
        Trees::new(&reader)
            .walk(root, &mut |path, entry| {
                if !matches!(entry.node, Node::Symlink(_) | Node::Dir(_)) {
                    files.push((path.clone(), entry.clone()));
                }
                Ok(())
            })
            .unwrap();
        files
    };
    assert_eq!(same_but_for(&again.root), same_but_for(&imported.root));
    // A name that is taken stays what it is.
    let error = export(trees, &imported.root, &to, &mut |_| {}).unwrap_err();
    assert!(matches!(error, VolumeError::Folder { .. }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn attributes_come_from_a_folder_and_go_to_one() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/f"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for at in ["d", "d/f"] {
        if let Err(error) = rustix::fs::lsetxattr(from.join(at), "user.note", at.as_bytes(), flags)
        {
            eprintln!("skipped: attributes_come_from_a_folder_and_go_to_one: {error}");
            return;
        }
    }
    let root = bench.write(|writer, _| import(&from, writer, &mut |_| {}).unwrap().root);
    let to = dir.path().join("to");
    let reader = bench.reader();
    export(Trees::new(&reader), &root, &to, &mut |_| {}).unwrap();
    for at in ["d", "d/f"] {
        let read = rhizome_guest::xattr::read(&to.join(at)).unwrap();
        assert_eq!(read, [(b"user.note".to_vec(), at.as_bytes().to_vec())]);
    }
}
