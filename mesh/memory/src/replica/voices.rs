//! Who is taken at its word here.

use std::{collections::BTreeSet, sync::PoisonError};

use rhizome_identity::{Authority, PublicKey, Reach};

use super::state::Inner;
use crate::{Standing, Voice, now_ms};

impl Inner {
    /// Says which agents and nodes this node's owner does not trust, by their keys.
    pub(super) fn distrust(&self, keys: BTreeSet<PublicKey>) {
        let mut distrusted = self
            .distrusted
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *distrusted = keys;
    }

    /// Runs `read` with a judge of what may be shown now.
    pub(super) fn judged<T>(&self, read: impl FnOnce(&dyn Fn(&Voice) -> Standing) -> T) -> T {
        let rights = self.rights();
        let distrusted = self
            .distrusted
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let now_ms = now_ms();
        read(&|voice| self.standing(&rights.authority, &distrusted, now_ms, voice))
    }

    fn standing(
        &self,
        authority: &Authority,
        distrusted: &BTreeSet<PublicKey>,
        now_ms: u64,
        voice: &Voice,
    ) -> Standing {
        let (agent, node) = (PublicKey::from(voice.author), PublicKey::from(voice.node));
        // Who keeps a node's records is judged by those who read them.
        if voice.kind.is_record() && voice.kind != crate::Kind::Confirmation {
            return Standing::Trusted;
        }
        if authority.reach(&voice.author, &voice.space) != Reach::Whole
            && !self.counts(&voice.fragment)
        {
            return Standing::Hidden;
        }
        let is_ended = authority.is_revoked(&agent);
        let is_homeless = !is_ended && authority.is_revoked(&node);
        if is_homeless && !self.is_before_cut(authority, voice) {
            return Standing::Hidden;
        }
        if distrusted.contains(&agent) || distrusted.contains(&node) {
            return Standing::Doubtful;
        }
        if is_ended || is_homeless {
            // An admin has said that it stays: what was taken back by it stays taken back.
            return Standing::Trusted;
        }
        match authority.agent(&voice.author) {
            Some(info)
                if info.node == voice.node && info.not_after_ms.is_none_or(|end| now_ms <= end) =>
            {
                Standing::Trusted
            }
            _ => Standing::Doubtful,
        }
    }

    /// Returns whether a revocation left this fragment of its author valid.
    fn is_before_cut(&self, authority: &Authority, voice: &Voice) -> bool {
        let Some((seq, _)) = authority.cut(&voice.author, &voice.space) else {
            return false;
        };
        self.fragment(&voice.fragment)
            .is_some_and(|fragment| fragment.header.seq <= seq)
    }
}
