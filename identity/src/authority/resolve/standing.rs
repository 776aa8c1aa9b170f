//! The revocations that stand, and what each of them ends.

use std::collections::BTreeMap;

use super::past::Past;
use crate::id::PublicKey;

/// By what right a revocation was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// The root's: ends anything.
    Root,
    /// An admin's: ends anything but what the root made an admin.
    Admin,
    /// A node's over its own agents: ends certificates alone.
    Node,
}

impl Right {
    /// Whether a revocation by this right ends such a thing.
    pub(super) fn ends(self, standing: Standing) -> bool {
        match (self, standing) {
            (Right::Root, _) | (Right::Admin | Right::Node, Standing::Cert) => true,
            (Right::Admin, Standing::Grant { makes_admin }) => !makes_admin,
            (Right::Node, Standing::Grant { .. }) => false,
        }
    }
}

/// What a revocation may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// A Grant; whether it is the root's, making an admin.
    Grant { makes_admin: bool },
    /// A certificate.
    Cert,
}

/// The revocations that stand, by subject, each by its place in the order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Revokes(BTreeMap<PublicKey, Vec<(usize, Right)>>);

impl Revokes {
    pub(super) fn add(&mut self, subject: PublicKey, at: usize, right: Right) {
        self.0.entry(subject).or_default().push((at, right));
    }

    pub(super) fn subjects(&self) -> impl Iterator<Item = (&PublicKey, &[(usize, Right)])> {
        self.0
            .iter()
            .map(|(subject, revokes)| (subject, revokes.as_slice()))
    }

    /// Returns what was revoked by this right: subject and place.
    pub(super) fn by(&self, right: Right) -> Vec<(PublicKey, usize)> {
        let all = self.subjects().flat_map(|(subject, revokes)| {
            revokes.iter().map(move |(at, by)| (*subject, *at, *by))
        });
        all.filter(|(.., by)| *by == right)
            .map(|(subject, at, _)| (subject, at))
            .collect()
    }

    pub(super) fn of(&self, subject: &PublicKey) -> &[(usize, Right)] {
        self.0.get(subject).map_or(&[], Vec::as_slice)
    }

    /// Whether the revocation of `subject` at this place stands.
    pub(super) fn has(&self, subject: &PublicKey, at: usize) -> bool {
        self.of(subject).iter().any(|(revoke, _)| *revoke == at)
    }

    /// Whether `given` (a Grant to the subject, or a certificate of it) supports what the subject
    /// did at `act`, or supports it today when `act` is `None`.
    ///
    /// It does unless a revocation ends it: one that it was not made in knowledge of, and that
    /// was not made in knowledge of the act.
    pub(super) fn allow(
        &self,
        past: &Past,
        subject: &PublicKey,
        given: usize,
        standing: Standing,
        act: Option<usize>,
    ) -> bool {
        self.of(subject).iter().all(|(revoke, right)| {
            let was_seen = act.is_some_and(|act| past.has(*revoke, act));
            !right.ends(standing) || was_seen || past.has(given, *revoke)
        })
    }
}
