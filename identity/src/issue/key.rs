//! Giving a space a new key: when that is due, whose turn it is, and the record.
//!
//! Nobody coordinates it. Everybody who may give a space a new key ranks all who may, by a hash that
//! changes with each epoch; the first does it when it is due, the next if it was not done a while
//! later, and so on. Should two do it at once all the same, one key is in force, the other its
//! rival, and one more key is due, which holds both.

use super::{IssueError, administered, is_mesh_admin, parents, sign};
use crate::{
    authority::{Authority, RIVAL_EPOCHS, SpaceInfo},
    epoch::{SpaceKey, can_be_given_keys, seal_previous, wrap_key},
    id::{Hash, NodeId, SpaceId},
    keys::NodeKey,
    record::{KeyEpoch, NodeWrap, RecordBody, SignedRecord},
    role::Role,
};

/// How old the key of a space becomes, in milliseconds: 30 days.
pub const KEY_LIFETIME_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How long whoever comes next waits for the one before, in milliseconds: ten minutes.
pub const KEY_TURN_MS: u64 = 10 * 60 * 1000;

/// Gives `space` a new key, wrapped to every member that may read there now: whoever may not any
/// more reads nothing that is published under it. Who is handed the key later reads with it what
/// came before.
///
/// # Errors
/// [`IssueError::NotAllowed`] unless `node` is an admin of the mesh or of the space,
/// [`IssueError::UnknownSpace`]; [`IssueError::Record`] if its readers are more than one record has
/// room for, some five hundred.
pub fn rotate_key(
    node: &NodeKey,
    authority: &Authority,
    space: &SpaceId,
    now_ms: u64,
) -> Result<SignedRecord, IssueError> {
    let mesh = administered(authority)?;
    let info = authority
        .space(space)
        .ok_or(IssueError::UnknownSpace(*space))?;
    if !may_rotate(authority, &node.id(), space) {
        return Err(IssueError::NotAllowed {
            what: "give the space a new key",
            needed: Role::Admin,
        });
    }
    let epoch = info.epoch.saturating_add(1);
    let key = SpaceKey::generate();
    let reads = |node: &NodeId| {
        let role = authority.role_in(node, space);
        // One that is no point on the curve must not keep the others from their key.
        role.is_some_and(Role::can_read) && can_be_given_keys(node)
    };
    let readers = authority.members().map(|member| member.node).filter(reads);
    let wrap = |node: NodeId| {
        let key = wrap_key(&key, epoch, &node, &info.wrap_context())?;
        Ok(NodeWrap { node, key })
    };
    let wraps: Result<Vec<NodeWrap>, IssueError> = readers.map(wrap).collect();
    let body = RecordBody::KeyEpoch(KeyEpoch {
        space: *space,
        epoch,
        commitment: key.commitment(),
        wraps: wraps?,
        previous: previous(node, authority, info, &key),
    });
    let parents = parents(authority, &node.public(), &[(*space).into()]);
    sign(node.secret(), mesh, parents, body, now_ms)
}

/// Returns the newest key that `node` holds, with the rivals of the last epochs, sealed under the
/// next.
fn previous(
    node: &NodeKey,
    authority: &Authority,
    info: &SpaceInfo,
    next: &SpaceKey,
) -> Option<Vec<u8>> {
    let held = authority.held_keys(node);
    let first = info.epoch.saturating_sub(RIVAL_EPOCHS - 1);
    let rivals = held.rivals.range((info.id, first)..=(info.id, info.epoch));
    let newest = held.current.get(&(info.id, info.epoch)).into_iter();
    let before: Vec<SpaceKey> = newest
        .chain(rivals.flat_map(|(_, rivals)| rivals))
        .cloned()
        .collect();
    let epoch = info.epoch.saturating_add(1);
    (!before.is_empty()).then(|| seal_previous(next, epoch, &info.wrap_context(), &before))
}

/// Returns since when a space is due a new key, in Unix milliseconds: its key is 30 days old, or is
/// not held by just those who may read there, or was made twice at the same time.
///
/// A key from the future is new: its clock was wrong, or ours is.
pub fn key_due(authority: &Authority, space: &SpaceId, now_ms: u64) -> Option<u64> {
    let info = authority.space(space)?;
    let aged = info.epoch_at_ms.saturating_add(KEY_LIFETIME_MS);
    let aged = (aged <= now_ms).then_some(aged);
    // Nobody waits for a clock that is ahead.
    let stale = info.stale_since_ms.map(|since| since.min(now_ms));
    [aged, stale].into_iter().flatten().min()
}

/// Returns whether it is for `node` to give `space` a new key now.
pub fn is_key_turn(authority: &Authority, space: &SpaceId, node: &NodeId, now_ms: u64) -> bool {
    let (Some(due), Some(info)) = (key_due(authority, space, now_ms), authority.space(space))
    else {
        return false;
    };
    if !may_rotate(authority, node, space) {
        return false;
    }
    // Who holds the keys comes first: what came before is to be read with the next one.
    let rank_of = |node: &NodeId| {
        let is_outside = !authority.role_in(node, space).is_some_and(Role::can_read);
        let ranked = [
            space.as_bytes(),
            &info.epoch.to_be_bytes()[..],
            node.as_bytes(),
        ];
        (is_outside, Hash::of(&ranked.concat()))
    };
    let mine = rank_of(node);
    let others = authority.members().map(|member| member.node);
    let before =
        others.filter(|other| may_rotate(authority, other, space) && rank_of(other) < mine);
    let before = u64::try_from(before.count()).unwrap_or(u64::MAX);
    due.saturating_add(before.saturating_mul(KEY_TURN_MS)) <= now_ms
}

fn may_rotate(authority: &Authority, node: &NodeId, space: &SpaceId) -> bool {
    let role = authority.role_in(node, space);
    authority.halted().is_empty()
        && (is_mesh_admin(authority, node) || role.is_some_and(Role::can_grant))
}
