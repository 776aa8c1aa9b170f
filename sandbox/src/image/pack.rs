//! From a tree, or an archive of one, to one read-only file.

use std::{path::Path, time::Duration};

use super::ImageError;
use crate::{
    Progress,
    command::{Helper, find_program},
    progress::step,
};

/// Longest time that packing may take: a loaded host.
const PACK_LIMIT: Duration = Duration::from_secs(45 * 60);

/// Packs a tree: `erofs` where its tool is there (half the size), else `ext4`, whose tool every
/// Debian and Ubuntu has.
///
/// Times of files are kept, or Python would take each of its compiled modules for stale. Of the
/// compressors `lz4` packs in an eighth of the time of `lz4hc` and a tenth more space.
pub(super) async fn pack(
    tree: &Path,
    image: &Path,
    progress: &Progress,
) -> Result<&'static str, ImageError> {
    step(progress, "image", "packing the file system");
    let (format, make) = packer();
    let script = format!("set -e; PATH=$PATH:/usr/sbin:/sbin; {make}");
    run(Helper::new("sh")
        .args(["-c", &script, "sh", "-"])
        .arg(tree)
        .arg(image))
    .await?;
    Ok(format)
}

/// Unpacks an archive and packs the tree; for others than root in a user namespace, so that
/// owners come out right. Device nodes are left out: a guest makes its own.
pub(super) async fn repack(
    tar: &Path,
    tree: &Path,
    image: &Path,
    progress: &Progress,
) -> Result<&'static str, ImageError> {
    step(progress, "image", "packing the file system");
    let (format, make) = packer();
    let is_root = rustix::process::geteuid().is_root();
    // Capabilities of files belong to the host's root alone; within a namespace they would be
    // bound to a user of the host.
    let attributes = if is_root {
        "--xattrs --xattrs-include=security.capability"
    } else {
        ""
    };
    let script = format!(
        "set -e; PATH=$PATH:/usr/sbin:/sbin; umask 022; mkdir -p \"$2\"; tar -xp {attributes} --numeric-owner -f \"$1\" -C \"$2\" --exclude='./dev/*'; {make}; rm -rf \"$2\""
    );
    let helper = if is_root {
        Helper::new("sh")
    } else {
        Helper::new("unshare").args(["--user", "--map-auto", "--map-root-user", "--", "sh"])
    };
    let helper = helper.args(["-c", &script, "sh"]);
    run(helper.arg(tar).arg(tree).arg(image)).await?;
    Ok(format)
}

/// Returns a format and the shell command that packs `$2` into `$3`.
fn packer() -> (&'static str, &'static str) {
    if find_program("mkfs.erofs").is_some() {
        (
            "erofs",
            "mkfs.erofs -zlz4 -U 00000000-0000-4000-8000-000000000000 \"$3\" \"$2\"",
        )
    } else {
        (
            "ext4",
            "size=$(du -sm \"$2\" | cut -f1); mkfs.ext4 -q -F -m 0 -O ^has_journal -i 8192 -d \"$2\" \"$3\" \"$((size * 5 / 4 + 64))M\"",
        )
    }
}

async fn run(helper: Helper) -> Result<(), ImageError> {
    let ran = helper.limit(PACK_LIMIT).run(|_| {}).await;
    ran.map_err(ImageError::Bootstrap)
}
