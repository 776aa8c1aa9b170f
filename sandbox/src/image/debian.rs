//! The Debian userland: `mmdebstrap`, then one read-only file system image.
//!
//! As root the tree is made as a directory and packed. Others get the same through a user
//! namespace: `mmdebstrap` makes a tar archive there, which is unpacked and packed again inside
//! one namespace, so that owners come out right.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::ImageError;
use crate::{
    Progress, ProgressEvent,
    command::{Helper, find_program},
    progress::step,
    staging::{DirLock, hash_file, make_private_dir, write_atomic},
};

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
const MANIFEST: &str = "rootfs.json";

/// A userland on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rootfs {
    /// Hash of what was asked for.
    pub(super) key: String,
    pub(super) suite: String,
    pub(super) packages: Vec<String>,
    /// `erofs` or `ext4`.
    pub(super) format: String,
    /// BLAKE3 of the image file.
    pub(super) hash: String,
    pub(super) created_ms: u64,
    #[serde(skip)]
    pub(super) path: PathBuf,
}

/// Returns the newest userland that is there.
pub(super) fn newest(images_dir: &Path) -> Option<Rootfs> {
    fs::read_dir(images_dir.join("rootfs"))
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| read(&entry.path()))
        .max_by_key(|rootfs| rootfs.created_ms)
}

/// Returns the userland with these packages, built if it is not there.
pub(super) async fn ensure(
    images_dir: &Path,
    suite: &str,
    extra: &[String],
    progress: &Progress,
) -> Result<Rootfs, ImageError> {
    let packages = package_list(extra)?;
    let key = key_of(suite, &packages);
    let dir = images_dir.join("rootfs");
    let entry = dir.join(&key[..16]);
    if let Some(rootfs) = read(&entry) {
        return Ok(rootfs);
    }
    let lock = DirLock::acquire(&dir, || {
        step(
            progress,
            "image",
            "waiting for another daemon that builds the image",
        );
    })
    .await
    .map_err(ImageError::io(&dir))?;
    if let Some(rootfs) = read(&entry) {
        return Ok(rootfs);
    }
    if !Path::new(KEYRING).is_file() {
        return Err(ImageError::NoKeyring);
    }
    let free = crate::probe::free_bytes(&dir).map_err(ImageError::io(&dir))?;
    if free < NEEDED_BYTES {
        return Err(ImageError::NoSpace {
            path: dir,
            free,
            needed: NEEDED_BYTES,
        });
    }
    let staging = lock.stage().map_err(ImageError::io(&dir))?;
    let scratch = staging.path().join("scratch");
    make_private_dir(&scratch).map_err(ImageError::io(&scratch))?;
    let image = staging.path().join("root.img");
    let format = if rustix::process::geteuid().is_root() {
        let tree = scratch.join("tree");
        bootstrap(
            "root",
            "directory",
            suite,
            &packages,
            &tree,
            &scratch,
            progress,
        )
        .await?;
        pack(&tree, &image, progress).await?
    } else {
        let tar = scratch.join("tree.tar");
        bootstrap(
            "unshare",
            "tar",
            suite,
            &packages,
            &tar,
            Path::new("/tmp"),
            progress,
        )
        .await?;
        repack(&tar, &scratch.join("tree"), &image, progress).await?
    };
    remove_scratch(&scratch).await?;
    let mut rootfs = Rootfs {
        key,
        suite: suite.to_owned(),
        packages,
        format: format.to_owned(),
        hash: hash_file(&image).map_err(ImageError::io(&image))?,
        created_ms: crate::manager::now_ms(),
        path: PathBuf::new(),
    };
    let json = serde_json::to_vec_pretty(&rootfs).expect("a manifest becomes JSON");
    write_atomic(&staging.path().join(MANIFEST), &json).map_err(ImageError::io(&dir))?;
    let entry = staging
        .commit(&rootfs.key[..16])
        .map_err(ImageError::io(&dir))?;
    rootfs.path = entry.join("root.img");
    Ok(rootfs)
}

