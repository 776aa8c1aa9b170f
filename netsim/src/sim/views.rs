//! Documents made of what a node holds, by the code of production: fence, view and all.

use std::path::Path;

use bytes::Bytes;
use rhizome_memory::{
    ComposeContext, Draft, Header, Kind, ListQuery, MemoryItem, Opened, Quarantined, View,
    ViewError,
};

use super::network::Netsim;

/// More memories than a run with documents makes.
const ALL: usize = 10_000;

/// What a node shows of what it holds.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// The memories, by document.
    pub memories: Vec<MemoryItem>,
    /// The fragments that the fence refused, by id.
    pub refused: Vec<Quarantined>,
}

/// Composes a memory that says `text`; the header says of it what it has to.
pub(super) fn composed(header: &mut Header, text: &[u8]) -> Bytes {
    let context = ComposeContext {
        author: header.author,
        node: header.node,
        now: header.hlc,
        space: header.space,
    };
    let text = String::from_utf8_lossy(text);
    let draft = Draft::new(Kind::Observation, "simulated", text);
    let composed = View::compose_new(context, &draft).expect("a short draft");
    header.doc = composed.doc;
    header.kind = composed.kind;
    header.deps = composed.deps;
    composed.change.into()
}

impl Netsim {
    /// Applies what a node holds, in the order in which it came there, to a view in `dir`.
    ///
    /// Only for runs that were built [with documents](super::Builder::with_documents).
    ///
    /// # Errors
    /// [`ViewError`] if the view's files cannot be written.
    pub fn view(&self, node: usize, dir: &Path) -> Result<Seen, ViewError> {
        let view = View::open(dir)?;
        let held = self.nodes[node].store.beyond_ground().iter();
        let fragments = held.filter_map(|item| self.arena.item(*item).fragment());
        for (arrival, fragment) in (1..).zip(fragments) {
            let opened = Opened {
                id: fragment.id,
                header: fragment.header.clone(),
                change: fragment.body.clone().unwrap_or_default(),
            };
            view.apply(arrival, vec![opened]);
        }
        let space = self.founding.space;
        let query = ListQuery {
            spaces: Some(vec![space]),
            limit: ALL,
            ..ListQuery::default()
        };
        let mut memories = view.list(&query)?;
        memories.sort_by_key(|memory| memory.id);
        let mut refused = view.quarantine(Some(&space), ALL)?;
        refused.sort_by_key(|refused| refused.id);
        Ok(Seen { memories, refused })
    }
}
