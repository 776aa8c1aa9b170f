//! Points in time as people write them: RFC 3339, or a length of time from now.

/// The last second that a time may name: the end of the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;
const DAY: u64 = 86_400;

/// Why something is no time to wake at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WhenError {
    /// It is neither form.
    #[error("it is neither a length of time nor a date with a time and an offset")]
    Malformed,
    /// There is no such day or time of day.
    #[error("there is no such day or time of day")]
    NoSuchTime,
    /// It has passed.
    #[error("it has passed, by the clock of this node")]
    Passed,
    /// It is beyond what a date can say.
    #[error("it is too far away")]
    TooFar,
}

impl WhenError {
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Passed => "name a time to come; `date -u` says what time it is".into(),
            Self::Malformed | Self::NoSuchTime | Self::TooFar => {
                "write `90s`, `30m`, `2h`, `7d`, or RFC 3339 such as `2026-12-24T08:00:00Z` or \
                 `2026-12-24T08:00:00+01:00`"
                    .into()
            }
        }
    }
}

/// Reads a time to come, in Unix milliseconds.
pub(crate) fn parse_time(text: &str, now_ms: u64) -> Result<u64, WhenError> {
    let text = text.trim();
    if let Some(seconds) = duration(text) {
        let length_ms = seconds?.checked_mul(1000).ok_or(WhenError::TooFar)?;
        let at_ms = now_ms.checked_add(length_ms).ok_or(WhenError::TooFar)?;
        return if at_ms / 1000 > MAX_SECONDS {
            Err(WhenError::TooFar)
        } else {
            Ok(at_ms)
        };
    }
    let at_ms = rfc3339(text)?;
    if at_ms <= now_ms {
        return Err(WhenError::Passed);
    }
    Ok(at_ms)
}

/// Reads `90s`, `30m`, `2h` or `7d`, in seconds; `None` if it does not look like one.
fn duration(text: &str) -> Option<Result<u64, WhenError>> {
    let unit = match text.bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => DAY,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = number.parse::<u64>().ok();
    let seconds = number.and_then(|number| number.checked_mul(unit));
    Some(seconds.ok_or(WhenError::TooFar))
}

/// Reads a date and time of RFC 3339, with its offset, in Unix milliseconds.
fn rfc3339(text: &str) -> Result<u64, WhenError> {
    let bytes = text.as_bytes();
    let number = |from: usize, len: usize| -> Result<u64, WhenError> {
        let digits = bytes.get(from..from + len).ok_or(WhenError::Malformed)?;
        digits.iter().try_fold(0, |value, digit| match digit {
            b'0'..=b'9' => Ok(value * 10 + u64::from(digit - b'0')),
            _ => Err(WhenError::Malformed),
        })
    };
    let is = |at: usize, allowed: &[u8]| match bytes.get(at) {
        Some(byte) if allowed.contains(byte) => Ok(()),
        _ => Err(WhenError::Malformed),
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    is(4, b"-")?;
    is(7, b"-")?;
    is(10, b"Tt ")?;
    is(13, b":")?;
    is(16, b":")?;
    let mut at = 19;
    let mut millis = 0;
    if bytes.get(at) == Some(&b'.') {
        let digits = bytes[at + 1..].iter().take_while(|b| b.is_ascii_digit());
        let len = digits.count();
        if len == 0 {
            return Err(WhenError::Malformed);
        }
        for place in 0..3 {
            let digit = if place < len {
                number(at + 1 + place, 1)?
            } else {
                0
            };
            millis = millis * 10 + digit;
        }
        at += 1 + len;
    }
    let (offset_minutes, is_west, end) = match bytes.get(at) {
        Some(b'Z' | b'z') => (0, false, at + 1),
        Some(sign @ (b'+' | b'-')) => {
            let (hours, minutes) = (number(at + 1, 2)?, number(at + 4, 2)?);
            is(at + 3, b":")?;
            if hours > 23 || minutes > 59 {
                return Err(WhenError::NoSuchTime);
            }
            (hours * 60 + minutes, *sign == b'-', at + 6)
        }
        _ => return Err(WhenError::Malformed),
    };
    if end != bytes.len() {
        return Err(WhenError::Malformed);
    }
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return Err(WhenError::NoSuchTime),
    };
    // A leap second is told from the one before it by nobody who counts Unix time.
    if !(1..=days_of_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return Err(WhenError::NoSuchTime);
    }
    let days = days_since_1970(year, month, day).ok_or(WhenError::Passed)?;
    let seconds = days * DAY + hour * 3_600 + minute * 60 + second.min(59);
    let offset = offset_minutes * 60;
    let seconds = if is_west {
        seconds + offset
    } else {
        seconds.checked_sub(offset).ok_or(WhenError::Passed)?
    };
    Ok(seconds * 1000 + millis)
}

/// Counts days of the proleptic Gregorian calendar; `None` before 1970.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    // Years begin in March, so that the leap day is their last (the inverse of `cli::ui::utc`).
    let year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let month_index = if month > 2 { month - 3 } else { month + 9 };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month_index + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    #[test]
    fn a_length_of_time_counts_from_now() {
        assert_eq!(parse_time("90s", NOW), Ok(NOW + 90_000));
        assert_eq!(parse_time("7d", NOW), Ok(NOW + 604_800_000));
        assert_eq!(parse_time("0s", NOW), Ok(NOW));
        assert_eq!(parse_time("9999999d", NOW), Err(WhenError::TooFar));
        let huge = "99999999999999999999d";
        assert_eq!(parse_time(huge, NOW), Err(WhenError::TooFar));
        for bad in ["", "h", "5w", "-1h", "1.5h", "１h"] {
            assert_eq!(parse_time(bad, NOW), Err(WhenError::Malformed), "{bad}");
        }
    }

    #[test]
    fn dates_are_those_of_rfc_3339() {
        for (text, seconds) in [
            ("2026-12-24T08:00:00Z", 1_798_099_200_000),
            ("2026-12-24t08:00:00z", 1_798_099_200_000),
            ("2026-12-24 09:00:00+01:00", 1_798_099_200_000),
            ("2026-12-23T22:30:00.25-09:30", 1_798_099_200_250),
            ("2024-02-29T00:00:00.123456789Z", 1_709_164_800_123),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
            ("2027-01-01T00:59:60+01:00", 1_798_761_599_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(parse_time(text, NOW), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_says_so() {
        for (text, why) in [
            ("2026-12-24T08:00:00", WhenError::Malformed),
            ("2026-12-24", WhenError::Malformed),
            ("2026-12-24T08:00Z", WhenError::Malformed),
            ("2026-12-24T08:00:00.Z", WhenError::Malformed),
            ("2026-12-24T08:00:00Zz", WhenError::Malformed),
            ("2026-12-24T08:00:00+0100", WhenError::Malformed),
            ("２０２６-12-24T08:00:00Z", WhenError::Malformed),
            ("2026-13-01T08:00:00Z", WhenError::NoSuchTime),
            ("2026-02-29T08:00:00Z", WhenError::NoSuchTime),
            ("2026-00-10T08:00:00Z", WhenError::NoSuchTime),
            ("2026-12-24T24:00:00Z", WhenError::NoSuchTime),
            ("2026-12-24T08:00:00+24:00", WhenError::NoSuchTime),
            ("2020-01-01T00:00:00Z", WhenError::Passed),
            ("0000-01-01T00:00:00Z", WhenError::Passed),
            ("1970-01-01T00:00:00+23:59", WhenError::Passed),
        ] {
            assert_eq!(parse_time(text, NOW), Err(why), "{text}");
        }
    }
}
