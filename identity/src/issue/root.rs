//! Replacing the root.

use super::{IssueError, administered, parents, sign};
use crate::{
    authority::Authority,
    id::{Hash, PublicKey},
    keys::RootKey,
    record::{RecordBody, RotateRoot, SignedRecord},
};

/// Returns the hash by which a genesis or a rotation commits to the next root key.
pub fn next_root_hash(next_root: &PublicKey) -> Hash {
    Hash::keyed("rhizome 2026-11-30 next root", next_root.as_bytes())
}

/// Makes `new`, to which the root before it committed, the root, and commits to `next`.
///
/// What the old key signs without the new one having seen it counts no more.
///
/// # Errors
/// [`IssueError::NotNextRoot`] if `new` is not the key that was committed to, or `next` is `new`
/// again, which could never be rotated away.
pub fn rotate_root(
    new: &RootKey,
    next: &PublicKey,
    authority: &Authority,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = administered(authority)?;
    let is_next = authority.next_root() == Some(next_root_hash(&new.public()));
    if !is_next || *next == new.public() || Some(*next) == authority.root() {
        return Err(IssueError::NotNextRoot);
    }
    let body = RecordBody::RotateRoot(RotateRoot {
        root: new.public(),
        next_root_hash: next_root_hash(next),
    });
    let parents = parents(authority, &new.public(), &[]);
    sign(new.secret(), mesh, parents, body, now_ms)
}
