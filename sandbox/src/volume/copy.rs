//! A tree under another key: every file and directory of it, stored anew.

use super::{
    Chunker, Content, Entry, Node, Path, Trees, VolumeError,
    tree::{Budget, encode_tree},
};
use crate::chunks::PackWriter;

/// Stores a tree under the writer's key, when the one it was stored under is not to be used any
/// more. What is there already is not stored again; the digest differs, as names of chunks do.
///
/// # Errors
/// Any [`VolumeError`] but those of paths.
pub fn copy(
    trees: Trees<'_>,
    root: &Content,
    writer: &mut PackWriter,
) -> Result<Content, VolumeError> {
    dir(
        trees,
        root,
        writer,
        &Path::default(),
        &mut Budget::default(),
    )
}

/// Recursion ends with the budget's depth.
fn dir(
    trees: Trees<'_>,
    tree: &Content,
    writer: &mut PackWriter,
    path: &Path,
    budget: &mut Budget,
) -> Result<Content, VolumeError> {
    let mut entries = Vec::new();
    for entry in trees.list(tree)? {
        let below = path.join(&entry.name);
        budget.spend(&below)?;
        let node = match &entry.node {
            Node::Dir(tree) => Node::Dir(dir(trees, tree, writer, &below, budget)?),
            Node::File(content) => {
                let mut chunker = Chunker::default();
                content.for_each_piece(trees.chunks(), &mut |piece| chunker.push(writer, piece))?;
                Node::File(chunker.finish(writer)?)
            }
            Node::Symlink(target) => Node::Symlink(target.clone()),
        };
        entries.push(Entry { node, ..entry });
    }
    Content::store(writer, &encode_tree(&entries))
}
