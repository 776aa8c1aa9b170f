//! Which names led a guest to which addresses.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use tokio::time::Instant;

use super::name::DomainName;

/// How long an address may be used after its name was last looked up. Programs keep addresses for
/// longer than their time to live.
const KEPT: Duration = Duration::from_secs(30 * 60);
/// Pairs of name and address that are remembered; the older half goes when there are more.
const MAX_PAIRS: usize = 4096;

/// What a guest's lookups led to.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    by_address: BTreeMap<Ipv4Addr, BTreeMap<DomainName, Instant>>,
    pairs: usize,
}

impl Resolved {
    /// Remembers that `name` led to `address`.
    pub(super) fn add(&mut self, now: Instant, name: &DomainName, address: Ipv4Addr) {
        if self.keep(now, name, address) {
            return;
        }
        if self.pairs >= MAX_PAIRS {
            self.forget(now);
        }
        self.by_address
            .entry(address)
            .or_default()
            .insert(name.clone(), now);
        self.pairs += 1;
    }

    /// Remembers for longer what is known. Returns whether it is.
    pub(super) fn keep(&mut self, now: Instant, name: &DomainName, address: Ipv4Addr) -> bool {
        let names = self.by_address.get_mut(&address);
        let Some(seen) = names.and_then(|names| names.get_mut(name)) else {
            return false;
        };
        *seen = now;
        true
    }

    /// Forgets what is too old, or else the older half.
    fn forget(&mut self, now: Instant) {
        let all = self.by_address.values().flat_map(BTreeMap::values);
        let mut times: Vec<_> = all.copied().collect();
        times.sort_unstable();
        let half = times[times.len() / 2];
        let keep = |seen: Instant| seen > half && now.duration_since(seen) < KEPT;
        self.by_address.retain(|_, names| {
            names.retain(|_, seen| keep(*seen));
            !names.is_empty()
        });
        self.pairs = self.by_address.values().map(BTreeMap::len).sum();
    }

    /// Returns the names that led to `address`, in order of the alphabet.
    pub(super) fn names(&self, now: Instant, address: Ipv4Addr) -> Vec<DomainName> {
        let names = self.by_address.get(&address).into_iter().flatten();
        names
            .filter(|(_, seen)| now.duration_since(**seen) < KEPT)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_the_names_that_led_to_it_for_a_while() {
        let mut resolved = Resolved::default();
        let (now, address) = (Instant::now(), Ipv4Addr::new(93, 184, 216, 34));
        resolved.add(now, &name("b.example"), address);
        resolved.add(now, &name("0.example"), address);
        resolved.add(now, &name("a.example"), Ipv4Addr::new(93, 184, 216, 33));
        resolved.add(now, &name("c.example"), Ipv4Addr::new(93, 184, 216, 35));
        assert_eq!(
            resolved.names(now, address),
            [name("0.example"), name("b.example")]
        );
        let later = now + KEPT / 2;
        resolved.add(later, &name("b.example"), address);
        assert_eq!(resolved.names(now + KEPT, address), [name("b.example")]);
        assert_eq!(resolved.names(later + KEPT, address), []);
    }

    #[test]
    fn the_older_are_forgotten_when_there_are_too_many() {
        let mut resolved = Resolved::default();
        let now = Instant::now();
        for number in 0..=MAX_PAIRS {
            let later = now + Duration::from_millis(number as u64);
            resolved.add(
                later,
                &name("a.example"),
                Ipv4Addr::from_bits(u32::try_from(number).unwrap()),
            );
        }
        assert!(resolved.pairs <= MAX_PAIRS);
        assert!(resolved.names(now, Ipv4Addr::from_bits(0)).is_empty());
        let last = Ipv4Addr::from_bits(u32::try_from(MAX_PAIRS).unwrap());
        assert_eq!(resolved.names(now, last).len(), 1);
    }
}
