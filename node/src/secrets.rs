//! What looks like a live secret in a text that is about to be shared.
//!
//! What is published is copied to every node and into every index, and what was read cannot be
//! unread. So the rule is asked before anything is signed. It knows the shapes that vendors give
//! their keys, private keys in PEM, JSON web tokens, and assignments of long random-looking values
//! to names such as `password`. The expressions run in linear time, and a text is looked at once.
//!
//! It is a rule against accidents, not against somebody who hides a key on purpose.
use std::{borrow::Cow, collections::BTreeMap, fmt, ops::Range, sync::LazyLock};

use regex::{Regex, RegexSet};
use serde::{Deserialize, Serialize};

/// What happens to a text with something in it that looks like a live secret.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretRule {
    /// It is not published, and the answer says why.
    #[default]
    Refuse,
    /// What looks like one is replaced by a mark that says what it was.
    Redact,
    /// It is published as it is.
    Allow,
}

impl fmt::Display for SecretRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::Redact => "redact",
            Self::Allow => "allow",
        })
    }
}

/// Something that looks like a live secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What it looks like, for people.
    pub(crate) what: &'static str,
    /// Where it stands, in bytes.
    pub(crate) at: Range<usize>,
}

/// Most findings of one text that are named or replaced one by one; beyond that, the rest of the
/// text goes.
const MAX_FINDINGS: usize = 1_000;
/// The least entropy of a value that counts as random, in bits a character.
const RANDOM_BITS: f64 = 3.5;

/// What it looks like, its expression, and whether a value has to look random. A group called
/// `secret` is the part that is one.
const SHAPES: &[(&str, &str, bool)] = &[
    (
        "an AWS access key id",
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
        false,
    ),
    (
        "an AWS secret access key",
        r#"(?i)\baws.{0,24}?secret.{0,24}?[=:]\s*["']?(?P<secret>[A-Za-z0-9/+]{40})\b"#,
        false,
    ),
    (
        "a GitHub token",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b",
        false,
    ),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}", false),
    (
        "an Anthropic or OpenAI API key",
        r"\bsk-(?:ant-|proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}",
        true,
    ),
    (
        "a Slack token",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[0-9]-[A-Za-z0-9-]{10,}",
        false,
    ),
    (
        "a Slack webhook",
        r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/+_-]{20,}",
        false,
    ),
    ("a Google API key", r"\bAIza[A-Za-z0-9_-]{35}", false),
    (
        "a Stripe key",
        r"\b(?:sk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{24,}",
        true,
    ),
    (
        "a token of npm, PyPI, Hugging Face or DigitalOcean",
        r"\b(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|hf_[A-Za-z0-9]{30,}|do[opr]_v1_[a-f0-9]{64})\b",
        false,
    ),
    (
        "a private key",
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s:,.\\-]{16,}",
        false,
    ),
    (
        "an age identity",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}\b",
        false,
    ),
    (
        "a JSON web token",
        r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{10,}",
        false,
    ),
    (
        "a password in an address",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,64}:(?P<secret>[^\s/:@]{8,})@",
        true,
    ),
    (
        "a bearer token",
        r"(?i)\bauthorization\s*[:=]\s*[\x22']?(?:bearer|basic|token)\s+(?P<secret>[A-Za-z0-9._~+/=-]{16,})",
        true,
    ),
    (
        "a value that looks random, given to a name for secrets",
        r#"(?i)(?:api[_-]?key|secret|token|passwd|password|passphrase|access[_-]?key|private[_-]?key|credential|auth[_-]?key)[a-z0-9_-]{0,16}["']?\s*(?::=|=>|[:=])\s*["'`]?(?P<secret>[A-Za-z0-9+/_.~=!@#$%^&*-]{16,})"#,
        true,
    ),
];

struct Shapes {
    any: RegexSet,
    each: Vec<Regex>,
}

static RULES: LazyLock<Shapes> = LazyLock::new(|| {
    // The ends of words are those of ASCII, as the keys are: a key right behind a letter of another
    // script is found, and a text with such letters is still read by the fast automaton, which knows
    // no ends of words beyond ASCII.
    let all = SHAPES
        .iter()
        .map(|(_, shape, _)| shape.replace(r"\b", r"(?-u:\b)"));
    Shapes {
        any: RegexSet::new(all.clone()).expect("the shapes are expressions"),
        each: all
            .map(|shape| Regex::new(&shape).expect("each shape is an expression"))
            .collect(),
    }
});

/// Finds what looks like live secrets, in their order, none over another.
pub(crate) fn find(text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for shape in &RULES.any.matches(text) {
        let (what, _, must_be_random) = SHAPES[shape];
        for captures in RULES.each[shape].captures_iter(text).take(MAX_FINDINGS) {
            let whole = captures.get(0).expect("a match has a whole");
            let secret = captures.name("secret").unwrap_or(whole);
            if must_be_random && !looks_random(secret.as_str()) {
                continue;
            }
            found.push(Finding {
                what,
                at: secret.range(),
            });
        }
    }
    found.sort_by_key(|finding| (finding.at.start, std::cmp::Reverse(finding.at.end)));
    let mut apart: Vec<Finding> = Vec::with_capacity(found.len());
    for finding in found {
        match apart.last_mut() {
            Some(last) if finding.at.start < last.at.end => {
                last.at.end = last.at.end.max(finding.at.end);
            }
            _ => apart.push(finding),
        }
    }
    apart
}

