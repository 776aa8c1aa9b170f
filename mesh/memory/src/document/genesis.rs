//! The change that every document of a shape begins with.

use std::{num::NonZeroU64, sync::LazyLock};

use automerge::{ActorId, Automerge, Change, ChangeHash, ObjType, ROOT, transaction::Transactable};

use super::Shape;

/// The maps of a context, in the order in which its genesis creates them.
pub(crate) const MAPS: [&str; 6] = [
    "explored",
    "decisions",
    "errors",
    "questions",
    "resolved",
    "artifacts",
];
/// The registers of a context.
pub(crate) const REGISTERS: [&str; 6] = ["task", "goal", "status", "next", "sandbox", "requires"];
/// The register of a memory.
pub(crate) const STATEMENT: &str = "statement";
/// The register of a file.
pub(crate) const FILE: &str = "file";
/// The text of a file.
pub(crate) const TEXT: &str = "text";

/// Nobody's actor: no hash of an author and a document gives these bytes.
const GENESIS_ACTOR: &[u8; 16] = b"rhizome genesis\0";
/// The operation that creates the first map; the one before it names the schema.
const FIRST_MAP: u64 = 2;

/// The common beginning of all documents of one shape.
#[derive(Debug)]
pub(crate) struct Genesis {
    pub(crate) document: Automerge,
    pub(crate) hash: ChangeHash,
    pub(crate) actor: ActorId,
    /// The last operation of the genesis change.
    pub(crate) max_op: u64,
}

impl Genesis {
    /// Returns whether the operation `counter` of the genesis actor created the text of a file.
    pub(crate) fn is_text(&self, counter: u64) -> bool {
        counter == FIRST_MAP && counter == self.max_op
    }

    /// Returns which of [`MAPS`] the operation `counter` of the genesis actor created.
    pub(crate) fn map_at(&self, counter: u64) -> Option<usize> {
        let at = usize::try_from(counter.checked_sub(FIRST_MAP)?).ok()?;
        (counter <= self.max_op && at < MAPS.len()).then_some(at)
    }
}

/// Returns the genesis of a shape.
pub(crate) fn genesis(shape: Shape) -> &'static Genesis {
    static MEMORY: LazyLock<Genesis> =
        LazyLock::new(|| compute("rhizome/memory/1", &[], ObjType::Map));
    static CONTEXT: LazyLock<Genesis> =
        LazyLock::new(|| compute("rhizome/context/1", &MAPS, ObjType::Map));
    static FILES: LazyLock<Genesis> =
        LazyLock::new(|| compute("rhizome/file/1", &[TEXT], ObjType::Text));
    match shape {
        Shape::Memory => &MEMORY,
        Shape::Context => &CONTEXT,
        Shape::File => &FILES,
    }
}

fn compute(schema: &str, objects: &[&str], object_type: ObjType) -> Genesis {
    let actor = ActorId::from(&GENESIS_ACTOR[..]);
    let mut document = Automerge::new().with_actor(actor.clone());
    let mut write = document.transaction();
    write
        .put(ROOT, "schema", schema)
        .expect("a fresh document takes a string");
    for object in objects {
        write
            .put_object(ROOT, *object, object_type)
            .expect("a fresh document takes an object");
    }
    write.commit();
    let change: Change = document
        .get_last_local_change()
        .expect("the genesis was just committed");
    debug_assert_eq!(Some(change.start_op()), NonZeroU64::new(1));
    Genesis {
        hash: change.hash(),
        max_op: change.max_op(),
        actor,
        document,
    }
}
