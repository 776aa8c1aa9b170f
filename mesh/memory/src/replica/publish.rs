//! Publishing: from a draft to a durable fragment.
//!
//! Most of it is done with nothing locked: composing, unless others write the same document, and
//! signing. What has to be done one after the other is giving a fragment its place: with the
//! author's chain locked it gets its position, is encrypted (the position is part of what the
//! encryption vouches for) and hashed, and takes the next place in the [`journal`](super::journal).
//! The next one can then follow it while it is being signed.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rhizome_identity::{AgentKey, Hash, SpaceId, SpaceKey, epoch::random_nonce, seal_body};

use super::{
    applier::BODY_VERSION,
    error::PublishError,
    journal::{Item, Reserved, Ticket},
    request::{PublishRequest, Published, RedactRequest, Redacted},
    state::{ChainTip, Inner},
};
use crate::{
    ComposeContext, ComposeError, Composed, FRAGMENT_VERSION, FileText, Fragment, FragmentId,
    Header, Hlc, Kind, LogError, MAX_AUTH_HEADS, MAX_BODY, MAX_REASON, Share, View,
    fragment::Unsigned,
    now_ms,
    redaction::{MAX_TARGETS, Right},
    view::What,
};

/// How often a publish begins anew because what it built on is gone, or because too many changes of
/// its document are under way, before it gives up.
const ATTEMPTS: usize = 100;

/// Memories of one batch that are composed before the first of them is waited for: fewer than one
/// document may have under way.
const BATCH: usize = 128;

/// What is known of the space before a chain is locked.
struct Template {
    key: SpaceKey,
    /// Everything a header says that does not depend on the change.
    header: Header,
}

/// What was so before a change was composed, and has to be so still when it takes its place.
#[derive(Debug, Clone, Copy)]
struct Since {
    /// No write has failed: one might have been of what the change builds on.
    generation: u64,
    /// The view knew all that this node's agents wrote.
    composable: u64,
}

/// A fragment in its place, but for the signature.
struct Placed<'a> {
    unsigned: Unsigned,
    reserved: Reserved<'a>,
}

/// A fragment that waits to be written.
struct Begun {
    composed: Composed,
    fragment: Arc<Fragment>,
    ticket: Arc<Ticket>,
}

/// Why a change got no place.
enum Unplaced {
    /// What it was composed upon may be gone, or is not all there is: compose it anew.
    Stale,
    Refused(PublishError),
}

impl From<PublishError> for Unplaced {
    fn from(error: PublishError) -> Self {
        Self::Refused(error)
    }
}

impl From<ComposeError> for Unplaced {
    fn from(error: ComposeError) -> Self {
        Self::Refused(PublishError::Compose(error))
    }
}

impl Inner {
    pub(super) fn publish(
        &self,
        agent: &AgentKey,
        space: SpaceId,
        fingerprint: Hash,
        what: What<'_>,
    ) -> Result<(Published, Option<FileText>), PublishError> {
        let mut begun = self.begin(agent, space, fingerprint, what)?;
        let file = begun.composed.file.take();
        Ok((self.finish(begun)?, file))
    }

    /// Publishes several memories of one author, in their order, with one write and one sync for
    /// as many as there are.
    ///
    /// The answers are in the order of the requests; after one that failed, the others are tried
    /// all the same.
    pub(super) fn publish_all(
        &self,
        agent: &AgentKey,
        requests: &[PublishRequest],
    ) -> Vec<Result<Published, PublishError>> {
        let mut published = Vec::with_capacity(requests.len());
        // What is queued is held in memory until somebody waits for it.
        for some in requests.chunks(BATCH) {
            let mut begun = Vec::with_capacity(some.len());
            for request in some {
                let what = What::Draft(&request.draft);
                // A document that this batch has written too often already has to see it applied.
                begun.push(self.begin(agent, request.space, request.fingerprint, what));
            }
            for begun in begun {
                published.push(begun.and_then(|begun| self.finish(begun)));
            }
        }
        published
    }

    /// Publishes what redacts a document, and takes the bodies here.
    pub(super) fn publish_redaction(
        &self,
        agent: &AgentKey,
        request: &RedactRequest,
    ) -> Result<Redacted, PublishError> {
        let RedactRequest { space, doc, .. } = *request;
        let size = request.reason.len();
        if size > MAX_REASON {
            return Err(PublishError::LongReason { size });
        }
        let mut template = self.template(agent, space, request.fingerprint)?;
        template.header.doc = doc;
        let (taken, left) = self.redactable(&template.header, request.own_only)?;
        if taken.is_empty() {
            return Err(match left {
                0 => PublishError::NothingToRedact(doc),
                _ => PublishError::NotRedactable(doc),
            });
        }
        let mut published = Vec::new();
        for targets in taken.chunks(MAX_TARGETS) {
            let composed = Composed {
                doc,
                kind: Kind::Redaction,
                change: request.reason.clone().into_bytes(),
                deps: targets.to_vec(),
                file: None,
            };
            let mut attempts = 0..ATTEMPTS;
            let placed = loop {
                let now = self.compose_context(&template).now;
                match self.take_place(agent, &template, now, &composed, None) {
                    Ok(placed) => break placed,
                    Err(Unplaced::Refused(error)) => return Err(error),
                    Err(Unplaced::Stale) if attempts.next().is_some() => {}
                    Err(Unplaced::Stale) => {
                        return Err(PublishError::Storage(LogError::Interrupted));
                    }
                }
            };
            published.push(self.finish(fill(agent, composed, placed))?);
        }
        self.caught_up();
        self.purge_view();
        Ok(Redacted {
            published,
            taken: taken.len(),
            left,
        })
    }

