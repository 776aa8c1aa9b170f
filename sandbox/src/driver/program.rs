//! The program of a monitor: where it is, and which version.

use std::{path::PathBuf, time::Duration};

use tokio::sync::OnceCell;

use super::DriverError;
use crate::command::{Helper, find_program};

/// How long it may take to say its version.
const VERSION_LIMIT: Duration = Duration::from_secs(20);
/// Longest version that is kept, in characters.
const MAX_VERSION_CHARS: usize = 32;

/// A monitor's program; its version is asked for once.
#[derive(Debug)]
pub(super) struct Program {
    given: Option<PathBuf>,
    name: &'static str,
    version: OnceCell<String>,
}

impl Program {
    /// Uses the program given, or the one called `name` on `PATH`.
    pub(super) fn new(given: Option<PathBuf>, name: &'static str) -> Self {
        Self {
            given,
            name,
            version: OnceCell::new(),
        }
    }

    /// Returns the program, if it is there.
    pub(super) fn find(&self) -> Result<PathBuf, DriverError> {
        let program = match &self.given {
            Some(path) => path.display().to_string(),
            None => self.name.to_owned(),
        };
        find_program(&program).ok_or(DriverError::NotInstalled { program })
    }

    /// Returns what `read` makes of what it says when it is asked for its version.
    pub(super) async fn version(
        &self,
        read: impl FnOnce(&str) -> Result<String, DriverError>,
    ) -> Result<String, DriverError> {
        let ask = async {
            let said = Helper::new(&self.find()?.to_string_lossy())
                .arg("--version")
                .limit(VERSION_LIMIT)
                .output()
                .await?;
            read(&String::from_utf8_lossy(&said))
        };
        self.version.get_or_try_init(|| ask).await.cloned()
    }
}

/// Returns what of a word may be a version.
pub(super) fn clipped(word: &str) -> String {
    word.chars().take(MAX_VERSION_CHARS).collect()
}
