//! The record of a sandbox that sleeps, or that woke: one document per sandbox, in its space.
//!
//! It says what the sandbox can be resumed from, who holds that, and who runs it now. Every change
//! of it is a new version of the same document, so that two nodes which wake a sandbox without
//! knowing of each other leave two versions that stand side by side: a fork that everybody sees.
//!
//! A record is what some writer of the space said: it is parsed, bounded, and believed no further
//! than what is then fetched proves itself.
use std::collections::BTreeMap;

use rhizome_identity::{AgentId, Hash, NodeId, SpaceId};
use rhizome_memory::{Conflict, Draft, FragmentId, Hlc, Kind, MAX_FIELD_VALUE, MemoryItem};
use rhizome_sandbox::{SandboxId, SnapshotRef, chunks::PackId};
use serde::{Deserialize, Serialize};

use super::alarm::condition::{self, Cause, Condition};

/// Version of the fields.
const VERSION: &str = "1";
/// Most packs of one snapshot: 128 GiB.
pub(crate) const MAX_PACKS: usize = 8_192;
/// Packs named in one field.
const PACKS_PER_FIELD: usize = 240;
/// Most nodes that a record names as holders.
const MAX_HOLDERS: usize = 64;
/// Digits of a hash.
const HASH_DIGITS: usize = 64;
/// Longest wish for holders that is kept with a record, in bytes.
const MAX_WISH: usize = 256;

/// Where a sandbox is, as far as the mesh is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rest {
    /// It sleeps; whoever may can wake it.
    Asleep,
    /// It runs on a node.
    Awake,
    /// It was ended on request.
    Ended,
}

impl Rest {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Awake => "awake",
            Self::Ended => "ended",
        }
    }
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) sandbox: SandboxId,
    pub(crate) name: Option<String>,
    pub(crate) rest: Rest,
    /// The node that runs it, or ran it last.
    pub(crate) runner: NodeId,
    /// Since when it is so, by that node's clock.
    pub(crate) since_ms: u64,
    pub(crate) snapshot: SnapshotRef,
    /// The epoch of the space's key that it is sealed with.
    pub(crate) epoch: u32,
    /// The nodes that said they hold it durably.
    pub(crate) holders: Vec<NodeId>,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) driver: String,
    pub(crate) accel: String,
    pub(crate) memory_mib: u32,
    pub(crate) fingerprint: Hash,
    /// Whom it works for, if for anybody, and what that one is called.
    pub(crate) agent: Option<(AgentId, String)>,
    /// The spaces it may use, the one that the record is in first.
    pub(crate) spaces: Vec<SpaceId>,
    /// Its labels, without the node's own.
    pub(crate) labels: BTreeMap<String, String>,
    /// How many nodes beside the runner are to hold it; 0 where nobody said.
    pub(crate) replicas: u8,
    /// Which nodes, as it was asked for; any, if absent.
    pub(crate) held_by: Option<String>,
    /// What wakes it; nothing but a request, if empty.
    pub(crate) wake_on: Vec<Condition>,
    /// What woke it last, if it was not simply asked for.
    pub(crate) woken_by: Option<Cause>,
}

/// A record with its place in the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) space: SpaceId,
    /// The fragment that says so.
    pub(crate) fragment: FragmentId,
    /// When it was said, as moments of the space's memory are ordered.
    pub(crate) hlc: Hlc,
    /// Who holds what it sleeps in, by the record and by what was said since.
    pub(crate) holders: Vec<NodeId>,
    /// Other versions that neither knew of the other's.
    pub(crate) forks: Vec<Record>,
}

impl Record {
    /// Returns the document's key: the sandbox's own, whatever node writes it.
    pub(crate) fn key(sandbox: &SandboxId) -> String {
        format!("sandbox {sandbox}")
    }

    /// Returns what people call the sandbox.
    pub(crate) fn called(&self) -> String {
        self.name
            .clone()
            .unwrap_or_else(|| self.sandbox.to_string())
    }

