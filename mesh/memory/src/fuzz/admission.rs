//! Fragments of one author in any order, contradictions among them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::OnceLock,
};

use rhizome_identity::{
    AgentKey, Authority, Hash, NodeKey, RecordLog, RootKey, SignedRecord, SpaceId, issue,
};

use crate::{
    Admission, DocId, FRAGMENT_VERSION, Fragment, FragmentId, Header, Hlc, Kind,
    MAX_HELD_PER_AUTHOR, Verdict,
};

/// How many places of the chain there are, and histories for each.
const PLACES: u8 = 12;
const HISTORIES: u8 = 3;
/// How many fragments one input makes.
const MOST: usize = 64;

struct World {
    authority: Authority,
    space: SpaceId,
    node: NodeKey,
    agent: AgentKey,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let (node, agent) = (NodeKey::from_seed([1; 32]), AgentKey::from_seed([2; 32]));
        let root = RootKey::from_seed([3; 32]);
        let next = RootKey::from_seed([4; 32]).public();
        let mut log = RecordLog::default();
        let mut add = |record: SignedRecord| {
            log.insert(record).expect("its parents are there");
            log.resolve()
        };
        let founded = issue::found(&root, &next, &node.id(), "node", "mesh", 1);
        let mut authority = Authority::default();
        for record in founded.expect("a founding works") {
            authority = add(record);
        }
        let (record, _) =
            issue::create_space(&node, &authority, "lab", 2).expect("the founder may");
        let space = SpaceId::from_bytes(*record.id().as_bytes());
        authority = add(record);
        let cert = issue::certify_agent(&node, &authority, &agent, "agent", None, None, 3);
        authority = add(cert.expect("it is a member"));
        World {
            authority,
            space,
            node,
            agent,
        }
    })
}

impl World {
    fn fragment(&self, seq: u64, prev: Option<FragmentId>, history: u8) -> Fragment {
        let header = Header {
            version: FRAGMENT_VERSION,
            mesh: self.authority.mesh().expect("it was founded"),
            space: self.space,
            author: self.agent.id(),
            node: self.node.id(),
            seq,
            prev,
            auth_heads: self.authority.heads().to_vec(),
            deps: Vec::new(),
            hlc: Hlc::from_ms(5),
            kind: Kind::Fact,
            doc: DocId::from_bytes([history; 32]),
            fingerprint: Hash::of(b"runtime"),
            epoch: 1,
            nonce: [0; 24],
            body_hash: Hash::of(b""),
            body_len: 0,
        };
        Fragment::sign(&self.agent, header, vec![history].into()).expect("a small fragment")
    }
}

/// Whatever the order, a chain has one fragment at each place, each follows upon the one before it,
/// what is held is bounded, and what waits is freed. Three bytes make a fragment: its place, which
/// of those made for the place before it follows upon, and its history.
pub(super) fn admission(bytes: &[u8]) {
    let world = world();
    let (author, space) = (world.agent.id(), world.space);
    let mut admission = Admission::new();
    let mut made: Vec<(u64, FragmentId)> = Vec::new();
    let mut chain: BTreeMap<u64, FragmentId> = BTreeMap::new();
    for op in bytes.chunks_exact(3).take(MOST) {
        let seq = u64::from(op[0] % PLACES);
        let prev = seq.checked_sub(1).map(|before| {
            let before: Vec<_> = made.iter().filter(|(seq, _)| *seq == before).collect();
            let chosen = usize::from(op[1]).checked_rem(before.len());
            chosen.map_or(FragmentId::from_bytes([9; 32]), |n| before[n].1)
        });
        let fragment = world.fragment(seq, prev, op[2] % HISTORIES);
        made.push((seq, fragment.id));
        let mut queue = VecDeque::from([fragment]);
        while let Some(fragment) = queue.pop_front() {
            let (id, seq, prev) = (fragment.id, fragment.header.seq, fragment.header.prev);
            match admission.check(&world.authority, &fragment) {
                Verdict::Admit => {
                    let before = seq.checked_sub(1).and_then(|seq| chain.get(&seq).copied());
                    assert_eq!(prev, before, "it does not follow upon the one before it");
                    assert!(chain.insert(seq, id).is_none(), "a place was taken twice");
                    queue.extend(admission.commit(&fragment));
                    let again = admission.check(&world.authority, &fragment);
                    assert_eq!(again, Verdict::Duplicate);
                }
                Verdict::Wait(missing) => drop(admission.hold(fragment, missing)),
                Verdict::Duplicate => assert_eq!(chain.get(&seq), Some(&id)),
                Verdict::Fork { other } => {
                    assert!(
                        chain.values().any(|taken| *taken == other),
                        "a fork of nothing"
                    );
                }
                verdict => panic!("a writer was refused: {verdict:?}"),
            }
        }
        assert!(admission.held() <= MAX_HELD_PER_AUTHOR);
        let head = chain.last_key_value().map(|(seq, id)| (*seq, *id));
        assert_eq!(admission.head(&author, &space), head);
    }
}

pub(super) fn orders() -> Vec<Vec<u8>> {
    vec![
        // In order; backwards; two histories from the second place on.
        vec![0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0],
        vec![3, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0],
        vec![0, 0, 0, 1, 0, 1, 1, 0, 2, 2, 1, 0, 2, 0, 0],
    ]
}
