//! What is limited, over which time, and how people write it.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::usage::ledger::{DAY_MS, Used};

/// What is metered and can be limited.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Resource {
    /// Processor time, in seconds.
    Cpu,
    /// Memory times time, in MiB times seconds.
    Ram,
    /// Disk that is held at the moment, in bytes.
    Disk,
    /// Bytes that leave through the network.
    Egress,
    /// Time for which sandboxes run, in seconds.
    Sandbox,
}

/// Over which time a quota counts.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Per {
    /// Since midnight, UTC.
    #[default]
    Day,
    /// Since the first of the month, UTC.
    Month,
    /// Since the beginning.
    Ever,
    /// At one moment: what is held, not used up.
    Moment,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 5] = [
        Self::Cpu,
        Self::Ram,
        Self::Disk,
        Self::Egress,
        Self::Sandbox,
    ];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Egress => "egress",
            Self::Sandbox => "sandbox",
        }
    }

    /// Returns what it is, for people.
    pub fn about(self) -> &'static str {
        match self {
            Self::Cpu => "CPU time",
            Self::Ram => "memory times time",
            Self::Disk => "disk",
            Self::Egress => "bytes sent",
            Self::Sandbox => "sandbox time",
        }
    }

    /// Returns the unit of its numbers.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Cpu | Self::Sandbox => "s",
            Self::Ram => "MiB s",
            Self::Disk | Self::Egress => "bytes",
        }
    }

    /// Returns as much of it as was used, in its unit; disk is not used but held.
    pub(crate) fn of(self, used: &Used) -> u64 {
        match self {
            Self::Cpu => used.cpu_ms / 1_000,
            Self::Ram => used.ram_mib_ms / 1_000,
            Self::Egress => used.sent_bytes,
            Self::Sandbox => used.run_ms / 1_000,
            Self::Disk => 0,
        }
    }

    /// Reads an amount of it as people write it: `2h`, `4GiB*8h`, `10GiB`.
    ///
    /// # Errors
    /// What would be one.
    pub fn parse_amount(self, text: &str) -> Result<u64, String> {
        let bad = |like: &str| {
            let text: String = text.chars().take(80).collect();
            format!("`{text}` is no amount of {}; write {like}", self.about())
        };
        match self {
            Self::Cpu | Self::Sandbox => {
                seconds(text).ok_or_else(|| bad("a length of time, as in 90s, 30m, 2h or 7d"))
            }
            Self::Disk | Self::Egress => {
                bytes(text).ok_or_else(|| bad("a size, as in 500MiB or 10GiB"))
            }
            Self::Ram => {
                let product = text.split_once('*').and_then(|(size, time)| {
                    let whole = bytes(size)?.checked_mul(seconds(time)?)?;
                    Some(whole >> 20)
                });
                product.ok_or_else(|| bad("a size times a length of time, as in 4GiB*8h"))
            }
        }
    }

    /// Returns an amount of it as people read it.
    pub fn show_amount(self, amount: u64) -> String {
        match self {
            Self::Cpu | Self::Sandbox => length(amount),
            Self::Disk | Self::Egress => size(amount),
            Self::Ram => format!("{} GiB hours", tenths(amount, 1024 * 3_600)),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Resource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| {
            let text: String = text.chars().take(80).collect();
            let words = Self::ALL.map(Self::as_str).join(", ");
            format!("`{text}` is none of {words}")
        })
    }
}

impl Per {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Ever => "ever",
            Self::Moment => "moment",
        }
    }

    /// Returns when it began that `now_ms` lies in; `None` if it has no beginning.
    pub(crate) fn began_ms(self, now_ms: u64) -> Option<u64> {
        let days = now_ms / DAY_MS;
        match self {
            Self::Day => Some(days * DAY_MS),
            Self::Month => Some((days - (day_of_month(days) - 1)) * DAY_MS),
            Self::Ever | Self::Moment => None,
        }
    }

    /// Returns when the next one begins.
    pub(crate) fn ends_ms(self, now_ms: u64) -> Option<u64> {
        let days = now_ms / DAY_MS;
        match self {
            Self::Day => Some((days + 1) * DAY_MS),
            // A month has at most 31 days, and the next one more than 3.
            Self::Month => {
                let later = days - (day_of_month(days) - 1) + 31;
                Some((later - (day_of_month(later) - 1)) * DAY_MS)
            }
            Self::Ever | Self::Moment => None,
        }
    }
}

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Per {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "day" => Ok(Self::Day),
            "month" => Ok(Self::Month),
            "ever" => Ok(Self::Ever),
            other => {
                let other: String = other.chars().take(80).collect();
                Err(format!("`{other}` is none of day, month, ever"))
            }
        }
    }
}

