//! A store that was put back from a copy.
//!
//! Its agents may have published more than it knows of. Were they to go on from where the copy
//! ends, they would sign two histories, so a space is closed to them until a peer that holds it has
//! been asked for what is missing.
//!
//! That it is a copy shows by its lock file: a copy has another inode, or another time of birth,
//! than the one noted beside it. A file system that is rolled back as a whole gives no such sign;
//! what peers have more is then fetched like anything else, but nothing waits for it.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use rhizome_identity::SpaceId;
use tracing::{info, warn};

use super::state::Inner;

/// Says which file the lock was when the store was last known to be whole. A backup that is put
/// back says another, so that the store knows what it is.
const MARK: &str = crate::store::PLACE;

/// What is known of a store that may be a copy.
#[derive(Debug, Default)]
pub(super) struct Copy {
    /// Whether it is one, and some space was not compared with a peer yet.
    pub(super) is_suspect: bool,
    /// The spaces that were.
    compared: BTreeSet<SpaceId>,
    /// Own fragments that came back from peers since the start.
    pub(super) refetched: u64,
    /// What to note once all are.
    mark: String,
}

impl Copy {
    /// Looks whether the store in `dir` is a copy; one that never said where it is, is none.
    pub(super) fn look(dir: &Path, lock: &File) -> io::Result<Self> {
        let metadata = lock.metadata()?;
        let born = metadata.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let mark = format!("{} {}", metadata.ino(), born.map_or(0, |at| at.as_nanos()));
        let path = dir.join(MARK);
        let noted = match fs::read_to_string(&path) {
            Ok(noted) => Some(noted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_suspect = noted.as_ref().is_some_and(|noted| *noted != mark);
        if noted.is_none() {
            fs::write(&path, &mark)?;
        }
        Ok(Self {
            is_suspect,
            mark,
            ..Self::default()
        })
    }
}

impl Inner {
    pub(super) fn copy(&self) -> MutexGuard<'_, Copy> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this node's agents have to wait before they publish in `space`.
    pub(super) fn is_suspect(&self, space: &SpaceId) -> bool {
        let copy = self.copy();
        copy.is_suspect && !copy.compared.contains(space) && self.has_others()
    }

    /// Whether anybody else could hold what was published here.
    fn has_others(&self) -> bool {
        let authority = &self.rights().authority;
        authority.members().any(|member| member.node != self.node)
    }

    /// Notes that all that a peer holds of a space is here.
    pub(super) fn note_compared(&self, space: SpaceId) {
        let mut copy = self.copy();
        if !copy.is_suspect || !copy.compared.insert(space) {
            return;
        }
        info!(space = %space.fmt_short(), refetched = copy.refetched,
            "this store was put back from a copy; the space is compared with a peer now");
        let authority = std::sync::Arc::clone(&self.rights().authority);
        let mut own = authority
            .spaces()
            .filter(|space| authority.role_in(&self.node, &space.id).is_some());
        if own.all(|space| copy.compared.contains(&space.id)) {
            drop(copy);
            self.accept_copy();
        }
    }

    /// Takes the store as it is for the whole.
    pub(super) fn accept_copy(&self) {
        let mut copy = self.copy();
        copy.is_suspect = false;
        if let Err(error) = fs::write(self.dir.join(MARK), &copy.mark) {
            warn!(%error, "cannot note where this store is; it is compared again at the next start");
        }
    }
}
