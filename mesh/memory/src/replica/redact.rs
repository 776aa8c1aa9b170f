//! Taking the bodies of redacted fragments, for good, from everything that keeps them here.
//!
//! What is asked for goes on being decided by the headers alone ([`Redactions`]); this is what
//! follows from it on this node, in the applier's turn, so that no reader sees half of it: the records
//! in the segments are overwritten, bodies in files of their own removed, their documents derived
//! anew without them. Then, apart from readers, the files of the view are rewritten: what a database or
//! a search index has deleted is still in its file. A list of what is under way is durable before the
//! first of these steps and removed after the last, so that a crash between two of them costs a
//! repetition and leaves nothing.
//!
//! [`Redactions`]: crate::redaction::Redactions

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write as _},
    sync::PoisonError,
};

use bytes::Bytes;
use rhizome_identity::{Hash, SpaceId};
use tracing::{error, info, warn};

use super::{
    bodies,
    state::{Inner, State},
};
use crate::{
    Event, Fragment, FragmentId, Header, Lane, Opened, Verdict,
    document::DocKey,
    redaction::Notice,
    store::{Loc, RecordKind, Row, RowKind},
    view::doc_key_of,
};

/// Lists the fragments whose bodies are being taken from the view's files.
const UNDER_WAY: &str = "view.redacting";

/// What of a fragment is to go.
#[derive(Default)]
struct Doomed {
    /// Records with a body, and what takes their place.
    records: Vec<(Loc, Vec<u8>)>,
    /// Bodies with files of their own.
    bodies: BTreeSet<Hash>,
    documents: BTreeMap<FragmentId, DocKey>,
    /// What the view is told of them.
    told: Vec<Opened>,
}

impl State {
    /// Returns the redaction that took the body of a fragment, if one did.
    pub(super) fn redaction_of(&self, id: &FragmentId, header: &Header) -> Option<&Notice> {
        self.redactions.of(id, header)
    }

    /// Works out anew which redactions count; returns the fragments for which that may matter.
    pub(super) fn reassess(&mut self) -> BTreeSet<FragmentId> {
        let authority = std::sync::Arc::clone(&self.rights.authority);
        self.redactions
            .reassess(&self.records, &authority, &self.admission)
    }

    /// Takes note of a redaction that is signed; returns the fragments for which it may matter.
    pub(super) fn note_redaction(&mut self, notice: Notice) -> BTreeSet<FragmentId> {
        let targets: BTreeSet<FragmentId> = notice.header.deps.iter().copied().collect();
        let id = notice.id;
        self.redactions.note(notice);
        let authority = std::sync::Arc::clone(&self.rights.authority);
        self.redactions
            .assess(&id, &self.records, &authority, &self.admission);
        targets
    }
}

impl Inner {
    /// Returns whether a redaction that counts took the body of this fragment.
    pub(super) fn is_redacted(&self, id: &FragmentId, header: &Header) -> bool {
        self.state().redaction_of(id, header).is_some()
    }

    /// Reads a stored fragment, whichever form its record has; `None` if it is damaged.
    pub(super) fn read_fragment(&self, row: &Row) -> Option<Fragment> {
        let (kind, payload) = self.read_record(row)?;
        let read = match kind {
            RecordKind::Stripped => Fragment::decode_stripped(&payload),
            _ => Fragment::decode(&payload),
        };
        read.ok()
    }

    /// Returns the wire form of a stored fragment as others may have it: without a body that was
    /// redacted, also while it is still on the disk here.
    pub(super) fn wire_of(&self, row: &Row) -> Option<Bytes> {
        let (kind, payload) = self.read_record(row)?;
        let id = FragmentId::from(row.id);
        let is_named = self.state().redactions.names(&id);
        if kind == RecordKind::Fragment && !is_named {
            return Some(payload);
        }
        let fragment = self.read_fragment(row)?;
        let redaction = self
            .state()
            .redaction_of(&id, &fragment.header)
            .map(|notice| notice.envelope.clone());
        match redaction {
            Some(redaction) => Some(fragment.without_body(redaction).encode()),
            None if fragment.is_bare() => None,
            None => Some(payload),
        }
    }

