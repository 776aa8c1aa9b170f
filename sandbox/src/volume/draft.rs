//! A tree being changed. Directories are read when something in them changes; all others stay
//! what they are stored as.

use std::collections::BTreeMap;

use rhizome_guest::xattr::Attributes;

use super::{
    Content, Entry, MAX_DEPTH, MAX_TREE_BYTES, Meta, Name, Node, Path, Trees, VolumeError,
    tree::{encode_tree, is_target},
};
use crate::chunks::PackWriter;

/// A tree being changed.
#[derive(Debug, Default)]
pub struct Draft {
    root: Dir,
}

#[derive(Debug, Default)]
struct Dir {
    entries: BTreeMap<Name, (Meta, Item)>,
}

#[derive(Debug)]
enum Item {
    /// As it is stored.
    Stored(Node),
    /// A directory that was read.
    Open(Dir),
}

/// What a directory has that was made because something was put into it.
const MADE: Meta = Meta {
    mode: 0o755,
    uid: 0,
    gid: 0,
    mtime_ns: 0,
    attributes: Vec::new(),
};

impl Draft {
    /// Starts from nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Starts from a stored tree.
    ///
    /// # Errors
    /// Any [`VolumeError`] but those of paths.
    pub fn from_tree(trees: Trees<'_>, root: &Content) -> Result<Self, VolumeError> {
        Ok(Self {
            root: Dir::read(trees, root)?,
        })
    }

    /// Puts something at a path, in place of what is there. Missing directories above are made,
    /// and whatever else stands in their place goes.
    ///
    /// # Errors
    /// [`VolumeError::BadPath`] for the root and for an impossible link; those of reading.
    pub fn put(
        &mut self,
        trees: Trees<'_>,
        path: &Path,
        meta: Meta,
        node: Node,
    ) -> Result<(), VolumeError> {
        if let Node::Symlink(target) = &node
            && !is_target(target)
        {
            return Err(bad(path, "a link cannot lead there"));
        }
        let (dir, name) = self.above(trees, path, true)?;
        let dir = dir.ok_or_else(|| bad(path, "nothing can be put there"))?;
        dir.entries.insert(name, (meta, Item::Stored(node)));
        Ok(())
    }

    /// Makes a directory at a path, or sets the mode, owner and time of the one that is there;
    /// with `empty`, nothing stays in it.
    ///
    /// # Errors
    /// [`VolumeError::BadPath`] for the root; those of reading.
    pub fn put_dir(
        &mut self,
        trees: Trees<'_>,
        path: &Path,
        meta: Meta,
        empty: bool,
    ) -> Result<(), VolumeError> {
        let (dir, name) = self.above(trees, path, true)?;
        let dir = dir.ok_or_else(|| bad(path, "nothing can be put there"))?;
        match dir.entries.get_mut(&name) {
            Some((old, Item::Open(_) | Item::Stored(Node::Dir(_)))) if !empty => *old = meta,
            _ => {
                dir.entries.insert(name, (meta, Item::Open(Dir::default())));
            }
        }
        Ok(())
    }

    /// Empties the volume.
    pub fn clear(&mut self) {
        self.root = Dir::default();
    }

    /// Returns the attributes of what is at a path; none if nothing is.
    ///
    /// # Errors
    /// [`VolumeError::BadPath`] for the root; those of reading.
    pub fn attributes(&mut self, trees: Trees<'_>, path: &Path) -> Result<Attributes, VolumeError> {
        let (dir, name) = self.above(trees, path, false)?;
        let entry = dir.and_then(|dir| dir.entries.get(&name));
        Ok(entry
            .map(|(meta, _)| meta.attributes.clone())
            .unwrap_or_default())
    }

    /// Removes what is at a path, and all below it; what is not there is fine.
    ///
    /// # Errors
    /// [`VolumeError::BadPath`] for the root; those of reading.
    pub fn remove(&mut self, trees: Trees<'_>, path: &Path) -> Result<(), VolumeError> {
        let (dir, name) = self.above(trees, path, false)?;
        if let Some(dir) = dir {
            dir.entries.remove(&name);
        }
        Ok(())
    }

    /// Stores every directory that changed and returns the root.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`], [`VolumeError::Chunks`].
    pub fn store(self, writer: &mut PackWriter) -> Result<Content, VolumeError> {
        self.root.store(writer)
    }

    /// Returns the directory that a path lies in; with `make` there is one.
    fn above(
        &mut self,
        trees: Trees<'_>,
        path: &Path,
        make: bool,
    ) -> Result<(Option<&mut Dir>, Name), VolumeError> {
        let Some((above, name)) = path.split() else {
            return Err(bad(path, "the root stays"));
        };
        if above.names().len() >= MAX_DEPTH {
            return Err(bad(path, "it is too deep"));
        }
        let mut dir = &mut self.root;
        for step in above.names() {
            let is_dir = matches!(
                dir.entries.get(step),
                Some((_, Item::Open(_) | Item::Stored(Node::Dir(_))))
            );
            if !is_dir && !make {
                return Ok((None, name.clone()));
            }
            if !is_dir {
                dir.entries
                    .insert(step.clone(), (MADE, Item::Open(Dir::default())));
            }
            let (_, item) = dir.entries.get_mut(step).expect("it was just looked up");
            if let Item::Stored(Node::Dir(content)) = item {
                *item = Item::Open(Dir::read(trees, content)?);
            }
            let Item::Open(below) = item else {
                unreachable!("a directory is stored or open, and it was just opened")
            };
            dir = below;
        }
        Ok((Some(dir), name.clone()))
    }
}

impl Dir {
    fn read(trees: Trees<'_>, content: &Content) -> Result<Self, VolumeError> {
        let entries = trees.list(content)?.into_iter();
        let entries = entries.map(|entry| (entry.name, (entry.meta, Item::Stored(entry.node))));
        Ok(Self {
            entries: entries.collect(),
        })
    }

    /// As deep as paths can be.
    fn store(self, writer: &mut PackWriter) -> Result<Content, VolumeError> {
        let mut entries = Vec::with_capacity(self.entries.len());
        for (name, (meta, item)) in self.entries {
            let node = match item {
                Item::Stored(node) => node,
                Item::Open(dir) => Node::Dir(dir.store(writer)?),
            };
            entries.push(Entry { name, meta, node });
        }
        let bytes = encode_tree(&entries);
        if bytes.len() as u64 > MAX_TREE_BYTES {
            return Err(VolumeError::TooLarge);
        }
        Content::store(writer, &bytes)
    }
}

fn bad(path: &Path, reason: &'static str) -> VolumeError {
    VolumeError::BadPath {
        path: path.to_string(),
        reason,
    }
}
