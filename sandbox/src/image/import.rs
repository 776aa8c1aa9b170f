//! Images of others: OCI layouts, `docker save`, or a bare root file system.
//!
//! Layers are read twice. First every header, into a [`tree::Tree`] that keeps all rules about
//! names while nothing is written; then the files that are left in the tree are copied into one
//! archive of our own making, from which the root file system is packed. Both times what is read
//! must have the SHA-256 that the image's manifest names.

mod error;
pub(crate) mod fuzz;
mod layer;
mod merged;
mod oci;
mod source;
mod tree;

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

pub use self::error::ImportError;
use self::{
    layer::{Budget, What},
    merged::Merged,
    oci::{Config, Digest, Index, Manifest, Saved},
    source::{Packing, Source},
    tree::Tree,
};
use super::{
    ImageConfig, ImageError,
    pack::repack,
    rootfs::{Rootfs, Roots},
};
use crate::{Progress, ProgressEvent, progress::step};

/// Changed whenever the same image would come out otherwise.
const RECIPE: u32 = 1;
/// Most bytes of one archive that is taken in.
pub(super) const MAX_LAYER_BYTES: u64 = layer::MAX_BYTES;
/// Free bytes that are left alone.
const SPARE_BYTES: u64 = 512 * 1024 * 1024;

/// What to import, and as what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportRequest {
    /// A directory or an archive.
    pub path: PathBuf,
    /// Name of the image; what it calls itself if not given.
    pub name: Option<String>,
    /// Which of several images in it.
    pub reference: Option<String>,
    /// Whether the archive is a root file system (`docker export`) rather than an image.
    pub rootfs: bool,
}

/// An image as its files describe it.
#[derive(Debug)]
struct Described {
    name: Option<String>,
    /// What names it by its content.
    digest: Digest,
    layers: Vec<Layer>,
    config: ImageConfig,
}

#[derive(Debug)]
struct Layer {
    file: String,
    /// SHA-256 of the file, where the image names it.
    digest: Option<Digest>,
    /// SHA-256 of what comes out of it; a bare root file system has none.
    content: Option<Digest>,
}

/// Imports an image; one that was imported before is found again.
pub(super) async fn import(
    roots: &Roots,
    request: ImportRequest,
    progress: &Progress,
) -> Result<Rootfs, ImageError> {
    let path = request.path.clone();
    let failed = |source: ImportError| ImageError::Import {
        path: path.clone(),
        source: Box::new(source),
    };
    let staged = roots.stage(progress).await?;
    let scratch = staged.scratch()?;
    let free = roots.free_bytes()?.saturating_sub(SPARE_BYTES);
    step(progress, "image", "reading the image");
    let (wanted, into) = (request.clone(), scratch.clone());
    let opened = blocking(move || {
        let limit = free.min(layer::MAX_BYTES);
        let source = Source::open(&wanted.path, &into, limit, wanted.rootfs)?;
        let described = if wanted.rootfs {
            bare(&source, &wanted.path)?
        } else {
            describe(&source, wanted.reference.as_deref())?
        };
        Ok((source, described))
    });
    let (source, described) = opened.await.map_err(failed)?;
    let name = match request.name {
        Some(name) => name,
        None => described
            .name
            .as_deref()
            .and_then(short_name)
            .ok_or_else(|| failed(ImportError::NoName))?,
    };
    super::check_name(&name)?;
    let key = Rootfs::key_of(&format!("import {RECIPE} {}", described.digest), &name);
    if let Some(known) = roots.find(&key) {
        step(progress, "image", "it was imported before");
        return Ok(known);
    }
    let archive = scratch.join("merged.tar");
    let (to, told) = (archive.clone(), progress.clone());
    let config = described.config.clone();
    let lineage = vec![
        format!("import: {}", described.digest),
        format!("layers: {}", described.layers.len()),
    ];
    let merged = blocking(move || merge(&source, &described, &to, free, &told));
    let left_out = merged.await.map_err(failed)?;
    if left_out > 0 {
        step(
            progress,
            "image",
            format_args!("left out {left_out} devices and pipes; a guest makes its own"),
        );
    }
    let image = staged.image();
    let format = repack(&archive, &scratch.join("tree"), &image, progress).await?;
    let rootfs = Rootfs {
        key,
        name,
        format: format.to_owned(),
        lineage,
        config,
        ..Rootfs::default()
    };
    staged.commit(rootfs).await
}

