//! How a newcomer shows a relay that it holds an invite, before it is a member.
//!
//! The token travels in the request that opens the connection: the invite's id and the signature
//! of the invite's key over the mesh and the newcomer's node id, in hexadecimal. The relay's own
//! handshake proves the node id, so a token that was overheard is of use to nobody else.

use rhizome_identity::{
    Authority, Domain, Hash, Invite, InviteId, MeshId, NodeId, PublicKey, check_redeem,
};

const DOMAIN: Domain = Domain("rhizome/relay-guest/1");

/// Returns the token with which `me` may use a relay until it has redeemed `invite`.
pub(crate) fn token(invite: &Invite, me: &NodeId) -> String {
    let id = invite.id();
    let proof = invite.key().sign(&message(&invite.mesh, &id, me));
    let (first, second) = proof.split_at(32);
    let half = |bytes: &[u8]| Hash::from_bytes(bytes.try_into().expect("half of 64 bytes"));
    format!("{id}{}{}", half(first), half(second))
}

/// Says whether `token` shows that `guest` may redeem an invite of this mesh at `now_ms`.
pub(crate) fn is_invited(authority: &Authority, guest: &NodeId, token: &str, now_ms: u64) -> bool {
    let holds = || {
        let mesh = authority.mesh()?;
        let (invite, proof) = parse(token)?;
        check_redeem(authority, &invite, now_ms).ok()?;
        let message = message(&mesh, &invite, guest);
        PublicKey::from(invite).verify(&message, &proof).ok()
    };
    holds().is_some()
}

fn parse(token: &str) -> Option<(InviteId, [u8; 64])> {
    if token.len() != 192 || !token.is_ascii() {
        return None;
    }
    let part = |at: usize| token[at..at + 64].parse::<Hash>().ok();
    let (invite, first, second) = (part(0)?, part(64)?, part(128)?);
    let mut proof = [0; 64];
    proof[..32].copy_from_slice(first.as_bytes());
    proof[32..].copy_from_slice(second.as_bytes());
    Some((InviteId::from_bytes(*invite.as_bytes()), proof))
}

fn message(mesh: &MeshId, invite: &InviteId, guest: &NodeId) -> Vec<u8> {
    let mut message = DOMAIN.0.as_bytes().to_vec();
    message.push(0);
    for part in [mesh.as_bytes(), invite.as_bytes(), guest.as_bytes()] {
        message.extend_from_slice(part);
    }
    message
}

#[cfg(test)]
mod tests {
    use rhizome_identity::{InviteParams, NodeKey, RecordLog, Role, RootKey, SignedRecord, issue};

    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    struct Mesh {
        log: RecordLog,
        founder: NodeKey,
    }

    impl Mesh {
        fn found() -> Self {
            let (root, next, founder) = (
                RootKey::generate(),
                RootKey::generate(),
                NodeKey::generate(),
            );
            let records =
                issue::found(&root, &next.public(), &founder.id(), "a", "mesh", NOW).unwrap();
            let mut log = RecordLog::default();
            for record in records {
                log.insert(record).unwrap();
            }
            Self { log, founder }
        }

        fn add(&mut self, record: SignedRecord) {
            self.log.insert(record).unwrap();
        }

        fn invite(&mut self) -> Invite {
            let params = InviteParams {
                role: Role::Writer,
                spaces: Vec::new(),
                uses: 1,
                not_after_ms: NOW + 60_000,
                approve: false,
                endpoints: Vec::new(),
            };
            let opened = issue::open_invite(&self.founder, &self.log.resolve(), params, NOW);
            let (record, invite) = opened.unwrap();
            self.add(record);
            invite
        }
    }

    #[test]
    fn a_token_opens_for_its_bearer_while_the_invite_is_open() {
        let mut mesh = Mesh::found();
        let invite = mesh.invite();
        let (guest, other) = (NodeKey::generate().id(), NodeKey::generate().id());
        let token = token(&invite, &guest);
        let opens = |mesh: &Mesh, who: &NodeId, token: &str, now| {
            is_invited(&mesh.log.resolve(), who, token, now)
        };
        assert!(opens(&mesh, &guest, &token, NOW));
        assert!(!opens(&mesh, &other, &token, NOW), "of another node");
        assert!(!opens(&mesh, &guest, &token, NOW + 60_001), "expired");
        assert!(!opens(&Mesh::found(), &guest, &token, NOW), "another mesh");
        let closed = issue::close_invite(&mesh.founder, &mesh.log.resolve(), invite.id(), NOW);
        mesh.add(closed.unwrap());
        assert!(!opens(&mesh, &guest, &token, NOW), "closed");
    }

    #[test]
    fn tokens_that_were_tampered_with_open_nothing() {
        let mut mesh = Mesh::found();
        let invite = mesh.invite();
        let guest = NodeKey::generate().id();
        let good = token(&invite, &guest);
        let authority = mesh.log.resolve();
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
            let bad = String::from_utf8(bad).unwrap();
            assert!(!is_invited(&authority, &guest, &bad, NOW), "character {at}");
        }
        let odd = "ä".repeat(96);
        for bad in ["", "00", &good[1..], &format!("{good}0"), &odd] {
            assert!(!is_invited(&authority, &guest, bad, NOW), "{bad}");
        }
    }
}
