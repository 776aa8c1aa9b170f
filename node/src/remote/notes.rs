//! What nodes say about a sandbox beside its record: who is waking it, who holds a copy too.
//!
//! Each is a document of its own with one writer, or nearly, so that nothing that happens at the
//! same time on two nodes stands beside a record as a fork of the sandbox. All are of the record's
//! kind, and nodes of earlier releases take them for none.
use std::collections::BTreeMap;

use rhizome_identity::NodeId;
use rhizome_memory::{Draft, FragmentId, Kind, MemoryItem};
use rhizome_sandbox::{SandboxId, chunks::PackId};

use super::record::Found;

/// Version of the fields.
const VERSION: &str = "1";

/// A node wakes a sandbox, or gave it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) sandbox: SandboxId,
    /// The record that it wakes it by; the next one ends the lease.
    pub(crate) record: FragmentId,
    pub(crate) node: NodeId,
    /// Whether it still is at it.
    pub(crate) stands: bool,
}

/// How it stands with a copy that was not there when the snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// It is being fetched.
    Coming,
    /// It is there, durably.
    Held,
    /// It is there no more.
    Gone,
}

/// A node holds a snapshot, or does so no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) sandbox: SandboxId,
    pub(crate) manifest: PackId,
    pub(crate) node: NodeId,
    pub(crate) state: CopyState,
}

/// What any such document says: of which sandbox, about what, which node, and how it stands.
struct Note<'a> {
    /// `lease` or `copy`.
    kind: &'static str,
    sandbox: SandboxId,
    /// The name of the field, and what it says.
    about: (&'static str, String),
    node: NodeId,
    state: &'a str,
}

impl<'a> Note<'a> {
    fn key(&self) -> String {
        format!("{} {} {}", self.kind, self.sandbox, self.node)
    }

    fn draft(self, title: String) -> Draft {
        let mut draft = Draft::new(Kind::Snapshot, title, "");
        draft.key = Some(self.key());
        let (about, what) = self.about;
        let fields = [
            ("v", VERSION.to_owned()),
            (self.kind, self.sandbox.to_string()),
            (about, what),
            ("node", self.node.to_string()),
            ("state", self.state.to_owned()),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        draft.fields = BTreeMap::from(fields);
        draft
    }

    fn of(item: &'a MemoryItem, kind: &'static str, about: &'static str) -> Option<Self> {
        let get = |name: &str| item.fields.get(name).map(String::as_str);
        if get("v")? != VERSION {
            return None;
        }
        let note = Self {
            kind,
            sandbox: get(kind)?.parse().ok()?,
            about: (about, get(about)?.to_owned()),
            node: get("node")?.parse().ok()?,
            state: get("state")?,
        };
        // A document says what its key says, or it could stand for another.
        (item.key.as_deref() == Some(&note.key()[..])).then_some(note)
    }
}

impl Lease {
    pub(crate) fn draft(&self, called: &str, node: &str) -> Draft {
        let (title, state) = match self.stands {
            true => (
                format!("sandbox {called} is being woken by {node}"),
                "taken",
            ),
            false => (format!("{node} does not wake sandbox {called}"), "returned"),
        };
        let note = Note {
            kind: "lease",
            sandbox: self.sandbox,
            about: ("record", self.record.to_string()),
            node: self.node,
            state,
        };
        note.draft(title)
    }

    fn of(item: &MemoryItem) -> Option<Self> {
        let note = Note::of(item, "lease", "record")?;
        let lease = Self {
            sandbox: note.sandbox,
            record: note.about.1.parse().ok()?,
            node: note.node,
            stands: match note.state {
                "taken" => true,
                "returned" => false,
                _ => return None,
            },
        };
        // Nobody says of another node that it is at work.
        (item.node == lease.node).then_some(lease)
    }
}

impl Copy {
    pub(crate) fn draft(&self, called: &str, node: &str) -> Draft {
        let (says, state) = match self.state {
            CopyState::Coming => ("is fetching", "coming"),
            CopyState::Held => ("holds", "held"),
            CopyState::Gone => ("holds no more", "gone"),
        };
        let note = Note {
            kind: "copy",
            sandbox: self.sandbox,
            about: ("manifest", self.manifest.to_string()),
            node: self.node,
            state,
        };
        note.draft(format!("{node} {says} a copy of sandbox {called}"))
    }

    fn of(item: &MemoryItem) -> Option<Self> {
        let note = Note::of(item, "copy", "manifest")?;
        Some(Self {
            sandbox: note.sandbox,
            manifest: note.about.1.parse().ok()?,
            node: note.node,
            state: match note.state {
                "coming" => CopyState::Coming,
                "held" => CopyState::Held,
                "gone" => CopyState::Gone,
                _ => return None,
            },
        })
    }
}

/// All that a node's view says about sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) found: Vec<Found>,
    leases: Vec<(FragmentId, Lease)>,
    copies: Vec<(FragmentId, Copy)>,
}

impl Ledger {
    /// Takes in documents of the kind that records are of.
    pub(crate) fn read(&mut self, items: &[MemoryItem]) {
        for item in items.iter().filter(|item| item.kind == Kind::Snapshot) {
            if let Some(found) = Found::of(item) {
                self.found.push(found);
            } else if let Some(lease) = Lease::of(item) {
                self.leases.push((item.id, lease));
            } else if let Some(copy) = Copy::of(item) {
                self.copies.push((item.id, copy));
            }
        }
    }

