//! Keys that are sealed, opened and changed.
use std::os::unix::fs::PermissionsExt;

use super::*;

fn keys(dir: &Path) -> Vec<(PathBuf, KeyKind)> {
    [
        ("node.key", KeyKind::Node),
        ("agent.key", KeyKind::Agent),
        ("agents/mender.key", KeyKind::Agent),
        ("root.key", KeyKind::Root),
    ]
    .map(|(name, kind)| (dir.join(name), kind))
    .to_vec()
}

/// Whether every key file is sealed, or none is.
fn are_sealed(dir: &Path) -> bool {
    let sealed: Vec<bool> = keys(dir)
        .iter()
        .map(|(path, _)| fs::read_to_string(path).unwrap().contains(", sealed\n"))
        .collect();
    assert!(sealed.iter().all(|one| *one == sealed[0]), "{sealed:?}");
    sealed[0]
}

/// Opens with a lock that is at hand, as [`unlock`] does after it asked.
fn open_with(dir: &Path, passphrase: &str) -> Result<FileLock, VaultError> {
    let kept = read(&dir.join(FILE))?.unwrap();
    let sealed = BASE64.decode(kept.sealed.unwrap().as_bytes()).unwrap();
    let digits = Opener::from_passphrase(passphrase).open_all(&sealed, MAX_FILE);
    let digits = digits.map_err(|_| VaultError::WrongPassphrase)?;
    let bytes = HEXLOWER.decode(&digits).unwrap();
    Ok(FileLock::from_bytes(bytes.try_into().unwrap()))
}

#[test]
fn keys_are_sealed_and_unsealed_and_each_step_can_be_read() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let vault = Vault::open(dir).unwrap();
    assert_eq!(vault.at_rest(), AtRest::Plain);
    let made: Vec<_> = keys(dir)
        .iter()
        .map(|(path, kind)| vault.load_or_make(path, *kind).unwrap().public())
        .collect();
    assert!(!are_sealed(dir));
    let none = vault.protect(AtRest::Passphrase, None);
    assert!(matches!(none, Err(VaultError::NoPassphrase)), "{none:?}");
    vault.protect(AtRest::Passphrase, Some("right")).unwrap();
    assert!(are_sealed(dir));
    assert_eq!(vault.at_rest(), AtRest::Passphrase);
    let read_all = |vault: &Vault| -> Vec<_> {
        let files = keys(dir);
        let load = |(path, kind): &(PathBuf, KeyKind)| vault.load(path, *kind).unwrap().public();
        files.iter().map(load).collect()
    };
    assert_eq!(read_all(&vault), made);
    let mode = fs::metadata(dir.join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // What is made from now on is sealed from the start.
    let path = dir.join("agents/late.key");
    vault.load_or_make(&path, KeyKind::Agent).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains(", sealed\n"));
    assert!(matches!(
        open_with(dir, "wrong"),
        Err(VaultError::WrongPassphrase)
    ));
    let lock = open_with(dir, "right").unwrap();
    // A change that was interrupted half way: one file is sealed, the next is not yet.
    let (path, kind) = &keys(dir)[1];
    let key = vault.load(path, *kind).unwrap();
    keyfile::replace_under(path, *kind, &key, None).unwrap();
    assert_eq!(read_all(&vault), made);
    vault.seal_all(Some(&lock)).unwrap();
    assert!(are_sealed(dir));
    // Another passphrase for the same lock.
    vault.protect(AtRest::Passphrase, Some("another")).unwrap();
    assert!(matches!(
        open_with(dir, "right"),
        Err(VaultError::WrongPassphrase)
    ));
    assert_eq!(
        open_with(dir, "another").unwrap().commitment(),
        lock.commitment()
    );
    vault.protect(AtRest::Plain, None).unwrap();
    assert!(!are_sealed(dir) && !dir.join(FILE).exists());
    assert_eq!(read_all(&Vault::open(dir).unwrap()), made);
}

#[test]
fn what_is_wrong_with_keys_json_is_said() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join(FILE);
    for (text, is_version) in [
        ("", false),
        ("{}", false),
        (r#"{"version":2,"with":"plain","lock":""}"#, true),
        (r#"{"version":1,"with":"passphrase","lock":""}"#, false),
        (r#"{"version":1,"with":"keyring","lock":""}"#, false),
        (r#"{"version":1,"with":"plain","lock":""}"#, false),
        (
            r#"{"version":1,"with":"passphrase","lock":"","sealed":"!"}"#,
            false,
        ),
    ] {
        fs::write(&path, text).unwrap();
        let error = Vault::open(temp.path()).unwrap_err();
        assert_eq!(
            matches!(error, VaultError::Version(2)),
            is_version,
            "{text}: {error}"
        );
        assert_eq!(
            matches!(error, VaultError::Damaged),
            !is_version,
            "{text}: {error}"
        );
        assert!(error.hint().is_some());
    }
    fs::write(&path, vec![b' '; 100_000]).unwrap();
    assert!(matches!(Vault::open(temp.path()), Err(VaultError::Damaged)));
}
