//! Which fragments lose their body for good: pure, and the same on every node that holds the same.
//!
//! A redaction is a fragment whose signed header says everything that has to be known: that it is
//! one (its kind), of which document, and which fragments it takes (its dependencies). So nodes that
//! cannot read the space obey it as well. Its body is a reason, for people.
//!
//! It takes a fragment of that document and space if its author wrote that fragment, or is an agent
//! that the fragment's node certified itself, or one that a node certified itself which administers
//! the space. What its author was is read from the authority records that the redaction names, so a
//! right that ends later takes nothing back; what a revocation cuts off its author's chain has no
//! effect, here as everywhere. A redaction cannot be redacted.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rhizome_identity::{
    Authority, PublicKey, RecordId, RecordLog, Role, SpaceId, envelope, record::RecordBody,
};

use crate::{
    Admission, DocId, Fragment, FragmentError, FragmentId, Header, Kind, MAX_DEPS, MAX_ENVELOPE,
    chain::is_within,
    fragment::{DOMAIN, read_envelope},
};

/// The longest reason of a redaction, in bytes.
pub const MAX_REASON: usize = 500;
/// How many fragments one redaction takes.
pub(crate) const MAX_TARGETS: usize = MAX_DEPS;

/// A redaction, as its signed header says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) id: FragmentId,
    pub(crate) header: Header,
    /// The signed header, byte for byte: it goes with every fragment whose body it took.
    pub(crate) envelope: Bytes,
}

impl Notice {
    /// Returns what a fragment says, if it is a redaction.
    pub(crate) fn of(fragment: &Fragment) -> Option<Self> {
        (fragment.header.kind == Kind::Redaction).then(|| Self {
            id: fragment.id,
            header: fragment.header.clone(),
            envelope: Bytes::copy_from_slice(&fragment.envelope),
        })
    }

    /// Reads what came with a fragment without a body; the signature is not checked.
    ///
    /// # Errors
    /// [`FragmentError`] if it is no redaction of this fragment.
    pub(crate) fn read(
        signed: &Bytes,
        id: &FragmentId,
        header: &Header,
    ) -> Result<Self, FragmentError> {
        let (of, notice) = read_envelope(signed)?;
        let is_of = notice.kind == Kind::Redaction
            && notice.mesh == header.mesh
            && names(&notice, id, header);
        if !is_of {
            return Err(FragmentError::Malformed(
                "what is to redact it does not name it",
            ));
        }
        Ok(Self {
            id: of,
            header: notice,
            envelope: Bytes::copy_from_slice(signed),
        })
    }

    /// Returns whether its author signed it.
    pub(crate) fn is_signed(&self) -> bool {
        envelope::parse(&self.envelope, MAX_ENVELOPE)
            .is_ok_and(|sealed| sealed.verify(DOMAIN).is_ok())
    }
}

/// Returns whether a redaction with this header names a fragment, by whatever right.
fn names(redaction: &Header, id: &FragmentId, header: &Header) -> bool {
    header.kind != Kind::Redaction
        && (redaction.space, redaction.doc) == (header.space, header.doc)
        && redaction.deps.contains(id)
}

/// Returns whether a redaction counts, or will if it is what stands in its place of its author's
/// chain: what is before it need not be here.
fn may_count(authority: &Authority, admission: &Admission, notice: &Notice) -> bool {
    let Header {
        author, space, seq, ..
    } = notice.header;
    let known = admission.id_at(&author, &space, seq);
    is_within(authority.reach(&author, &space), notice.id, seq)
        && known.is_none_or(|known| known == notice.id)
}

/// What the author of a redaction may take beyond what it wrote itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Right {
    /// Its node certified it directly: it may take what was written on that node.
    speaks_for_node: bool,
    /// Its node administers the space, and it speaks for its node.
    administers: bool,
    /// The revocations it knew of.
    knew: BTreeSet<RecordId>,
}

impl Right {
    /// Reads from the log what the author of a redaction was, by the records that its header names;
    /// `None` if they are not all here.
    pub(crate) fn of(records: &RecordLog, redaction: &Header) -> Option<Self> {
        Some(Self::by(
            &records.resolve_at(&redaction.auth_heads)?,
            redaction,
        ))
    }

    /// Reads it from what the records that the header names resolve to.
    fn by(then: &Authority, redaction: &Header) -> Self {
        let cert = then.agent(&redaction.author);
        let speaks_for_node =
            cert.is_some_and(|cert| cert.node == redaction.node && cert.chain.len() == 1);
        let role = then.role_in(&redaction.node, &redaction.space);
        Self {
            speaks_for_node,
            administers: speaks_for_node && role.is_some_and(Role::can_grant),
            knew: then.revocations().map(|revoked| revoked.record).collect(),
        }
    }

    /// Returns whether it suffices to take a fragment.
    pub(crate) fn takes(&self, redaction: &Header, header: &Header) -> bool {
        redaction.author == header.author
            || (self.speaks_for_node && redaction.node == header.node)
            || self.administers
    }

    /// Returns whether somebody has ended the author without having seen the redaction, and it came
    /// back since: while it is out, its chain says how far it counts.
    fn is_cut_off(&self, redaction: &Header, records: &RecordLog, authority: &Authority) -> bool {
        let subjects = [
            PublicKey::from(redaction.author),
            PublicKey::from(redaction.node),
        ];
        let mut unknown = subjects
            .iter()
            .filter(|subject| !authority.is_revoked(subject))
            .flat_map(|subject| authority.revocations_of(subject))
            .filter(|revocation| !self.knew.contains(&revocation.record));
        unknown.any(|revocation| {
            let record = records.get(&revocation.record);
            let Some(RecordBody::Revoke(revoke)) = record.map(|record| &record.record().body)
            else {
                return true;
            };
            !revoke.cuts.iter().any(|cut| {
                (cut.author, cut.space) == (redaction.author, redaction.space)
                    && cut.seq >= redaction.seq
            })
        })
    }
}

