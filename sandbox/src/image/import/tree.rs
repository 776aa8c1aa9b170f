//! What layers add up to: a tree in memory, of names and of where each file's bytes are.
//!
//! Every rule about names is kept here, before a byte is written: no entry leaves the root, links
//! are followed only inside it, a hard link names a file of the image. Whiteouts (OCI image
//! specification, "Layers") hide what lower layers hold, never what their own layer adds.

use std::collections::BTreeMap;

use super::{
    ImportError,
    layer::{Item, MAX_PATH, Meta, What},
};

/// Longest name within a directory, in bytes.
const MAX_NAME: usize = 255;
/// Deepest directory.
const MAX_DEPTH: usize = 256;
/// Links followed on the way to one entry.
const MAX_HOPS: u32 = 40;
/// Names looked up and taken away for one image: what an honest one needs, ten times.
const MAX_STEPS: u64 = 50_000_000;
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bookkeeping of old union file systems.
const AUFS: &[u8] = b".wh..wh.";

type NodeId = usize;
const ROOT: NodeId = 0;

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    files: Vec<FileData>,
    /// Devices and pipes that were left out.
    pub(super) left_out: u64,
    /// Names looked up and taken away so far.
    steps: u64,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    /// The layer that said so last.
    layer: usize,
}

#[derive(Debug)]
enum Kind {
    Dir {
        meta: Meta,
        names: BTreeMap<Vec<u8>, NodeId>,
    },
    /// The index of its content; hard links share it.
    File(usize),
    Symlink {
        meta: Meta,
        target: Vec<u8>,
    },
}

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
pub(super) struct FileData {
    pub(super) layer: usize,
    /// The number of its entry within the layer.
    pub(super) entry: u64,
    pub(super) size: u64,
    pub(super) meta: Meta,
}

/// A file's content and all of its names.
pub(super) type Named<'a> = (&'a FileData, Vec<Vec<u8>>);

/// What a tree holds, in the order in which it can be written.
#[derive(Debug, Default)]
pub(super) struct Listing<'a> {
    /// Parents before children; the root is the empty path.
    pub(super) dirs: Vec<(Vec<u8>, &'a Meta)>,
    /// Each content with all of its names, by layer and entry.
    pub(super) files: BTreeMap<(usize, u64), Named<'a>>,
    pub(super) symlinks: Vec<(Vec<u8>, &'a Meta, &'a [u8])>,
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node {
            kind: Kind::Dir {
                meta: plain_dir(),
                names: BTreeMap::new(),
            },
            layer: 0,
        };
        Self {
            nodes: vec![root],
            files: Vec::new(),
            left_out: 0,
            steps: 0,
        }
    }
}

impl Tree {
    /// Applies entry number `entry` of layer number `layer`; layers come in order from 0.
    pub(super) fn apply(
        &mut self,
        layer: usize,
        entry: u64,
        item: Item,
    ) -> Result<(), ImportError> {
        let mut names = split(&item.path)?;
        let Some(name) = names.pop() else {
            if let (What::Dir, Kind::Dir { meta, .. }) = (&item.what, &mut self.nodes[ROOT].kind) {
                *meta = item.meta;
            }
            return Ok(());
        };
        if name == OPAQUE {
            if let Some(dir) = self.walk(&item.path, &names, None)? {
                self.hide_below(dir, layer)?;
            }
            return Ok(());
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if hidden.is_empty() || hidden == b"." || hidden == b".." {
                return Err(ImportError::hostile(&item.path, "hides no name"));
            }
            if let Some(dir) = self.walk(&item.path, &names, None)? {
                self.hide(dir, hidden, layer)?;
            }
            return Ok(());
        }
        let dir = self
            .walk(&item.path, &names, Some(layer))?
            .expect("missing directories are made");
        let kind = match item.what {
            What::Special => {
                self.left_out += 1;
                return Ok(());
            }
            What::Dir => {
                if let Some(there) = self.child(dir, name)
                    && let Kind::Dir { meta, .. } = &mut self.nodes[there].kind
                {
                    *meta = item.meta;
                    self.nodes[there].layer = layer;
                    return Ok(());
                }
                Kind::Dir {
                    meta: item.meta,
                    names: BTreeMap::new(),
                }
            }
            What::File { size } => {
                self.files.push(FileData {
                    layer,
                    entry,
                    size,
                    meta: item.meta,
                });
                Kind::File(self.files.len() - 1)
            }
            What::Symlink { target } => {
                if target.is_empty() {
                    return Err(ImportError::hostile(&item.path, "links to nothing"));
                }
                Kind::Symlink {
                    meta: item.meta,
                    target,
                }
            }
            What::Hardlink { target } => self.linked(&item.path, &target)?,
        };
        self.nodes.push(Node { kind, layer });
        let id = self.nodes.len() - 1;
        self.names(dir).insert(name.to_vec(), id);
        Ok(())
    }

