//! Memories, contexts and files as automerge documents.
//!
//! Every document begins with the genesis change of its shape, which everyone computes alike and
//! nobody sends. It creates all objects there will ever be; a change only puts strings into them:
//!
//! - a memory has one register, `statement`: a whole statement as JSON. Replacing one is atomic, and
//!   statements made without knowing of each other stand side by side until one replaces both;
//! - a context has registers (`task`, `goal`, `status`, `next`, `sandbox`) and maps that only grow
//!   (`explored`, `decisions`, `errors`, `questions`, `resolved`, `artifacts`). The key of an entry
//!   begins with the actor that wrote it, so nobody can overwrite what another wrote;
//! - a file has one register, `file`, which every change writes, and one text, `text`, one character
//!   an element, so that edits made without knowing of each other both stand.
//!
//! Maps under keys of their own merge as lists would, without element references that a hostile
//! change could point anywhere; the order comes from the clocks of the fragments.

mod context_state;
mod file_state;
mod first;
mod genesis;
mod index;
mod statement;
mod write;

use automerge::ActorId;
use rhizome_identity::{AgentId, SpaceId};

pub(crate) use self::{
    context_state::{context_state, context_summary},
    file_state::{FileMark, file_material, write_file},
    first::{document_of_first, first_statement, is_first_statement},
    genesis::{FILE, MAPS, REGISTERS, STATEMENT, genesis},
    index::{ChangeMeta, DocIndex},
    statement::{
        At, Statement, from_canonical, memory_item, stated_item, statements, to_canonical,
    },
    write::{WriteError, entry_key, write_memory, write_patch},
};
use crate::{DocId, FilePath, Hlc, Kind};

/// Which objects a document has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Shape {
    Memory,
    Context,
    File,
}

impl Shape {
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Context => Self::Context,
            Kind::File => Self::File,
            _ => Self::Memory,
        }
    }
}

/// A document by its full name.
///
/// The shape is part of it: what claims to be a context never meets a memory of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DocKey {
    pub(crate) space: SpaceId,
    pub(crate) shape: Shape,
    pub(crate) doc: DocId,
}

impl DocKey {
    pub(crate) const LEN: usize = 65;

    pub(crate) fn memory(space: SpaceId, doc: DocId) -> Self {
        Self {
            space,
            shape: Shape::Memory,
            doc,
        }
    }

    pub(crate) fn context(space: SpaceId, doc: DocId) -> Self {
        Self {
            space,
            shape: Shape::Context,
            doc,
        }
    }

    pub(crate) fn file(space: SpaceId, doc: DocId) -> Self {
        Self {
            space,
            shape: Shape::File,
            doc,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..32].copy_from_slice(self.space.as_bytes());
        bytes[32] = self.shape as u8;
        bytes[33..].copy_from_slice(self.doc.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let shape = match bytes[32] {
            0 => Shape::Memory,
            1 => Shape::Context,
            2 => Shape::File,
            _ => return None,
        };
        let half = |from: usize| <[u8; 32]>::try_from(&bytes[from..from + 32]).expect("32 bytes");
        Some(Self {
            space: SpaceId::from_bytes(half(0)),
            shape,
            doc: DocId::from_bytes(half(33)),
        })
    }
}

/// Returns the document of whatever has this key: the same for everyone in the space.
#[must_use]
pub fn keyed_doc(space: &SpaceId, kind: Kind, key: &str) -> DocId {
    derive(
        "rhizome keyed memory",
        &[space.as_bytes(), &[kind.number()], key.as_bytes()],
    )
}

/// Returns the document of a memory without a key: its author and moment name it.
#[must_use]
pub fn single_doc(space: &SpaceId, author: &AgentId, hlc: Hlc) -> DocId {
    derive(
        "rhizome single memory",
        &[
            space.as_bytes(),
            author.as_bytes(),
            &hlc.as_u64().to_be_bytes(),
        ],
    )
}

/// Returns the document of a task's context: the same for everyone in the space.
#[must_use]
pub fn context_doc(space: &SpaceId, task: &str) -> DocId {
    derive("rhizome context", &[space.as_bytes(), task.as_bytes()])
}

/// Returns the document of the file of this path: the same for everyone in the space.
#[must_use]
pub fn file_doc(space: &SpaceId, path: &FilePath) -> DocId {
    derive(
        "rhizome file",
        &[space.as_bytes(), path.as_str().as_bytes()],
    )
}

/// Returns the actor under which `author`, and nobody else, changes `doc`.
pub(crate) fn actor(author: &AgentId, doc: &DocId) -> ActorId {
    let id = derive("rhizome actor", &[author.as_bytes(), doc.as_bytes()]);
    ActorId::from(&id.as_bytes()[..16])
}

fn derive(context: &'static str, parts: &[&[u8]]) -> DocId {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    DocId::from_bytes(*hasher.finalize().as_bytes())
}
