//! Giving a space a new key.

use super::{IssueError, administered, is_mesh_admin, parents, sign};
use crate::{
    authority::Authority,
    epoch::{SpaceKey, wrap_key},
    id::{NodeId, SpaceId},
    keys::NodeKey,
    record::{KeyEpoch, NodeWrap, RecordBody, SignedRecord},
    role::Role,
};

/// Gives `space` a new key, wrapped to every member that may read there now: whoever may not any
/// more reads nothing that is published under it.
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
    let administers = |role: Option<Role>| role.is_some_and(Role::can_grant);
    if !is_mesh_admin(authority, &node.id()) && !administers(authority.role_in(&node.id(), space)) {
        return Err(IssueError::NotAllowed {
            what: "give the space a new key",
            needed: Role::Admin,
        });
    }
    let epoch = info.epoch.saturating_add(1);
    let key = SpaceKey::generate();
    let reads = |node: &NodeId| authority.role_in(node, space).is_some_and(Role::can_read);
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
        // A newcomer is granted the keys of all epochs.
        previous: None,
    });
    let parents = parents(authority, &node.public(), &[(*space).into()]);
    sign(node.secret(), mesh, parents, body, now_ms)
}