    /// Looks at what comes without a body, and takes the body from what was redacted before it came.
    ///
    /// Returns why a fragment is not taken in as it is.
    pub(super) fn vet_body(&self, fragment: &mut Fragment) -> Result<bool, Verdict> {
        let mut state = self.state();
        if let Some(signed) = fragment.redaction.clone() {
            let malformed = |error| Verdict::Reject(crate::RejectReason::Malformed(error));
            let notice =
                Notice::read(&signed, &fragment.id, &fragment.header).map_err(malformed)?;
            let id = notice.id;
            let is_news = !state.redactions.contains(&id);
            if is_news && !notice.is_signed() {
                return Err(Verdict::Reject(crate::RejectReason::Signature));
            }
            let concerned = state.note_redaction(notice);
            self.applier.redact(concerned);
            if state.redaction_of(&fragment.id, &fragment.header).is_some() {
                return Ok(false);
            }
            let is_judged = state.redactions.is_judged(&id);
            if is_news {
                state.redactions.forget(&id);
            }
            return Err(if is_judged {
                Verdict::Reject(crate::RejectReason::Withheld)
            } else {
                Verdict::Wait(crate::Missing::Authority)
            });
        }
        let redaction = state
            .redaction_of(&fragment.id, &fragment.header)
            .map(|notice| notice.envelope.clone());
        let Some(redaction) = redaction else {
            return Ok(false);
        };
        *fragment = fragment.clone().without_body(redaction);
        Ok(true)
    }

    /// Takes the bodies of those of these fragments that are redacted, and has those fetched again
    /// whose redaction does not count any more. Returns the spaces of which the view has to hear of
    /// something again.
    pub(super) fn redact(&self, ids: &BTreeSet<FragmentId>) -> BTreeSet<SpaceId> {
        let mut doomed = Doomed::default();
        let mut back = Vec::new();
        for id in ids {
            let Some(row) = self.index.find(&Hash::from(*id)) else {
                continue;
            };
            let Some(fragment) = self.read_fragment(&row) else {
                continue;
            };
            if self.is_redacted(id, &fragment.header) {
                self.doom(&row, fragment, &mut doomed);
            } else if fragment.is_bare() || self.view.is_redacted(id) {
                back.push((row, fragment));
            }
        }
        let mut renewed = BTreeSet::new();
        if !doomed.documents.is_empty() || !doomed.bodies.is_empty() {
            self.take_bodies(doomed, &mut renewed);
        }
        self.give_back(back, &mut renewed);
        renewed
    }

    fn doom(&self, row: &Row, fragment: Fragment, doomed: &mut Doomed) {
        let header = &fragment.header;
        if fragment.body.is_some() {
            let mut record = fragment.stripped().to_vec();
            record.resize(row.loc.len as usize, 0);
            doomed.records.push((row.loc, record));
        }
        if header.body_is_blob() {
            doomed.bodies.insert(header.body_hash);
        }
        if fragment.body.is_some() || !self.view.is_redacted(&fragment.id) {
            doomed.documents.insert(fragment.id, doc_key_of(header));
            doomed.told.push(redacted(fragment.id, fragment.header));
        }
    }

    fn take_bodies(&self, doomed: Doomed, renewed: &mut BTreeSet<SpaceId>) {
        let Doomed {
            records,
            bodies,
            documents,
            told,
        } = doomed;
        let is_shown = documents.keys().any(|id| self.view.has_seen(id));
        let is_work = is_shown
            || !records.is_empty()
            || bodies
                .iter()
                .any(|body| self.disk.exists(&bodies::name(body)));
        // Held throughout, so that the files are not rewritten in between and taken for clean.
        let mut purging = self.purging();
        if is_work {
            info!(fragments = documents.len(), "bodies are redacted");
            purging.extend(&documents);
            if let Err(error) = self.note_under_way(purging.keys()) {
                error!(%error, "a crash now may leave what is redacted in the view's files");
            }
        }
        self.forget_fresh_wires(documents.keys());
        if let Err(error) = self.log.strip(&records) {
            error!(%error, "a redacted body stays on the disk until the node starts again");
        }
        for body in bodies {
            self.remove_body(&body);
        }
        match self.view.evict(&documents) {
            Ok(true) => renewed.extend(documents.values().map(|key| key.space)),
            Ok(false) => {}
            Err(error) => warn!(%error, "the view could not forget what was redacted"),
        }
        self.view
            .apply_all(self.applier.applied(), Vec::new(), told);
    }

    /// Returns the bodies of their own files that are redacted here and named by nobody else.
    pub(super) fn redacted_bodies(&self) -> Vec<Hash> {
        let targets = self.state().redactions.targets();
        let mut bodies = BTreeSet::new();
        for fragment in targets.iter().filter_map(|id| self.fragment(id)) {
            let header = &fragment.header;
            if header.body_is_blob() && self.is_redacted(&fragment.id, header) {
                bodies.insert(header.body_hash);
            }
        }
        bodies.retain(|body| !self.is_named(body));
        bodies.into_iter().collect()
    }

