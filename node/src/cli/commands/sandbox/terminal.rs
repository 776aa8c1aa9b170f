//! The user's own terminal: raw while a command of a sandbox has it, and as it was afterwards.

use std::io::{self, IsTerminal};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::api::types::sandbox::Pty;

/// What begins an order to us, at the beginning of a line.
const ESCAPE: u8 = b'~';

/// Standard input in raw mode; dropping it restores what was before.
#[derive(Debug)]
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Makes the terminal raw: every key goes to the sandbox, ^C too.
    ///
    /// Returns `None` if standard input is no terminal.
    pub(super) fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let raw = Self {
            before: tcgetattr(io::stdin())?,
        };
        raw.again()?;
        Ok(Some(raw))
    }

    /// Makes it raw again, after another program had it.
    pub(super) fn again(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Returns the size of the terminal that the user looks at, if there is one.
pub(super) fn size() -> Option<Pty> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    size.ok()
        .filter(|size| size.ws_row > 0 && size.ws_col > 0)
        .map(|size| Pty {
            rows: size.ws_row,
            columns: size.ws_col,
        })
}

/// Finds the user's orders among the keys for the sandbox.
#[derive(Debug)]
pub(super) struct Escapes {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    Escape,
    InLine,
}

/// An order of the user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// End it.
    End,
    /// Let go of it; it is kept.
    Detach,
    /// Say which orders there are.
    Help,
}

impl Escapes {
    pub(super) fn new() -> Self {
        Self {
            state: State::LineStart,
        }
    }

    /// Returns the keys that are for the sandbox, and an order if one was given.
    pub(super) fn take(&mut self, keys: &[u8]) -> (Vec<u8>, Option<Order>) {
        let mut through = Vec::with_capacity(keys.len() + 1);
        for key in keys.iter().copied() {
            match (self.state, key) {
                (State::LineStart, ESCAPE) => {
                    self.state = State::Escape;
                    continue;
                }
                (State::Escape, b'.') => return (through, Some(Order::End)),
                (State::Escape, b'd') => return (through, Some(Order::Detach)),
                (State::Escape, b'?') => {
                    self.state = State::LineStart;
                    return (through, Some(Order::Help));
                }
                // Twice for one of them.
                (State::Escape, ESCAPE) => {}
                (State::Escape, _) => through.push(ESCAPE),
                _ => {}
            }
            through.push(key);
            self.state = match key {
                b'\r' | b'\n' => State::LineStart,
                _ => State::InLine,
            };
        }
        (through, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_stand_at_the_beginning_of_a_line() {
        for (keys, through, order) in [
            (&b"ls\r~."[..], &b"ls\r"[..], Some(Order::End)),
            (b"~.", b"", Some(Order::End)),
            (b"~d", b"", Some(Order::Detach)),
            (b"a~.", b"a~.", None),
            (b"~~.", b"~.", None),
            (b"~/bin\r", b"~/bin\r", None),
            (b"\r~?", b"\r", Some(Order::Help)),
        ] {
            let (seen, given) = Escapes::new().take(keys);
            assert_eq!((&seen[..], given), (through, order), "{keys:?}");
            // Typed key by key it is the same.
            let mut escapes = Escapes::new();
            let (mut seen, mut given) = (Vec::new(), None);
            for key in keys {
                let (more, order) = escapes.take(&[*key]);
                seen.extend(more);
                given = given.or(order);
            }
            assert_eq!((&seen[..], given), (through, order), "{keys:?}");
        }
    }
}