    /// Returns what an agent may redact of a document, and how much of it it may not.
    fn redactable(
        &self,
        redaction: &Header,
        own_only: bool,
    ) -> Result<(Vec<FragmentId>, usize), PublishError> {
        let fragments = self
            .caught_up()
            .fragments_of(&redaction.space, &redaction.doc)
            .map_err(|error| PublishError::Compose(ComposeError::View(error)))?;
        let state = self.state();
        let right = Right::of(&state.records, redaction).unwrap_or_default();
        drop(state);
        let mut taken = Vec::new();
        let mut left = 0;
        for id in fragments {
            let Some(fragment) = self.fragment(&id) else {
                continue;
            };
            let header = &fragment.header;
            let is_of = (header.space, header.doc) == (redaction.space, redaction.doc);
            if !is_of || header.kind == Kind::Redaction || self.is_redacted(&id, header) {
                continue;
            }
            let is_own = header.author == redaction.author;
            if is_own || (!own_only && right.takes(redaction, header)) {
                taken.push(id);
            } else {
                left += 1;
            }
        }
        Ok((taken, left))
    }

    /// Composes and signs a change and puts it into the queue.
    fn begin(
        &self,
        agent: &AgentKey,
        space: SpaceId,
        fingerprint: Hash,
        what: What<'_>,
    ) -> Result<Begun, PublishError> {
        let template = self.template(agent, space, fingerprint)?;
        let mut attempts = 0..ATTEMPTS;
        loop {
            let placed = match what {
                // Its document is new and depends on nothing.
                What::Draft(draft) if draft.key.is_none() => {
                    let ctx = self.compose_context(&template);
                    let composed = View::compose_new(ctx, draft).map_err(PublishError::Compose)?;
                    self.take_place(agent, &template, ctx.now, &composed, None)
                        .map(|placed| (composed, placed))
                }
                what => self.compose_shared(agent, &template, what),
            };
            let refused = match placed {
                Ok((composed, placed)) => return Ok(fill(agent, composed, placed)),
                Err(Unplaced::Stale) => PublishError::Storage(LogError::Interrupted),
                Err(Unplaced::Refused(error @ PublishError::Compose(ComposeError::Busy))) => {
                    self.applier.wait_for_progress();
                    error
                }
                Err(Unplaced::Refused(error)) => return Err(error),
            };
            if attempts.next().is_none() {
                return Err(refused);
            }
        }
    }

    /// Composes on a document that others may write as well, and takes a place, with the document
    /// locked throughout: the next change has to find this one's fragment named.
    fn compose_shared(
        &self,
        agent: &AgentKey,
        template: &Template,
        what: What<'_>,
    ) -> Result<(Composed, Placed<'_>), Unplaced> {
        let since = Since {
            composable: self.applier.wait_until_composable(self),
            generation: self.journal.generation(),
        };
        let ctx = self.compose_context(template);
        self.view.compose_named(ctx, what, |composed| {
            let placed = self.take_place(agent, template, ctx.now, composed, Some(since))?;
            let promise = placed.reserved.promise();
            Ok((placed.unsigned.id, promise, placed))
        })
    }

