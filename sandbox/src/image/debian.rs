//! The Debian userland: `mmdebstrap`, then one read-only file system image.
//!
//! As root the tree is made as a directory and packed. Others get the same through a user
//! namespace: `mmdebstrap` makes a tar archive there, which is unpacked and packed again inside
//! one namespace, so that owners come out right.

use std::{path::Path, time::Duration};

use super::{
    ImageError,
    pack::{pack, repack},
    rootfs::{Rootfs, Roots},
};
use crate::{Progress, ProgressEvent, command::Helper, progress::step};

/// What images of it are called.
pub(super) const NAME: &str = "debian";

/// Debian's release when nothing else is asked for.
pub(super) const DEFAULT_SUITE: &str = "bookworm";
/// What every Debian image holds.
const PACKAGES: &[&str] = &[
    "bash",
    "ca-certificates",
    "diffutils",
    "gcc",
    "git",
    "libc6-dev",
    "make",
    "patch",
    "procps",
    "python3",
    // The code interpreter's shell (docs/e2b.md): a tenth of the image, and a second or two of its
    // making.
    "python3-ipython",
];
/// Trees that no agent reads.
const EXCLUDED: &[&str] = &[
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
];
/// Changed whenever the recipe below changes what comes out of it.
const RECIPE: u32 = 3;
/// Most packages a caller may add.
const MAX_PACKAGES: usize = 256;
/// Longest time the build may take: a slow network, a loaded host.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);
/// Free bytes the build needs: the tree, the archive, the packages.
const NEEDED_BYTES: u64 = 2 * 1024 * 1024 * 1024;
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the userland with these packages, built if it is not there.
pub(super) async fn ensure(
    roots: &Roots,
    suite: &str,
    extra: &[String],
    progress: &Progress,
) -> Result<Rootfs, ImageError> {
    let packages = package_list(extra)?;
    let key = key_of(suite, &packages);
    if let Some(rootfs) = roots.find(&key) {
        return Ok(rootfs);
    }
    let staged = roots.stage(progress).await?;
    if let Some(rootfs) = roots.find(&key) {
        return Ok(rootfs);
    }
    if !Path::new(KEYRING).is_file() {
        return Err(ImageError::NoKeyring);
    }
    roots.need(NEEDED_BYTES)?;
    let scratch = staged.scratch()?;
    let image = staged.image();
    let (tree, tar) = (scratch.join("tree"), scratch.join("tree.tar"));
    let format = if rustix::process::geteuid().is_root() {
        let how = ("root", "directory");
        bootstrap(how, suite, &packages, &tree, &scratch, progress).await?;
        pack(&tree, &image, progress).await?
    } else {
        let how = ("unshare", "tar");
        bootstrap(how, suite, &packages, &tar, Path::new("/tmp"), progress).await?;
        repack(&tar, &tree, &image, progress).await?
    };
    let rootfs = Rootfs {
        key,
        name: NAME.to_owned(),
        format: format.to_owned(),
        lineage: vec![
            format!("debian: {suite}"),
            format!("packages: {}", packages.join(" ")),
        ],
        ..Rootfs::default()
    };
    staged.commit(rootfs).await
}

/// Returns the standard packages and the caller's, sorted, each once.
fn package_list(extra: &[String]) -> Result<Vec<String>, ImageError> {
    if extra.len() > MAX_PACKAGES {
        return Err(ImageError::BadPackage {
            name: format!("{} packages", extra.len()),
        });
    }
    let mut packages: Vec<String> = PACKAGES.iter().map(|&name| name.to_owned()).collect();
    for name in extra {
        // Debian Policy 5.6.7; a name beginning with anything else could pass for an option.
        let valid = name.len() >= 2
            && name.len() <= 128
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b));
        if !valid {
            return Err(ImageError::BadPackage {
                name: name.chars().take(128).collect(),
            });
        }
        packages.push(name.clone());
    }
    packages.sort();
    packages.dedup();
    Ok(packages)
}

