//! The modules a guest loads, with what they depend on, in order.
//!
//! A package that was never installed has no `modules.dep` (`depmod` makes it), so the order
//! comes from the modules themselves: each names what it depends on in its `.modinfo` section.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::KernelError;
use crate::command::Helper;

/// What a guest uses, and whether it cannot do without.
const WANTED: &[(&str, bool)] = &[
    ("virtio_mmio", true),
    ("virtio_console", true),
    ("virtio_blk", false),
    ("overlay", false),
    ("erofs", false),
    ("ext4", false),
    ("tun", false),
    ("fuse", false),
    ("virtio_balloon", false),
    // Of machines with PCI; the agent loads them there alone.
    ("virtio_pci", false),
    ("vmw_vsock_virtio_transport", false),
];
/// Most files looked at in a module tree.
const MAX_FILES: usize = 50_000;
/// Largest module, in bytes.
const MAX_MODULE_BYTES: u64 = 32 * 1024 * 1024;

/// Copies the wanted modules of `tree`, uncompressed, to `into`; returns their names there.
pub(super) async fn collect(tree: &Path, into: &Path) -> Result<Vec<String>, KernelError> {
    let files = index(tree)?;
    let built_in: BTreeSet<String> = fs::read_to_string(tree.join("modules.builtin"))
        .unwrap_or_default()
        .lines()
        .map(|line| module_name(Path::new(line)))
        .collect();
    let mut order = Vec::new();
    let mut loaded: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for &(name, required) in WANTED {
        if built_in.contains(name) {
            continue;
        }
        if !files.contains_key(name) {
            if required {
                return Err(KernelError::NoModule {
                    release: tree
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                    module: name.to_owned(),
                });
            }
            continue;
        }
        // Depth first with an explicit stack: a module is placed once all it depends on is.
        let mut stack = vec![name.to_owned()];
        while let Some(top) = stack.last().cloned() {
            if order.contains(&top) {
                stack.pop();
                continue;
            }
            let Some(path) = files.get(&top) else {
                // Built in under another name, or absent: the guest will say so if it matters.
                stack.pop();
                continue;
            };
            if !loaded.contains_key(&top) {
                loaded.insert(top.clone(), read_module(path).await?);
            }
            let missing: Vec<String> = depends(&loaded[&top])
                .into_iter()
                .filter(|dep| files.contains_key(dep) && !order.contains(dep))
                .filter(|dep| !stack.contains(dep))
                .collect();
            if missing.is_empty() {
                order.push(top);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
    }
    let mut names = Vec::new();
    for (number, module) in order.iter().enumerate() {
        let name = format!("{number:02}-{module}.ko");
        let path = into.join(&name);
        fs::write(&path, &loaded[module]).map_err(KernelError::io(&path))?;
        names.push(name);
    }
    Ok(names)
}

/// Finds every module file below `tree` by its name.
fn index(tree: &Path) -> Result<BTreeMap<String, PathBuf>, KernelError> {
    let mut found = BTreeMap::new();
    let mut left = vec![tree.join("kernel")];
    let mut seen = 0;
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).map_err(KernelError::io(&dir))? {
            let entry = entry.map_err(KernelError::io(&dir))?;
            seen += 1;
            if seen > MAX_FILES {
                return Ok(found);
            }
            let kind = entry.file_type().map_err(KernelError::io(&dir))?;
            let path = entry.path();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() && path.to_string_lossy().contains(".ko") {
                found.insert(module_name(&path), path);
            }
        }
    }
    Ok(found)
}

async fn read_module(path: &Path) -> Result<Vec<u8>, KernelError> {
    let size = fs::metadata(path).map_err(KernelError::io(path))?.len();
    if size > MAX_MODULE_BYTES {
        return Err(KernelError::io(path)(
            std::io::ErrorKind::FileTooLarge.into(),
        ));
    }
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(KernelError::io(path)),
    };
    Ok(Helper::new(program)
        .args(["-d", "-c", "--"])
        .arg(path)
        .output()
        .await?)
}

/// Returns `virtio_rng` for `kernel/drivers/…/virtio-rng.ko.xz`.
fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko")
        .next()
        .unwrap_or_default()
        .replace('-', "_")
}

/// Reads what a module depends on out of its `.modinfo` strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else {
        return Vec::new();
    };
    let value = &module[at + KEY.len()..];
    let end = value.iter().take(4096).position(|&b| b == 0).unwrap_or(0);
    String::from_utf8_lossy(&value[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(tree: &Path, path: &str, depends: &str) {
        let path = tree.join("kernel").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(
            path,
            format!("\x7fELF\0license=GPL\0depends={depends}\0name=x\0"),
        )
        .unwrap();
    }

    #[tokio::test]
    async fn modules_come_after_what_they_depend_on() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, into) = (dir.path().join("6.1"), dir.path().join("out"));
        fs::create_dir(&into).unwrap();
        module(&tree, "a/virtio_mmio.ko", "virtio,virtio_ring");
        module(&tree, "a/virtio.ko", "virtio_ring");
        module(&tree, "a/virtio_ring.ko", "");
        module(&tree, "b/virtio_console.ko", "virtio,virtio_ring");
        module(&tree, "fs/erofs.ko", "libcrc32c");
        module(&tree, "lib/libcrc32c.ko", "");
        fs::write(tree.join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        let names = collect(&tree, &into).await.unwrap();
        assert_eq!(
            names,
            [
                "00-virtio_ring.ko",
                "01-virtio.ko",
                "02-virtio_mmio.ko",
                "03-virtio_console.ko",
                "04-libcrc32c.ko",
                "05-erofs.ko"
            ]
        );
    }

    #[tokio::test]
    async fn a_circle_of_dependencies_ends() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("6.1");
        module(&tree, "virtio_mmio.ko", "virtio_console");
        module(&tree, "virtio_console.ko", "virtio-mmio");
        assert_eq!(collect(&tree, dir.path()).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_kernel_without_virtio_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("6.1");
        module(&tree, "virtio_mmio.ko", "");
        let error = collect(&tree, dir.path()).await.unwrap_err();
        assert!(
            matches!(error, KernelError::NoModule { module, .. } if module == "virtio_console")
        );
    }
}