    /// Returns everything in the tree.
    pub(super) fn listing(&self) -> Listing<'_> {
        let mut listing = Listing::default();
        let mut open = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = open.pop() {
            match &self.nodes[id].kind {
                Kind::Dir { meta, names } => {
                    for (name, child) in names.iter().rev() {
                        let mut below: Vec<u8> = path.clone();
                        if !below.is_empty() {
                            below.push(b'/');
                        }
                        below.extend_from_slice(name);
                        open.push((below, *child));
                    }
                    listing.dirs.push((path, meta));
                }
                Kind::File(data) => {
                    let data = &self.files[*data];
                    let key = (data.layer, data.entry);
                    let names = listing.files.entry(key).or_insert((data, Vec::new()));
                    names.1.push(path);
                }
                Kind::Symlink { meta, target } => listing.symlinks.push((path, meta, target)),
            }
        }
        listing
    }

    /// Goes to a directory, through links, never out of the root. Missing directories are made for
    /// the layer given; without one the answer is then `None`.
    fn walk(
        &mut self,
        entry: &[u8],
        names: &[&[u8]],
        make: Option<usize>,
    ) -> Result<Option<NodeId>, ImportError> {
        let mut to_go: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        let mut at = vec![ROOT];
        let mut hops = 0;
        while let Some(name) = to_go.pop() {
            self.count_step()?;
            if name == b".." {
                if at.len() > 1 {
                    at.pop();
                }
                continue;
            }
            let here = *at.last().expect("the root stays");
            let there = match self.child(here, &name) {
                Some(there) => there,
                None => {
                    let Some(layer) = make else { return Ok(None) };
                    self.nodes.push(Node {
                        kind: Kind::Dir {
                            meta: plain_dir(),
                            names: BTreeMap::new(),
                        },
                        layer,
                    });
                    let there = self.nodes.len() - 1;
                    self.names(here).insert(name, there);
                    there
                }
            };
            match &self.nodes[there].kind {
                Kind::Dir { .. } => at.push(there),
                Kind::File(_) => {
                    return Err(ImportError::hostile(entry, "goes through a file"));
                }
                Kind::Symlink { target, .. } => {
                    hops += 1;
                    if hops > MAX_HOPS {
                        return Err(ImportError::hostile(entry, "goes through too many links"));
                    }
                    if target.first() == Some(&b'/') {
                        at.truncate(1);
                    }
                    let parts = target.split(|byte| *byte == b'/');
                    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
                    to_go.extend(parts.rev().map(<[u8]>::to_vec));
                }
            }
            if at.len() > MAX_DEPTH || to_go.len() > MAX_PATH {
                return Err(ImportError::hostile(entry, "lies too deep"));
            }
        }
        Ok(at.last().copied())
    }

    fn linked(&mut self, entry: &[u8], target: &[u8]) -> Result<Kind, ImportError> {
        let missing = || ImportError::hostile(entry, "is a hard link to no file of the image");
        let mut names = split(target)?;
        let name = names.pop().ok_or_else(missing)?;
        let dir = self.walk(entry, &names, None)?.ok_or_else(missing)?;
        let there = self.child(dir, name).ok_or_else(missing)?;
        match &self.nodes[there].kind {
            Kind::File(data) => Ok(Kind::File(*data)),
            Kind::Symlink { meta, target } => Ok(Kind::Symlink {
                meta: meta.clone(),
                target: target.clone(),
            }),
            Kind::Dir { .. } => Err(missing()),
        }
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[dir].kind {
            Kind::Dir { names, .. } => names.get(name).copied(),
            _ => None,
        }
    }

    fn names(&mut self, dir: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.nodes[dir].kind {
            Kind::Dir { names, .. } => names,
            _ => unreachable!("a walk ends at a directory"),
        }
    }

    /// Takes away what lower layers have under a name.
    fn hide(&mut self, dir: NodeId, name: &[u8], layer: usize) -> Result<(), ImportError> {
        if let Some(there) = self.child(dir, name)
            && !self.prune(there, layer)?
        {
            self.names(dir).remove(name);
        }
        Ok(())
    }

    /// Takes away what lower layers have below a directory.
    fn hide_below(&mut self, dir: NodeId, layer: usize) -> Result<(), ImportError> {
        for (name, child) in std::mem::take(self.names(dir)) {
            if self.prune(child, layer)? {
                self.names(dir).insert(name, child);
            }
        }
        Ok(())
    }

    /// Takes away what lower layers have here and below; returns whether something of this layer
    /// is left. Depth is bounded by [`Self::walk`], so recursion is as well.
    fn prune(&mut self, id: NodeId, layer: usize) -> Result<bool, ImportError> {
        self.count_step()?;
        let is_dir = matches!(self.nodes[id].kind, Kind::Dir { .. });
        if is_dir {
            self.hide_below(id, layer)?;
        }
        let is_newer = self.nodes[id].layer >= layer;
        Ok(is_newer || (is_dir && !self.names(id).is_empty()))
    }

    fn count_step(&mut self) -> Result<(), ImportError> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(ImportError::Unsupported {
                what: "so many links and whiteouts",
            });
        }
        Ok(())
    }
}

/// Takes a path apart.
fn split(path: &[u8]) -> Result<Vec<&[u8]>, ImportError> {
    if path.first() == Some(&b'/') {
        return Err(ImportError::hostile(path, "is absolute"));
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(ImportError::hostile(path, "leaves its directory by `..`")),
            name if name.len() > MAX_NAME => {
                return Err(ImportError::hostile(path, "has a name over 255 bytes"));
            }
            name => names.push(name),
        }
    }
    if names.len() > MAX_DEPTH {
        return Err(ImportError::hostile(path, "lies too deep"));
    }
    Ok(names)
}

fn plain_dir() -> Meta {
    Meta {
        mode: 0o755,
        ..Meta::default()
    }
}

#[cfg(test)]
mod tests;
