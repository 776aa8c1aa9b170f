//! Asking the user for a secret, on the terminal.
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::failure::Failure;

/// The longest line that is read, in bytes.
const MAX_LINE: usize = 4 * 1024;

/// Asks for a secret that is there already.
///
/// # Errors
/// [`Failure::Usage`] with `otherwise` as its hint if there is no terminal to ask on.
pub(crate) fn secret(what: &str, otherwise: &str) -> Result<Zeroizing<String>, Failure> {
    let no_terminal = |_| {
        Failure::usage(
            format!("there is no terminal to ask for {what} on"),
            otherwise,
        )
    };
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let terminal = terminal.map_err(no_terminal)?;
    ask(terminal, what).map_err(Failure::Output)
}

/// Asks for a secret that is new, twice.
///
/// # Errors
/// As [`secret`], and if the two differ or are empty.
pub(crate) fn new_secret(what: &str, otherwise: &str) -> Result<Zeroizing<String>, Failure> {
    let first = secret(what, otherwise)?;
    let again = secret(&format!("{what} again"), otherwise)?;
    match (first == again, first.is_empty()) {
        (true, false) => Ok(first),
        (_, true) => Err(Failure::usage(
            "an empty passphrase protects nothing",
            otherwise,
        )),
        (false, _) => Err(Failure::usage("the two are not the same", "try again")),
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