/// Makes an archive of ours of one that a guest sent, as one layer over nothing.
pub(super) async fn bare_archive(
    archive: &Path,
    to: &Path,
    free: u64,
    progress: &Progress,
) -> Result<(), ImageError> {
    let (from, to, told) = (archive.to_owned(), to.to_owned(), progress.clone());
    let merged = blocking(move || {
        let scratch = from.parent().unwrap_or(Path::new("/"));
        let source = Source::open(&from, scratch, free, true)?;
        let described = bare(&source, &from)?;
        merge_with(&source, &described, &made_at_boot(), &to, free, &told)
    });
    merged.await.map(drop).map_err(|source| ImageError::Import {
        path: archive.to_owned(),
        source: Box::new(source),
    })
}

/// What a guest's own view of its files holds that is no part of an image, hidden as a last layer
/// would; and the directories that its agent mounts.
fn made_at_boot() -> Vec<layer::Item> {
    let item = |path: &str, what: What, mode: u32| layer::Item {
        path: path.as_bytes().to_vec(),
        what,
        meta: layer::Meta {
            mode,
            ..layer::Meta::default()
        },
    };
    let hidden = [".wh.init", "usr/local/bin/.wh.rhizome", "lib/.wh.rhizome"];
    let made = [
        ("dev", 0o755),
        ("proc", 0o555),
        ("run", 0o755),
        ("sys", 0o555),
        ("tmp", 0o1777),
    ];
    hidden
        .map(|path| item(path, What::File { size: 0 }, 0))
        .into_iter()
        .chain(made.map(|(path, mode)| item(path, What::Dir, mode)))
        .collect()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImportError> + Send + 'static,
) -> Result<T, ImportError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(ImportError::Archive {
            source: io::Error::other(error),
        })
    })
}

/// Finds out what the image consists of.
fn describe(source: &Source, wanted: Option<&str>) -> Result<Described, ImportError> {
    if let Some(index) = source.small("index.json")? {
        return describe_layout(source, &index, wanted);
    }
    if let Some(saved) = source.small("manifest.json")? {
        return describe_saved(source, &saved, wanted);
    }
    Err(ImportError::NoImage)
}

fn describe_layout(
    source: &Source,
    index: &[u8],
    wanted: Option<&str>,
) -> Result<Described, ImportError> {
    let index: Index = oci::json("index.json", index)?;
    let mut chosen = index.choose(wanted)?.clone();
    let name = chosen.name();
    // An index of platforms in an index of images, and no deeper.
    if chosen.is_index() {
        let inner: Index = oci::json("index", &blob(source, &chosen.digest)?)?;
        chosen = inner.choose(None)?.clone();
    }
    let digest = Digest::parse(&chosen.digest)?;
    let manifest: Manifest = oci::json("manifest", &blob(source, &chosen.digest)?)?;
    let config: Config = oci::json("configuration", &blob(source, &manifest.config.digest)?)?;
    config.check(manifest.layers.len())?;
    let layers = manifest.layers.iter().zip(&config.rootfs.diff_ids);
    let layers = layers.map(|(layer, content)| {
        let digest = Digest::parse(&layer.digest)?;
        Ok(Layer {
            file: digest.blob(),
            digest: Some(digest),
            content: Some(Digest::parse(content)?),
        })
    });
    Ok(Described {
        name,
        digest,
        layers: layers.collect::<Result<_, ImportError>>()?,
        config: config.runs(),
    })
}

