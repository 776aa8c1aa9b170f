//! A node's copy of everything it may hold.
//!
//! A publish: the author's chain is locked, the view composes the change (that of a new document is
//! composed before, apart), the fragment is encrypted and signed and joins the queue of the
//! [`journal`]; whoever waits first writes and syncs for all
//! ([group commit](journal)); then the publisher returns, listeners hear of it, and a thread of its
//! own applies it to the view ([`applier`]). Readers wait until the view has caught up with what
//! was durable when they asked, so that a publish can be recalled at once.
//!
//! Locks, in the order in which they may be taken: records, admitting, a chain, view, state, the
//! index, a set. The journal's queue and the log are locked by nobody who waits for another one.

mod admit;
mod applier;
mod bodies;
mod error;
mod journal;
mod known;
mod open;
mod publish;
mod reach;
mod read;
mod records;
mod redact;
mod request;
mod restored;
mod state;
#[cfg(test)]
mod tests;
mod voices;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    thread::JoinHandle,
};

use bytes::Bytes;
use rhizome_identity::{
    AgentId, AgentKey, Authority, Hash, NodeId, NodeKey, PublicKey, SignedRecord, SpaceId,
    SpaceKey, record::Cut,
};
use tokio::sync::broadcast;

use self::state::Inner;
pub use self::{
    error::{OpenError, PublishError, ReplicaError},
    request::{
        AdmitOutcome, CheckpointRequest, Edited, FileRequest, Fork, PublishRequest, Published,
        RecordOutcome, RedactRequest, Redacted, ReplicaConfig, SpaceStats,
    },
};
use crate::store::RecoveryReport;
use crate::{
    ContextState, ContextSummary, DocId, Event, FilePath, FileSummary, FragmentId, Hit, IdSet,
    Lane, ListPage, ListQuery, MemoryItem, RecallError, RecallQuery, RedactedBy, ShareUse,
    Standing, StorePoint, Verification, Voice, WatchEvent, Why, view::What,
};

/// A node's durable copy of the authority log and of its spaces, with the view on them.
///
/// Cheap to clone. Most methods read or wait for the disk: call them from a blocking task.
#[derive(Debug, Clone)]
pub struct Replica(Arc<Running>);

/// Stops the applier when the last clone is dropped.
#[derive(Debug)]
struct Running {
    inner: Arc<Inner>,
    applier: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.applier.stop();
        if let Some(applier) = self.applier.take() {
            // It may have panicked; it has said so, and there is nothing left to do for it.
            let _ = applier.join();
        }
    }
}

impl Replica {
    /// Opens or creates the replica in `dir`; the directory is locked while it is open.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process, or this one, has it open; the others say what
    /// cannot be used. A damaged index or view is no error: it is built anew.
    pub fn open(dir: &Path, node: NodeKey, config: ReplicaConfig) -> Result<Self, OpenError> {
        Self::open_real(dir, node, config)
    }