/// What a redaction amounts to, by the authority log and the chains of now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Standing {
    counts: bool,
    /// Unknown until all records that it names are here: until then it takes its author's own.
    right: Option<Right>,
}

#[derive(Debug, Clone)]
struct Entry {
    notice: Notice,
    standing: Standing,
}

impl Entry {
    fn takes(&self, id: &FragmentId, header: &Header) -> bool {
        let redaction = &self.notice.header;
        let takes = match &self.standing.right {
            Some(right) => right.takes(redaction, header),
            None => redaction.author == header.author,
        };
        self.standing.counts && takes && names(redaction, id, header)
    }
}

/// The redactions that are known here, whether they count or not.
#[derive(Debug, Default)]
pub(crate) struct Redactions {
    entries: BTreeMap<FragmentId, Entry>,
    /// Which redactions name a fragment.
    naming: BTreeMap<FragmentId, BTreeSet<FragmentId>>,
    /// What the records resolve to that a redaction named last.
    past: Option<(Vec<RecordId>, Authority)>,
}

impl Redactions {
    /// Takes note of a redaction whose signature was checked. It has no effect before
    /// [`Self::assess`]; returns whether it is news.
    pub(crate) fn note(&mut self, notice: Notice) -> bool {
        if self.entries.contains_key(&notice.id) {
            return false;
        }
        for target in &notice.header.deps {
            self.naming.entry(*target).or_default().insert(notice.id);
        }
        let entry = Entry {
            standing: Standing::default(),
            notice,
        };
        self.entries.insert(entry.notice.id, entry);
        true
    }

    /// Works out anew which redactions count; returns the fragments for which that may matter.
    pub(crate) fn reassess(
        &mut self,
        records: &RecordLog,
        authority: &Authority,
        admission: &Admission,
    ) -> BTreeSet<FragmentId> {
        let all: Vec<FragmentId> = self.entries.keys().copied().collect();
        all.iter()
            .flat_map(|id| self.assess(id, records, authority, admission))
            .collect()
    }

    /// Works out whether one redaction counts; returns the fragments for which that may matter.
    pub(crate) fn assess(
        &mut self,
        id: &FragmentId,
        records: &RecordLog,
        authority: &Authority,
        admission: &Admission,
    ) -> Vec<FragmentId> {
        let Some(entry) = self.entries.get_mut(id) else {
            return Vec::new();
        };
        let header = &entry.notice.header;
        let standing = &mut entry.standing;
        let (counted, was_judged) = (standing.counts, standing.right.is_some());
        // What a record's ancestors say does not change once they are here.
        if !was_judged {
            // Many name the same records, one after the other.
            let is_past = |(heads, _): &&(Vec<RecordId>, Authority)| *heads == header.auth_heads;
            if self.past.as_ref().filter(is_past).is_none()
                && let Some(then) = records.resolve_at(&header.auth_heads)
            {
                self.past = Some((header.auth_heads.clone(), then));
            }
            let past = self.past.as_ref().filter(is_past);
            standing.right = past.map(|(_, then)| Right::by(then, header));
        }
        let is_cut_off = |right: &Right| right.is_cut_off(header, records, authority);
        standing.counts = may_count(authority, admission, &entry.notice)
            && !standing.right.as_ref().is_some_and(is_cut_off);
        if (counted, was_judged) == (standing.counts, standing.right.is_some()) {
            return Vec::new();
        }
        header.deps.clone()
    }

    /// Returns whether a redaction that counts or not names this fragment.
    pub(crate) fn names(&self, id: &FragmentId) -> bool {
        self.naming.contains_key(id)
    }

    /// Returns the redaction that took the body of this fragment: of several that with the least id,
    /// whichever came first.
    pub(crate) fn of(&self, id: &FragmentId, header: &Header) -> Option<&Notice> {
        let naming = self.naming.get(id)?;
        let mut entries = naming.iter().filter_map(|notice| self.entries.get(notice));
        entries
            .find(|entry| entry.takes(id, header))
            .map(|entry| &entry.notice)
    }

    /// Returns whether the right of a redaction is known.
    pub(crate) fn is_judged(&self, id: &FragmentId) -> bool {
        self.entries
            .get(id)
            .is_some_and(|entry| entry.standing.right.is_some())
    }

    /// Forgets a redaction that turned out to be good for nothing.
    pub(crate) fn forget(&mut self, id: &FragmentId) {
        let Some(entry) = self.entries.remove(id) else {
            return;
        };
        for target in entry.notice.header.deps {
            if let Some(naming) = self.naming.get_mut(&target) {
                naming.remove(id);
                if naming.is_empty() {
                    self.naming.remove(&target);
                }
            }
        }
    }

    /// Returns whether a redaction is known.
    pub(crate) fn contains(&self, id: &FragmentId) -> bool {
        self.entries.contains_key(id)
    }

    /// Returns the redactions of a document that count, by their ids.
    pub(crate) fn of_doc(&self, space: SpaceId, doc: DocId) -> impl Iterator<Item = &Notice> {
        self.entries.values().filter_map(move |entry| {
            let header = &entry.notice.header;
            (entry.standing.counts && (header.space, header.doc) == (space, doc))
                .then_some(&entry.notice)
        })
    }

    /// Returns every fragment that a redaction names.
    pub(crate) fn targets(&self) -> BTreeSet<FragmentId> {
        self.naming.keys().copied().collect()
    }
}
