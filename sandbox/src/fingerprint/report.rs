//! What a guest says of itself: its own words, taken only as far as they are short and printable.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Fingerprint, Mount};

/// Longest report, in bytes.
pub(super) const MAX_REPORT_BYTES: usize = 256 * 1024;
/// Most entries of one list in it.
const MAX_ENTRIES: usize = 512;
/// Longest name or value in it, in bytes.
const MAX_WORD: usize = 256;
/// Features that a kernel lists and no program asks for are many; the names are short.
const MAX_FEATURE: usize = 32;

/// Why a guest's report was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// It is longer than any honest one.
    #[error("the report of the runtime is {bytes} bytes; at most {MAX_REPORT_BYTES} are read")]
    TooLarge {
        /// How long it is.
        bytes: usize,
    },
    /// It is not what `rhizome runtime --json` prints.
    #[error("the report of the runtime makes no sense")]
    Malformed(#[from] serde_json::Error),
    /// A list in it is longer than any honest one.
    #[error("the report of the runtime has {entries} {what}; at most {MAX_ENTRIES} are read")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        entries: usize,
    },
}

/// What `rhizome runtime --json` prints in the guest.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Report {
    cpu_features: Vec<String>,
    memory_mib: u32,
    tools: BTreeMap<String, String>,
    mounts: BTreeMap<String, Mount>,
    env: Vec<String>,
    locale: String,
    clock_source: String,
}

/// Reads a guest's report into `known`, what the node itself knows of the runtime.
///
/// # Errors
/// Any [`ReportError`]; `known` is unchanged then.
pub(super) fn parse_report(known: &mut Fingerprint, bytes: &[u8]) -> Result<(), ReportError> {
    if bytes.len() > MAX_REPORT_BYTES {
        return Err(ReportError::TooLarge { bytes: bytes.len() });
    }
    let report: Report = serde_json::from_slice(bytes)?;
    for (what, entries) in [
        ("CPU features", report.cpu_features.len()),
        ("tools", report.tools.len()),
        ("mounts", report.mounts.len()),
        ("environment variables", report.env.len()),
    ] {
        if entries > MAX_ENTRIES {
            return Err(ReportError::TooMany { what, entries });
        }
    }
    known.cpu_features = words(report.cpu_features, MAX_FEATURE);
    // The node knows what it gave; a guest sees a little less, and may say anything.
    if known.memory_mib == 0 {
        known.memory_mib = report.memory_mib;
    }
    known.tools = report
        .tools
        .into_iter()
        .filter_map(|(name, version)| Some((word(&name, MAX_WORD)?, word(&version, MAX_WORD)?)))
        .collect();
    known.mounts = report
        .mounts
        .into_iter()
        .filter_map(|(path, mount)| {
            let fs = word(&mount.fs, MAX_WORD)?;
            Some((word(&path, MAX_WORD)?, Mount { fs, ..mount }))
        })
        .collect();
    known.env = words(report.env, MAX_WORD);
    known.locale = word(&report.locale, MAX_WORD).unwrap_or_default();
    // The same counter in the first second of a kernel, which then trusts it.
    let clock = word(&report.clock_source, MAX_WORD).unwrap_or_default();
    known.clock_source = clock.strip_suffix("-early").unwrap_or(&clock).to_owned();
    Ok(())
}

fn words(list: Vec<String>, longest: usize) -> BTreeSet<String> {
    list.iter().filter_map(|text| word(text, longest)).collect()
}

/// Returns a text that can be shown anywhere; nothing else is taken over.
fn word(text: &str, longest: usize) -> Option<String> {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ';
    (!text.is_empty() && text.len() <= longest && text.chars().all(plain)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_fills_in_what_the_node_cannot_know() {
        let mut known = Fingerprint {
            memory_mib: 256,
            ..Fingerprint::default()
        };
        let report = br#"{"cpu_features":["sse2","avx2"],"memory_mib":231,"tools":{"git":"2.39.5"},
            "mounts":{"/":{"fs":"overlay","writable":true,"clean":true}},"env":["PATH","HOME"],
            "locale":"C.UTF-8","clock_source":"tsc-early","later":1}"#;
        parse_report(&mut known, report).unwrap();
        assert_eq!(known.memory_mib, 256);
        assert_eq!(known.tools["git"], "2.39.5");
        assert_eq!(known.mounts["/"].clean, Some(true));
        assert!(known.env.contains("HOME"));
        assert_eq!(known.clock_source, "tsc");
    }

    #[test]
    fn a_hostile_report_changes_nothing_or_loses_what_cannot_be_shown() {
        let mut known = Fingerprint::default();
        let huge = vec![b' '; MAX_REPORT_BYTES + 1];
        let many = format!("{{\"env\":[{}]}}", vec!["\"A\""; MAX_ENTRIES + 1].join(","));
        assert!(matches!(
            parse_report(&mut known, &huge),
            Err(ReportError::TooLarge { .. })
        ));
        assert!(matches!(
            parse_report(&mut known, many.as_bytes()),
            Err(ReportError::TooMany { .. })
        ));
        for bad in [
            "",
            "3",
            "{\"tools\":3}",
            "{\"env\":[1]}",
            "{\"mounts\":{\"/\":7}}",
        ] {
            assert!(parse_report(&mut known, bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(known, Fingerprint::default());
        let odd = r#"{"tools":{"git":"2\u001b[31m","\n":"1","ok":"1"},"locale":"\u202e"}"#;
        parse_report(&mut known, odd.as_bytes()).unwrap();
        assert_eq!(known.tools.len(), 1);
        assert_eq!(known.locale, "");
    }
}
