//! Valid changes, mutated by the ten thousand; seeded.

use automerge::Change;
use bytes::Bytes;

use super::*;
use crate::document::Shape;

/// A small seeded generator (xorshift64*): a failure names its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap() % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        // Numbers that mean something in LEB128 and in runs come up more often than others.
        const TELLING: [u8; 10] = [0, 1, 2, 0x3f, 0x40, 0x7e, 0x7f, 0x80, 0x81, 0xff];
        if self.below(2) == 0 {
            TELLING[self.below(TELLING.len())]
        } else {
            u8::try_from(self.below(256)).unwrap()
        }
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.byte(),
            2 => bytes.insert(at, random.byte()),
            3 => drop(bytes.remove(at)),
            4 => {
                let end = (at + random.below(8)).min(bytes.len());
                let copied = bytes[at..end].to_vec();
                bytes.splice(at..at, copied);
            }
            _ => {
                let from = random.below(other.len());
                let end = (from + random.below(12)).min(other.len());
                let to = (at + end - from).min(bytes.len());
                bytes.splice(at..to, other[from..end].iter().copied());
            }
        }
        if bytes.len() < 20 {
            return;
        }
    }
}

/// Puts the mutated content of a chunk under a fitting length and checksum: an enemy would.
fn reframe(content: &[u8], shape: Shape) -> Vec<u8> {
    let mut chunk = vec![0x85, 0x6f, 0x4a, 0x83, 0, 0, 0, 0, 1];
    chunk.extend(leb(content.len() as u64));
    chunk.extend(content);
    if scan(&chunk, shape).is_ok()
        && let Ok(Ok(change)) = fenced(|| Change::from_bytes(chunk.clone()))
    {
        chunk[4..8].copy_from_slice(&change.hash().0[..4]);
    }
    chunk
}

fn content(chunk: &[u8]) -> &[u8] {
    let length = chunk[9..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    &chunk[9 + length..]
}

#[test]
fn mutated_changes_by_the_ten_thousand_neither_panic_nor_poison_a_document() {
    let seed = 0x5eed_0001;
    let mut random = Random(seed);
    let mut cases = cases();
    cases.extend(files::cases());
    let mut taken = 0;
    let mut reasons: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for round in 0..12_000 {
        let (doc, valid) = &cases[round % cases.len()];
        let other = &cases[random.below(cases.len())].1.change;
        let change = if round % 3 == 0 {
            let mut bytes = valid.change.to_vec();
            mutate(&mut random, &mut bytes, other);
            bytes
        } else {
            let mut bytes = content(&valid.change).to_vec();
            mutate(&mut random, &mut bytes, content(other));
            reframe(&bytes, doc.key.shape)
        };
        if change == valid.change {
            continue;
        }
        let opened = Opened {
            change: Bytes::from(change),
            ..valid.clone()
        };
        let mut after = doc.clone();
        match after.take(&opened) {
            Ok(()) => {
                // Another value in a valid form: as good as any. The document must go on.
                taken += 1;
                let next = match after.key.shape {
                    Shape::Memory if valid.header.kind == Kind::Error => continue,
                    Shape::Memory => after.compose_memory(EVE, Hlc::from_ms(9), &draft("next")),
                    Shape::Context => after.compose_patch(EVE, Hlc::from_ms(9), &patch(9)),
                    Shape::File => files::compose(&after, EVE, 9, &files::write("next\n")),
                };
                assert_eq!(after.take(&next), Ok(()), "seed {seed:#x}, round {round}");
            }
            Err(reason) => {
                *reasons
                    .entry(
                        format!("{reason:?}")
                            .split([' ', '{'])
                            .next()
                            .unwrap()
                            .to_owned(),
                    )
                    .or_default() += 1
            }
        }
        assert_eq!(
            after.document.get_heads().len(),
            after.heads().len(),
            "seed {seed:#x}, round {round}"
        );
    }
    assert!(taken < 1_200, "{taken} mutations were taken");
    assert!(
        reasons.len() >= 6,
        "the mutations must get past the first checks: {reasons:?}"
    );
}

#[test]
fn what_automerge_does_not_survive_stays_behind_the_last_fence() {
    // The checks before the last are left out: only decoding stands before automerge.
    let seed = 0x5eed_0002;
    let mut random = Random(seed);
    let mut cases = cases();
    cases.extend(files::cases());
    let (mut taken, mut refused, mut panicked) = (0, 0, 0);
    for round in 0..6_000 {
        let (doc, valid) = &cases[round % cases.len()];
        let mut bytes = content(&valid.change).to_vec();
        mutate(&mut random, &mut bytes, content(&valid.change));
        let bytes = reframe(&bytes, doc.key.shape);
        if scan(&bytes, doc.key.shape).is_err() {
            continue;
        }
        let Ok(Ok(change)) = fenced(|| Change::from_bytes(bytes)) else {
            continue;
        };
        let heads = [change.hash()];
        match apply(&doc.document, &[change], &heads, |_| {}) {
            Ok(_) => taken += 1,
            Err(Reason::Panicked { .. }) => panicked += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(
        taken > 0 && refused > 0 && panicked > 0,
        "{taken} taken, {refused} refused, {panicked} panicked"
    );
}
