//! Recipes: a file of steps from one image to another.
//!
//! ```text
//! FROM debian
//! ENV LANG=C.UTF-8
//! WORKDIR /srv
//! COPY app /srv/app
//! RUN make -C app install
//! START /srv/app/server --port 8080
//! READY test -S /run/app.sock
//! ```
//!
//! One instruction a line, `\` at its end joins the next, `#` begins a comment. The words are those
//! of a Dockerfile where the meaning is the same, and others where it is not.

use std::path::{Component, Path, PathBuf};

use super::ImageConfig;

/// Largest recipe, in bytes.
pub const MAX_RECIPE_BYTES: usize = 64 * 1024;
/// Most steps of a recipe.
const MAX_STEPS: usize = 128;

/// A recipe that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The image it starts from: a name, an id or a prefix of one.
    pub from: String,
    /// Its steps, in order.
    pub(super) steps: Vec<Step>,
}

/// One step, and the line it begins on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) does: Does,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Does {
    /// Runs a shell command in a sandbox.
    Run(String),
    /// Copies a file or a tree from the recipe's directory.
    Copy { from: PathBuf, to: String },
    /// Changes how programs run, from here on and in the image.
    Configure(Change),
}

/// A change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Env(String, String),
    Workdir(String),
    User(String),
    Start(String),
    Ready(String),
}

impl Change {
    pub(super) fn apply(&self, config: &mut ImageConfig) {
        let shell = |text: &String| vec!["sh".to_owned(), "-c".to_owned(), text.clone()];
        match self {
            Self::Env(name, value) => drop(config.env.insert(name.clone(), value.clone())),
            Self::Workdir(path) => config.cwd = Some(path.clone()),
            Self::User(user) => config.user = Some(user.clone()),
            Self::Start(command) => config.start = shell(command),
            Self::Ready(command) => config.ready = shell(command),
        }
    }
}

/// Why a text is no recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct RecipeError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

impl Recipe {
    /// Reads a recipe.
    ///
    /// # Errors
    /// The first thing that is wrong, and its line.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let wrong = |line, what: &str| RecipeError {
            line,
            what: what.to_owned(),
        };
        if text.len() > MAX_RECIPE_BYTES {
            return Err(wrong(1, "a recipe is at most 64 KiB"));
        }
        let mut from = None;
        let mut steps = Vec::new();
        for (line, words) in instructions(text) {
            let (word, rest) = words
                .split_once(char::is_whitespace)
                .unwrap_or((&words, ""));
            let rest = rest.trim();
            if rest.is_empty() {
                return Err(wrong(line, "the instruction says nothing"));
            }
            if rest.contains('\0') {
                return Err(wrong(line, "a zero byte"));
            }
            let is_first = from.is_none();
            if is_first != (word == "FROM") {
                return Err(wrong(line, "a recipe begins with FROM, and has it once"));
            }
            let one_word = || match rest.contains(char::is_whitespace) {
                true => Err(wrong(line, "one word is expected")),
                false => Ok(rest.to_owned()),
            };
            let does = match word {
                "FROM" => {
                    from = Some(one_word()?);
                    continue;
                }
                "RUN" => Does::Run(rest.to_owned()),
                "COPY" => copy(rest).map_err(|what| wrong(line, what))?,
                "ENV" => {
                    let pair = rest.split_once('=').filter(|(name, _)| {
                        !name.is_empty() && !name.contains(char::is_whitespace)
                    });
                    let (name, value) =
                        pair.ok_or_else(|| wrong(line, "it is written NAME=value"))?;
                    Does::Configure(Change::Env(name.to_owned(), value.to_owned()))
                }
                "WORKDIR" if rest.starts_with('/') => Does::Configure(Change::Workdir(one_word()?)),
                "WORKDIR" => return Err(wrong(line, "the path begins with `/`")),
                "USER" => Does::Configure(Change::User(one_word()?)),
                "START" => Does::Configure(Change::Start(rest.to_owned())),
                "READY" => Does::Configure(Change::Ready(rest.to_owned())),
                other => {
                    let other: String = other.chars().take(20).collect();
                    let what = format!("there is no instruction `{other}`");
                    return Err(wrong(line, &what));
                }
            };
            if steps.len() == MAX_STEPS {
                return Err(wrong(line, "a recipe has at most 128 steps"));
            }
            steps.push(Step { line, does });
        }
        Ok(Self {
            from: from.ok_or_else(|| wrong(1, "a recipe begins with FROM"))?,
            steps,
        })
    }
}

/// Returns each instruction with the line it begins on.
fn instructions(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with('#') || (trimmed.is_empty() && open.is_none()) {
            continue;
        }
        let (part, goes_on) = match trimmed.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (trimmed, false),
        };
        let (_, words) = open.get_or_insert_with(|| (number + 1, String::new()));
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(part.trim());
        if !goes_on {
            found.extend(open.take());
        }
    }
    found.extend(open);
    found
}

fn copy(rest: &str) -> Result<Does, &'static str> {
    let mut words = rest.split_whitespace();
    let (Some(from), Some(to), None) = (words.next(), words.next(), words.next()) else {
        return Err("it is written COPY from to");
    };
    let from = Path::new(from);
    let inside = from
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err("what is copied lies in the recipe's directory");
    }
    if !to.starts_with('/') || to.split('/').any(|part| part == "..") {
        return Err("the target is an absolute path");
    }
    Ok(Does::Copy {
        from: from.to_owned(),
        to: to.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_read_line_by_line() {
        let recipe = Recipe::parse(
            "# a comment\nFROM debian\n\nENV A=b c\nRUN one && \\\n  # in between\n  two\nCOPY ./app /srv/app\nWORKDIR /srv\nSTART server --port 1\n",
        )
        .unwrap();
        assert_eq!(recipe.from, "debian");
        let lines: Vec<_> = recipe.steps.iter().map(|step| step.line).collect();
        assert_eq!(lines, [4, 5, 8, 9, 10]);
        assert_eq!(recipe.steps[1].does, Does::Run("one && two".into()));
        let mut config = ImageConfig::default();
        for step in &recipe.steps {
            if let Does::Configure(change) = &step.does {
                change.apply(&mut config);
            }
        }
        assert_eq!(config.env["A"], "b c");
        assert_eq!(config.start, ["sh", "-c", "server --port 1"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, told) in [
            ("", 1, "FROM"),
            ("RUN x", 1, "FROM"),
            ("FROM a\nFROM b", 2, "once"),
            ("FROM a\nFLY to", 2, "FLY"),
            ("FROM a\nRUN", 2, "nothing"),
            ("FROM a b", 1, "one word"),
            ("FROM a\nENV x", 2, "NAME=value"),
            ("FROM a\n\nCOPY ../x /y", 3, "directory"),
            ("FROM a\nCOPY /etc/shadow /y", 2, "directory"),
            ("FROM a\nCOPY x /a/../../y", 2, "absolute"),
            ("FROM a\nWORKDIR srv", 2, "begins"),
        ] {
            let error = Recipe::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.what.contains(told), "{text}: {error}");
        }
    }
}