    /// Writes the record as what a node publishes.
    ///
    /// `names` gives a node's name for the title, which is for people.
    pub(crate) fn draft(&self, names: impl Fn(&NodeId) -> String) -> Draft {
        let called = self.called();
        let title = match self.rest {
            Rest::Asleep => format!("sandbox {called} sleeps"),
            Rest::Awake => format!("sandbox {called} runs on {}", names(&self.runner)),
            Rest::Ended => format!("sandbox {called} was ended"),
        };
        let mut draft = Draft::new(Kind::Snapshot, title, "");
        draft.key = Some(Self::key(&self.sandbox));
        let mut field = |name: &str, value: String| {
            draft.fields.insert(name.to_owned(), value);
        };
        let snapshot = &self.snapshot;
        field("v", VERSION.to_owned());
        field("sandbox", self.sandbox.to_string());
        field("state", self.rest.as_str().to_owned());
        field("runner", self.runner.to_string());
        field("since_ms", self.since_ms.to_string());
        field("manifest", snapshot.manifest.to_string());
        field("taken_ms", snapshot.taken_ms.to_string());
        field("bytes_read", snapshot.bytes_read.to_string());
        field("bytes_new", snapshot.bytes_new.to_string());
        field("bytes_stored", snapshot.bytes_stored.to_string());
        field("pause_ms", snapshot.pause_ms.to_string());
        field("epoch", self.epoch.to_string());
        field("holders", joined(&self.holders));
        field("image", self.image.clone());
        field("image_id", self.image_id.clone());
        field("driver", self.driver.clone());
        field("accel", self.accel.clone());
        field("memory_mib", self.memory_mib.to_string());
        field("fingerprint", self.fingerprint.to_string());
        field("spaces", joined(&self.spaces));
        let labels = serde_json::to_string(&self.labels).unwrap_or_default();
        // Labels are for finding things; a record without them is better than none.
        if labels.len() <= MAX_FIELD_VALUE {
            field("labels", labels);
        }
        if let Some(name) = &self.name {
            field("name", name.clone());
        }
        if let Some((agent, name)) = &self.agent {
            field("agent", agent.to_string());
            field("agent_name", name.clone());
        }
        // Left out where they say nothing, as nodes that do not know them do.
        if self.replicas > 0 {
            field("replicas", self.replicas.to_string());
        }
        if let Some(wish) = &self.held_by {
            field("held_by", wish.clone());
        }
        if !self.wake_on.is_empty() {
            field("wake_on", condition::to_field(&self.wake_on));
        }
        if let Some(cause) = &self.woken_by {
            let cause = serde_json::to_string(cause).expect("a cause is plain");
            field("woken_by", cause);
        }
        for (number, packs) in snapshot.packs.chunks(PACKS_PER_FIELD).enumerate() {
            let packs: String = packs.iter().map(ToString::to_string).collect();
            field(&format!("packs.{number:02}"), packs);
        }
        draft
    }

    /// Reads the fields of a document of kind [`Kind::Snapshot`]; `None` if they make no record.
    pub(crate) fn parse(fields: &BTreeMap<String, String>) -> Option<Self> {
        let get = |name: &str| fields.get(name).map(String::as_str);
        let number = |name: &str| get(name)?.parse::<u64>().ok();
        if get("v")? != VERSION {
            return None;
        }
        let rest = match get("state")? {
            "asleep" => Rest::Asleep,
            "awake" => Rest::Awake,
            "ended" => Rest::Ended,
            _ => return None,
        };
        let mut packs = Vec::new();
        for (_, listed) in fields.range("packs.".to_owned().."packs/".to_owned()) {
            if !listed.is_ascii() || listed.len() % HASH_DIGITS != 0 {
                return None;
            }
            for digits in listed.as_bytes().chunks(HASH_DIGITS) {
                packs.push(std::str::from_utf8(digits).ok()?.parse::<PackId>().ok()?);
            }
            if packs.len() > MAX_PACKS {
                return None;
            }
        }
        let holders: Vec<NodeId> = listed(get("holders")?)?;
        let spaces: Vec<SpaceId> = listed(get("spaces")?)?;
        if holders.len() > MAX_HOLDERS || spaces.len() > MAX_HOLDERS {
            return None;
        }
        let image_id = get("image_id")?;
        if image_id.len() != HASH_DIGITS || !image_id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let agent = match get("agent") {
            None => None,
            Some(id) => Some((id.parse().ok()?, get("agent_name")?.to_owned())),
        };
        let held_by = get("held_by").map(str::to_owned);
        if held_by.as_ref().is_some_and(|wish| wish.len() > MAX_WISH) {
            return None;
        }
        Some(Self {
            replicas: get("replicas").map_or(Some(0), |n| n.parse().ok())?,
            held_by,
            wake_on: get("wake_on").map_or(Some(Vec::new()), condition::from_field)?,
            // What woke it is for people; a record without it is better than none.
            woken_by: get("woken_by").and_then(condition::cause_from_field),
            sandbox: get("sandbox")?.parse().ok()?,
            name: get("name").map(str::to_owned),
            rest,
            runner: get("runner")?.parse().ok()?,
            since_ms: number("since_ms")?,
            snapshot: SnapshotRef {
                manifest: get("manifest")?.parse().ok()?,
                packs,
                taken_ms: number("taken_ms")?,
                bytes_read: number("bytes_read")?,
                bytes_new: number("bytes_new")?,
                bytes_stored: number("bytes_stored")?,
                pause_ms: number("pause_ms")?,
            },
            epoch: get("epoch")?.parse().ok()?,
            holders,
            image: get("image")?.to_owned(),
            image_id: image_id.to_owned(),
            driver: get("driver")?.to_owned(),
            accel: get("accel")?.to_owned(),
            memory_mib: get("memory_mib")?.parse().ok()?,
            fingerprint: get("fingerprint")?.parse().ok()?,
            agent,
            spaces,
            labels: get("labels")
                .map_or(Ok(BTreeMap::new()), serde_json::from_str)
                .ok()?,
        })
    }
}

