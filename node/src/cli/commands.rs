//! One module per noun, one function per verb.

pub(super) mod agent;
pub(super) mod api;
pub(super) mod audit;
pub(super) mod backup;
pub(super) mod context;
pub(super) mod daemon;
pub(super) mod e2b;
pub(super) mod image;
pub(super) mod import;
pub(super) mod invite;
pub(super) mod keys;
pub(super) mod mcp;
pub(super) mod member;
pub(super) mod memory;
pub(super) mod mesh;
pub(super) mod node;
pub(super) mod quota;
pub(super) mod resume;
pub(super) mod root;
pub(super) mod runtime;
pub(super) mod sandbox;
pub(super) mod secret;
pub(super) mod snapshot;
pub(super) mod space;
pub(super) mod token;
pub(super) mod usage;
pub(super) mod volume;

use std::path::Path;

use futures::{Stream, StreamExt};
use serde::de::DeserializeOwned;

use super::{Context, failure::Failure, ui::Ui};
use crate::api::types::{Named, Progress, ProgressLine};

/// Follows a stream of progress to its result.
async fn follow<T: DeserializeOwned>(
    ui: Ui,
    mut lines: impl Stream<Item = Result<String, Failure>> + Unpin,
) -> Result<T, Failure> {
    let mut steps = ui.progress();
    while let Some(line) = lines.next().await {
        match serde_json::from_str(&line?) {
            Ok(ProgressLine::Progress(Progress {
                step,
                detail,
                done,
                total,
            })) => {
                steps.at(&step, &detail, Some((done, total)));
            }
            Ok(ProgressLine::Done(result)) => return Ok(result),
            Ok(ProgressLine::Failed(error)) => {
                let crate::api::types::ErrorInfo {
                    code,
                    message,
                    causes,
                    hint,
                } = error;
                return Err(Failure::Refused {
                    code,
                    message,
                    causes,
                    hint,
                });
            }
            Err(error) => return Err(Failure::Protocol(error.to_string())),
        }
    }
    Err(Failure::Protocol(
        "the answer ended before the work did".to_owned(),
    ))
}

/// Names a path so that the daemon finds it, whose directory is another.
fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path)?;
    whole.into_os_string().into_string().map_err(|_| {
        Failure::usage(
            format!("`{}` is no UTF-8", path.display()),
            "move it to a path that is",
        )
    })
}

/// Returns the first ten digits of an id, enough for people.
fn short(id: &str) -> String {
    id.get(..10).unwrap_or(id).to_owned()
}

/// Returns names with commas between, or `none`.
fn names(named: &[Named], none: &str) -> String {
    if named.is_empty() {
        return none.to_owned();
    }
    named
        .iter()
        .map(Named::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Parses a length of time: a number with `s`, `m`, `h` or `d`.
fn seconds(text: &str) -> Result<u64, String> {
    let expected = || format!("`{text}` is no length of time such as 90s, 30m, 24h or 7d");
    let split = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..split].parse().map_err(|_| expected())?;
    let unit = match &text[split..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    number.checked_mul(unit).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_units() {
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("24h"), Ok(86_400));
        assert_eq!(seconds("7d"), Ok(604_800));
        assert!(
            seconds("h").is_err()
                && seconds("5w").is_err()
                && seconds("99999999999999999999d").is_err()
        );
    }
}