    /// Returns what recovery found.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner().recovery
    }

    /// Returns this node's id.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.inner().node
    }

    /// Returns who may do what.
    #[must_use]
    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.inner().rights().authority)
    }

    /// Appends records made here; durable and in effect on return.
    ///
    /// # Errors
    /// [`ReplicaError`] if one belongs to another mesh or names a parent that is not here, or if
    /// the disk fails.
    pub fn append_records(&self, records: Vec<SignedRecord>) -> Result<(), ReplicaError> {
        self.inner().append_records(records)
    }

    /// Takes in records that a peer offers, in any order; those stored are durable on return.
    pub fn admit_records(&self, from: Option<NodeId>, records: Vec<Bytes>) -> Vec<RecordOutcome> {
        self.inner().admit_records(from, &records)
    }

    /// Returns how the shares of authors, nodes and spaces stand, those that are used most first.
    #[must_use]
    pub fn shares(&self) -> Vec<ShareUse> {
        self.inner().shares().report()
    }

    /// Returns a space's key, if this node was given it.
    #[must_use]
    pub fn space_key(&self, space: &SpaceId, epoch: u32) -> Option<SpaceKey> {
        self.inner()
            .rights()
            .keys
            .current
            .get(&(*space, epoch))
            .cloned()
    }

    /// Publishes a memory; durable on return.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published then, except where it says otherwise.
    pub fn publish(
        &self,
        agent: &AgentKey,
        request: PublishRequest,
    ) -> Result<Published, PublishError> {
        let what = What::Draft(&request.draft);
        let published = self
            .inner()
            .publish(agent, request.space, request.fingerprint, what)?;
        Ok(published.0)
    }

    /// Edits a file as it stands; durable on return.
    ///
    /// # Errors
    /// [`PublishError`]; [`crate::ComposeError::File`] if the file is not as the edit needs it.
    pub fn edit_file(
        &self,
        agent: &AgentKey,
        request: &FileRequest,
    ) -> Result<Edited, PublishError> {
        // An edit is of the file as it stands: with all that is durable here.
        self.inner().caught_up();
        let what = What::File(&request.path, &request.edit);
        let (published, text) =
            self.inner()
                .publish(agent, request.space, request.fingerprint, what)?;
        let text = text.expect("an edit of a file says what it left");
        Ok(Edited { published, text })
    }

    /// Returns a file that stands.
    ///
    /// # Errors
    /// If the view fails.
    pub fn file(
        &self,
        space: &SpaceId,
        path: &FilePath,
    ) -> Result<Option<MemoryItem>, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.file_judged(space, path, judge))?)
    }

    /// Lists the files of a space that stand, in the order of their paths.
    ///
    /// # Errors
    /// If the view fails.
    pub fn files(&self, space: &SpaceId) -> Result<Vec<FileSummary>, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.files_judged(space, judge))?)
    }

    /// Publishes several memories of one author in their order, with one write and one sync for as
    /// many as there are; those that succeeded are durable on return. The answers are in the order
    /// of the requests.
    pub fn publish_all(
        &self,
        agent: &AgentKey,
        requests: &[PublishRequest],
    ) -> Vec<Result<Published, PublishError>> {
        self.inner().publish_all(agent, requests)
    }

    /// Changes the working context of a task; durable on return.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published then, except where it says otherwise.
    pub fn checkpoint(
        &self,
        agent: &AgentKey,
        request: CheckpointRequest,
    ) -> Result<Published, PublishError> {
        let what = What::Patch(&request.task, &request.patch);
        let published = self
            .inner()
            .publish(agent, request.space, request.fingerprint, what)?;
        Ok(published.0)
    }

    /// Redacts a document: publishes what takes the bodies of its fragments for good, as far as the
    /// agent may, here and on every node that hears of it. On return it is durable, the bodies are
    /// off this node's disk, and nothing here shows what they said.
    ///
    /// # Errors
    /// [`PublishError::NothingToRedact`] if nothing of the document is here,
    /// [`PublishError::NotRedactable`] if the agent may take none of it.
    pub fn redact(
        &self,
        agent: &AgentKey,
        request: &RedactRequest,
    ) -> Result<Redacted, PublishError> {
        self.inner().publish_redaction(agent, request)
    }

    /// Returns the bodies that were redacted here, as far as they had files of their own and no other
    /// fragment names them: whoever keeps them elsewhere lets them go.
    #[must_use]
    pub fn redacted_bodies(&self) -> Vec<Hash> {
        self.inner().redacted_bodies()
    }

    /// Returns who redacted a document, if somebody did.
    #[must_use]
    pub fn redacted(&self, space: &SpaceId, doc: &DocId) -> Option<RedactedBy> {
        self.inner().redacted_doc(space, doc)
    }

    /// Takes in fragments that a peer offers, in any order; those admitted are durable on return.
    ///
    /// The outcomes are in the order of `wires`.
    pub fn admit(&self, from: NodeId, wires: Vec<Bytes>) -> Vec<AdmitOutcome> {
        self.inner().admit(from, &wires)
    }

    /// Returns whether an item of any lane is stored here.
    #[must_use]
    pub fn holds(&self, id: &FragmentId) -> bool {
        self.inner().holds(&Hash::from(*id))
    }

    /// Returns an item's place in the order of arrival on this node.
    #[must_use]
    pub fn arrival(&self, lane: Lane, id: &Hash) -> Option<u64> {
        self.inner().arrival(lane, id)
    }

    /// Returns the wire form of those items that are here, in the order of `ids`, up to
    /// `max_bytes` in all; a first item that is longer alone is returned all the same.
    #[must_use]
    pub fn wires(&self, lane: Lane, ids: &[Hash], max_bytes: usize) -> Vec<Bytes> {
        self.inner().wires(lane, ids, max_bytes)
    }

    /// Takes the wire form of an own fragment from memory if it became durable moments ago; each is
    /// there once, and needs no disk.
    #[must_use]
    pub fn take_fresh_wire(&self, id: &Hash) -> Option<Bytes> {
        self.inner().take_fresh_wire(id)
    }

    /// Returns the ids of a lane, for reconciliation.
    #[must_use]
    pub fn id_set(&self, lane: Lane) -> Arc<RwLock<IdSet>> {
        self.inner().id_set(lane)
    }

    /// Returns the lanes this node takes part in: the authority log, and the spaces granted to it.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        self.inner().lanes()
    }

    /// Returns the bodies that fragments here name and that are not here.
    #[must_use]
    pub fn missing_bodies(&self) -> Vec<Hash> {
        self.inner().state().wanted.keys().copied().collect()
    }

    /// Stores a body that a fragment here names; durable on return.
    ///
    /// # Errors
    /// [`ReplicaError`] if no fragment wants it, if it is not what `hash` says, or if the disk
    /// fails.
    pub fn put_body(&self, hash: Hash, body: Bytes) -> Result<(), ReplicaError> {
        self.inner().put_body(hash, &body)
    }

    /// Returns the file of a body that is here.
    #[must_use]
    pub fn body_path(&self, hash: Hash) -> Option<PathBuf> {
        self.inner().body_path(hash)
    }

    /// Returns a listener for what becomes durable from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner().events.subscribe()
    }

    /// Returns the memories that changed after `after`, in the order of arrival; contexts are not
    /// among them. A memory whose long body came later is told of when the body comes. At most [`crate::MAX_WATCH`]: fewer than `limit` means there are no more.
    #[must_use]
    pub fn watch(&self, space: Option<SpaceId>, after: u64, limit: usize) -> Vec<WatchEvent> {
        self.inner().watch(space, after, limit)
    }

    /// Returns the place in the order of arrival of the last thing that [`Self::watch`] knows of.
    #[must_use]
    pub fn last_arrival(&self) -> u64 {
        self.inner().last_arrival()
    }

    /// Searches memories.
    ///
    /// # Errors
    /// See [`RecallError`].
    pub fn recall(&self, query: &RecallQuery) -> Result<Vec<Hit>, RecallError> {
        let reader = self.inner().caught_up_reader();
        self.inner()
            .judged(|judge| reader.recall_judged(query, judge, &|_| true))
    }

    /// Searches those memories that pass a test; it is asked of what would be found, best first,
    /// until there is enough.
    ///
    /// # Errors
    /// See [`RecallError`].
    pub fn recall_where(
        &self,
        query: &RecallQuery,
        passes: &dyn Fn(&MemoryItem) -> bool,
    ) -> Result<Vec<Hit>, RecallError> {
        let reader = self.inner().caught_up_reader();
        self.inner()
            .judged(|judge| reader.recall_judged(query, judge, passes))
    }

    /// Says which agents and nodes this node's owner does not trust: what they say stands below
    /// everything else, and replaces nothing.
    pub fn distrust(&self, keys: BTreeSet<PublicKey>) {
        self.inner().distrust(keys);
    }

    /// Says how far a voice is taken at its word here and now.
    #[must_use]
    pub fn standing(&self, voice: &Voice) -> Standing {
        self.inner().judged(|judge| judge(voice))
    }

    /// Returns every statement of a memory, of those it replaces and of those that replace it, the
    /// latest first, retracted ones as well.
    ///
    /// # Errors
    /// If the view fails.
    pub fn history(&self, space: &SpaceId, doc: &DocId) -> Result<Vec<MemoryItem>, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.history(space, doc, judge))?)
    }

    /// Returns the oldest memory that says what `same` stands for ([`crate::same_text`]), as far as
    /// the view has got.
    ///
    /// # Errors
    /// If the view fails.
    pub fn same(
        &self,
        space: &SpaceId,
        same: &[u8; 32],
    ) -> Result<Option<MemoryItem>, ReplicaError> {
        let reader = self.inner().reader();
        Ok(self
            .inner()
            .judged(|judge| reader.same(space, same, judge))?)
    }

    /// Returns a memory, also one that was retracted; nothing of an author that was revoked.
    ///
    /// # Errors
    /// If the view fails.
    pub fn memory(&self, space: &SpaceId, doc: &DocId) -> Result<Option<MemoryItem>, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.memory_judged(space, doc, judge))?)
    }

    /// Lists memories, the newest first.
    ///
    /// # Errors
    /// If the view fails.
    pub fn list(&self, query: &ListQuery) -> Result<Vec<MemoryItem>, ReplicaError> {
        self.page(query).map(|page| page.items)
    }

    /// Lists memories, with the place where the list goes on.
    ///
    /// # Errors
    /// If the view fails.
    pub fn page(&self, query: &ListQuery) -> Result<ListPage, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.page_judged(query, judge))?)
    }

    /// Returns the working context of a task.
    ///
    /// # Errors
    /// If the view fails.
    pub fn context(
        &self,
        space: &SpaceId,
        task: &str,
    ) -> Result<Option<ContextState>, ReplicaError> {
        let view = self.inner().caught_up();
        Ok(self
            .inner()
            .judged(|judge| view.context_judged(space, task, judge))?)
    }

    /// Lists working contexts, the newest first.
    ///
    /// # Errors
    /// If the view fails.
    pub fn contexts(&self, space: Option<SpaceId>) -> Result<Vec<ContextSummary>, ReplicaError> {
        let reader = self.inner().caught_up_reader();
        Ok(self
            .inner()
            .judged(|judge| reader.contexts_judged(space.as_ref(), judge))?)
    }

    /// Re-reads every fragment of a context from disk and checks hash, signature, chain and
    /// authority again.
    ///
    /// # Errors
    /// If the view fails. A fragment that cannot be read is no error but a finding.
    pub fn verify_context(
        &self,
        space: &SpaceId,
        task: &str,
    ) -> Result<Verification, ReplicaError> {
        self.inner().verify_context(space, task)
    }

    /// Explains a fragment; `None` if it is not here.
    ///
    /// # Errors
    /// If the fragment cannot be read back.
    pub fn why(&self, id: &FragmentId) -> Result<Option<Why>, ReplicaError> {
        self.inner().why(*id)
    }

    /// Returns the cuts by which a revocation leaves all that counts here of the chains of `authors`;
    /// with `also_aside` all that is here of them, as an Amend names it that gives it back.
    #[must_use]
    pub fn cuts_of(&self, authors: &[AgentId], also_aside: bool) -> Vec<Cut> {
        self.inner().cuts_of(authors, also_aside)
    }

    /// Returns the last fragment of a chain that its author dates before `at_ms`, as a cut.
    #[must_use]
    pub fn cut_before(&self, author: &AgentId, space: &SpaceId, at_ms: u64) -> Option<Cut> {
        self.inner().cut_before(author, space, at_ms)
    }

    /// Returns how many fragments of a chain are here and do not count.
    #[must_use]
    pub fn set_aside(&self, author: &AgentId, space: &SpaceId) -> u64 {
        self.inner().set_aside(author, space)
    }

    /// Returns whether this store was put back from a copy and has not been compared with a peer
    /// since in every space: until then nothing is published in the others.
    #[must_use]
    pub fn is_unconfirmed_copy(&self) -> bool {
        self.inner().copy().is_suspect
    }

    /// Returns how many fragments of this node's own agents came back from peers since the start.
    #[must_use]
    pub fn refetched(&self) -> u64 {
        self.inner().copy().refetched
    }

    /// Notes that all that a peer holds of a space is here.
    pub fn note_compared(&self, space: SpaceId) {
        self.inner().note_compared(space);
    }

    /// Takes a store that was put back from a copy for the whole, although no peer was asked. What
    /// its agents published since the copy was made then counts as another history of theirs.
    pub fn accept_copy(&self) {
        self.inner().accept_copy();
    }

    /// Returns what of the store belongs to this moment: all that was acknowledged before, and no
    /// half of anything. The files only grow, so whoever copies as much of them as is said, each within
    /// [`Self::unchanging`], has a store as it was now, but for what was redacted meanwhile.
    ///
    /// # Errors
    /// If the directory cannot be looked at.
    pub fn point(&self) -> io::Result<StorePoint> {
        self.inner().point()
    }

    /// Does something while no stored record is overwritten: a redaction takes bodies in place.
    pub fn unchanging<T>(&self, read: impl FnOnce() -> T) -> T {
        self.inner().log.unchanging(read)
    }

    /// Returns the authors that signed two histories, one contradiction each.
    #[must_use]
    pub fn forks(&self) -> Vec<Fork> {
        self.inner().state().forks.values().copied().collect()
    }

    /// Returns what a space amounts to here.
    #[must_use]
    pub fn sync_state(&self, space: &SpaceId) -> SpaceStats {
        self.inner().sync_state(space)
    }

    /// Writes index and view up to what is durable already, so that the next start is quick.
    ///
    /// # Errors
    /// If the view fails.
    pub fn flush(&self) -> Result<(), ReplicaError> {
        self.inner().flush()
    }

    /// Flushes and refuses all further writes.
    ///
    /// # Errors
    /// If the disk fails; what was acknowledged is durable all the same.
    pub fn close(&self) -> Result<(), ReplicaError> {
        self.inner().close()
    }

    fn inner(&self) -> &Inner {
        &self.0.inner
    }
}
