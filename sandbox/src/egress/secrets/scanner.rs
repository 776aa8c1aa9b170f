//! Looks for texts in bytes that come in pieces.

use zeroize::Zeroizing;

/// A text's beginning of this length, at the end of a piece, is held back until it is clear what
/// follows. Shorter ones go: held back they could wait for an answer that is whole already.
const HELD_FROM: usize = 8;

/// Looks for texts in bytes that come in pieces, and lets none of them through whole.
pub(in super::super) struct Scanner {
    needles: Vec<(String, Zeroizing<Vec<u8>>)>,
    /// The end of what has come, as far as it could begin a needle.
    tail: Zeroizing<Vec<u8>>,
    /// How much of `tail` has not been let through.
    held: usize,
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").finish_non_exhaustive()
    }
}

impl Scanner {
    /// Looks for `needles`, each with its name.
    pub(in super::super) fn new(
        needles: impl Iterator<Item = (String, Zeroizing<Vec<u8>>)>,
    ) -> Self {
        Self {
            needles: needles.filter(|(_, needle)| !needle.is_empty()).collect(),
            tail: Zeroizing::default(),
            held: 0,
        }
    }

    /// Takes a piece and returns what may go on.
    ///
    /// # Errors
    /// The name of the needle that is there. Its end has not been let through.
    pub(in super::super) fn pass(&mut self, piece: &[u8]) -> Result<Vec<u8>, String> {
        if self.needles.is_empty() {
            return Ok(piece.to_vec());
        }
        let known = self.tail.len() - self.held;
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(piece);
        if let Some((name, _)) = self.needles.iter().find(|(_, needle)| find(&all, needle)) {
            return Err(name.clone());
        }
        let begun = self
            .needles
            .iter()
            .map(|(_, needle)| begun(&all, needle))
            .max();
        let begun = begun.unwrap_or(0);
        let unsent = all.len() - known;
        self.held = if begun >= HELD_FROM {
            begun.min(unsent)
        } else {
            0
        };
        let passed = all[known..all.len() - self.held].to_vec();
        self.tail = Zeroizing::new(all[all.len() - begun..].to_vec());
        Ok(passed)
    }

    /// Returns what was held back, at the end.
    pub(in super::super) fn finish(&mut self) -> Vec<u8> {
        let at = self.tail.len() - self.held;
        let held = self.tail.split_off(at);
        self.held = 0;
        self.tail.clear();
        held
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> bool {
    let first = needle[0];
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| byte == first) {
        rest = &rest[at..];
        if rest.starts_with(needle) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

/// Returns the length of the longest beginning of `needle` that `bytes` end with.
fn begun(bytes: &[u8], needle: &[u8]) -> usize {
    let longest = (needle.len() - 1).min(bytes.len());
    (1..=longest)
        .rev()
        .find(|&len| bytes.ends_with(&needle[..len]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scanner(needle: &str) -> Scanner {
        let needle = Zeroizing::new(needle.as_bytes().to_vec());
        Scanner::new([("it".to_owned(), needle)].into_iter())
    }

    #[test]
    fn a_needle_is_found_however_it_is_cut() {
        let text = b"some text with the hunter2hunter2 in it";
        for size in 1..text.len() {
            let mut scanner = scanner("hunter2hunter2");
            let mut passed = Vec::new();
            let found = text.chunks(size).try_for_each(|piece| {
                passed.extend(scanner.pass(piece)?);
                Ok::<_, String>(())
            });
            assert_eq!(found, Err("it".to_owned()), "{size}");
            let passed = String::from_utf8(passed).unwrap();
            assert!(!passed.contains("hunter2h"), "{size}: {passed}");
        }
    }

    #[test]
    fn a_short_beginning_is_not_held_back() {
        let mut scanner = scanner("hunter2hunter2");
        assert_eq!(scanner.pass(b"ahunter2").unwrap(), b"ahunter2");
        assert_eq!(scanner.pass(b"hun").unwrap(), b"");
        assert_eq!(scanner.finish(), b"hun");
        assert_eq!(scanner.pass(b"hunter2hun").unwrap(), b"");
        assert_eq!(scanner.pass(b"!").unwrap(), b"hunter2hun!");
        assert_eq!(scanner.finish(), b"");
    }

    proptest! {
        #[test]
        fn all_else_passes_unchanged(
            pieces in prop::collection::vec("[ab]{0,7}", 0..30), needle in "[ab]{9,12}",
        ) {
            let mut scanner = scanner(&needle);
            let whole = pieces.concat();
            let mut passed = String::new();
            for piece in &pieces {
                match scanner.pass(piece.as_bytes()) {
                    Ok(data) => passed.push_str(std::str::from_utf8(&data).unwrap()),
                    Err(_) => {
                        prop_assert!(whole.contains(&needle));
                        prop_assert!(!passed.contains(&needle));
                        return Ok(());
                    }
                }
            }
            passed.push_str(std::str::from_utf8(&scanner.finish()).unwrap());
            prop_assert!(!whole.contains(&needle));
            prop_assert_eq!(passed, whole);
        }
    }
}
