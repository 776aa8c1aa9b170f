//! Asking the user for a secret, on the terminal.
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The longest line that is read, in bytes.
const MAX_LINE: usize = 4 * 1024;

/// Why a secret was not given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// Nobody can be asked.
    #[error("there is no terminal to ask for the {what} on")]
    NoTerminal {
        /// What was to be asked for.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A new one was empty.
    #[error("an empty passphrase protects nothing")]
    Empty,
    /// A new one was not the same twice.
    #[error("the two are not the same")]
    Mismatch,
    /// The terminal failed.
    #[error("cannot read from the terminal")]
    Io(#[from] io::Error),
}

/// Asks for a secret that is there already.
///
/// # Errors
/// [`PromptError::NoTerminal`], [`PromptError::Io`].
pub(crate) fn secret(what: &str) -> Result<Zeroizing<String>, PromptError> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let terminal = terminal.map_err(|source| PromptError::NoTerminal {
        what: what.to_owned(),
        source,
    })?;
    Ok(ask(terminal, what)?)
}

/// Asks for a secret that is new, twice.
///
/// # Errors
/// As [`secret`], and [`PromptError::Empty`], [`PromptError::Mismatch`].
pub(crate) fn new_secret(what: &str) -> Result<Zeroizing<String>, PromptError> {
    let first = secret(what)?;
    let again = secret(&format!("{what} again"))?;
    match (first == again, first.is_empty()) {
        (_, true) => Err(PromptError::Empty),
        (true, false) => Ok(first),
        (false, false) => Err(PromptError::Mismatch),
    }
}

fn ask(terminal: File, what: &str) -> io::Result<Zeroizing<String>> {
    let mut silent = Silent::enter(terminal)?;
    write!(silent.terminal, "{what}: ")?;
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE));
    let mut byte = [0];
    while line.len() < MAX_LINE && silent.terminal.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    writeln!(silent.terminal)?;
    let text = std::str::from_utf8(&line);
    let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Zeroizing::new(text.trim_end_matches('\r').to_owned()))
}

/// A terminal that shows nothing of what is typed; dropped, it is as it was.
struct Silent {
    terminal: File,
    before: Termios,
}

impl Silent {
    fn enter(terminal: File) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut silent = before.clone();
        silent.local_modes &= !LocalModes::ECHO;
        tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}
