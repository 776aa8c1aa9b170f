//! Versions as tools print them, and what may be asked of one.

use std::{cmp::Ordering, fmt};

/// How a version must stand to the one that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    AtLeast,
    AtMost,
    Above,
    Below,
    /// Equal as far as it is written: `3.11` holds for `3.11.2`.
    Like,
    Unlike,
}

/// In the order in which they are looked for: the longer sign first.
const SIGNS: [(&str, Relation); 7] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    ("!=", Relation::Unlike),
    ("==", Relation::Like),
    (">", Relation::Above),
    ("<", Relation::Below),
    ("=", Relation::Like),
];

/// One bound, such as `>=3.11`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    relation: Relation,
    version: String,
}

impl Bound {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (sign, relation) = SIGNS.iter().find(|(sign, _)| text.starts_with(sign))?;
        let version = text[sign.len()..].trim().trim_end_matches(".*");
        let plain = |c: char| c.is_ascii_alphanumeric() || ".+-~_:".contains(c);
        let begins = version.starts_with(|c: char| c.is_ascii_digit());
        (begins && version.chars().all(plain)).then(|| Self {
            relation: *relation,
            version: version.to_owned(),
        })
    }

    pub(super) fn holds(&self, found: &str) -> bool {
        let order = compare(found, &self.version);
        match self.relation {
            Relation::AtLeast => order != Ordering::Less,
            Relation::AtMost => order != Ordering::Greater || is_like(found, &self.version),
            Relation::Above => order == Ordering::Greater && !is_like(found, &self.version),
            Relation::Below => order == Ordering::Less,
            Relation::Like => is_like(found, &self.version),
            Relation::Unlike => !is_like(found, &self.version),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.relation {
            Relation::AtLeast => ">=",
            Relation::AtMost => "<=",
            Relation::Above => ">",
            Relation::Below => "<",
            Relation::Like => "=",
            Relation::Unlike => "!=",
        };
        write!(f, "{sign}{}", self.version)
    }
}

/// Compares part by part: numbers as numbers, the rest as text; what is missing counts as 0.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (parts(a), parts(b));
    loop {
        let order = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (a, b) => order(a.unwrap_or("0"), b.unwrap_or("0")),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn is_like(found: &str, wanted: &str) -> bool {
    let mut found = parts(found);
    parts(wanted).all(|wanted| order(found.next().unwrap_or("0"), wanted) == Ordering::Equal)
}

fn parts(version: &str) -> impl Iterator<Item = &str> {
    version.split(|c: char| !c.is_ascii_alphanumeric())
}

fn order(a: &str, b: &str) -> Ordering {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits(a) && digits(b) {
        // As long as they like: a number is compared by its length without zeros, then as text.
        let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
        return a.len().cmp(&b.len()).then_with(|| a.cmp(b));
    }
    a.cmp(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_as_people_mean_them() {
        for (found, bound, holds) in [
            ("3.11.2", ">=3.11", true),
            ("3.9.18", ">=3.11", false),
            ("3.11", ">=3.11.0", true),
            ("3.11.2", "=3.11", true),
            ("3.11.2", "==3.11.*", true),
            ("3.110", "=3.11", false),
            ("12.2.0", "=12", true),
            ("12.2.0", "<12.10", true),
            ("3.11.2", "<=3.11", true),
            ("3.11.2", ">3.11", false),
            ("3.12.0", ">3.11", true),
            ("3.11.2", "!=3.11", false),
            ("6.1.0-57-cloud-amd64", ">=6.1", true),
            ("99999999999999999999999999.1", ">=5", true),
        ] {
            let parsed = Bound::parse(bound).unwrap();
            assert_eq!(parsed.holds(found), holds, "{found} {bound}");
        }
        for bad in ["", "3.11", "~3", ">=", ">= x", "=3 4", ">=3;rm"] {
            assert!(Bound::parse(bad).is_none(), "{bad}");
        }
    }
}
