//! Files that tell programs about the network: the resolver, and whom to trust.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::agent::lock;

const RESOLVER: &str = "/etc/resolv.conf";
/// Where Debian's `update-ca-certificates` finds what an administrator adds.
const ADDED: &str = "/usr/local/share/ca-certificates/rhizome-sandbox.crt";
/// Where distributions keep the bundle of all certificates.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];
/// Ours, for programs that are told where to look: the node sets their environment.
const OWN: &str = "/run/rhizome/ca.pem";
const OWN_BUNDLE: &str = "/run/rhizome/ca-bundle.pem";
/// Our part of a bundle is between these lines.
const BEGIN: &str = "# rhizome sandbox: begin\n";
const END: &str = "# rhizome sandbox: end\n";
/// Largest bundle that is read, in bytes.
const MAX_BUNDLE: u64 = 8 * 1024 * 1024;

/// What was written last: a new session mostly brings the same, and looking at all of the files
/// is a good part of what it takes.
static WRITTEN: Mutex<Option<(Ipv4Addr, String)>> = Mutex::new(None);

/// Writes all of them, unless it did. `authority` is a certificate as PEM, or nothing.
pub(super) fn write(resolver: Ipv4Addr, authority: &str) -> io::Result<()> {
    let mut written = lock(&WRITTEN);
    let before = written.as_ref();
    if before.is_some_and(|(address, text)| *address == resolver && text == authority) {
        return Ok(());
    }
    write_below(Path::new("/"), resolver, authority)?;
    *written = Some((resolver, authority.to_owned()));
    Ok(())
}

fn write_below(root: &Path, resolver: Ipv4Addr, authority: &str) -> io::Result<()> {
    // The node asks others for us, with a time limit of its own.
    let text = format!("nameserver {resolver}\noptions timeout:15 attempts:2\n");
    put(&below(root, RESOLVER), &text)?;
    if authority.is_empty() && !below(root, OWN).exists() {
        return Ok(());
    }
    let mut first = String::new();
    for path in BUNDLES {
        let path = below(root, path);
        if let Some(bundle) = read(&path) {
            let bundle = without_ours(&bundle);
            put(&path, &with_ours(&bundle, authority))?;
            if first.is_empty() {
                first = bundle;
            }
        }
    }
    put(&below(root, OWN), authority)?;
    put(&below(root, OWN_BUNDLE), &with_ours(&first, authority))?;
    put(&below(root, ADDED), authority)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn read(path: &Path) -> Option<String> {
    let small = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_BUNDLE);
    small.then(|| fs::read_to_string(path).ok()).flatten()
}

fn with_ours(bundle: &str, authority: &str) -> String {
    if authority.is_empty() {
        return bundle.to_owned();
    }
    let end = if bundle.is_empty() || bundle.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("{bundle}{end}{BEGIN}{authority}{END}")
}

fn without_ours(bundle: &str) -> String {
    match (bundle.find(BEGIN), bundle.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{}", &bundle[..begin], &bundle[end + END.len()..])
        }
        _ => bundle.to_owned(),
    }
}

/// Writes a file if it says something else, whole, in place of what stands there, also of a link
/// to somewhere else.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    if !is_link && fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let name =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(name)?;
    }
    let draft = path.with_extension("rhizome-new");
    fs::write(&draft, text).map_err(name)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o644)).map_err(name)?;
    fs::rename(&draft, path).map_err(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_part_of_a_bundle_comes_changes_and_goes() {
        let bundle = "A\nB";
        let with = with_ours(bundle, "C\n");
        assert_eq!(with, format!("A\nB\n{BEGIN}C\n{END}"));
        let again = with_ours(&without_ours(&with), "D\n");
        assert_eq!(again, format!("A\nB\n{BEGIN}D\n{END}"));
        assert_eq!(without_ours(&again), "A\nB\n");
    }

    #[test]
    fn files_are_written_below_a_root() {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        let name = format!("rhizome-settings-{:x}", u64::from_ne_bytes(random));
        let root = std::env::temp_dir().join(name);
        let bundle = below(&root, BUNDLES[0]);
        fs::create_dir_all(bundle.parent().unwrap()).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(&bundle, "A\n").unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("etc/resolv.conf")).unwrap();
        let resolver = Ipv4Addr::new(10, 107, 0, 1);
        write_below(&root, resolver, "").unwrap();
        assert!(!below(&root, OWN).exists());
        for authority in ["C\n", "D\n"] {
            write_below(&root, resolver, authority).unwrap();
            let expected = format!("A\n{BEGIN}{authority}{END}");
            assert_eq!(fs::read_to_string(&bundle).unwrap(), expected);
            assert_eq!(
                fs::read_to_string(below(&root, OWN_BUNDLE)).unwrap(),
                expected
            );
            assert_eq!(fs::read_to_string(below(&root, ADDED)).unwrap(), authority);
        }
        let text = fs::read_to_string(below(&root, RESOLVER)).unwrap();
        assert!(text.starts_with("nameserver 10.107.0.1\n"), "{text}");
        write_below(&root, resolver, "").unwrap();
        assert_eq!(fs::read_to_string(&bundle).unwrap(), "A\n");
        fs::remove_dir_all(&root).unwrap();
    }
}
