//! A small parser of options: the guest's binary is kept small, and `clap` is not.

use super::CliError;

/// What a command takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    /// Its help.
    pub(crate) help: &'static str,
    /// Options with a value, each as often as wanted.
    pub(crate) values: &'static [&'static str],
    /// Options without.
    pub(crate) flags: &'static [&'static str],
    /// Whether it takes words beside its options.
    pub(crate) words: bool,
}

/// What a command was given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    values: Vec<(&'static str, String)>,
    flags: Vec<&'static str>,
    words: Vec<String>,
}

impl Args {
    pub(crate) fn parse(
        spec: Spec,
        words: impl IntoIterator<Item = String>,
    ) -> Result<Self, CliError> {
        let mut args = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if word == "--" {
                args.words.extend(words.by_ref());
                break;
            }
            if word == "-h" || word == "--help" {
                return Err(CliError::Help(spec.help));
            }
            let Some(option) = word.strip_prefix("--") else {
                args.words.push(word);
                continue;
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            if let Some(name) = spec.values.iter().find(|known| **known == name) {
                let value = inline
                    .or_else(|| words.next())
                    .ok_or_else(|| CliError::Usage(format!("`--{name}` needs a value")))?;
                args.values.push((name, value));
            } else if let Some(name) = spec.flags.iter().find(|known| **known == name) {
                if inline.is_some() {
                    return Err(CliError::Usage(format!("`--{name}` takes no value")));
                }
                args.flags.push(name);
            } else {
                return Err(CliError::Usage(format!(
                    "there is no option `--{name}` here"
                )));
            }
        }
        if let (false, Some(word)) = (spec.words, args.words.first()) {
            return Err(CliError::Usage(format!("`{word}` is not expected here")));
        }
        Ok(args)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags.contains(&name)
    }

    /// Returns the one value of an option.
    pub(crate) fn one<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, CliError> {
        let mut all = self.all(name);
        let first = all.next();
        if all.next().is_some() {
            return Err(CliError::Usage(format!("`--{name}` may be given once")));
        }
        Ok(first)
    }

    pub(crate) fn required<'a>(&'a self, name: &'a str) -> Result<&'a str, CliError> {
        self.one(name)?
            .ok_or_else(|| CliError::Usage(format!("`--{name}` is needed")))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, CliError> {
        self.one(name)?
            .map(|value| {
                let wrong =
                    |_| CliError::Usage(format!("`--{name}` needs a number, not `{value}`"));
                value.parse().map_err(wrong)
            })
            .transpose()
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.values
            .iter()
            .filter(move |(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec {
        help: "help",
        values: &["kind", "tag"],
        flags: &["json"],
        words: true,
    };

    fn parse(line: &str) -> Result<Args, CliError> {
        Args::parse(SPEC, line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_flags_and_words_may_mix() {
        let args = parse("a --kind=fix --tag x b --json --tag y -- --kind").unwrap();
        assert_eq!(args.one("kind").unwrap(), Some("fix"));
        assert_eq!(args.all("tag").collect::<Vec<_>>(), ["x", "y"]);
        assert!(args.flag("json"));
        assert_eq!(args.words(), ["a", "b", "--kind"]);
    }

    #[test]
    fn mistakes_are_usage_errors() {
        for line in ["--kind", "--no", "--json=1"] {
            assert!(matches!(parse(line), Err(CliError::Usage(_))), "{line}");
        }
        assert!(matches!(
            parse("--tag a --tag b").unwrap().one("tag"),
            Err(CliError::Usage(_))
        ));
        assert!(matches!(
            parse("--kind x").unwrap().number("kind"),
            Err(CliError::Usage(_))
        ));
        assert!(matches!(parse("x -h"), Err(CliError::Help("help"))));
        let no_words = Spec {
            words: false,
            ..SPEC
        };
        assert!(matches!(
            Args::parse(no_words, ["x".to_owned()]),
            Err(CliError::Usage(_))
        ));
    }
}