    /// Works out who holds what, once all is read.
    pub(crate) fn settle(&mut self) {
        for found in &mut self.found {
            let of_it = |copy: &Copy| {
                copy.sandbox == found.record.sandbox
                    && copy.manifest == found.record.snapshot.manifest
            };
            for (_, copy) in self.copies.iter().filter(|(_, copy)| of_it(copy)) {
                let is_listed = found.holders.contains(&copy.node);
                match copy.state {
                    CopyState::Held if !is_listed => found.holders.push(copy.node),
                    // Where it runs, it has what it needs, whatever it let go of before.
                    CopyState::Gone if copy.node != found.record.runner => {
                        found.holders.retain(|node| *node != copy.node);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns the leases on this very record.
    pub(crate) fn leases(&self, found: &Found) -> Vec<(FragmentId, NodeId)> {
        let stand = self.leases.iter().filter(|(_, lease)| {
            lease.stands && lease.sandbox == found.record.sandbox && lease.record == found.fragment
        });
        stand.map(|(said, lease)| (*said, lease.node)).collect()
    }

    /// Returns the copies that are on their way.
    pub(crate) fn coming(&self, found: &Found) -> Vec<(FragmentId, NodeId)> {
        let coming = self.copies.iter().filter(|(_, copy)| {
            copy.state == CopyState::Coming
                && copy.sandbox == found.record.sandbox
                && copy.manifest == found.record.snapshot.manifest
        });
        coming.map(|(said, copy)| (*said, copy.node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rhizome_identity::{AgentId, Hash, SpaceId};
    use rhizome_memory::{DocId, Hlc};

    use super::*;
    use crate::remote::record::tests::record;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    /// Returns a document as `by` would have published it.
    fn item(n: u8, draft: Draft, by: NodeId) -> MemoryItem {
        draft.check().expect("it keeps the bounds of a memory");
        MemoryItem {
            id: FragmentId::from_bytes([n; 32]),
            doc: DocId::from_bytes([n; 32]),
            space: SpaceId::from_bytes([4; 32]),
            kind: draft.kind,
            title: draft.title,
            text: draft.text,
            tags: draft.tags,
            key: draft.key,
            task: None,
            evidence: Vec::new(),
            supersedes: Vec::new(),
            superseded_by: Vec::new(),
            depends_on: Vec::new(),
            fields: draft.fields,
            author: AgentId::from_bytes([4; 32]),
            node: by,
            at_ms: 0,
            hlc: Hlc::from_ms(1),
            fingerprint: Hash::of(b""),
            conflicts: Vec::new(),
            retracted: false,
            confirmations: 0,
            confirmed_by: 0,
            buried: String::new(),
        }
    }

    fn copy(n: u8, state: CopyState) -> Copy {
        let record = record(1);
        Copy {
            sandbox: record.sandbox,
            manifest: record.snapshot.manifest,
            node: node(n),
            state,
        }
    }

    #[test]
    fn what_is_said_later_changes_who_holds_it() {
        let mut ledger = Ledger::default();
        let copies = [
            (11, copy(2, CopyState::Gone)),
            (12, copy(3, CopyState::Held)),
            (13, copy(4, CopyState::Coming)),
            // The runner's own is not let go of.
            (14, copy(1, CopyState::Gone)),
        ];
        let other = Copy {
            manifest: PackId::from_bytes([9; 32]),
            ..copy(5, CopyState::Held)
        };
        let mut items: Vec<_> = copies
            .iter()
            .chain(&[(15, other)])
            .map(|(n, copy)| item(*n, copy.draft("bench", "cloud"), node(9)))
            .collect();
        items.push(item(1, record(1).draft(|_| String::new()), node(1)));
        ledger.read(&items);
        ledger.settle();
        assert_eq!(ledger.found.len(), 1);
        assert_eq!(ledger.found[0].holders, [node(1), node(3)]);
        let coming = ledger.coming(&ledger.found[0]);
        assert_eq!(coming, [(FragmentId::from_bytes([13; 32]), node(4))]);
    }

    #[test]
    fn a_lease_is_its_own_nodes_word_and_of_one_record() {
        let mut ledger = Ledger::default();
        let stands = |n: u8, record: u8, stands: bool| Lease {
            sandbox: super::super::record::tests::record(1).sandbox,
            record: FragmentId::from_bytes([record; 32]),
            node: node(n),
            stands,
        };
        let said = |at: u8, lease: Lease, by: u8| item(at, lease.draft("bench", "cloud"), node(by));
        let items = [
            item(1, record(1).draft(|_| String::new()), node(1)),
            said(21, stands(2, 1, true), 2),
            said(22, stands(3, 1, false), 3),
            said(23, stands(4, 9, true), 4),
            // Somebody says that another node is at work.
            said(24, stands(5, 1, true), 6),
        ];
        ledger.read(&items);
        ledger.settle();
        let leases = ledger.leases(&ledger.found[0]);
        assert_eq!(leases, [(FragmentId::from_bytes([21; 32]), node(2))]);
    }

    #[test]
    fn what_makes_no_sense_is_nothing() {
        let whole = copy(2, CopyState::Held).draft("bench", "cloud");
        for (field, value) in [
            ("v", "2"),
            ("copy", "x"),
            ("manifest", "00"),
            ("node", "me"),
            ("state", "lent"),
        ] {
            let mut draft = whole.clone();
            draft.fields.insert(field.into(), value.into());
            assert_eq!(Copy::of(&item(1, draft, node(2))), None, "{field}");
        }
        let mut draft = whole.clone();
        draft.key = Some("copy of another".into());
        assert_eq!(Copy::of(&item(1, draft, node(2))), None);
    }
}
