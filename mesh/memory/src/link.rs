//! What one document says of another: that it replaces it, takes it back, or confirms it.
//!
//! Such a row lies with the document it is about, so that reading a memory finds all of them at one
//! place; it names who said it, since what it is worth depends on that.

use rhizome_identity::{AgentId, NodeId};

use crate::{DocId, FragmentId, MemoryItem, Voice, document::DocKey, same::confirmed};

/// What is said of the other document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    Replaces,
    Retracts,
    Confirms(u64),
}

/// A row of the view, but for the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) says: Says,
    pub(crate) voice: Voice,
}

impl Link {
    const LEN: usize = 106;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (tag, times) = match self.says {
            Says::Replaces => (0, 0),
            Says::Retracts => (1, 0),
            Says::Confirms(times) => (2, times),
        };
        let mut row = Vec::with_capacity(Self::LEN);
        row.push(tag);
        row.push(self.voice.kind.number());
        row.extend(times.to_be_bytes());
        row.extend(self.voice.author.as_bytes());
        row.extend(self.voice.node.as_bytes());
        row.extend(self.voice.fragment.as_bytes());
        row
    }

    pub(crate) fn from_bytes(key: &DocKey, row: &[u8]) -> Option<Self> {
        if row.len() != Self::LEN {
            return None;
        }
        let id = |from: usize| <[u8; 32]>::try_from(&row[from..from + 32]).ok();
        let times = u64::from_be_bytes(row[2..10].try_into().ok()?);
        Some(Self {
            says: match row[0] {
                0 => Says::Replaces,
                1 => Says::Retracts,
                2 => Says::Confirms(times),
                _ => return None,
            },
            voice: Voice {
                space: key.space,
                kind: crate::Kind::from_number(row[1])?,
                author: AgentId::from_bytes(id(10)?),
                node: NodeId::from_bytes(id(42)?),
                fragment: FragmentId::from_bytes(id(74)?),
            },
        })
    }
}

/// Returns what `item` says of other documents, each once.
pub(crate) fn links(item: &MemoryItem) -> Vec<(DocId, Link)> {
    let voice = Voice::of(item);
    if item.kind == crate::Kind::Confirmation {
        let link = confirmed(item).map(|(doc, times)| {
            let says = Says::Confirms(times);
            (doc, Link { says, voice })
        });
        return link.into_iter().collect();
    }
    let says = if item.retracted {
        Says::Retracts
    } else {
        Says::Replaces
    };
    let mut docs = item.supersedes.clone();
    docs.sort_unstable();
    docs.dedup();
    docs.retain(|doc| *doc != item.doc);
    docs.into_iter()
        .map(|doc| (doc, Link { says, voice }))
        .collect()
}
