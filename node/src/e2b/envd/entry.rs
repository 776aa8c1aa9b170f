//! What a path is, as clients read it.
use rhizome_sandbox::{FileKind, channel::PathFacts};
use serde_json::{Map, Value, json};

/// What attributes begin with that are a file's metadata.
pub(super) const METADATA_PREFIX: &str = "user.e2b.";

/// Returns an `EntryInfo`.
pub(super) fn entry(facts: &PathFacts) -> Value {
    let mut entry = json!({
        "name": facts.name(),
        "type": kind(facts.kind),
        "path": facts.path,
        // 64-bit numbers travel as text.
        "size": facts.size.to_string(),
        "mode": facts.mode & 0o777,
        "permissions": permissions(facts),
        "owner": facts.owner,
        "group": facts.group,
        "modifiedTime": rfc3339(facts.modified_ns),
        "isSymlink": facts.is_link,
    });
    if let Some(target) = &facts.target {
        entry["symlinkTarget"] = target.as_str().into();
    }
    let metadata = metadata(facts);
    if !metadata.is_empty() {
        entry["metadata"] = metadata.into();
    }
    entry
}

/// Returns what a client wrote on a file.
pub(super) fn metadata(facts: &PathFacts) -> Map<String, Value> {
    let of = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let name = std::str::from_utf8(name).ok()?;
        let name = name.strip_prefix(METADATA_PREFIX)?;
        let value = std::str::from_utf8(value).ok()?;
        Some((name.to_owned(), value.into()))
    };
    facts.attributes.iter().filter_map(of).collect()
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        FileKind::Other => "FILE_TYPE_UNSPECIFIED",
    }
}

/// Returns a mode as Go spells it: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`.
fn permissions(facts: &PathFacts) -> String {
    let is_directory = !facts.is_link && facts.kind == FileKind::Directory;
    let mut text = String::with_capacity(12);
    for (is, letter) in [
        (is_directory, 'd'),
        (facts.is_link, 'L'),
        (facts.mode & 0o4000 != 0, 'u'),
        (facts.mode & 0o2000 != 0, 'g'),
        (facts.mode & 0o1000 != 0, 't'),
    ] {
        if is {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (bit, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if facts.mode & (1 << bit) != 0 {
            letter
        } else {
            '-'
        });
    }
    text
}

/// Returns nanoseconds since 1970 as RFC 3339 in UTC.
pub(super) fn rfc3339(ns: i64) -> String {
    let (seconds, nanos) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date from days since 1970-01-01, proleptic Gregorian, counted in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: FileKind, is_link: bool, mode: u32) -> PathFacts {
        PathFacts {
            path: "/home/ann/a".to_owned(),
            kind,
            is_link,
            mode,
            uid: 1000,
            gid: 100,
            owner: "ann".to_owned(),
            group: "users".to_owned(),
            size: 5,
            modified_ns: 1_796_063_100_000_000_001,
            target: is_link.then(|| "/b".to_owned()),
            attributes: vec![
                (b"user.e2b.purpose".to_vec(), b"test".to_vec()),
                (b"user.other".to_vec(), b"x".to_vec()),
            ],
        }
    }

    #[test]
    fn modes_are_spelled_as_go_does() {
        let of = |kind, is_link, mode| permissions(&facts(kind, is_link, mode));
        assert_eq!(of(FileKind::File, false, 0o644), "-rw-r--r--");
        assert_eq!(of(FileKind::Directory, false, 0o755), "drwxr-xr-x");
        assert_eq!(of(FileKind::Directory, true, 0o777), "Lrwxrwxrwx");
        assert_eq!(of(FileKind::Directory, false, 0o1777), "dtrwxrwxrwx");
        assert_eq!(of(FileKind::File, false, 0o4755), "urwxr-xr-x");
    }

    #[test]
    fn an_entry_is_complete() {
        let said = entry(&facts(FileKind::File, true, 0o777));
        assert_eq!(said["name"], "a");
        assert_eq!(said["type"], "FILE_TYPE_FILE");
        assert_eq!(said["size"], "5");
        assert_eq!(said["isSymlink"], true);
        assert_eq!(said["symlinkTarget"], "/b");
        assert_eq!(said["metadata"], json!({"purpose": "test"}));
        assert_eq!(said["modifiedTime"], "2026-11-30T18:25:00.000000001Z");
    }

    #[test]
    fn times_before_1970_and_leap_days_are_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(
            rfc3339(951_782_400 * 1_000_000_000),
            "2000-02-29T00:00:00.000000000Z"
        );
    }
}