fn key_of(suite: &str, packages: &[String]) -> String {
    let text = format!("rhizome debian {RECIPE} {suite} {}", packages.join(","));
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

async fn bootstrap(
    (mode, format): (&str, &str),
    suite: &str,
    packages: &[String],
    target: &Path,
    scratch: &Path,
    progress: &Progress,
) -> Result<(), ImageError> {
    step(
        progress,
        "image",
        format_args!(
            "installing Debian {suite} with {} packages and what they need",
            packages.len()
        ),
    );
    let mut helper = Helper::new("mmdebstrap")
        .limit(BUILD_LIMIT)
        .env("TMPDIR", scratch)
        .arg(format!("--mode={mode}"))
        .arg(format!("--format={format}"))
        .arg("--variant=minbase")
        .arg(format!("--include={}", packages.join(",")))
        .arg(format!("--keyring={KEYRING}"))
        // The tree is packed when it is whole; no file of it needs to survive a crash before.
        .arg("--dpkgopt=force-unsafe-io")
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg("--aptopt=Acquire::Retries \"3\"");
    for tree in EXCLUDED {
        helper = helper.arg(format!("--dpkgopt=path-exclude={tree}"));
    }
    helper = helper
        .arg("--customize-hook=echo sandbox > \"$1/etc/hostname\"")
        .arg("--customize-hook=printf '127.0.0.1 localhost sandbox\\n::1 localhost\\n' > \"$1/etc/hosts\"")
        .arg("--customize-hook=rm -f \"$1/etc/resolv.conf\" && touch \"$1/etc/resolv.conf\"")
        .arg("--")
        .arg(suite)
        .arg(target);
    let mut counted = Counted::default();
    let run = helper
        .run(|line| {
            if let Some(detail) = counted.see(line) {
                progress(ProgressEvent {
                    step: "image",
                    detail: &detail,
                    done: counted.done,
                    total: counted.total,
                });
            }
        })
        .await;
    run.map_err(ImageError::Bootstrap)
}

/// Reads where `mmdebstrap` is out of what apt and dpkg say.
#[derive(Debug, Default)]
struct Counted {
    done: u64,
    total: u64,
}

impl Counted {
    fn see(&mut self, line: &str) -> Option<String> {
        if let Some(rest) = line.strip_prefix("Get:") {
            let what = rest.split_whitespace().nth(3)?;
            // Each package is downloaded, unpacked and set up.
            if line.contains(" amd64 ") || line.contains(" all ") {
                self.total += 2;
            }
            return Some(format!("downloading {what}"));
        }
        for (verb, prefix) in [("unpacking", "Unpacking "), ("setting up", "Setting up ")] {
            if let Some(rest) = line.strip_prefix(prefix) {
                self.done += 1;
                self.total = self.total.max(self.done);
                let name = rest.split_whitespace().next().unwrap_or_default();
                return Some(format!("{verb} {name}"));
            }
        }
        let said = line.strip_prefix("I: ")?;
        (!said.starts_with("running --")).then(|| said.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_packages_in_any_order_are_the_same_image() {
        let one = package_list(&["zlib1g".into(), "python3-isodate".into()]).unwrap();
        let two = package_list(&["python3-isodate".into(), "zlib1g".into(), "git".into()]).unwrap();
        assert_eq!(key_of("bookworm", &one), key_of("bookworm", &two));
        assert_ne!(key_of("trixie", &one), key_of("bookworm", &one));
        let three = package_list(&[]).unwrap();
        assert_ne!(key_of("bookworm", &one), key_of("bookworm", &three));
    }

    #[test]
    fn a_package_name_cannot_be_an_option_or_a_list() {
        for name in ["--mode=root", "a,b", "x", "Foo", "a b", "git/../x", ""] {
            let error = package_list(&[name.to_owned()]).unwrap_err();
            assert!(matches!(error, ImageError::BadPackage { .. }), "{name}");
        }
    }

    #[test]
    fn progress_is_read_from_what_apt_says() {
        let mut counted = Counted::default();
        let get = "Get:12 http://mirror bookworm/main amd64 git amd64 1:2.39.5 [7260 kB]";
        assert!(counted.see(get).unwrap().starts_with("downloading"));
        assert_eq!(
            counted.see("Unpacking git (1:2.39.5) ...").unwrap(),
            "unpacking git"
        );
        assert_eq!(
            counted.see("Setting up git (1:2.39.5) ...").unwrap(),
            "setting up git"
        );
        assert_eq!((counted.done, counted.total), (2, 2));
        assert_eq!(counted.see("(Reading database ..."), None);
    }
}
