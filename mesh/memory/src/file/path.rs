//! What a file may be called.
//!
//! A path is parsed once, into a type that cannot be wrong: `/memories`, then one name after the
//! other, each spelled in one way. What looks like a step out of the tree, what some other program
//! would decode into one, and what the eye cannot tell from another name is refused.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where all files are.
pub const MEMORIES: &str = "/memories";
/// Most bytes of a path.
pub const MAX_PATH: usize = 512;
/// Most bytes of one name.
pub const MAX_COMPONENT: usize = 255;
/// Most names below [`MEMORIES`].
pub const MAX_DEPTH: usize = 16;

/// Why a text is no path of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// It is not in the tree.
    #[error("the path must be `{MEMORIES}` or below")]
    Outside,
    /// It names the tree, not a file in it.
    #[error("`{MEMORIES}` is the directory itself")]
    Root,
    /// It is too long; both sizes in bytes.
    #[error("the path or a name in it is {size} bytes; at most {limit} are allowed")]
    TooLong {
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// It has too many names.
    #[error("the path has more than {MAX_DEPTH} names below `{MEMORIES}`")]
    TooDeep,
    /// A name in it is empty.
    #[error("the path has an empty name in it")]
    Empty,
    /// It steps out of a directory.
    #[error("the path has `.` or `..` in it")]
    Dots,
    /// Some other program would decode it into something else.
    #[error("the path has an encoded `{0}` in it")]
    Encoded(String),
    /// A character that no name may have.
    #[error("the path has a character in it that names may not have: U+{0:04X}")]
    Forbidden(u32),
    /// A name begins or ends with a blank.
    #[error("a name in the path begins or ends with a blank")]
    Blank,
}

impl PathError {
    /// Says what to write instead.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Outside => "begin it with `/memories/`",
            Self::Root => "name a file below it, such as `/memories/notes.md`",
            Self::TooLong { .. } | Self::TooDeep => "use fewer directories and shorter names",
            Self::Empty => "write one `/` between two names",
            Self::Dots | Self::Encoded(_) => "write the path without `.`, `..` or `%` codes",
            Self::Forbidden(_) | Self::Blank => {
                "use letters, digits and plain punctuation, composed (NFC)"
            }
        }
    }
}

/// The path of a file: below [`MEMORIES`], in its only spelling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

impl FilePath {
    /// Reads a path.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn parse(text: &str) -> Result<Self, PathError> {
        check(text)?;
        if text == MEMORIES {
            return Err(PathError::Root);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the whole path, from `/memories` on.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the names below [`MEMORIES`].
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.below().split('/')
    }

    /// Returns the path without `/memories/`.
    #[must_use]
    pub fn below(&self) -> &str {
        &self.0[MEMORIES.len() + 1..]
    }

    /// Returns the last name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns the directories that it is in, the nearest first, without [`MEMORIES`] itself.
    pub fn parents(&self) -> impl Iterator<Item = FilePath> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            rest = &rest[..rest.rfind('/')?];
            (rest.len() > MEMORIES.len()).then(|| FilePath(rest.to_owned()))
        })
    }
}

/// The path of a directory or a file: [`MEMORIES`] or below.
///
/// A directory is nothing of its own: it is there as long as a file is below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(String);

impl TreePath {
    /// Reads a path; one `/` at its end is left out.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let text = text.strip_suffix('/').unwrap_or(text);
        check(text)?;
        Ok(Self(text.to_owned()))
    }

    /// Returns [`MEMORIES`].
    #[must_use]
    pub fn root() -> Self {
        Self(MEMORIES.to_owned())
    }

    /// Returns the whole path, from `/memories` on.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it is [`MEMORIES`].
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == MEMORIES
    }

    /// Returns the path of the file of this name; `None` for [`MEMORIES`].
    #[must_use]
    pub fn file(&self) -> Option<FilePath> {
        (!self.is_root()).then(|| FilePath(self.0.clone()))
    }

    /// Returns what of a file's path is below this directory.
    #[must_use]
    pub fn rest<'a>(&self, file: &'a FilePath) -> Option<&'a str> {
        file.0.strip_prefix(&self.0)?.strip_prefix('/')
    }

    /// Returns the path of a file below this directory.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn join(&self, rest: &str) -> Result<FilePath, PathError> {
        FilePath::parse(&format!("{}/{rest}", self.0))
    }
}

