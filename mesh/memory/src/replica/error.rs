//! What can go wrong with a replica.

use std::{io, path::PathBuf};

use rhizome_identity::{Denied, Hash, RecordError, RecordId, SpaceId};

use crate::{
    ComposeError, DocId, FragmentError, LogError, MAX_BODY, MAX_REASON, Spent, StoreError,
    ViewError,
};

/// Why a replica could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("`{}` is in use by another process", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be used.
    #[error("cannot use the directory `{}`", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The segments cannot be used.
    #[error("cannot open the store in `{}`", path.display())]
    Store {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        source: StoreError,
    },
    /// The view cannot be used.
    #[error("cannot open the view in `{}`", path.display())]
    View {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        source: ViewError,
    },
}

impl OpenError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::InUse { .. } => {
                Some("stop the other process, or use another data directory".into())
            }
            Self::Directory { .. } => {
                Some("check that it exists, belongs to this user and has room".into())
            }
            Self::Store { source, .. } => Some(source.hint()),
            Self::View { source, .. } => source.hint(),
        }
    }
}

/// Why a publish failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The node belongs to no mesh yet.
    #[error("this node belongs to no mesh")]
    NoMesh,
    /// No record creates the space.
    #[error("space `{0}` is not known here")]
    UnknownSpace(SpaceId),
    /// The agent may not write there.
    #[error("the agent may not publish in space `{space}`")]
    Denied {
        /// The space.
        space: SpaceId,
        /// Why not.
        source: Denied,
    },
    /// The node was not given the key of the space.
    #[error("this node has no key of space `{space}` for epoch {epoch}")]
    NoKey {
        /// The space.
        space: SpaceId,
        /// The key epoch.
        epoch: u32,
    },
    /// The change could not be composed.
    #[error("the change cannot be composed")]
    Compose(#[source] ComposeError),
    /// The change is too large; the limit is in bytes.
    #[error("the change is {size} bytes; at most {MAX_BODY} can be published")]
    TooLarge {
        /// Its size.
        size: usize,
    },
    /// The fragment breaks a bound of the format.
    #[error("the change does not fit a fragment")]
    Fragment(#[source] FragmentError),
    /// An earlier fragment of the author was lost to damage, so its next position is not known.
    #[error("fragment {seq} of this agent in space `{space}` was lost; its chain cannot go on")]
    ChainBroken {
        /// The space.
        space: SpaceId,
        /// The position that is missing.
        seq: u64,
    },
    /// The store was put back from a copy: its agents may have published more than it knows of.
    #[error(
        "this node was put back from a copy, and space `{0}` was not compared with a peer since"
    )]
    Restored(SpaceId),
    /// The agent, this node or the space has written several times its share.
    #[error("{} has used up its share several times over", .0.whose)]
    OverShare(Spent),
    /// Nothing of the document is here that could be redacted.
    #[error("nothing of document `{0}` is here that could be redacted")]
    NothingToRedact(DocId),
    /// The agent may redact nothing of the document.
    #[error("the agent may not redact document `{0}`")]
    NotRedactable(DocId),
    /// The reason is too long; both sizes in bytes.
    #[error("the reason is {size} bytes; at most {MAX_REASON} are allowed")]
    LongReason {
        /// Its size.
        size: usize,
    },
    /// The fragment could not be made durable. Nothing was published, unless the source is
    /// [`LogError::Sync`]: then it may turn out to be when the node starts again.
    #[error("the fragment could not be made durable")]
    Storage(#[source] LogError),
}

impl PublishError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoMesh => Some("found a mesh with `init`, or `join` one by invite".into()),
            Self::OverShare(spent) => Some(format!(
                "other nodes would refuse it too: publish again in {} s, and less often",
                spent.retry_ms.div_ceil(1000)
            )),
            Self::UnknownSpace(_) => {
                Some("list the spaces, or wait until this node is in sync".into())
            }
            Self::NoKey { .. } => {
                Some("ask an admin to grant this node the space as a reader".into())
            }
            Self::TooLarge { .. } => {
                Some("publish a summary, and the rest as an artifact by reference".into())
            }
            Self::ChainBroken { .. } => {
                Some("connect to a peer that holds the space: it is fetched from there".into())
            }
            Self::Restored(_) => Some(
                "connect to a peer that holds the space: what was published since the copy was \
                 made is fetched from there; or take the copy as it is with `rhizome member accept-copy`"
                    .into(),
            ),
            Self::NothingToRedact(_) => {
                Some("`rhizome memory list` shows what is here, by document".into())
            }
            Self::NotRedactable(_) => Some(
                "its author, another agent that its node certified itself, or an admin of the                  space may; `rhizome memory why` says who that is"
                    .into(),
            ),
            Self::LongReason { .. } => Some("say it in one line".into()),
            Self::Compose(source) => source.hint(),
            Self::Storage(source) => source.hint(),
            Self::Denied { .. } | Self::Fragment(_) => None,
        }
    }
}

/// Why the replica could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// It could not be made durable.
    #[error("it could not be made durable")]
    Storage(#[source] LogError),
    /// A record cannot enter the log.
    #[error("a record cannot enter the authority log")]
    Record(#[source] RecordError),
    /// A record names a parent that is not here.
    #[error("a record names parent `{0}`, which is not here")]
    UnknownParent(RecordId),
    /// No fragment here names this body, or it is here already.
    #[error("no fragment here waits for body `{0}`")]
    UnwantedBody(Hash),
    /// The bytes are not the body that was asked for.
    #[error("the bytes are not body `{0}`")]
    BodyMismatch(Hash),
    /// A body's file cannot be written.
    #[error("cannot store the body")]
    Body(#[source] io::Error),
    /// A stored item cannot be read back.
    #[error("`{0}` cannot be read back: its record is damaged")]
    Damaged(Hash),
    /// The view failed.
    #[error("the view failed")]
    View(#[from] ViewError),
}

impl ReplicaError {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Storage(source) => source.hint(),
            Self::View(source) => source.hint(),
            Self::Body(_) => Some("check the disk of the data directory, then try again".into()),
            Self::Damaged(_) => {
                Some("connect to a peer that holds it: it is fetched from there".into())
            }
            _ => None,
        }
    }
}
