//! What is done with paths as a user of the guest names them.

use std::sync::Arc;

use rhizome_guest::wire::{
    self, Act, Facts, FileAct, Frame, Kind, MAX_PAYLOAD, Payload, contains_magic,
};
use tokio::io::AsyncRead;

use super::{
    FileError,
    error::printable,
    files::{fail, feed},
    mux::{self, Purpose, Shared, Stream},
};
use crate::FileKind;

/// Longest path that goes to a guest, in bytes.
const MAX_PATH: usize = 4096;
/// Longest name of a user, in bytes.
const MAX_USER: usize = 255;

/// All that a guest says of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathFacts {
    /// The path, absolute.
    pub path: String,
    /// What it is; of a link, what it leads to, and a link if that is nothing.
    pub kind: FileKind,
    /// Whether it is a link; what follows is of the link itself.
    pub is_link: bool,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as a number.
    pub uid: u32,
    /// Group, as a number.
    pub gid: u32,
    /// Owner, by name if it has one.
    pub owner: String,
    /// Group, by name if it has one.
    pub group: String,
    /// Size in bytes.
    pub size: u64,
    /// Last change of its contents, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a link leads.
    pub target: Option<String>,
    /// Extended attributes of users, sorted by their names.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl PathFacts {
    /// Returns the last part of the path; `/` of the root.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        if name.is_empty() { "/" } else { name }
    }
}

/// Does what is answered with one path.
pub(super) async fn one(
    shared: &Arc<Shared>,
    user: &str,
    path: &str,
    act: Act,
) -> Result<PathFacts, FileError> {
    let all = many(shared, user, path, act).await?;
    only(shared, all)
}

/// Does what is answered with any number of paths.
pub(super) async fn many(
    shared: &Arc<Shared>,
    user: &str,
    path: &str,
    act: Act,
) -> Result<Vec<PathFacts>, FileError> {
    let mut stream = open(shared, user, path, act).await?;
    answer(&mut stream, path).await
}

pub(super) async fn write(
    shared: &Arc<Shared>,
    user: &str,
    path: &str,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    source: impl AsyncRead + Unpin,
) -> Result<PathFacts, FileError> {
    if !rhizome_guest::xattr::are_valid(&attributes) {
        return Err(FileError::Guest {
            path: path.to_owned(),
            code: wire::FailureCode::Invalid,
            message: "the attributes are too many, too long, or not in order".to_owned(),
        });
    }
    let act = Act::Write {
        mode: None,
        attributes,
    };
    let mut stream = open(shared, user, path, act).await?;
    let (_, sent) = feed(&stream, path, source).await?;
    let all = answer(&mut stream, path).await?;
    if !sent {
        return Err(fail(shared, "a write is done before its end").into());
    }
    only(shared, all)
}

/// Checks a path that need not be absolute.
pub(super) fn path(path: &str) -> Result<Vec<u8>, FileError> {
    let sound = path.len() <= MAX_PATH && !path.contains('\0') && !contains_magic(path.as_bytes());
    if sound {
        Ok(path.as_bytes().to_vec())
    } else {
        Err(FileError::InvalidPath {
            path: path.to_owned(),
        })
    }
}

async fn open(
    shared: &Arc<Shared>,
    user: &str,
    shown: &str,
    act: Act,
) -> Result<Stream, FileError> {
    let invalid = |message: &str| FileError::Guest {
        path: shown.to_owned(),
        code: wire::FailureCode::Invalid,
        message: message.to_owned(),
    };
    if user.len() > MAX_USER {
        return Err(invalid("the user's name is too long"));
    }
    let request = FileAct {
        user: user.to_owned(),
        path: path(shown)?,
        act,
    };
    let payload = request.to_payload();
    if payload.len() > MAX_PAYLOAD || contains_magic(&payload) {
        return Err(invalid("the request is too long, or holds a greeting"));
    }
    Ok(shared.open(Purpose::Act, Kind::FileAct, payload).await?)
}

async fn answer(stream: &mut Stream, path: &str) -> Result<Vec<PathFacts>, FileError> {
    let limit = stream.shared.limits.max_entries;
    let mut all = Vec::new();
    loop {
        let frame: Frame = stream.expect().await?;
        match frame.kind {
            Kind::FileFacts => {
                for facts in Facts::decode_all(&frame.payload).map_err(mux::malformed)? {
                    if all.len() == limit {
                        return Err(FileError::TooManyEntries {
                            path: path.to_owned(),
                            limit,
                        });
                    }
                    all.push(of(facts));
                }
            }
            Kind::Done => return Ok(all),
            _ => return Err(FileError::from_failure(mux::decode(&frame)?, path)),
        }
    }
}

fn only(shared: &Shared, mut all: Vec<PathFacts>) -> Result<PathFacts, FileError> {
    match (all.pop(), all.is_empty()) {
        (Some(facts), true) => Ok(facts),
        _ => Err(fail(shared, "an act tells of another number of paths").into()),
    }
}

fn of(facts: Facts) -> PathFacts {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    PathFacts {
        path: text(facts.path),
        kind: match facts.kind {
            wire::FileKind::File => FileKind::File,
            wire::FileKind::Directory => FileKind::Directory,
            wire::FileKind::Symlink => FileKind::Symlink,
            wire::FileKind::Other => FileKind::Other,
        },
        is_link: facts.is_link,
        mode: facts.mode,
        uid: facts.uid,
        gid: facts.gid,
        owner: printable(&facts.owner),
        group: printable(&facts.group),
        size: facts.size,
        modified_ns: facts.modified_ns,
        target: facts.is_link.then(|| text(facts.target)),
        attributes: facts.attributes,
    }
}