    /// Gives a composed change its position in the author's chain and its place in the journal.
    fn take_place(
        &self,
        agent: &AgentKey,
        template: &Template,
        now: Hlc,
        composed: &Composed,
        since: Option<Since>,
    ) -> Result<Placed<'_>, Unplaced> {
        let space = template.header.space;
        let chain = self.chain(space, agent.id());
        let mut tip = chain.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.current_tip(*tip, agent, space)?;
        if let Some(since) = since
            && (since.generation != at.generation
                || !self.applier.is_composable_since(since.composable))
        {
            return Err(Unplaced::Stale);
        }
        let unsigned = seal(template, now, at, composed)?;
        if let Share::Spent(spent) = self.shares().take(&unsigned.header, now_ms()) {
            return Err(PublishError::OverShare(spent).into());
        }
        let Ok(reserved) = self.journal.reserve(at.generation) else {
            // A write failed since: whatever this follows may be gone.
            *tip = None;
            return Err(Unplaced::Stale);
        };
        *tip = Some(ChainTip {
            next_seq: at.next_seq + 1,
            prev: Some(unsigned.id),
            ..at
        });
        Ok(Placed { unsigned, reserved })
    }

    /// Waits until a fragment is durable.
    fn finish(&self, begun: Begun) -> Result<Published, PublishError> {
        let Begun {
            composed,
            fragment,
            ticket,
        } = begun;
        let header = &fragment.header;
        match self.journal.wait(self, &ticket) {
            Ok(arrival) => Ok(Published {
                id: fragment.id,
                doc: composed.doc,
                seq: header.seq,
                hlc: header.hlc,
                arrival,
            }),
            Err(error) => {
                self.view.release(&header.space, &composed);
                Err(PublishError::Storage(error))
            }
        }
    }

    fn template(
        &self,
        agent: &AgentKey,
        space: SpaceId,
        fingerprint: Hash,
    ) -> Result<Template, PublishError> {
        let now_ms = now_ms();
        let rights = self.rights();
        let authority = &rights.authority;
        let mesh = authority.mesh().ok_or(PublishError::NoMesh)?;
        let info = authority
            .space(&space)
            .ok_or(PublishError::UnknownSpace(space))?;
        let epoch = info.epoch;
        authority
            .may_write(&agent.id(), &self.node, &space, now_ms)
            .map_err(|source| PublishError::Denied { space, source })?;
        if self.is_suspect(&space) {
            return Err(PublishError::Restored(space));
        }
        let key = rights.keys.current.get(&(space, epoch)).cloned();
        let key = key.ok_or(PublishError::NoKey { space, epoch })?;
        let mut auth_heads = authority.heads().to_vec();
        auth_heads.sort_unstable();
        auth_heads.truncate(MAX_AUTH_HEADS);
        let header = Header {
            version: FRAGMENT_VERSION,
            mesh,
            space,
            author: agent.id(),
            node: self.node,
            seq: 0,
            prev: None,
            auth_heads,
            deps: Vec::new(),
            hlc: Hlc::default(),
            kind: Kind::Observation,
            doc: crate::DocId::from_bytes([0; 32]),
            fingerprint,
            epoch,
            nonce: [0; 24],
            body_hash: Hash::from_bytes([0; 32]),
            body_len: 0,
        };
        Ok(Template { key, header })
    }

    /// Returns where the chain goes on, anew from what is durable if a write has failed since.
    fn current_tip(
        &self,
        tip: Option<ChainTip>,
        agent: &AgentKey,
        space: SpaceId,
    ) -> Result<ChainTip, PublishError> {
        let generation = self.journal.generation();
        if let Some(tip) = tip
            && tip.generation == generation
        {
            return Ok(tip);
        }
        // What was queued under an earlier generation has failed, and what was written before that
        // is known to the admission, so its head is the end of the chain.
        let state = self.state();
        if let Some(seq) = state.admission.gap(&agent.id(), &space) {
            return Err(PublishError::ChainBroken { space, seq });
        }
        Ok(match state.admission.head(&agent.id(), &space) {
            Some((seq, id)) => ChainTip {
                generation,
                next_seq: seq + 1,
                prev: Some(id),
            },
            None => ChainTip {
                generation,
                next_seq: 0,
                prev: None,
            },
        })
    }

    /// Returns who composes and where, at a moment that no other change has.
    fn compose_context(&self, template: &Template) -> ComposeContext {
        ComposeContext {
            author: template.header.author,
            node: self.node,
            now: self.clock().tick(now_ms()),
            space: template.header.space,
        }
    }
}

/// Signs a fragment and hands it to the journal.
fn fill(agent: &AgentKey, composed: Composed, placed: Placed<'_>) -> Begun {
    let Placed { unsigned, reserved } = placed;
    let file = unsigned.blob();
    let fragment = Arc::new(unsigned.sign(agent));
    let wire = fragment.encode();
    let item = Item::Fragment {
        fragment: Arc::clone(&fragment),
        own: true,
        change: Some(Bytes::from(composed.change.clone())),
        file,
    };
    let ticket = reserved.fill(item, wire);
    Begun {
        composed,
        fragment,
        ticket,
    }
}

/// Encrypts what was composed, at its position in the chain.
fn seal(
    template: &Template,
    now: Hlc,
    at: ChainTip,
    composed: &Composed,
) -> Result<Unsigned, PublishError> {
    let header = Header {
        seq: at.next_seq,
        prev: at.prev,
        hlc: now,
        kind: composed.kind,
        doc: composed.doc,
        deps: composed.deps.clone(),
        nonce: random_nonce(),
        ..template.header.clone()
    };
    let mut plain = Vec::with_capacity(composed.change.len() + 1);
    plain.push(BODY_VERSION);
    plain.extend_from_slice(&composed.change);
    let body = seal_body(&template.key, &header.nonce, &header.aad(), &plain);
    if body.len() > MAX_BODY {
        return Err(PublishError::TooLarge { size: body.len() });
    }
    Unsigned::new(header, Bytes::from(body)).map_err(PublishError::Fragment)
}