/// The day of its month that a day since 1970-01-01 is, from 1: proleptic Gregorian, counted in
/// eras of 400 years from a first of March.
fn day_of_month(days: u64) -> u64 {
    let day_of_era = (days + 719_468) % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    day_of_year - (153 * month + 2) / 5 + 1
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

fn seconds(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(unit)
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn length(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", tenths(seconds, 60)),
        _ => format!("{} h", tenths(seconds, 3_600)),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = UNITS.iter().find(|(_, shift)| bytes >= 1 << shift);
    match fits {
        Some((unit, shift)) => format!("{} {unit}", tenths(bytes, 1 << shift)),
        None => format!("{bytes} B"),
    }
}

/// Returns `amount` in `unit`s with one decimal, rounded down: what is not used up never looks so.
fn tenths(amount: u64, unit: u64) -> String {
    // The rest is less than a unit, the largest of which is 2^40: no overflow.
    let tenth = amount % unit * 10 / unit;
    format!("{}.{tenth}", amount / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_their_units_and_nothing_else_is() {
        let parse = |resource: Resource, text: &str| resource.parse_amount(text).ok();
        assert_eq!(parse(Resource::Cpu, "2h"), Some(7_200));
        assert_eq!(parse(Resource::Sandbox, " 7 d "), Some(604_800));
        assert_eq!(parse(Resource::Disk, "10GiB"), Some(10 << 30));
        assert_eq!(parse(Resource::Egress, "0B"), Some(0));
        assert_eq!(
            parse(Resource::Ram, "4GiB * 8h"),
            Some(4 * 1024 * 8 * 3_600)
        );
        for (resource, hostile) in [
            (Resource::Cpu, ""),
            (Resource::Cpu, "2"),
            (Resource::Cpu, "-2h"),
            (Resource::Cpu, "99999999999999999999d"),
            (Resource::Cpu, "300000000000000d"),
            (Resource::Disk, "10"),
            (Resource::Disk, "10GB"),
            (Resource::Disk, "99999999TiB"),
            (Resource::Ram, "4GiB"),
            (Resource::Ram, "1000TiB*9999999999d"),
            (Resource::Egress, "1GiB*1h"),
        ] {
            assert_eq!(parse(resource, hostile), None, "{hostile}");
        }
    }

    #[test]
    fn amounts_are_shown_rounded_down() {
        assert_eq!(Resource::Cpu.show_amount(7_199), "119.9 min");
        assert_eq!(Resource::Cpu.show_amount(90), "90 s");
        assert_eq!(Resource::Sandbox.show_amount(9_000), "2.5 h");
        assert_eq!(Resource::Ram.show_amount(4 * 1024 * 3_600), "4.0 GiB hours");
    }

    #[test]
    fn periods_begin_and_end_at_midnight_utc() {
        // 2024-02-29T12:00:00Z and the days around it.
        let leap = 19_782 * DAY_MS + DAY_MS / 2;
        let day = |date: u64| date * DAY_MS;
        assert_eq!(Per::Day.began_ms(leap), Some(day(19_782)));
        assert_eq!(Per::Month.began_ms(leap), Some(day(19_754)));
        assert_eq!(Per::Month.ends_ms(leap), Some(day(19_783)));
        assert_eq!(Per::Day.ends_ms(leap), Some(day(19_783)));
        // Every month that begins is the end of the one before.
        let mut at = 0;
        for months in 0..12 * 400 {
            assert_eq!(Per::Month.began_ms(at), Some(at), "month {months}");
            let next = Per::Month.ends_ms(at).unwrap();
            assert!((28..=31).contains(&((next - at) / DAY_MS)));
            assert_eq!(Per::Month.began_ms(next - 1), Some(at));
            at = next;
        }
        assert_eq!(at, 146_097 * DAY_MS);
        assert_eq!(Per::Ever.began_ms(at), None);
    }
}