fn describe_saved(
    source: &Source,
    saved: &[u8],
    wanted: Option<&str>,
) -> Result<Described, ImportError> {
    let images: Vec<Saved> = oci::json("manifest.json", saved)?;
    let called = |image: &&Saved| {
        let tags = image.repo_tags.as_deref().unwrap_or_default();
        wanted.is_none_or(|wanted| tags.iter().any(|tag| tag == wanted))
    };
    let mut fitting = images.iter().filter(called);
    let image = match (fitting.next(), fitting.count()) {
        (Some(image), 0) => image,
        (Some(_), more) => return Err(ImportError::Several { found: more + 1 }),
        (None, _) => return Err(ImportError::malformed("it holds no such image")),
    };
    let config = source.small(&image.config)?;
    let config = config.ok_or_else(|| ImportError::missing(&image.config))?;
    // The name of the image's content: what its configuration says of the layers.
    let digest = Digest::of(&config);
    let config: Config = oci::json("configuration", &config)?;
    config.check(image.layers.len())?;
    let layers = image.layers.iter().zip(&config.rootfs.diff_ids);
    let layers = layers.map(|(file, content)| {
        Ok(Layer {
            file: file.clone(),
            digest: None,
            content: Some(Digest::parse(content)?),
        })
    });
    Ok(Described {
        name: image.repo_tags.iter().flatten().next().cloned(),
        digest,
        layers: layers.collect::<Result<_, ImportError>>()?,
        config: config.runs(),
    })
}

/// Takes the archive itself for the one layer.
fn bare(source: &Source, path: &Path) -> Result<Described, ImportError> {
    let Source::Tar { path: plain, .. } = source else {
        return Err(ImportError::NoImage);
    };
    let mut hasher = Sha256::new();
    let file = File::open(plain).map_err(|source| ImportError::Read {
        path: plain.clone(),
        source,
    })?;
    let mut hashed = Hashed::new(file, &mut hasher);
    io::copy(&mut hashed, &mut io::sink()).map_err(layer::broken)?;
    let stem = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Described {
        name: Some(stem.split('.').next().unwrap_or_default().to_owned()),
        digest: Digest::ended(hasher),
        layers: vec![Layer {
            file: plain.to_string_lossy().into_owned(),
            digest: None,
            content: None,
        }],
        config: ImageConfig::default(),
    })
}

fn blob(source: &Source, digest: &str) -> Result<Vec<u8>, ImportError> {
    let wanted = Digest::parse(digest)?;
    let bytes = source.small(&wanted.blob())?;
    let bytes = bytes.ok_or_else(|| ImportError::missing(&wanted.blob()))?;
    let found = Digest::of(&bytes);
    if found != wanted {
        return Err(ImportError::Digest {
            file: wanted.blob(),
            found: found.to_string(),
        });
    }
    Ok(bytes)
}

/// Writes the archive of the whole tree; returns how many devices were left out.
fn merge(
    source: &Source,
    described: &Described,
    to: &Path,
    free: u64,
    progress: &Progress,
) -> Result<u64, ImportError> {
    merge_with(source, described, &[], to, free, progress)
}

