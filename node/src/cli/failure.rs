//! Why a command did not do what it was asked, and the exit code that says so.

use std::{io, path::PathBuf, process::ExitCode};

use hyper::StatusCode;
use serde::Deserialize;

use super::ui::say;
use crate::daemon::StartError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Failure {
    /// No daemon listens on the socket.
    #[error("cannot reach the daemon at `{}`", socket.display())]
    Unreachable { socket: PathBuf, source: io::Error },
    /// The connection to the daemon broke.
    #[error("the connection to the daemon at `{}` broke", socket.display())]
    Broken {
        socket: PathBuf,
        source: hyper::Error,
    },
    /// The daemon's answer is not what this program understands.
    #[error("the daemon's answer is not understood: {0}")]
    Protocol(String),
    /// The daemon refused.
    #[error("{message}")]
    Refused {
        code: String,
        message: String,
        causes: Vec<String>,
        hint: Option<String>,
    },
    /// The arguments do not fit together.
    #[error("{message}")]
    Usage {
        message: String,
        hint: Option<String>,
    },
    /// A file of the user's could not be used.
    #[error("cannot use `{}`", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Writing the output failed.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// The daemon did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The command in the sandbox ended with this code; nothing is left to say.
    #[error("the command ended with exit code {0}")]
    Exit(u8),
}

#[derive(Deserialize)]
struct Answer {
    error: AnswerError,
}

#[derive(Deserialize)]
struct AnswerError {
    #[serde(default)]
    code: String,
    message: String,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    hint: Option<String>,
}

impl Failure {
    /// Reads the error that the daemon answered with `status`.
    pub(crate) fn from_answer(status: StatusCode, body: &[u8]) -> Self {
        match serde_json::from_slice::<Answer>(body) {
            Ok(Answer {
                error:
                    AnswerError {
                        code,
                        message,
                        causes,
                        hint,
                    },
            }) => Self::Refused {
                code,
                message,
                causes,
                hint,
            },
            Err(_) => {
                let text = String::from_utf8_lossy(body)
                    .trim()
                    .chars()
                    .take(400)
                    .collect::<String>();
                Self::Protocol(format!("{status} {text}"))
            }
        }
    }

    /// Reads an error line of an event stream, if `line` is one.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let Answer { error } = serde_json::from_str(line).ok()?;
        let AnswerError {
            code,
            message,
            causes,
            hint,
        } = error;
        Some(Self::Refused {
            code,
            message,
            causes,
            hint,
        })
    }

    /// Tells an error of ours as the daemon would.
    pub(crate) fn of(code: &str, error: &dyn std::error::Error, hint: Option<String>) -> Self {
        let mut causes = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        Self::Refused {
            code: code.to_owned(),
            message: error.to_string(),
            causes,
            hint,
        }
    }

    pub(crate) fn usage(message: impl Into<String>, hint: &str) -> Self {
        Self::Usage {
            message: message.into(),
            hint: Some(hint.to_owned()),
        }
    }

    /// Says how the reader can go on, if there is a way.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(
                "start it with `rhizome up`, or name its data directory with `--data-dir`"
                    .to_owned(),
            ),
            Self::Broken { .. } => {
                Some("see whether it still runs with `rhizome status`".to_owned())
            }
            Self::Protocol(_) => Some(
                "command and daemon may be of different versions; restart the daemon".to_owned(),
            ),
            Self::Refused { hint, .. } | Self::Usage { hint, .. } => hint.clone(),
            Self::Start(error) => error.hint(),
            _ => None,
        }
    }

    /// Returns the causes below the message, outermost first.
    pub(crate) fn causes(&self) -> Vec<String> {
        if let Self::Refused { causes, .. } = self {
            return causes.clone();
        }
        let mut causes = Vec::new();
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            causes.push(error.to_string());
            next = error.source();
        }
        causes
    }

    /// Returns the exit code: 1 the request failed, 2 usage, 3 no daemon, else the guest's own.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage { .. } => ExitCode::from(2),
            Self::Unreachable { .. } => ExitCode::from(3),
            Self::Exit(code) => ExitCode::from(*code),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => ExitCode::from(1),
        }
    }

    /// Writes the failure to standard error in three parts: what failed, the causes, what to try.
    pub(crate) fn print(&self) {
        match self {
            Self::Exit(_) => return,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return,
            _ => {}
        }
        say(&format!("error: {self}"));
        for cause in self.causes() {
            say(&format!("  cause: {cause}"));
        }
        if let Some(hint) = self.hint() {
            say(&format!("   hint: {hint}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_error_keeps_its_parts() {
        let body = br#"{"error":{"code":"not_found","message":"no space `x`","causes":["a"],"hint":"create it"}}"#;
        let failure = Failure::from_answer(StatusCode::NOT_FOUND, body);
        assert!(matches!(&failure, Failure::Refused { code, .. } if code == "not_found"));
        assert_eq!(failure.causes(), ["a"]);
        assert_eq!(failure.hint().as_deref(), Some("create it"));
    }

    #[test]
    fn an_answer_that_is_no_json_is_quoted_in_part() {
        let failure = Failure::from_answer(StatusCode::BAD_GATEWAY, &[b'x'; 10_000]);
        assert!(failure.to_string().len() < 600, "{failure}");
    }
}