fn check(text: &str) -> Result<(), PathError> {
    let too_long = |size, limit| PathError::TooLong { size, limit };
    if text.len() > MAX_PATH {
        return Err(too_long(text.len(), MAX_PATH));
    }
    let rest = text.strip_prefix(MEMORIES).ok_or(PathError::Outside)?;
    if rest.is_empty() {
        return Ok(());
    }
    let rest = rest.strip_prefix('/').ok_or(PathError::Outside)?;
    for (depth, name) in rest.split('/').enumerate() {
        if depth >= MAX_DEPTH {
            return Err(PathError::TooDeep);
        }
        if name.is_empty() {
            return Err(PathError::Empty);
        }
        if name == "." || name == ".." {
            return Err(PathError::Dots);
        }
        if name.len() > MAX_COMPONENT {
            return Err(too_long(name.len(), MAX_COMPONENT));
        }
        if name.starts_with(' ') || name.ends_with(' ') {
            return Err(PathError::Blank);
        }
        if let Some(code) = encoded(name) {
            return Err(PathError::Encoded(code));
        }
        if let Some(forbidden) = name.chars().find(|c| is_forbidden(*c)) {
            return Err(PathError::Forbidden(forbidden.into()));
        }
    }
    Ok(())
}

/// Returns a code that stands for a character of paths, or for the beginning of another code.
fn encoded(name: &str) -> Option<String> {
    let bytes = name.as_bytes();
    let code = bytes.windows(3).find(|code| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (Some(high), Some(low)) = (digit(code[1]), digit(code[2])) else {
            return false;
        };
        let byte = high * 16 + low;
        code[0] == b'%'
            && (!(0x20..=0x7e).contains(&byte) || [0x25, 0x2e, 0x2f, 0x5c].contains(&byte))
    })?;
    Some(String::from_utf8_lossy(code).into_owned())
}

