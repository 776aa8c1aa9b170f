//! What the memory of a space says of its volumes: four kinds of documents.
//!
//! A record is what some writer of the space said: it is parsed and bounded here, and believed no
//! further than what is then fetched proves itself.

use std::collections::BTreeMap;

use rhizome_identity::{AgentId, NodeId};
use rhizome_memory::{Draft, Kind, MemoryItem};
use rhizome_sandbox::{SandboxId, chunks::PackId};

/// Version of the fields.
const FORMAT: &str = "1";
/// Most nodes that a record names as holders.
const MAX_HOLDERS: usize = 64;
/// Most versions that one was made from.
const MAX_PARENTS: usize = 16;
/// Longest name of a volume, in bytes.
pub(crate) const MAX_NAME: usize = 64;
/// Longest message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1_024;
/// Longest path in a sandbox, in bytes.
const MAX_PATH: usize = 4_096;

/// The id of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeId(pub(crate) [u8; 16]);

impl std::fmt::Display for VolumeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeId({self})")
    }
}

impl std::str::FromStr for VolumeId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // The digits of a longer hash, so that there is one parser for them.
        if text.len() != 32 || !text.is_ascii() {
            return Err(());
        }
        let hash: PackId = format!("{text}{text}").parse().map_err(|_| ())?;
        let half = hash.as_bytes().first_chunk::<16>();
        half.map(|bytes| Self(*bytes)).ok_or(())
    }
}

/// One document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Volume(VolumeRecord),
    Version(VersionRecord),
    Packed(PackedRecord),
    Attached(AttachedRecord),
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) volume: VolumeId,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    /// Whether nobody needs it any more: all of its versions are forgotten with it.
    pub(crate) removed: bool,
}

/// A version of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionRecord {
    pub(crate) volume: VolumeId,
    pub(crate) version: PackId,
    pub(crate) parents: Vec<PackId>,
    /// Digest of its tree, in hexadecimal.
    pub(crate) tree: String,
    /// The epoch of the space's key that it is sealed with.
    pub(crate) epoch: u32,
    /// The nodes that said they hold it durably.
    pub(crate) holders: Vec<NodeId>,
    pub(crate) bytes_stored: u64,
    pub(crate) author: String,
    pub(crate) at_ms: u64,
    pub(crate) message: String,
    /// Whether nobody needs it any more: those who hold it let go of it.
    pub(crate) forgotten: bool,
    /// The agent in whose sandbox it was made, if in one: it is charged to that one.
    pub(crate) agent: Option<AgentId>,
}

/// Where a version lies since it was repacked. Who does not know of it finds the version where it
/// lay before, for as long as somebody has that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedRecord {
    pub(crate) volume: VolumeId,
    pub(crate) version: PackId,
    /// The object that names its packs.
    pub(crate) packs: PackId,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachedRecord {
    pub(crate) volume: VolumeId,
    pub(crate) sandbox: SandboxId,
    pub(crate) node: NodeId,
    pub(crate) path: String,
    pub(crate) writable: bool,
    pub(crate) base: PackId,
    pub(crate) last: Option<PackId>,
    pub(crate) every_secs: u64,
    /// Until when nobody else may attach it to write.
    pub(crate) until_ms: u64,
    /// Whether it is attached, or was.
    pub(crate) attached: bool,
}

