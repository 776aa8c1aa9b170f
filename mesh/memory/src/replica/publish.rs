//! Publishing: from a draft to a durable fragment.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rhizome_identity::{AgentKey, Hash, SpaceId, SpaceKey, epoch::random_nonce, seal_body};

use super::{
    applier::BODY_VERSION,
    error::PublishError,
    journal::{Entry, Item},
    request::Published,
    state::{ChainTip, Inner},
};
use crate::{
    ComposeContext, Composed, ContextPatch, Draft, FRAGMENT_VERSION, Fragment, Header, LogError,
    MAX_AUTH_HEADS, MAX_BODY, View, now_ms,
};

/// What is known of the space before a chain is locked.
struct Place {
    key: SpaceKey,
    /// Everything a header says that does not depend on the change.
    header: Header,
}

/// What is to be said.
#[derive(Debug, Clone, Copy)]
pub(super) enum What<'a> {
    /// A memory.
    Draft(&'a Draft),
    /// A change of the working context of a task.
    Patch(&'a str, &'a ContextPatch),
}

impl Inner {
    pub(super) fn publish(
        &self,
        agent: &AgentKey,
        space: SpaceId,
        fingerprint: Hash,
        what: What<'_>,
    ) -> Result<Published, PublishError> {
        let mut place = self.place(agent, space, fingerprint)?;
        // A new document depends on nothing, so it is composed before the chain is locked, side by
        // side with others.
        let apart = match what {
            What::Draft(draft) if draft.key.is_none() => {
                let ctx = self.compose_context(&mut place);
                Some(View::compose_new(ctx, draft).map_err(PublishError::Compose)?)
            }
            _ => None,
        };
        let chain = self.chain(space, agent.id());
        let mut tip = chain.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.current_tip(*tip, agent, space)?;

        let (fragment, composed) = match apart {
            Some(composed) => (self.seal(agent, place, at, &composed)?, composed),
            None => self.compose(agent, place, at, what)?,
        };
        let fragment = Arc::new(fragment);
        let change = Bytes::from(composed.change.clone());
        let entry = Entry::new(
            Item::Fragment {
                fragment: Arc::clone(&fragment),
                own: true,
                change: Some(change),
            },
            fragment.encode(),
        );
        let Ok(tickets) = self.journal.submit(vec![entry], Some(at.generation)) else {
            // A write failed since: whatever this builds on may be gone.
            *tip = None;
            self.view().release(&space, &composed);
            return Err(PublishError::Storage(LogError::Interrupted));
        };
        let next_seq = at.next_seq + 1;
        *tip = Some(ChainTip {
            next_seq,
            prev: Some(fragment.id),
            ..at
        });
        drop(tip);

        let ticket = tickets.first().expect("one entry has one ticket");
        match self.journal.wait(self, ticket) {
            Ok(arrival) => Ok(Published {
                id: fragment.id,
                doc: composed.doc,
                seq: at.next_seq,
                hlc: fragment.header.hlc,
                arrival,
            }),
            Err(error) => {
                self.view().release(&space, &composed);
                Err(PublishError::Storage(error))
            }
        }
    }

    fn place(
        &self,
        agent: &AgentKey,
        space: SpaceId,
        fingerprint: Hash,
    ) -> Result<Place, PublishError> {
        let now_ms = now_ms();
        let state = self.state();
        let authority = &state.authority;
        let mesh = authority.mesh().ok_or(PublishError::NoMesh)?;
        let info = authority
            .space(&space)
            .ok_or(PublishError::UnknownSpace(space))?;
        let epoch = info.epoch;
        authority
            .may_write(&agent.id(), &self.node, &space, now_ms)
            .map_err(|source| PublishError::Denied { space, source })?;
        let key = state.keys.get(&(space, epoch)).cloned();
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
            hlc: crate::Hlc::default(),
            kind: crate::Kind::Observation,
            doc: crate::DocId::from_bytes([0; 32]),
            fingerprint,
            epoch,
            nonce: random_nonce(),
            body_hash: Hash::from_bytes([0; 32]),
            body_len: 0,
        };
        Ok(Place { key, header })
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

    /// Gives the header its moment.
    fn compose_context(&self, place: &mut Place) -> ComposeContext {
        let header = &mut place.header;
        header.hlc = self.state().clock.tick(now_ms());
        ComposeContext {
            author: header.author,
            node: self.node,
            now: header.hlc,
            space: header.space,
        }
    }

    /// Composes, encrypts and signs, with the view locked throughout: the next change of the same
    /// document has to find this one's fragment named.
    fn compose(
        &self,
        agent: &AgentKey,
        mut place: Place,
        at: ChainTip,
        what: What<'_>,
    ) -> Result<(Fragment, Composed), PublishError> {
        self.applier.wait_until_composable();
        let space = place.header.space;
        let mut view = self.view();
        let ctx = self.compose_context(&mut place);
        let composed = match what {
            What::Draft(draft) => view.compose(ctx, draft),
            What::Patch(task, patch) => view.compose_context(ctx, task, patch),
        };
        let composed = composed.map_err(PublishError::Compose)?;
        match self.seal(agent, place, at, &composed) {
            Ok(fragment) => {
                view.reserve(&space, &composed, fragment.id);
                Ok((fragment, composed))
            }
            Err(error) => {
                view.release(&space, &composed);
                Err(error)
            }
        }
    }

    /// Encrypts and signs what was composed, at its place in the chain.
    fn seal(
        &self,
        agent: &AgentKey,
        place: Place,
        at: ChainTip,
        composed: &Composed,
    ) -> Result<Fragment, PublishError> {
        let Place { key, mut header } = place;
        header.seq = at.next_seq;
        header.prev = at.prev;
        header.kind = composed.kind;
        header.doc = composed.doc;
        header.deps.clone_from(&composed.deps);
        let mut plain = Vec::with_capacity(composed.change.len() + 1);
        plain.push(BODY_VERSION);
        plain.extend_from_slice(&composed.change);
        let body = seal_body(&key, &header.nonce, &header.aad(), &plain);
        if body.len() > MAX_BODY {
            return Err(PublishError::TooLarge { size: body.len() });
        }
        let body = Bytes::from(body);
        let fragment =
            Fragment::sign(agent, header, body.clone()).map_err(PublishError::Fragment)?;
        if fragment.header.body_is_blob() {
            self.write_body(&fragment.header.body_hash, &body)
                .map_err(PublishError::Body)?;
        }
        Ok(fragment)
    }
}
