//! Where an image comes from: a directory, or an archive whose files are read in place.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{ImportError, layer::broken, oci::MAX_JSON};

/// Most files of an archive that holds an image.
const MAX_FILES: usize = 10_000;
/// Names of files stand for others at most this often.
const MAX_HOPS: usize = 4;
/// Largest window of a zstd stream, as a power of two: what `zstd --ultra` may ask for.
const ZSTD_WINDOW: u32 = 27;

/// The files of an image, by name.
#[derive(Debug)]
pub(super) enum Source {
    Dir(PathBuf),
    Tar {
        path: PathBuf,
        files: BTreeMap<String, Place>,
    },
}

/// Where a file is within an archive.
#[derive(Debug, Clone)]
pub(super) enum Place {
    At { offset: u64, size: u64 },
    Link(String),
}

impl Source {
    /// Opens what lies at `path`; a compressed archive is unpacked to `scratch` first. The files of
    /// a bare root file system are not listed: they are no parts of an image.
    pub(super) fn open(
        path: &Path,
        scratch: &Path,
        limit: u64,
        is_bare: bool,
    ) -> Result<Self, ImportError> {
        let opened = |source| ImportError::Read {
            path: path.to_owned(),
            source,
        };
        let meta = std::fs::metadata(path).map_err(opened)?;
        if meta.is_dir() {
            return Ok(Self::Dir(path.canonicalize().map_err(opened)?));
        }
        let mut file = File::open(path).map_err(opened)?;
        let plain = match Packing::of(&mut file).map_err(opened)? {
            Packing::None => path.to_owned(),
            packing => {
                let to = scratch.join("archive.tar");
                let mut out = File::create(&to).map_err(opened)?;
                let copied = io::copy(&mut packing.reader(file)?.take(limit + 1), &mut out);
                if copied.map_err(broken)? > limit {
                    return Err(broken(io::Error::other("it unpacks to too much")));
                }
                to
            }
        };
        let files = if is_bare {
            BTreeMap::new()
        } else {
            list(File::open(&plain).map_err(opened)?)?
        };
        Ok(Self::Tar { path: plain, files })
    }

    /// Opens a file of the image; `None` if there is none of this name.
    pub(super) fn file(&self, name: &str) -> Result<Option<impl Read + use<>>, ImportError> {
        match self {
            Self::Dir(root) => {
                // Named by the image itself, so it may name no file outside.
                let path = root.join(name);
                let Ok(real) = path.canonicalize() else {
                    return Ok(None);
                };
                if !real.starts_with(root) || !real.is_file() {
                    return Err(ImportError::hostile(
                        name.as_bytes(),
                        "lies outside of the image",
                    ));
                }
                let opened = File::open(&real).map_err(|source| ImportError::Read {
                    path: real.clone(),
                    source,
                })?;
                Ok(Some(opened.take(u64::MAX)))
            }
            Self::Tar { path, files } => {
                let Some((offset, size)) = find(files, name) else {
                    return Ok(None);
                };
                let opened = File::open(path).and_then(|mut file| {
                    file.seek(SeekFrom::Start(offset))?;
                    Ok(file)
                });
                let opened = opened.map_err(|source| ImportError::Read {
                    path: path.clone(),
                    source,
                })?;
                Ok(Some(opened.take(size)))
            }
        }
    }

    /// Reads a small file whole.
    pub(super) fn small(&self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        let Some(file) = self.file(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(MAX_JSON + 1)
            .read_to_end(&mut bytes)
            .map_err(broken)?;
        if bytes.len() as u64 > MAX_JSON {
            return Err(ImportError::Unsupported {
                what: "a description over 4 MiB",
            });
        }
        Ok(Some(bytes))
    }
}

fn find(files: &BTreeMap<String, Place>, name: &str) -> Option<(u64, u64)> {
    let mut name = name.to_owned();
    for _ in 0..MAX_HOPS {
        match files.get(&name)? {
            Place::At { offset, size } => return Some((*offset, *size)),
            // `docker save` once wrote equal layers as links to each other.
            Place::Link(target) => name.clone_from(target),
        }
    }
    None
}

/// Lists an archive without reading what is in its files.
fn list(file: File) -> Result<BTreeMap<String, Place>, ImportError> {
    let mut archive = Archive::new(BufReader::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries_with_seek().map_err(broken)? {
        let entry = entry.map_err(broken)?;
        let Ok(name) = String::from_utf8(entry.path_bytes().into_owned()) else {
            continue;
        };
        let name = name.trim_start_matches("./").to_owned();
        let place = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => Place::At {
                offset: entry.raw_file_position(),
                size: entry.size(),
            },
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = String::from_utf8_lossy(&target).into_owned();
                Place::Link(beside(&name, &target, entry.header().entry_type()))
            }
            _ => continue,
        };
        if files.len() >= MAX_FILES {
            return Err(ImportError::TooMany {
                limit: MAX_FILES as u64,
            });
        }
        files.insert(name, place);
    }
    Ok(files)
}

/// Returns which file a link names. It is looked up in the archive alone, wherever it leads.
fn beside(name: &str, target: &str, kind: EntryType) -> String {
    if kind == EntryType::Link {
        return target.trim_start_matches("./").to_owned();
    }
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// How a stream is compressed, by its first bytes: what an image says of it is not always so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(file: &mut File) -> io::Result<Self> {
        let mut first = [0; 4];
        let mut have = 0;
        while have < first.len() {
            match file.read(&mut first[have..])? {
                0 => break,
                read => have += read,
            }
        }
        file.seek(SeekFrom::Start(0))?;
        Ok(Self::of_bytes(&first[..have]))
    }

    pub(super) fn of_bytes(first: &[u8]) -> Self {
        if first.starts_with(&[0x1f, 0x8b]) {
            Self::Gzip
        } else if first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Self::Zstd
        } else {
            Self::None
        }
    }

    /// Unpacks a stream.
    pub(super) fn reader<'a>(
        self,
        stream: impl Read + 'a,
    ) -> Result<Box<dyn Read + 'a>, ImportError> {
        Ok(match self {
            Self::None => Box::new(stream),
            Self::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(stream))),
            Self::Zstd => {
                let mut decoder = zstd::Decoder::new(stream).map_err(broken)?;
                decoder.window_log_max(ZSTD_WINDOW).map_err(broken)?;
                Box::new(decoder)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_names_a_file_of_the_archive() {
        let link = |name, target| beside(name, target, EntryType::Symlink);
        assert_eq!(link("abc/layer.tar", "../def/layer.tar"), "def/layer.tar");
        assert_eq!(link("abc/layer.tar", "../../../etc/shadow"), "etc/shadow");
    }

    #[test]
    fn a_directory_gives_out_nothing_that_lies_outside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("image");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("index.json")).unwrap();
        let source = Source::open(&root, dir.path(), 1 << 20, false).unwrap();
        assert!(matches!(
            source.small("index.json"),
            Err(ImportError::Hostile { .. })
        ));
        assert!(source.small("nothing").unwrap().is_none());
    }
}