impl Record {
    /// Writes it as what a node publishes.
    pub(crate) fn draft(&self) -> Draft {
        let mut fields = BTreeMap::from([("v".to_owned(), FORMAT.to_owned())]);
        let mut field = |name: &str, value: String| fields.insert(name.to_owned(), value);
        let (title, key) = match self {
            Self::Volume(of) => {
                field("volume", of.volume.to_string());
                field("name", of.name.clone());
                field("created_ms", of.created_ms.to_string());
                if of.removed {
                    field("removed", "true".to_owned());
                }
                (
                    format!("volume {}", of.name),
                    format!("volume {}", of.volume),
                )
            }
            Self::Version(of) => {
                field("volume", of.volume.to_string());
                field("version", of.version.to_string());
                field("parents", joined(&of.parents));
                field("tree", of.tree.clone());
                field("epoch", of.epoch.to_string());
                field("holders", joined(&of.holders));
                field("bytes_stored", of.bytes_stored.to_string());
                field("author", of.author.clone());
                field("at_ms", of.at_ms.to_string());
                field("message", of.message.clone());
                if of.forgotten {
                    field("forgotten", "true".to_owned());
                }
                if let Some(agent) = of.agent {
                    field("agent", agent.to_string());
                }
                (
                    format!("version {} of volume {}", of.version, of.volume),
                    format!("version {}", of.version),
                )
            }
            Self::Packed(of) => {
                field("volume", of.volume.to_string());
                field("version", of.version.to_string());
                field("packs", of.packs.to_string());
                (
                    format!("where version {} of volume {} lies", of.version, of.volume),
                    format!("packed {}", of.version),
                )
            }
            Self::Attached(of) => {
                field("volume", of.volume.to_string());
                field("sandbox", of.sandbox.to_string());
                field("node", of.node.to_string());
                field("path", of.path.clone());
                field("writable", of.writable.to_string());
                field("base", of.base.to_string());
                field("every_secs", of.every_secs.to_string());
                field("until_ms", of.until_ms.to_string());
                field("attached", of.attached.to_string());
                if let Some(last) = of.last {
                    field("last", last.to_string());
                }
                (
                    format!("volume {} in sandbox {}", of.volume, of.sandbox),
                    format!("attached {} {}", of.volume, of.sandbox),
                )
            }
        };
        let mut draft = Draft::new(Kind::Volume, title, "");
        draft.key = Some(key);
        draft.fields = fields;
        draft
    }

    /// Reads a document; those that stand beside it add the holders they know.
    pub(crate) fn of(item: &MemoryItem) -> Option<Self> {
        let mut record = Self::parse(item.key.as_deref()?, &item.fields)?;
        if let Self::Version(of) = &mut record {
            for beside in &item.conflicts {
                let other = Self::parse(item.key.as_deref()?, &beside.fields);
                if let Some(Self::Version(other)) = other {
                    // Whoever said it did not know of what was said of its holders.
                    of.forgotten |= other.forgotten;
                    let new = other.holders.into_iter();
                    let new: Vec<_> = new.filter(|node| !of.holders.contains(node)).collect();
                    of.holders.extend(new);
                }
            }
            of.holders.truncate(MAX_HOLDERS);
        }
        Some(record)
    }

    fn parse(key: &str, fields: &BTreeMap<String, String>) -> Option<Self> {
        let text = |name: &str| fields.get(name).map(String::as_str);
        if text("v")? != FORMAT {
            return None;
        }
        let volume = text("volume")?.parse().ok()?;
        let record = match key.split(' ').next()? {
            "volume" => Self::Volume(VolumeRecord {
                volume,
                name: bounded(text("name")?, MAX_NAME)?,
                created_ms: text("created_ms")?.parse().ok()?,
                removed: flag(text("removed"))?,
            }),
            "version" => Self::Version(VersionRecord {
                volume,
                version: text("version")?.parse().ok()?,
                parents: split(text("parents")?, MAX_PARENTS)?,
                tree: {
                    let digest: PackId = text("tree")?.parse().ok()?;
                    digest.to_string()
                },
                epoch: text("epoch")?.parse().ok()?,
                holders: split(text("holders")?, MAX_HOLDERS)?,
                bytes_stored: text("bytes_stored")?.parse().ok()?,
                author: bounded(text("author")?, MAX_NAME)?,
                at_ms: text("at_ms")?.parse().ok()?,
                message: bounded(text("message")?, MAX_MESSAGE)?,
                forgotten: flag(text("forgotten"))?,
                agent: match text("agent") {
                    Some(agent) => Some(agent.parse().ok()?),
                    None => None,
                },
            }),
            "packed" => Self::Packed(PackedRecord {
                volume,
                version: text("version")?.parse().ok()?,
                packs: text("packs")?.parse().ok()?,
            }),
            "attached" => Self::Attached(AttachedRecord {
                volume,
                sandbox: text("sandbox")?.parse().ok()?,
                node: text("node")?.parse().ok()?,
                path: bounded(text("path")?, MAX_PATH)?,
                writable: text("writable")?.parse().ok()?,
                base: text("base")?.parse().ok()?,
                last: match text("last") {
                    Some(last) => Some(last.parse().ok()?),
                    None => None,
                },
                every_secs: text("every_secs")?.parse().ok()?,
                until_ms: text("until_ms")?.parse().ok()?,
                attached: text("attached")?.parse().ok()?,
            }),
            _ => return None,
        };
        // A document says what its key says, or it could stand for another.
        (record.draft().key.as_deref() == Some(key)).then_some(record)
    }
}

