//! Addresses: ranges that rules name, and those that no rule opens by accident.

use std::{fmt, net::Ipv4Addr, str::FromStr};

/// A range of IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cidr {
    network: Ipv4Addr,
    prefix: u8,
}

impl Cidr {
    const fn new(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self {
            network: Ipv4Addr::new(a, b, c, d),
            prefix,
        }
    }

    /// Bits that every address of the range shares.
    #[must_use]
    pub(super) fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` lies in the range.
    #[must_use]
    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        (self.network.to_bits() ^ address.to_bits()) & self.mask() == 0
    }

    /// Whether all of this range lies in `other`.
    fn is_within(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.network)
    }

    fn mask(&self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix))
            .unwrap_or(0)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: Ipv4Addr = address
            .parse()
            .map_err(|_| format!("`{address}` is no IPv4 address"))?;
        let prefix = match prefix {
            None => 32,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|&bits| bits <= 32 && !prefix.starts_with('+'))
                .ok_or_else(|| format!("`/{prefix}` is no prefix length: 0 to 32"))?,
        };
        let cidr = Self { network, prefix };
        if network.to_bits() & !cidr.mask() != 0 {
            let network = Ipv4Addr::from_bits(network.to_bits() & cidr.mask());
            return Err(format!(
                "`{text}` is no range: it begins at `{network}/{prefix}`"
            ));
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            32 => self.network.fmt(f),
            prefix => write!(f, "{}/{prefix}", self.network),
        }
    }
}

/// Ranges that a rule must name itself, being one of them or a part of one: a wider rule, `open`
/// or a name that resolves there do not open them.
const GUARDED: &[(Cidr, &str)] = &[
    (Cidr::new(127, 0, 0, 0, 8), "the node's own loopback"),
    (
        Cidr::new(169, 254, 0, 0, 16),
        "link-local, where clouds keep their metadata",
    ),
    (Cidr::new(100, 100, 100, 200, 32), "a cloud's metadata"),
    (Cidr::new(168, 63, 129, 16, 32), "a cloud's metadata"),
    (Cidr::new(192, 0, 0, 0, 24), "reserved for protocols"),
    (Cidr::new(0, 0, 0, 0, 8), "no place at all"),
    (Cidr::new(224, 0, 0, 0, 4), "multicast"),
    (Cidr::new(240, 0, 0, 0, 4), "reserved"),
];

/// Ranges that a name of the public must not lead to.
const PRIVATE: &[Cidr] = &[
    Cidr::new(10, 0, 0, 0, 8),
    Cidr::new(172, 16, 0, 0, 12),
    Cidr::new(192, 168, 0, 0, 16),
    Cidr::new(100, 64, 0, 0, 10),
    Cidr::new(198, 18, 0, 0, 15),
];

/// Returns what the guarded range is that `address` lies in, if it does.
pub(super) fn guarded(address: Ipv4Addr) -> Option<&'static str> {
    let found = GUARDED.iter().find(|(range, _)| range.contains(address));
    found.map(|&(_, what)| what)
}

/// Whether a rule about `range` names the guarded range of `address`.
pub(super) fn names_guarded(range: &Cidr, address: Ipv4Addr) -> bool {
    GUARDED
        .iter()
        .filter(|(guarded, _)| guarded.contains(address))
        .all(|(guarded, _)| range.is_within(guarded))
}

/// Whether `address` is one that several networks use for themselves.
pub(super) fn is_private(address: Ipv4Addr) -> bool {
    PRIVATE.iter().any(|range| range.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_strictly() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.168.1.7", "192.168.1.7"),
            ("192.168.1.7/32", "192.168.1.7"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), shown);
        }
        for text in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.1/8",
            "10.0.0/8",
            "010.0.0.0/8",
            "::/0",
            "",
            "/8",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
        assert!(error.contains("10.0.0.0/8"), "{error}");
    }

    #[test]
    fn ranges_contain_what_they_should() {
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        let one: Cidr = "10.0.0.1".parse().unwrap();
        let some: Cidr = "10.0.0.0/30".parse().unwrap();
        assert!(all.contains(Ipv4Addr::BROADCAST));
        assert!(some.contains(Ipv4Addr::new(10, 0, 0, 3)));
        assert!(!some.contains(Ipv4Addr::new(10, 0, 0, 4)));
        assert!(one.is_within(&some) && some.is_within(&all) && !all.is_within(&some));
    }

    #[test]
    fn a_wide_rule_does_not_name_a_guarded_range() {
        let loopback = Ipv4Addr::LOCALHOST;
        let names = |text: &str| names_guarded(&text.parse().unwrap(), loopback);
        assert!(names("127.0.0.1") && names("127.0.0.0/8"));
        assert!(!names("0.0.0.0/0") && !names("126.0.0.0/7"));
        assert_eq!(
            guarded(Ipv4Addr::new(169, 254, 169, 254)).map(|what| what.contains("metadata")),
            Some(true)
        );
        assert_eq!(guarded(Ipv4Addr::new(10, 0, 0, 1)), None);
        assert!(is_private(Ipv4Addr::new(100, 64, 0, 1)));
    }
}