/// Returns `text` with a mark in place of each thing that looks like a live secret.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let found = find(text);
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut redacted = String::with_capacity(text.len());
    let mut from = 0;
    let is_flood = found.len() >= MAX_FINDINGS;
    for finding in &found {
        redacted.push_str(&text[from..finding.at.start]);
        redacted.push_str("[redacted: ");
        redacted.push_str(finding.what);
        redacted.push(']');
        from = finding.at.end;
    }
    if !is_flood {
        redacted.push_str(&text[from..]);
    }
    Cow::Owned(redacted)
}

/// Whether a value is one that nobody would make up: letters and digits, no word repeated, no
/// placeholder.
fn looks_random(value: &str) -> bool {
    let tail = value.rsplit(['-', '_']).next().unwrap_or(value);
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let has_letter = value.bytes().any(|byte| byte.is_ascii_alphabetic());
    let lower = value.to_ascii_lowercase();
    let stands_in = [
        "example",
        "placeholder",
        "your",
        "xxxx",
        "redacted",
        "changeme",
        "dummy",
    ]
    .iter()
    .any(|word| lower.contains(word));
    // Several short words joined by dashes are a name, not a key.
    let is_name = tail.len() < 12 && value.split(['-', '_', '.']).all(|word| word.len() < 12);
    has_digit && has_letter && !stands_in && !is_name && entropy(value) >= RANDOM_BITS
}

/// Returns the entropy of a text's bytes, in bits a byte.
fn entropy(text: &str) -> f64 {
    let mut counts: BTreeMap<u8, u32> = BTreeMap::new();
    for byte in text.bytes() {
        *counts.entry(byte).or_default() += 1;
    }
    let total = text.len() as f64;
    counts
        .values()
        .map(|count| {
            let share = f64::from(*count) / total;
            -share * share.log2()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Put together here, so that no scanner of this repository takes them for real.
    fn planted() -> Vec<(String, &'static str)> {
        let random = "q7Zr2Lx9Vb4Nw8Tc6Yk3Hm5Jd1Ps0Fg2Rt7Ua";
        vec![
            (
                format!("AKIA{}", "IOSFODNN7REALKEY"),
                "an AWS access key id",
            ),
            (
                format!("aws_secret_access_key = {random}{}", "9QZ"),
                "an AWS secret access key",
            ),
            (format!("ghp_{random}"), "a GitHub token"),
            (format!("glpat-{}", &random[..20]), "a GitLab token"),
            (
                format!("sk-ant-api03-{random}"),
                "an Anthropic or OpenAI API key",
            ),
            (
                format!("sk-proj-{random}"),
                "an Anthropic or OpenAI API key",
            ),
            (format!("xoxb-1234567890-{random}"), "a Slack token"),
            (format!("AIza{}", &random[..35]), "a Google API key"),
            (format!("sk_live_{}", &random[..28]), "a Stripe key"),
            (
                format!(
                    "-----BEGIN OPENSSH PRIVATE KEY-----\n{random}\n-----END OPENSSH PRIVATE KEY-----"
                ),
                "a private key",
            ),
            (
                format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{random}"),
                "a JSON web token",
            ),
            (
                format!("postgres://app:{}@db.example.org/x", &random[..20]),
                "a password in an address",
            ),
            (
                format!("DEPLOY_TOKEN=\"{random}\""),
                "a value that looks random, given to a name for secrets",
            ),
            (format!("Authorization: Bearer {random}"), "a bearer token"),
        ]
    }

    #[test]
    fn each_shape_is_found_and_redacted_whole() {
        for (text, what) in planted() {
            let around = format!("the deploy needs {text} to work\n");
            let found = find(&around);
            assert!(
                found.iter().any(|finding| finding.what == what),
                "{text}: {found:?}"
            );
            let redacted = redact(&around);
            assert!(find(&redacted).is_empty(), "{redacted}");
            let core = "q7Zr2Lx9Vb4Nw8Tc6";
            assert!(!redacted.contains(core), "{redacted}");
            assert!(redacted.starts_with("the deploy needs"), "{redacted}");
        }
    }

    #[test]
    fn a_key_beside_letters_of_another_script_is_found() {
        let text = format!("密钥是AKIA{}，别说出去", "IOSFODNN7REALKEY");
        let found = find(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            redact(&text),
            "密钥是[redacted: an AWS access key id]，别说出去"
        );
    }

    #[test]
    fn what_people_write_about_secrets_is_none() {
        for text in [
            "the password is in the vault under ci/deploy",
            "set OPENAI_API_KEY=sk-your-key-here-please-and-thanks",
            "token: <your token>",
            "api_key = os.environ['API_KEY']",
            "commit 3fd469b8d07a1c2e9f00aa11bb22cc33dd44ee55 broke the build",
            "blake3 af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
            "sk-learn-intelligence-extension-for-python",
            "uuid 550e8400-e29b-41d4-a716-446655440000",
            "ssh-keygen -t ed25519 makes a key; -----BEGIN PUBLIC KEY----- is fine",
            "https://user:password@example.org",
            "secret_name: projects/build/deploy-credentials",
            "适者生存，生存等于正确的道理",
        ] {
            assert_eq!(find(text), [], "{text}");
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn a_hostile_text_costs_linear_time() {
        let long = "aws secret = ".repeat(20_000) + &"A".repeat(200_000);
        let began = std::time::Instant::now();
        find(&long);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        let many = format!("AKIA{} ", "IOSFODNN7REALKEY").repeat(3 * MAX_FINDINGS);
        let redacted = redact(&many);
        assert!(find(&redacted).is_empty());
    }
}
