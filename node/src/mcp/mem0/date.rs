//! Days and moments as clients write them.

/// Milliseconds of a day.
pub(crate) const DAY_MS: i64 = 86_400_000;

/// Reads `YYYY-MM-DD`, alone or with a time (`THH:MM[:SS[.fff]]`) and an offset (`Z` or `+HH:MM`;
/// without one it is UTC), into Unix milliseconds.
pub(crate) fn to_ms(text: &str) -> Option<i64> {
    let text = text.trim();
    if !text.is_ascii() || text.len() < 10 || text.len() > 40 {
        return None;
    }
    let day = day_of(&text[..10])?;
    let rest = &text[10..];
    if rest.is_empty() {
        return Some(day * DAY_MS);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, offset_minutes) = split_offset(rest)?;
    let mut parts = time.split(':');
    let hour = number(parts.next()?, 2, 23)?;
    let minute = number(parts.next()?, 2, 59)?;
    let second = parts.next().unwrap_or("00");
    if parts.next().is_some() {
        return None;
    }
    let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
    let second = number(second, 2, 60)?;
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    let ms = ((hour * 60 + minute - offset_minutes) * 60 + second) * 1_000;
    Some(day * DAY_MS + ms + fraction.parse::<i64>().ok()?)
}

/// Reads `YYYY-MM-DD` into days since 1970-01-01.
pub(crate) fn day_of(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 4, 9_999)?;
    let month = number(parts.next()?, 2, 12)?;
    let day = number(parts.next()?, 2, 31)?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if parts.next().is_some() || month == 0 || day == 0 || day > last {
        return None;
    }
    // Days from civil, with the year beginning in March.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some(era * 146_097 + of_era - 719_468)
}

/// Writes Unix milliseconds as clients read them: `2026-11-30T12:00:00.000+00:00`.
pub(crate) fn from_ms(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX / 2);
    let (days, of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let of_400 = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_400 + of_400 / 4 - of_400 / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = of_400 + era * 400 + i64::from(month <= 2);
    let (seconds, ms) = (of_day / 1_000, of_day % 1_000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}+00:00",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn split_offset(rest: &str) -> Option<(&str, i64)> {
    if let Some(time) = rest.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = rest.rfind(['+', '-']) else {
        return Some((rest, 0));
    };
    let (time, offset) = rest.split_at(at);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset[1..].split_once(':')?;
    let minutes = number(hours, 2, 14)? * 60 + number(minutes, 2, 59)?;
    Some((time, sign * minutes))
}

fn number(text: &str, digits: usize, most: i64) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    let number: i64 = text.parse().ok().filter(|_| is_number)?;
    (number <= most).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_written_alike() {
        assert_eq!(to_ms("1970-01-01"), Some(0));
        assert_eq!(to_ms("2000-02-29"), Some(951_782_400_000));
        assert_eq!(to_ms("2026-11-30T12:30:00Z"), Some(1_796_041_800_000));
        assert_eq!(
            to_ms("2026-11-30T14:30:00.5+02:00"),
            Some(1_796_041_800_500)
        );
        assert_eq!(from_ms(1_796_041_800_500), "2026-11-30T12:30:00.500+00:00");
        for ms in [0, 951_782_399_999, 951_782_400_000, 4_102_444_800_000] {
            assert_eq!(to_ms(&from_ms(ms)), Some(i64::try_from(ms).unwrap()));
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-00-10",
            "2026-1-1",
            "tomorrow!!",
            "2026-11-30T25:00:00Z",
            "2026-11-30Tnoon",
            "２０２６-11-30",
            "2026-11-30T12:00:00+99:00",
        ] {
            assert_eq!(to_ms(text), None, "{text}");
        }
    }
}
