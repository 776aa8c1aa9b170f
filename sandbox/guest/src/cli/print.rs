//! Output for people: cleaned of what a terminal would act on, with origin and time.

use std::io::{self, BufWriter, Write};

use serde_json::Value;

/// Where a command's data goes.
pub(crate) struct Out<W: Write>(BufWriter<W>);

impl<W: Write> Out<W> {
    pub(crate) fn new(sink: W) -> Self {
        Self(BufWriter::new(sink))
    }

    pub(crate) fn raw(&mut self) -> &mut impl Write {
        &mut self.0
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Prints one line of our own words, with others' in them made harmless.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.0, "{}", clean(text.as_ref()))
    }

    /// Prints others' words, each line behind a bar.
    pub(crate) fn quote(&mut self, indent: &str, text: &str) -> io::Result<()> {
        for line in text.lines() {
            writeln!(self.0, "{indent}| {}", clean(line))?;
        }
        Ok(())
    }

    pub(crate) fn json(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.0, "{value}")
    }
}

/// Replaces what a terminal would act on.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            // Marks that turn the direction of writing can make a line read as another.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Returns a text field, or nothing.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

/// Says who: `ann (3f2a…)`.
pub(crate) fn who(value: &Value) -> String {
    let (name, id) = match value {
        Value::String(id) => ("", id.as_str()),
        value => (text(value, "name"), text(value, "id")),
    };
    let short: String = id.chars().take(10).collect();
    match (name, short.as_str()) {
        ("", "") => "unknown".to_owned(),
        ("", id) => id.to_owned(),
        (name, "") => name.to_owned(),
        (name, id) => format!("{name} ({id})"),
    }
}

/// Says who, where and when: `by ann (3f2a…) on laptop (77ab…) at 2026-11-30 09:20:11Z`.
pub(crate) fn origin(value: &Value) -> String {
    let mut origin = format!("by {}", who(&value["author"]));
    if !value["node"].is_null() {
        origin.push_str(&format!(" on {}", who(&value["node"])));
    }
    if let Some(at) = value["at_ms"].as_u64() {
        origin.push_str(&format!(" at {}", time(at)));
    }
    origin
}

/// Returns a time as people read it.
pub(crate) fn time(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to dates as in Howard Hinnant's `civil_from_days`, from 1 March of year 0.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00Z");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(time(1_796_030_411_999), "2026-11-30 09:20:11Z");
    }

    #[test]
    fn others_words_stay_behind_their_bar() {
        let mut bytes = Vec::new();
        let mut out = Out::new(&mut bytes);
        out.quote("  ", "plain\r\n\u{1b}[2Jclear\nback\rhere \u{202e}x")
            .unwrap();
        out.flush().unwrap();
        drop(out);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "  | plain\n  | \u{fffd}[2Jclear\n  | back\u{fffd}here \u{fffd}x\n"
        );
    }

    #[test]
    fn origins_say_what_is_known() {
        let full = json!({
            "author": {"id": "0123456789abcdef", "name": "ann"}, "node": {"id": "fe", "name": "lap"},
            "at_ms": 0,
        });
        assert_eq!(
            origin(&full),
            "by ann (0123456789) on lap (fe) at 1970-01-01 00:00:00Z"
        );
        assert_eq!(origin(&json!({"author": "abc"})), "by abc");
        assert_eq!(origin(&json!({})), "by unknown");
    }
}
