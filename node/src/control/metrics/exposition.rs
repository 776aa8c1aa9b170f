//! The text format that Prometheus reads, version 0.0.4, written so that nothing else comes out.
//!
//! Names are ours and checked by a test; values of labels may be anybody's and are escaped. A
//! family is written once, its samples together.

use std::fmt::Write as _;

/// What a family's samples mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Counter,
    Gauge,
    Histogram,
}

impl Type {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A text that is being written.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    families: Vec<&'static str>,
}

/// The samples of one family.
#[derive(Debug)]
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

/// How durations are spread: how many were at most as long as each bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread<'a> {
    /// The bounds in milliseconds, and how many were within each.
    pub(super) within: &'a [(u64, u64)],
    /// How many there were.
    pub(super) count: u64,
    /// How long they took together, in milliseconds.
    pub(super) sum_ms: u64,
}

impl Exposition {
    /// Begins a family.
    ///
    /// # Panics
    /// If it was begun before: the format wants its samples together.
    pub(super) fn family(&mut self, name: &'static str, kind: Type, help: &str) -> Family<'_> {
        assert!(!self.families.contains(&name), "{name} is written once");
        self.families.push(name);
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = kind.as_str();
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family {
            text: &mut self.text,
            name,
        }
    }

    /// Writes a family of one sample without labels.
    pub(super) fn single(&mut self, name: &'static str, kind: Type, help: &str, value: u64) {
        self.family(name, kind, help).sample(&[], value);
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Writes one sample.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.line("", labels, value)
    }

    /// Writes one sample of an amount in milliseconds, as seconds.
    pub(super) fn seconds(&mut self, labels: &[(&str, &str)], ms: u64) -> &mut Self {
        self.line("", labels, Seconds(ms))
    }

    /// Writes the samples of a histogram of seconds.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], spread: Spread<'_>) -> &mut Self {
        for (bound_ms, count) in spread.within {
            let bound = Seconds(*bound_ms).to_string();
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.line("_bucket", &labels, *count);
        }
        let mut all = labels.to_vec();
        all.push(("le", "+Inf"));
        self.line("_bucket", &all, spread.count);
        self.line("_sum", labels, Seconds(spread.sum_ms));
        self.line("_count", labels, spread.count)
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) -> &mut Self {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (place, (label, of)) in labels.iter().enumerate() {
            let open = if place == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(of));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }
}

/// Milliseconds that are written as seconds, without rounding.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        match rest {
            0 => write!(f, "{whole}"),
            rest => {
                let digits = format!("{rest:03}");
                write!(f, "{whole}.{}", digits.trim_end_matches('0'))
            }
        }
    }
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_format_to_the_letter() {
        let mut text = Exposition::default();
        text.single("a_total", Type::Counter, "back\\slash\nline", 7);
        text.family("b", Type::Gauge, "B")
            .sample(&[("name", "say \"hi\"\\\n{x=\"1\"}")], 1)
            .seconds(&[("x", "é"), ("y", "")], 1_250);
        let spread = Spread {
            within: &[(50, 1), (2_500, 3)],
            count: 4,
            sum_ms: 70_010,
        };
        text.family("c_seconds", Type::Histogram, "C")
            .histogram(&[("action", "create")], spread);
        assert_eq!(
            text.into_text(),
            "# HELP a_total back\\\\slash\\nline\n\
             # TYPE a_total counter\n\
             a_total 7\n\
             # HELP b B\n\
             # TYPE b gauge\n\
             b{name=\"say \\\"hi\\\"\\\\\\n{x=\\\"1\\\"}\"} 1\n\
             b{x=\"é\",y=\"\"} 1.25\n\
             # HELP c_seconds C\n\
             # TYPE c_seconds histogram\n\
             c_seconds_bucket{action=\"create\",le=\"0.05\"} 1\n\
             c_seconds_bucket{action=\"create\",le=\"2.5\"} 3\n\
             c_seconds_bucket{action=\"create\",le=\"+Inf\"} 4\n\
             c_seconds_sum{action=\"create\"} 70.01\n\
             c_seconds_count{action=\"create\"} 4\n"
        );
    }

    #[test]
    #[should_panic(expected = "written once")]
    fn a_family_is_written_once() {
        let mut text = Exposition::default();
        text.single("a", Type::Gauge, "A", 1);
        text.single("a", Type::Gauge, "A", 2);
    }
}
