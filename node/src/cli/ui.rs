//! Where output goes: data to standard output, progress and status to standard error.

use std::io::{self, BufRead, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::failure::Failure;
use crate::api::types::SCHEMA;

/// How a command speaks to its user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ui {
    json: bool,
    colour: bool,
}

impl Ui {
    /// Returns an output that prints JSON objects if `json` is set, text otherwise.
    pub(crate) fn new(json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            json,
            colour: !json && !plain && io::stdout().is_terminal(),
        }
    }

    /// Returns whether the user asked for JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints one line of data.
    pub(crate) fn line(self, line: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        Ok(writeln!(stdout, "{line}").and_then(|()| stdout.flush())?)
    }

    /// Prints one object as a line of JSON, with its schema number.
    pub(crate) fn object(self, object: &impl Serialize) -> Result<(), Failure> {
        let mut value = serde_json::to_value(object).expect("answer types have string keys");
        if let Some(fields) = value.as_object_mut() {
            fields.entry("schema").or_insert_with(|| SCHEMA.into());
        }
        self.line(&value.to_string())
    }

    /// Prints `items` as JSON lines, or as a table of `columns` made by `row`; `none` stands for no items.
    pub(crate) fn list<T: Serialize, const N: usize>(
        self,
        items: &[T],
        none: &str,
        columns: [&str; N],
        row: impl Fn(&T) -> [String; N],
    ) -> Result<(), Failure> {
        if self.json {
            return items.iter().try_for_each(|item| self.object(item));
        }
        if items.is_empty() {
            self.status(none);
            return Ok(());
        }
        for line in table(columns, &items.iter().map(row).collect::<Vec<_>>()) {
            self.line(&line)?;
        }
        Ok(())
    }

    /// Says something about the work on standard error; never part of the data.
    pub(crate) fn status(self, line: &str) {
        say(line);
    }

    /// Asks whether to go on; fails with `refused` and `hint` unless the answer is yes.
    pub(crate) fn ask(self, question: &str, refused: &str, hint: &str) -> Result<(), Failure> {
        if self.json || !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "nobody can be asked whether to do this",
                hint,
            ));
        }
        let mut stderr = io::stderr().lock();
        write!(stderr, "{question} [y/N] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::usage(refused, hint)),
        }
    }

    /// Returns `text` in bold on a terminal.
    pub(crate) fn bold(self, text: &str) -> String {
        if self.colour {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Starts to show the progress of long work on standard error.
    pub(crate) fn progress(self) -> Steps {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
            let bar =
                ProgressBar::new_spinner().with_style(style.expect("the template is well formed"));
            bar.enable_steady_tick(std::time::Duration::from_millis(120));
            bar
        });
        Steps {
            bar,
            last: String::new(),
        }
    }
}

/// The progress of long work: a spinner on a terminal, a line per step elsewhere.
#[derive(Debug)]
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    last: String,
}

impl Steps {
    /// Shows that the work is at `step`; `detail` changes often, `share` is (done, total).
    pub(crate) fn at(&mut self, step: &str, detail: &str, share: Option<(u64, u64)>) {
        let share = share.filter(|(_, total)| *total > 0);
        let percent = share.map(|(done, total)| format!(" {}%", done.min(total) * 100 / total));
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{step}{} {detail}", percent.unwrap_or_default()));
            }
            // Without a terminal a line for every step, not for every detail.
            None if step != self.last => say(step),
            None => {}
        }
        step.clone_into(&mut self.last);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn table<const N: usize>(columns: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let heads = columns.map(str::to_uppercase);
    let mut widths = heads.each_ref().map(|head| head.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let draw = |cells: &[String; N]| {
        let padded = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(draw(&heads))
        .chain(rows.iter().map(draw))
        .collect()
}

/// Prints a line on standard error, if anybody still reads it.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns how long ago `at_ms` was, in words short enough for a table.
pub(crate) fn ago(now_ms: u64, at_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(at_ms) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// Returns `bytes` with a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10).min(4);
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    let value = bytes as f64
        / f64::from(1_u32 << (10 * (exponent.min(3))))
        / if exponent == 4 { 1024.0 } else { 1.0 };
    format!("{value:.1} {}", UNITS[exponent as usize - 1])
}

/// Returns `at_ms` (unix milliseconds) as UTC in RFC 3339, to the second.
pub(crate) fn utc(at_ms: u64) -> String {
    let seconds = at_ms / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01, proleptic Gregorian, counted in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns text of others with control characters made visible, so that it cannot drive a terminal.
pub(crate) fn plain(text: &str) -> String {
    let visible = |character: char| match character {
        '\n' | '\t' => character,
        _ if character.is_control() => char::REPLACEMENT_CHARACTER,
        _ => character,
    };
    text.chars().map(visible).collect()
}

/// Returns the first `limit` characters of the first line of `text`.
pub(crate) fn headline(text: &str, limit: usize) -> String {
    let line = plain(text.lines().next().unwrap_or_default());
    if line.chars().count() <= limit {
        return line;
    }
    line.chars()
        .take(limit.saturating_sub(1))
        .chain(['…'])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            ["a".to_owned(), "long cell".to_owned()],
            ["bbbb".to_owned(), "c".to_owned()],
        ];
        assert_eq!(
            table(["x", "y"], &rows),
            ["X     Y", "a     long cell", "bbbb  c"]
        );
    }

    #[test]
    fn times_and_sizes_are_readable() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696_000), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_796_083_199_000), "2026-11-30T23:59:59Z");
        assert_eq!(ago(100_000, 40_000), "1 min ago");
        assert_eq!(ago(0, 40_000), "0 s ago");
        assert_eq!(size(512), "512 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(5 << 40), "5.0 TiB");
    }

    #[test]
    fn foreign_text_cannot_drive_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(headline("first line\nsecond", 7), "first …");
    }
}
