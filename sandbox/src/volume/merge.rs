//! Bringing two trees together that were changed apart.
//!
//! What one side alone changed is taken. Where both did, nothing is lost: the first side keeps
//! the name, the second side's is beside it under a name that says whose it is, and the conflict
//! is named. A file that one side removed and the other changed stays.

use std::collections::{BTreeMap, BTreeSet};

use rhizome_guest::xattr::{self, Attributes};

use super::{Content, Draft, Entry, Meta, Name, Node, Path, Trees, VolumeError, tree::Budget};
use crate::chunks::PackWriter;

/// Longest label in the name of a file that was kept beside another, in bytes.
const MAX_LABEL: usize = 64;

/// One of the two that are brought together.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Its tree.
    pub root: &'a Content,
    /// Whose it is, for names of files: say the node and the version.
    pub label: &'a str,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The tree.
    pub root: Content,
    /// Where both sides had changed the same thing.
    pub conflicts: Vec<Conflict>,
}

/// Something that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Where; the first side's is there, if it has one.
    pub path: Path,
    /// How.
    pub kind: ConflictKind,
    /// Where the second side's is, if it is somewhere else.
    pub kept_as: Option<Path>,
}

/// How both sides changed the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictKind {
    /// Both wrote, and not the same.
    BothChanged,
    /// The first side removed what the second changed; it stays.
    RemovedAndChanged,
    /// The first side changed what the second removed; it stays.
    ChangedAndRemoved,
    /// Both changed its mode, owner or an attribute, and not alike; the first side's stays.
    MetaChanged,
}

/// Brings `ours` and `theirs` together, that both came from `base`; without one, from nothing.
///
/// The same three trees and labels always give the same result.
///
/// # Errors
/// Any [`VolumeError`] but those of paths.
pub fn merge(
    trees: Trees<'_>,
    base: Option<&Content>,
    ours: Side<'_>,
    theirs: Side<'_>,
    writer: &mut PackWriter,
) -> Result<Merged, VolumeError> {
    let mut merge = Merge {
        trees,
        draft: Draft::from_tree(trees, ours.root)?,
        label: theirs.label,
        conflicts: Vec::new(),
        budget: Budget::default(),
    };
    merge.dirs(&Path::default(), base, ours.root, theirs.root)?;
    Ok(Merged {
        root: merge.draft.store(writer)?,
        conflicts: merge.conflicts,
    })
}

struct Merge<'a> {
    trees: Trees<'a>,
    /// Ours, with theirs worked in.
    draft: Draft,
    label: &'a str,
    conflicts: Vec<Conflict>,
    budget: Budget,
}

/// What the three sides have under one name.
#[derive(Default)]
struct Three {
    base: Option<Entry>,
    ours: Option<Entry>,
    theirs: Option<Entry>,
}