    /// Returns whether a fragment that is not redacted names this body.
    fn is_named(&self, body: &Hash) -> bool {
        self.rows_with_body(body).iter().any(|row| {
            let fragment = self.read_fragment(row);
            fragment.is_some_and(|fragment| !self.is_redacted(&fragment.id, &fragment.header))
        })
    }

    /// Removes a body's file, unless a fragment that is not redacted names the same one.
    fn remove_body(&self, body: &Hash) {
        if self.is_named(body) {
            return;
        }
        self.state().wanted.remove(body);
        let name = bodies::name(body);
        // A crash may have left half of it.
        let _ = self.disk.remove(&bodies::partial(body));
        if self.disk.exists(&name)
            && let Err(error) = self
                .disk
                .remove(&name)
                .and_then(|()| self.disk.sync_dir(bodies::DIR))
        {
            error!(%error, "a redacted body stays on the disk until the node starts again");
        }
        // Without a listener there is nobody to tell.
        let _ = self.events.send(Event::BodyGone(*body));
    }

    /// Has fragments fetched again whose redaction does not count any more.
    fn give_back(&self, back: Vec<(Row, Fragment)>, renewed: &mut BTreeSet<SpaceId>) {
        if back.is_empty() {
            return;
        }
        let mut documents = BTreeMap::new();
        for (row, fragment) in back {
            let header = &fragment.header;
            documents.insert(fragment.id, doc_key_of(header));
            renewed.insert(header.space);
            if header.body_is_blob() {
                if !self.has_body(&header.body_hash) {
                    let mut state = self.state();
                    let wanting = state.wanted.entry(header.body_hash).or_default();
                    wanting.insert(fragment.id);
                    drop(state);
                    let _ = self.events.send(Event::BodyWanted(header.body_hash));
                }
            } else if fragment.is_bare() {
                self.lose(&row);
            }
        }
        if let Err(error) = self.view.evict(&documents) {
            warn!(%error, "the view could not forget a redaction that does not count");
        }
    }

    /// Has a stored fragment fetched from a peer again: it leaves its set, and its position in its
    /// chain stays taken.
    pub(super) fn lose(&self, row: &Row) {
        let RowKind::Fragment {
            space, author, seq, ..
        } = &row.kind
        else {
            // The log of records is in memory, whole: it goes on being served from there.
            return;
        };
        self.state().admission.lose(*author, *space, *seq);
        let set = self.id_set(Lane::Space(*space));
        set.write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&row.id);
    }

    /// Rewrites the files of the view without what was redacted; whoever comes second waits.
    pub(super) fn purge_view(&self) {
        let mut purging = self.purging();
        if purging.is_empty() {
            return;
        }
        let documents: BTreeSet<DocKey> = purging.values().copied().collect();
        match self.view.purge(&documents) {
            Ok(()) => {
                purging.clear();
                self.forget_under_way();
            }
            Err(error) => {
                error!(%error, "what was redacted stays in the view's files until they are rewritten");
            }
        }
    }

    /// Returns whether the files of the view hold something that was redacted.
    pub(super) fn is_purge_due(&self) -> bool {
        !self.purging().is_empty()
    }

    /// Takes up what a crash left under way; returns what is to be looked at.
    pub(super) fn restore_redactions(&self) -> BTreeSet<FragmentId> {
        let text = fs::read_to_string(self.dir.join(UNDER_WAY)).unwrap_or_default();
        let under_way: BTreeSet<FragmentId> =
            text.lines().filter_map(|line| line.parse().ok()).collect();
        for id in &under_way {
            if let Some(fragment) = self.fragment(id) {
                let key = doc_key_of(&fragment.header);
                self.purging().insert(*id, key);
            }
        }
        let mut targets = self.state().redactions.targets();
        targets.extend(under_way);
        targets
    }

    /// Lists what is under way, durably.
    fn note_under_way<'a>(&self, ids: impl Iterator<Item = &'a FragmentId>) -> io::Result<()> {
        let text: String = ids.map(|id| format!("{id}\n")).collect();
        let (name, partial) = (
            self.dir.join(UNDER_WAY),
            self.dir.join(format!("{UNDER_WAY}.part")),
        );
        let mut file = File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, &name)?;
        File::open(&self.dir)?.sync_all()
    }

    fn forget_under_way(&self) {
        match fs::remove_file(self.dir.join(UNDER_WAY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(%error, "what was redacted is looked for again by the next start");
            }
            _ => {}
        }
    }
}

/// Returns what the view is told of a fragment whose body was redacted.
pub(super) fn redacted(id: FragmentId, header: Header) -> Opened {
    Opened {
        id,
        header,
        change: Bytes::new(),
    }
}