fn bounded(text: &str, limit: usize) -> Option<String> {
    (text.len() <= limit).then(|| text.to_owned())
}

/// What is said or left out, so that it has one spelling.
fn flag(text: Option<&str>) -> Option<bool> {
    match text {
        None => Some(false),
        Some("true") => Some(true),
        Some(_) => None,
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(",")
}

fn split<T: std::str::FromStr>(text: &str, most: usize) -> Option<Vec<T>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let items: Vec<&str> = text.split(',').take(most + 1).collect();
    if items.len() > most {
        return None;
    }
    items.into_iter().map(|item| item.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let id = |byte| PackId::from_bytes([byte; 32]);
        let volume = VolumeId([0x2a; 16]);
        vec![
            Record::Volume(VolumeRecord {
                volume,
                name: "work".into(),
                created_ms: 5,
                removed: true,
            }),
            Record::Version(VersionRecord {
                volume,
                version: id(1),
                parents: vec![id(2), id(3)],
                tree: id(4).to_string(),
                epoch: 3,
                holders: vec![NodeId::from_bytes([7; 32])],
                bytes_stored: 9,
                author: "laptop".into(),
                at_ms: 10,
                message: "before the move".into(),
                forgotten: true,
                agent: Some(AgentId::from_bytes([6; 32])),
            }),
            Record::Packed(PackedRecord {
                volume,
                version: id(1),
                packs: id(5),
            }),
            Record::Attached(AttachedRecord {
                volume,
                sandbox: SandboxId::from_bytes([8; 16]),
                node: NodeId::from_bytes([7; 32]),
                path: "/work".into(),
                writable: true,
                base: id(1),
                last: Some(id(2)),
                every_secs: 60,
                until_ms: 11,
                attached: true,
            }),
        ]
    }

    #[test]
    fn records_survive_their_fields() {
        for record in records() {
            let draft = record.draft();
            draft.check().unwrap();
            let key = draft.key.clone().unwrap();
            assert_eq!(Record::parse(&key, &draft.fields), Some(record));
            // Under another's key, or without any one of its fields, it is none.
            let other = format!("{} x", key);
            assert_eq!(Record::parse(&other, &draft.fields), None);
            for name in draft.fields.keys() {
                let mut fields = draft.fields.clone();
                fields.remove(name);
                let is_needed = !["last", "forgotten", "agent", "removed"].contains(&name.as_str());
                assert_eq!(Record::parse(&key, &fields).is_none(), is_needed, "{name}");
                fields.insert(name.clone(), "x".repeat(5_000));
                assert_eq!(Record::parse(&key, &fields), None, "{name}");
            }
        }
    }

    #[test]
    fn ids_have_one_spelling() {
        let id = VolumeId([0xab; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in [
            "",
            "ab",
            &"AB".repeat(16),
            &"ab".repeat(17),
            &"é".repeat(16),
        ] {
            assert_eq!(wrong.parse::<VolumeId>(), Err(()));
        }
    }
}