/// As [`merge`], with `last` as a layer of our own on top; it has no files of its own.
fn merge_with(
    source: &Source,
    described: &Described,
    last: &[layer::Item],
    to: &Path,
    free: u64,
    progress: &Progress,
) -> Result<u64, ImportError> {
    let mut tree = Tree::default();
    let mut budget = Budget {
        // The archive, the tree and the packed image all lie on the disk for a while.
        bytes: layer::MAX_BYTES.min(free),
        ..Budget::default()
    };
    let total = 2 * described.layers.len() as u64;
    let at = |done: usize, verb: &str| {
        progress(ProgressEvent {
            step: "image",
            detail: &format!("{verb} layer {}", done % described.layers.len() + 1),
            done: done as u64,
            total,
        });
    };
    for (number, layer) in described.layers.iter().enumerate() {
        at(number, "checking");
        let mut entry = 0;
        read_layer(source, layer, &mut budget, |item, _| {
            tree.apply(number, entry, item)?;
            entry += 1;
            Ok(())
        })?;
    }
    for (entry, item) in (0..).zip(last) {
        tree.apply(described.layers.len(), entry, item.clone())?;
    }
    let listing = tree.listing();
    let content: u64 = listing.files.values().map(|(data, _)| data.size).sum();
    if content.saturating_mul(2) > free {
        return Err(ImportError::NoSpace {
            needed: content.saturating_mul(2),
            free,
        });
    }
    let out = File::create(to).map_err(|source| ImportError::Read {
        path: to.to_owned(),
        source,
    })?;
    let mut merged = Merged::new(BufWriter::with_capacity(1 << 20, out));
    for (path, meta) in &listing.dirs {
        merged.dir(path, meta).map_err(layer::broken)?;
    }
    // The second time each layer is bounded by what the first one found in it.
    let mut budget = Budget::default();
    for (number, layer) in described.layers.iter().enumerate() {
        at(described.layers.len() + number, "unpacking");
        let mut entry = 0;
        let mut written = 0;
        read_layer(source, layer, &mut budget, |item, content| {
            if let Some((data, names)) = listing.files.get(&(number, entry)) {
                if item.what != (What::File { size: data.size }) {
                    return Err(ImportError::Changed);
                }
                let first = &names[0];
                let file = merged.file(first, &data.meta, data.size, content);
                file.map_err(layer::broken)?;
                for name in &names[1..] {
                    let link = merged.hardlink(name, first, &data.meta);
                    link.map_err(layer::broken)?;
                }
                written += 1;
            }
            entry += 1;
            Ok(())
        })?;
        let expected = listing.files.range((number, 0)..(number + 1, 0)).count();
        if written != expected {
            return Err(ImportError::Changed);
        }
    }
    for (path, meta, target) in &listing.symlinks {
        let link = merged.symlink(path, target, meta);
        link.map_err(layer::broken)?;
    }
    merged.finish().map_err(layer::broken)?;
    Ok(tree.left_out)
}

/// Reads all entries of a layer and checks both of its digests.
fn read_layer(
    source: &Source,
    layer: &Layer,
    budget: &mut Budget,
    visit: impl FnMut(layer::Item, &mut dyn Read) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let file: Box<dyn Read> = match (source, layer.content) {
        // A bare root file system is the archive itself.
        (Source::Tar { path, .. }, None) => {
            Box::new(File::open(path).map_err(|source| ImportError::Read {
                path: path.clone(),
                source,
            })?)
        }
        _ => Box::new(
            source
                .file(&layer.file)?
                .ok_or_else(|| ImportError::missing(&layer.file))?,
        ),
    };
    let mut packed = Sha256::new();
    let mut content = Sha256::new();
    let mut raw = BufReader::with_capacity(1 << 18, Hashed::new(file, &mut packed));
    {
        let packing = Packing::of_bytes(io::BufRead::fill_buf(&mut raw).map_err(layer::broken)?);
        let unpacked = packing.reader(&mut raw)?;
        layer::read(Hashed::new(unpacked, &mut content), budget, visit)?;
    }
    // What a decoder left unread belongs to the file's digest all the same.
    io::copy(&mut raw, &mut io::sink()).map_err(layer::broken)?;
    drop(raw);
    for (wanted, hasher) in [(layer.digest, packed), (layer.content, content)] {
        let found = Digest::ended(hasher);
        if wanted.is_some_and(|wanted| wanted != found) {
            return Err(ImportError::Digest {
                file: oci::clip(&layer.file),
                found: found.to_string(),
            });
        }
    }
    Ok(())
}

/// Hashes what is read.
struct Hashed<'a, R> {
    stream: R,
    hasher: &'a mut Sha256,
}

impl<'a, R> Hashed<'a, R> {
    fn new(stream: R, hasher: &'a mut Sha256) -> Self {
        Self { stream, hasher }
    }
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(into)?;
        self.hasher.update(&into[..read]);
        Ok(read)
    }
}

/// Makes a name of ours of a reference: `docker.io/library/alpine:3.20` is `alpine:3.20`.
fn short_name(reference: &str) -> Option<String> {
    let last = reference.rsplit('/').next()?;
    let last = last.split('@').next()?;
    (!last.is_empty()).then(|| last.to_owned())
}

#[cfg(test)]
mod tests;
