//! Reading one table of a scenario file: each key once, of its kind, within its bounds.

use std::{cell::RefCell, time::Duration};

use toml_edit::{Item, TableLike};

use super::ScenarioError;

/// The longest time that a scenario may name.
const MAX_TIME: Duration = Duration::from_secs(400 * 24 * 3600);
/// The furthest that a clock may be off: about a hundred years.
const MAX_SKEW: Duration = Duration::from_secs(36_525 * 24 * 3600);

/// A table whose keys are asked for one after the other.
pub(super) struct Fields<'a> {
    text: &'a str,
    table: &'a dyn TableLike,
    line: usize,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str, table: &'a dyn TableLike, line: usize) -> Self {
        let asked = RefCell::default();
        Self {
            text,
            table,
            line,
            asked,
        }
    }

    /// Returns the line that the table begins on.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn get(&self, key: &'static str) -> Option<&'a Item> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    /// Returns the table under a key.
    pub(super) fn table(&self, key: &'static str) -> Result<Option<Fields<'a>>, ScenarioError> {
        let Some(item) = self.get(key) else {
            return Ok(None);
        };
        let line = self.line_of(key);
        let table = item.as_table_like();
        let table = table.ok_or_else(|| self.wrong(key, "a table"))?;
        Ok(Some(Fields::new(self.text, table, line)))
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>, ScenarioError> {
        self.typed(key, "a text in quotes", Item::as_str)
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<Option<bool>, ScenarioError> {
        self.typed(key, "`true` or `false`", Item::as_bool)
    }

    /// Returns a whole number between two.
    pub(super) fn number<T: TryFrom<i64>>(
        &self,
        key: &'static str,
        (lo, hi): (i64, i64),
    ) -> Result<Option<T>, ScenarioError> {
        let expected = format!("a whole number from {lo} to {hi}");
        let within = |item: &'a Item| {
            let number = item.as_integer().filter(|n| (lo..=hi).contains(n))?;
            T::try_from(number).ok()
        };
        self.typed(key, &expected, within)
    }

    /// Returns a share of all, in thousandths.
    pub(super) fn per_mille(&self, key: &'static str) -> Result<Option<u32>, ScenarioError> {
        let share = |item: &'a Item| {
            let whole = item.as_integer().and_then(|n| u32::try_from(n).ok());
            let share = item.as_float().or_else(|| whole.map(f64::from))?;
            // The smallest step is a thousandth; the range is checked, so nothing is cut off.
            let thousandths = (0_u32..=1000).find(|n| f64::from(*n) >= share * 1000.0 - 0.5);
            thousandths.filter(|_| (0.0..=1.0).contains(&share))
        };
        self.typed(key, "a share from 0.0 to 1.0", share)
    }

    pub(super) fn time(&self, key: &'static str) -> Result<Option<Duration>, ScenarioError> {
        self.typed(key, TIME, |item| item.as_str().and_then(parse_time))
    }

    /// Returns a span of times, from the shorter to the longer.
    pub(super) fn times(
        &self,
        key: &'static str,
    ) -> Result<Option<(Duration, Duration)>, ScenarioError> {
        self.typed(
            key,
            "two times such as [\"2ms\", \"90ms\"], the shorter first",
            |item| {
                let times = item.as_array().filter(|array| array.len() == 2)?;
                let time = |at| times.get(at).and_then(|v| v.as_str()).and_then(parse_time);
                let (lo, hi) = (time(0)?, time(1)?);
                (lo <= hi).then_some((lo, hi))
            },
        )
    }

    /// Returns a list of which each entry is read by `read`.
    pub(super) fn list<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ScenarioError> {
        self.typed(key, expected, |item| {
            let array = item.as_array().filter(|array| !array.is_empty())?;
            array
                .iter()
                .map(|value| value.as_str().and_then(&read))
                .collect()
        })
    }

    /// Insists on a key.
    pub(super) fn needed<T>(
        &self,
        key: &'static str,
        value: Option<T>,
    ) -> Result<T, ScenarioError> {
        let line = self.line;
        value.ok_or(ScenarioError::Missing { line, key })
    }

    /// Ends the reading: whatever was not asked for has no meaning here.
    pub(super) fn finish(self) -> Result<(), ScenarioError> {
        let asked = self.asked.into_inner();
        let unknown = self.table.iter().find(|(key, _)| !asked.contains(key));
        let Some((key, item)) = unknown else {
            return Ok(());
        };
        Err(ScenarioError::UnknownKey {
            line: line_of_item(self.text, self.table, key, item, self.line),
            key: key.to_owned(),
            known: asked.join(", "),
        })
    }

    pub(super) fn wrong(&self, key: &'static str, expected: &str) -> ScenarioError {
        ScenarioError::Value {
            line: self.line_of(key),
            key: key.to_owned(),
            expected: expected.to_owned(),
        }
    }

    fn typed<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&'a Item) -> Option<T>,
    ) -> Result<Option<T>, ScenarioError> {
        let Some(item) = self.get(key) else {
            return Ok(None);
        };
        let value = read(item).ok_or_else(|| self.wrong(key, expected))?;
        Ok(Some(value))
    }

    fn line_of(&self, key: &'static str) -> usize {
        let item = self.table.get(key);
        item.map_or(self.line, |item| {
            line_of_item(self.text, self.table, key, item, self.line)
        })
    }
}

const TIME: &str = "a time such as \"500ms\", \"30s\", \"5m\", \"48h\" or \"2d\", at most 400 days";

/// Reads a time that a run can last.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    parse_span(text).filter(|time| *time <= MAX_TIME)
}

/// Reads how far a clock is off, in milliseconds: a span with a sign.
pub(super) fn parse_skew(text: &str) -> Option<i64> {
    let (sign, span) = match text.split_at_checked(1)? {
        ("+", span) => (1, span),
        ("-", span) => (-1, span),
        _ => return None,
    };
    let span = parse_span(span).filter(|span| *span <= MAX_SKEW)?;
    Some(sign * i64::try_from(span.as_millis()).ok()?)
}

/// Reads a whole number and its unit.
fn parse_span(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let seconds = |each: u64| Some(Duration::from_secs(number.checked_mul(each)?));
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(24 * 3600),
        _ => None,
    }
}

/// Returns the line of a byte, counted from 1.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn line_of_item(
    text: &str,
    table: &dyn TableLike,
    key: &str,
    item: &Item,
    otherwise: usize,
) -> usize {
    let key_span = table.get_key_value(key).and_then(|(key, _)| key.span());
    let span = key_span.or_else(|| item.span());
    span.map_or(otherwise, |span| line_at(text, span.start))
}