fn read(entry: &Path) -> Option<Rootfs> {
    let json = fs::read(entry.join(MANIFEST)).ok()?;
    let mut rootfs: Rootfs = serde_json::from_slice(&json).ok()?;
    rootfs.path = entry.join("root.img");
    (rootfs.path.is_file() && rootfs.key.len() >= 16).then_some(rootfs)
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
    mode: &str,
    format: &str,
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

/// Packs a tree: `erofs` where its tool is there (half the size), else `ext4`, whose tool every
/// Debian and Ubuntu has.
///
/// Times of files are kept, or Python would take each of its compiled modules for stale. Of the
/// compressors `lz4` packs in an eighth of the time of `lz4hc` and a tenth more space.
async fn pack(tree: &Path, image: &Path, progress: &Progress) -> Result<&'static str, ImageError> {
    step(progress, "image", "packing the file system");
    if find_program("mkfs.erofs").is_some() {
        erofs_command(tree, image).run(|_| {}).await?;
        return Ok("erofs");
    }
    let listed = Helper::new("du")
        .args(["-sm", "--"])
        .arg(tree)
        .output()
        .await?;
    let mib = String::from_utf8_lossy(&listed)
        .split_whitespace()
        .next()
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(1024);
    ext4_command(tree, image, mib).run(|_| {}).await?;
    Ok("ext4")
}

fn erofs_command(tree: &Path, image: &Path) -> Helper {
    Helper::new("mkfs.erofs")
        .limit(BUILD_LIMIT)
        .args(["-zlz4", "-U", "00000000-0000-4000-8000-000000000000"])
        .arg(image)
        .arg(tree)
}

fn ext4_command(tree: &Path, image: &Path, mib: u64) -> Helper {
    Helper::new("mkfs.ext4")
        .limit(BUILD_LIMIT)
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal",
            "-i",
            "8192",
            "-d",
        ])
        .arg(tree)
        .arg(image)
        .arg(format!("{}M", mib + mib / 4 + 64))
}

/// Unpacks an archive and packs the tree, both in one user namespace.
async fn repack(
    tar: &Path,
    tree: &Path,
    image: &Path,
    progress: &Progress,
) -> Result<&'static str, ImageError> {
    step(progress, "image", "packing the file system");
    let (format, make) = if find_program("mkfs.erofs").is_some() {
        (
            "erofs",
            "mkfs.erofs -zlz4 -U 00000000-0000-4000-8000-000000000000 \"$3\" \"$2\"",
        )
    } else {
        (
            "ext4",
            "size=$(du -sm \"$2\" | cut -f1); mkfs.ext4 -q -F -m 0 -O ^has_journal -i 8192 -d \"$2\" \"$3\" \"$((size * 5 / 4 + 64))M\"",
        )
    };
    let script = format!(
        "set -e; PATH=$PATH:/usr/sbin:/sbin; mkdir -p \"$2\"; tar -xpf \"$1\" -C \"$2\" --exclude=./dev/*; {make}; rm -rf \"$2\""
    );
    Helper::new("unshare")
        .limit(BUILD_LIMIT)
        .args(["--user", "--map-auto", "--map-root-user", "--", "sh", "-c"])
        .args([script.as_str(), "sh"])
        .arg(tar)
        .arg(tree)
        .arg(image)
        .run(|_| {})
        .await
        .map_err(ImageError::Bootstrap)?;
    Ok(format)
}

/// Removes the tree off the async threads: it has tens of thousands of files.
async fn remove_scratch(scratch: &Path) -> Result<(), ImageError> {
    let path = scratch.to_owned();
    tokio::task::spawn_blocking(move || fs::remove_dir_all(&path))
        .await
        .map_err(std::io::Error::other)
        .and_then(|removed| removed)
        .map_err(ImageError::io(scratch))
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