impl Found {
    /// Reads a document; `None` if it makes no record, or one under another sandbox's key.
    pub(crate) fn of(item: &MemoryItem) -> Option<Self> {
        let record = Record::parse(&item.fields)?;
        let own_key = item.key.as_deref() == Some(Record::key(&record.sandbox).as_str());
        // The spaces of a record begin with the one whose writers may change it.
        let at_home = record.spaces.first() == Some(&item.space);
        let forks = item.conflicts.iter().filter_map(|conflict: &Conflict| {
            Record::parse(&conflict.fields).filter(|fork| fork.sandbox == record.sandbox)
        });
        let forks = forks.collect();
        (item.kind == Kind::Snapshot && own_key && at_home).then_some(Self {
            forks,
            holders: record.holders.clone(),
            record,
            space: item.space,
            fragment: item.id,
            hlc: item.hlc,
        })
    }
}

fn joined<T: ToString>(ids: &[T]) -> String {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    ids.join(",")
}

fn listed<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',')
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().ok())
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(packs: usize) -> Record {
        let pack = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            PackId::from_bytes(bytes)
        };
        Record {
            sandbox: SandboxId::from_bytes([9; 16]),
            name: Some("bench".into()),
            rest: Rest::Asleep,
            runner: NodeId::from_bytes([1; 32]),
            since_ms: 5,
            snapshot: SnapshotRef {
                manifest: pack(77),
                packs: (0..packs).map(pack).collect(),
                taken_ms: 4,
                bytes_read: 3,
                bytes_new: 2,
                bytes_stored: 1,
                pause_ms: 0,
            },
            epoch: 1,
            holders: vec![NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32])],
            image: "debian".into(),
            image_id: "ab".repeat(32),
            driver: "qemu-microvm".into(),
            accel: "tcg".into(),
            memory_mib: 512,
            fingerprint: Hash::of(b"runtime"),
            agent: Some((AgentId::from_bytes([3; 32]), "mender".into())),
            spaces: vec![SpaceId::from_bytes([4; 32])],
            labels: BTreeMap::from([("team".into(), "blue".into())]),
            replicas: 2,
            held_by: Some("label=zone=home".into()),
            wake_on: vec![Condition::Time { at_ms: 5 }],
            woken_by: Some(Cause::Webhook { bytes: 7 }),
        }
    }

    #[test]
    fn a_record_survives_its_fields_however_many_packs_it_has() {
        for packs in [0, 1, PACKS_PER_FIELD, PACKS_PER_FIELD + 1, MAX_PACKS] {
            let record = record(packs);
            let draft = record.draft(|_| "laptop".into());
            draft.check().expect("it keeps the bounds of a memory");
            assert_eq!(Record::parse(&draft.fields), Some(record));
        }
        let beyond = record(MAX_PACKS + 1).draft(|_| String::new());
        assert_eq!(Record::parse(&beyond.fields), None);
    }

    #[test]
    fn a_record_of_a_node_that_knows_no_conditions_is_one_without() {
        let mut fields = record(1).draft(|_| String::new()).fields;
        for field in ["replicas", "held_by", "wake_on", "woken_by"] {
            assert!(fields.remove(field).is_some(), "{field}");
        }
        let older = Record::parse(&fields).unwrap();
        let expected = Record {
            replicas: 0,
            held_by: None,
            wake_on: Vec::new(),
            woken_by: None,
            ..record(1)
        };
        assert_eq!(older, expected);
        assert_eq!(older.draft(|_| String::new()).fields, fields);
    }

    #[test]
    fn a_record_that_lies_is_none() {
        let whole = record(2).draft(|_| String::new()).fields;
        for (field, value) in [
            ("v", "2"),
            ("state", "dreaming"),
            ("sandbox", "../x"),
            ("manifest", "00"),
            ("packs.00", "abc"),
            ("packs.00", &"ü".repeat(32)),
            ("holders", "me"),
            ("image_id", &"/".repeat(64)),
            ("epoch", "-1"),
            ("agent", "mender"),
            ("memory_mib", "99999999999"),
            ("labels", "{]"),
            ("replicas", "many"),
            ("replicas", "256"),
            ("held_by", &"x".repeat(MAX_WISH + 1)),
            ("wake_on", "[{\"on\":\"memory\",\"query\":\"\"}]"),
        ] {
            let mut fields = whole.clone();
            fields.insert(field.into(), value.into());
            assert_eq!(Record::parse(&fields), None, "{field}={value}");
            fields.remove(field);
            let optional = [
                "packs.00", "agent", "labels", "replicas", "held_by", "wake_on",
            ];
            if !optional.contains(&field) {
                assert_eq!(Record::parse(&fields), None, "without {field}");
            }
        }
    }
}