impl Merge<'_> {
    /// Recursion ends with the budget's depth.
    fn dirs(
        &mut self,
        path: &Path,
        base: Option<&Content>,
        ours: &Content,
        theirs: &Content,
    ) -> Result<(), VolumeError> {
        if ours == theirs || base == Some(theirs) {
            return Ok(());
        }
        let mut names: BTreeMap<Name, Three> = BTreeMap::new();
        if let Some(base) = base {
            for entry in self.trees.list(base)? {
                let three = names.entry(entry.name.clone()).or_default();
                three.base = Some(entry);
            }
        }
        for entry in self.trees.list(ours)? {
            let three = names.entry(entry.name.clone()).or_default();
            three.ours = Some(entry);
        }
        for entry in self.trees.list(theirs)? {
            let three = names.entry(entry.name.clone()).or_default();
            three.theirs = Some(entry);
        }
        let taken: Vec<Name> = names.keys().cloned().collect();
        for (name, three) in names {
            let path = path.join(&name);
            self.budget.spend(&path)?;
            self.entry(path, three, &taken)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: Path, three: Three, taken: &[Name]) -> Result<(), VolumeError> {
        let Three { base, ours, theirs } = three;
        if ours == theirs || theirs == base {
            return Ok(());
        }
        if ours == base {
            return self.take(&path, theirs);
        }
        match (ours, theirs) {
            (None, None) => Ok(()),
            (None, Some(theirs)) => {
                // Ours removed it. A directory of theirs in which nothing changed would have
                // been equal to the base.
                self.conflict(path.clone(), ConflictKind::RemovedAndChanged, None);
                self.take(&path, Some(theirs))
            }
            (Some(_), None) => {
                self.conflict(path, ConflictKind::ChangedAndRemoved, None);
                Ok(())
            }
            (Some(ours), Some(theirs)) => self.both(path, base, ours, theirs, taken),
        }
    }

    fn both(
        &mut self,
        path: Path,
        base: Option<Entry>,
        ours: Entry,
        theirs: Entry,
        taken: &[Name],
    ) -> Result<(), VolumeError> {
        match (&ours.node, &theirs.node) {
            (Node::Dir(our_tree), Node::Dir(their_tree)) => {
                let base_meta = base.as_ref().map(|entry| entry.meta.clone());
                let base = base.and_then(|entry| match entry.node {
                    Node::Dir(content) => Some(content),
                    _ => None,
                });
                let meta = self.meta(&path, base_meta.as_ref(), &ours.meta, &theirs.meta);
                self.draft.put_dir(self.trees, &path, meta, false)?;
                self.dirs(&path, base.as_ref(), our_tree, their_tree)
            }
            (our_node, their_node) if our_node == their_node => {
                let base_meta = base.as_ref().map(|entry| &entry.meta);
                let meta = self.meta(&path, base_meta, &ours.meta, &theirs.meta);
                self.draft.put(self.trees, &path, meta, ours.node)
            }
            (our_node, their_node) => {
                // One side may have changed the bytes and the other the mode alone.
                let base_node = base.as_ref().map(|entry| &entry.node);
                let base_meta = base.as_ref().map(|entry| &entry.meta);
                if base_node == Some(their_node) {
                    let meta = self.meta(&path, base_meta, &ours.meta, &theirs.meta);
                    return self.draft.put(self.trees, &path, meta, ours.node);
                }
                if base_node == Some(our_node) {
                    let meta = self.meta(&path, base_meta, &ours.meta, &theirs.meta);
                    return self.put(&path, meta, theirs.node);
                }
                let beside = self.beside(&path, taken);
                self.put(&beside, theirs.meta, theirs.node)?;
                self.conflict(path, ConflictKind::BothChanged, Some(beside));
                Ok(())
            }
        }
    }

    /// Makes a path be what theirs is.
    fn take(&mut self, path: &Path, theirs: Option<Entry>) -> Result<(), VolumeError> {
        match theirs {
            Some(entry) => self.put(path, entry.meta, entry.node),
            None => self.draft.remove(self.trees, path),
        }
    }

    /// Brings together what both sides say of an entry besides its bytes.
    fn meta(&mut self, path: &Path, base: Option<&Meta>, ours: &Meta, theirs: &Meta) -> Meta {
        let (meta, clash) = merged_meta(base, ours, theirs);
        if clash {
            self.conflict(path.clone(), ConflictKind::MetaChanged, None);
        }
        meta
    }

    fn put(&mut self, path: &Path, meta: Meta, node: Node) -> Result<(), VolumeError> {
        self.draft.put(self.trees, path, meta, node)
    }

    fn conflict(&mut self, path: Path, kind: ConflictKind, kept_as: Option<Path>) {
        self.conflicts.push(Conflict {
            path,
            kind,
            kept_as,
        });
    }

    /// A name beside `path` that nobody has: `notes.txt.from-laptop-1a2b3c4d`.
    fn beside(&self, path: &Path, taken: &[Name]) -> Path {
        let (above, name) = path.split().expect("an entry has a name");
        let mut label: String = self
            .label
            .chars()
            .map(|letter| match letter {
                letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => letter,
                _ => '-',
            })
            .collect();
        label.truncate(label.floor_char_boundary(MAX_LABEL));
        let mut number = 1u64;
        loop {
            let mut suffix = format!(".from-{label}");
            if number > 1 {
                suffix.push_str(&format!("-{number}"));
            }
            let keep = name.as_bytes().len().min(255 - suffix.len());
            let bytes = [&name.as_bytes()[..keep], suffix.as_bytes()].concat();
            let name = Name::new(bytes).expect("it is not empty, short enough and without slash");
            let used = self
                .conflicts
                .iter()
                .any(|conflict| conflict.kept_as.as_ref() == Some(&above.join(&name)));
            if !used && !taken.contains(&name) {
                return above.join(&name);
            }
            number += 1;
        }
    }
}

/// Mode and owner, and each attribute, are taken from who changed them, the first side if both
/// did; the later time. Returns too whether both had changed the same and not alike.
fn merged_meta(base: Option<&Meta>, ours: &Meta, theirs: &Meta) -> (Meta, bool) {
    let rights = |meta: &Meta| (meta.mode, meta.uid, meta.gid);
    let (rights_are, mut clash) = three(base.map(rights), rights(ours), rights(theirs));
    let map = |meta: &Meta| meta.attributes.iter().cloned().collect::<BTreeMap<_, _>>();
    let (before, our_map, their_map) = (base.map(map).unwrap_or_default(), map(ours), map(theirs));
    let names: BTreeSet<&Vec<u8>> = our_map.keys().chain(their_map.keys()).collect();
    let mut attributes = Attributes::new();
    for name in names {
        let before = before.get(name);
        let (value, clashes) = three(Some(before), our_map.get(name), their_map.get(name));
        clash |= clashes;
        attributes.extend(value.map(|value| (name.clone(), value.clone())));
    }
    if !xattr::are_valid(&attributes) {
        // Together they are more than one file may have.
        attributes.clone_from(&ours.attributes);
        clash = true;
    }
    let (mode, uid, gid) = rights_are;
    let mtime_ns = ours.mtime_ns.max(theirs.mtime_ns);
    let meta = Meta {
        mode,
        uid,
        gid,
        mtime_ns,
        attributes,
    };
    (meta, clash)
}

/// What comes of a value that both sides had from `base`, and whether both changed it.
fn three<T: PartialEq>(base: Option<T>, ours: T, theirs: T) -> (T, bool) {
    if ours == theirs || base.as_ref() == Some(&theirs) {
        (ours, false)
    } else if base.as_ref() == Some(&ours) {
        (theirs, false)
    } else {
        (ours, true)
    }
}
