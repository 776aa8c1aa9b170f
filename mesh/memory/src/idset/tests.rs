use std::collections::BTreeSet;

use proptest::prelude::*;
use rhizome_identity::Hash;

use super::*;

/// Ids that crowd together, so that ranges cut through leaves and repeats happen.
fn id() -> impl Strategy<Value = Hash> {
    (0_u16..600, any::<bool>()).prop_map(|(n, low)| {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        id[31] = u8::from(low);
        Hash::from_bytes(id)
    })
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Hash),
    Remove(Hash),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(
        prop_oneof![3 => id().prop_map(Step::Insert), 2 => id().prop_map(Step::Remove)],
        0..1500,
    )
}

fn naive(model: &BTreeSet<Hash>, lo: &Hash, hi: Option<&Hash>) -> Fingerprint {
    model
        .iter()
        .filter(|id| *id >= lo && hi.is_none_or(|hi| *id < hi))
        .map(Fingerprint::of)
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn behaves_as_a_sorted_set(steps in steps(), lo in id(), hi in id()) {
        let mut set = IdSet::new();
        let mut model = BTreeSet::new();
        for step in steps {
            match step {
                Step::Insert(id) => prop_assert_eq!(set.insert(id), model.insert(id)),
                Step::Remove(id) => prop_assert_eq!(set.remove(&id), model.remove(&id)),
            }
        }
        prop_assert_eq!(set.len(), model.len());
        prop_assert!(set.iter().eq(model.iter()));
        prop_assert_eq!(set.fingerprint(), naive(&model, &Hash::from_bytes([0; 32]), None));
        prop_assert_eq!(set.range_fingerprint(&lo, Some(&hi)), naive(&model, &lo, Some(&hi)));
        prop_assert_eq!(set.range_fingerprint(&lo, None), naive(&model, &lo, None));
        prop_assert_eq!(set.rank(&lo), model.range(..lo).count());
        if lo <= hi {
            prop_assert!(set.iter_range(&lo, Some(&hi)).eq(model.range(lo..hi)));
        }
        for (index, id) in model.iter().enumerate() {
            prop_assert_eq!(set.nth(index), Some(*id));
            prop_assert!(set.contains(id));
        }
        prop_assert_eq!(set.nth(model.len()), None);
    }

    #[test]
    fn a_clone_is_frozen(before in prop::collection::vec(id(), 0..300), after in steps()) {
        let mut set: IdSet = before.iter().copied().collect();
        let frozen = set.clone();
        let seen: Vec<Hash> = frozen.iter().copied().collect();
        for step in after {
            match step {
                Step::Insert(id) => set.insert(id),
                Step::Remove(id) => set.remove(&id),
            };
        }
        prop_assert!(frozen.iter().eq(seen.iter()));
        prop_assert_eq!(frozen.fingerprint(), seen.iter().map(Fingerprint::of).sum());
    }

    #[test]
    fn order_of_insertion_does_not_show(ids in prop::collection::vec(id(), 0..400)) {
        let forward: IdSet = ids.iter().copied().collect();
        let backward: IdSet = ids.iter().rev().copied().collect();
        prop_assert_eq!(forward.fingerprint(), backward.fingerprint());
        prop_assert_eq!(forward, backward);
    }
}

#[test]
fn sums_carry_across_limbs() {
    let ids: Vec<Hash> = (0..64_u8).map(|n| Hash::from_bytes([n; 32])).collect();
    let all: Fingerprint = ids.iter().map(Fingerprint::of).sum();
    let none = ids
        .iter()
        .map(Fingerprint::of)
        .fold(all, |left, one| left - one);
    assert_eq!(none, Fingerprint::EMPTY);
    assert_eq!(all.count(), 64);
}

#[test]
fn emptied_sets_can_be_filled_again() {
    let ids: Vec<Hash> = (0..5000_u32).map(|n| Hash::of(&n.to_le_bytes())).collect();
    let mut set: IdSet = ids.iter().copied().collect();
    for id in &ids {
        assert!(set.remove(id));
    }
    assert!(set.is_empty());
    assert_eq!(set.fingerprint(), Fingerprint::EMPTY);
    set.extend(ids.iter().copied());
    assert_eq!(set.len(), ids.len());
}