/// Characters that no name has: those that end a path or part it elsewhere, those that nobody sees,
/// those that look like a dot or a slash, and the spellings that NFC would replace.
fn is_forbidden(c: char) -> bool {
    if c.is_control() || (c.is_whitespace() && c != ' ') {
        return true;
    }
    matches!(c,
        '\\'
        // Dots and slashes of other kinds.
        | '\u{2024}'..='\u{2026}' | '\u{fe19}' | '\u{fe30}' | '\u{fe52}' | '\u{ff0e}' | '\u{ff61}'
        | '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{29f5}' | '\u{29f8}' | '\u{29f9}'
        | '\u{fe68}' | '\u{ff0f}' | '\u{ff3c}' | '\u{ff05}' | '\u{fe6a}'
        // What is not seen, or turns what is seen around.
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{ffff}' | '\u{e0000}'..='\u{e0fff}'
        | '\u{1d173}'..='\u{1d17a}'
        // Accents and letters apart, and letters that have another, composed or simple, spelling.
        | '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}' | '\u{3099}' | '\u{309a}'
        | '\u{1100}'..='\u{11ff}' | '\u{a960}'..='\u{a97f}' | '\u{d7b0}'..='\u{d7ff}'
        | '\u{37e}' | '\u{387}' | '\u{1fef}' | '\u{2000}'..='\u{200a}'
        | '\u{2126}' | '\u{212a}' | '\u{212b}' | '\u{2329}' | '\u{232a}'
        | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}'
        // Nobody's.
        | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

impl TryFrom<String> for FilePath {
    type Error = PathError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> Self {
        path.0
    }
}

impl From<FilePath> for TreePath {
    fn from(path: FilePath) -> Self {
        Self(path.0)
    }
}

impl FromStr for FilePath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_that_leaves_the_tree_or_hides_something_is_refused() {
        use PathError::{Blank, Dots, Empty, Encoded, Forbidden, Outside, Root, TooDeep, TooLong};
        let long = format!("{MEMORIES}/{}", "x".repeat(MAX_COMPONENT + 1));
        let longer = format!("{MEMORIES}/{}x", "ab/".repeat(MAX_PATH));
        let deep = format!("{MEMORIES}{}", "/d".repeat(MAX_DEPTH + 1));
        let cases: Vec<(&str, PathError)> = vec![
            ("", Outside),
            ("/", Outside),
            ("memories/a", Outside),
            ("/memoriesX", Outside),
            ("/memories.bak/a", Outside),
            ("/Memories/a", Outside),
            ("/etc/passwd", Outside),
            (" /memories/a", Outside),
            ("/memories/../etc/passwd", Dots),
            ("/memories/a/../../b", Dots),
            ("/memories/..", Dots),
            ("/memories/./a", Dots),
            ("/memories//a", Empty),
            ("/memories/a//b", Empty),
            ("/memories/%2e%2e/a", Encoded("%2e".into())),
            ("/memories/.%2E/a", Encoded("%2E".into())),
            ("/memories/a%2fb", Encoded("%2f".into())),
            ("/memories/%252e%252e/a", Encoded("%25".into())),
            ("/memories/a%5Cb", Encoded("%5C".into())),
            ("/memories/a%00", Encoded("%00".into())),
            ("/memories/%c0%ae", Encoded("%c0".into())),
            ("/memories/a\\b", Forbidden(0x5c)),
            ("/memories/..\\..\\a", Forbidden(0x5c)),
            ("/memories/a\0b", Forbidden(0)),
            ("/memories/a\nb", Forbidden(0xa)),
            ("/memories/a\u{7f}", Forbidden(0x7f)),
            ("/memories/\u{ff0e}\u{ff0e}/a", Forbidden(0xff0e)),
            ("/memories/\u{2025}/a", Forbidden(0x2025)),
            ("/memories/a\u{2215}b", Forbidden(0x2215)),
            ("/memories/a\u{200d}b", Forbidden(0x200d)),
            ("/memories/a\u{202e}b", Forbidden(0x202e)),
            ("/memories/a\u{a0}b", Forbidden(0xa0)),
            ("/memories/cafe\u{301}", Forbidden(0x301)),
            ("/memories/\u{1112}\u{1161}", Forbidden(0x1112)),
            ("/memories/\u{212b}", Forbidden(0x212b)),
            ("/memories/ a", Blank),
            ("/memories/a /b", Blank),
            (
                &long,
                TooLong {
                    size: MAX_COMPONENT + 1,
                    limit: MAX_COMPONENT,
                },
            ),
            (
                &longer,
                TooLong {
                    size: longer.len(),
                    limit: MAX_PATH,
                },
            ),
            (&deep, TooDeep),
        ];
        for (text, wanted) in cases {
            assert_eq!(FilePath::parse(text), Err(wanted.clone()), "{text:?}");
            assert_eq!(TreePath::parse(text), Err(wanted), "{text:?}");
        }
        assert_eq!(FilePath::parse("/memories"), Err(Root));
        assert_eq!(FilePath::parse("/memories/a/"), Err(Empty));
        assert_eq!(
            TreePath::parse("/memories/a/").unwrap().as_str(),
            "/memories/a"
        );
        assert_eq!(TreePath::parse("/memories/a//"), Err(Empty));
        assert!(TreePath::parse("/memories/").unwrap().is_root());
    }

    #[test]
    fn names_of_the_world_are_taken() {
        for name in [
            "notes.md",
            ".hidden",
            "a b.txt",
            "café",
            "한국어",
            "日本語.md",
            "50%",
            "a..b",
            "…".trim_matches('…').trim(),
            "файл",
            "notes.",
            "a:b",
            "~",
        ] {
            if name.is_empty() {
                continue;
            }
            let path = format!("/memories/{name}");
            assert_eq!(FilePath::parse(&path).unwrap().name(), name);
        }
    }

    #[test]
    fn a_path_knows_where_it_is() {
        let path = FilePath::parse("/memories/a/b/c.md").unwrap();
        assert_eq!(path.names().collect::<Vec<_>>(), ["a", "b", "c.md"]);
        let parents: Vec<String> = path.parents().map(String::from).collect();
        assert_eq!(parents, ["/memories/a/b", "/memories/a"]);
        let tree = TreePath::parse("/memories/a").unwrap();
        assert_eq!(tree.rest(&path), Some("b/c.md"));
        assert_eq!(tree.rest(&FilePath::parse("/memories/ab").unwrap()), None);
    }

    proptest! {
        #[test]
        fn what_is_taken_is_below_the_root_in_one_spelling(text in "(/memories)?(/(\\.|\\.\\.|%2e|[a-z.%\\\\ ]{0,6}|\\PC{0,4})){0,5}") {
            if let Ok(path) = FilePath::parse(&text) {
                prop_assert_eq!(path.as_str(), &text);
                prop_assert!(text.starts_with("/memories/"));
                let joined = std::path::Path::new(&text);
                let plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_) | std::path::Component::RootDir);
                prop_assert!(joined.components().all(plain));
                prop_assert_eq!(joined.components().count(), path.names().count() + 2);
                let lower = text.to_lowercase();
                prop_assert!(!lower.contains("%2e") && !lower.contains('\\') && !lower.contains('\0'));
                prop_assert!(serde_json::from_value::<FilePath>(serde_json::json!(text)).is_ok());
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,80}", bytes: Vec<u8>) {
            let _ = FilePath::parse(&text);
            let _ = TreePath::parse(&format!("/memories/{}", String::from_utf8_lossy(&bytes)));
        }
    }
}
