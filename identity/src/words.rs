//! A secret key as words, for paper.
//!
//! Sixteen bits are one word of five letters, a consonant and a vowel in turn (proquints, Wilkerson
//! 2009): sixteen words for a key and one that shows a slip of the pen. They are short, can be read
//! out aloud, and need no list that has to be the same for ever.

use zeroize::{Zeroize, Zeroizing};

use crate::keys::SecretKey;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aiou";
/// How many words a key is.
pub const KEY_WORDS: usize = 17;

/// Why words are no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordsError {
    /// There are too few or too many.
    #[error("a key is {KEY_WORDS} words, these are {0}")]
    Count(usize),
    /// One of them is none; counted from 1.
    #[error("word {0} is not one: five letters, a consonant and a vowel in turn")]
    Word(usize),
    /// They are words, but not those of a key.
    #[error("the words do not belong together: one of them is mistaken")]
    Checksum,
}

/// Spells a key in words.
pub fn to_words(key: &SecretKey) -> Zeroizing<String> {
    let seed = key.seed();
    let check = checksum(&seed);
    let mut words = Zeroizing::new(String::with_capacity(KEY_WORDS * 6));
    for pair in seed.chunks_exact(2).chain([&check[..]]) {
        if !words.is_empty() {
            words.push(' ');
        }
        let bits = u16::from_be_bytes([pair[0], pair[1]]);
        let letter = |shift: u32, letters: &[u8]| {
            let at = usize::from(bits >> shift) & (letters.len() - 1);
            char::from(letters[at])
        };
        words.extend([
            letter(12, CONSONANTS),
            letter(10, VOWELS),
            letter(6, CONSONANTS),
            letter(4, VOWELS),
            letter(0, CONSONANTS),
        ]);
    }
    words
}

/// Reads a key from its words; case and what stands between the words do not matter.
///
/// # Errors
/// [`WordsError`] says what is wrong with them.
pub fn from_words(text: &str) -> Result<SecretKey, WordsError> {
    let words: Vec<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    if words.len() != KEY_WORDS {
        return Err(WordsError::Count(words.len()));
    }
    let mut bytes = Zeroizing::new([0; KEY_WORDS * 2]);
    for (at, word) in words.iter().enumerate() {
        let bits = bits_of(word).ok_or(WordsError::Word(at + 1))?;
        bytes[at * 2..at * 2 + 2].copy_from_slice(&bits.to_be_bytes());
    }
    let (seed, check) = bytes.split_first_chunk::<32>().expect("it is longer");
    if checksum(seed) != check {
        return Err(WordsError::Checksum);
    }
    let mut seed = *seed;
    let key = SecretKey::from_seed(seed);
    seed.zeroize();
    Ok(key)
}

fn bits_of(word: &str) -> Option<u16> {
    let letters: [u8; 5] = word.as_bytes().try_into().ok()?;
    let mut bits = 0;
    for (at, letter) in letters.iter().enumerate() {
        let (known, width): (&[u8], u32) = if at % 2 == 0 {
            (CONSONANTS, 4)
        } else {
            (VOWELS, 2)
        };
        let letter = letter.to_ascii_lowercase();
        let value = known.iter().position(|known| *known == letter)?;
        bits = (bits << width) | u16::try_from(value).ok()?;
    }
    Some(bits)
}

fn checksum(seed: &[u8; 32]) -> [u8; 2] {
    let hash = blake3::derive_key("rhizome 2026-11-30 key words", seed);
    [hash[0], hash[1]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_the_key_and_a_slip_is_found(seed: [u8; 32], at in 0..KEY_WORDS) {
            let key = SecretKey::from_seed(seed);
            let words = to_words(&key);
            prop_assert_eq!(from_words(&words).unwrap().public(), key.public());
            let spelt = words.to_uppercase().replace(' ', " -\n ");
            prop_assert_eq!(from_words(&spelt).unwrap().public(), key.public());
            let mut slip: Vec<&str> = words.split(' ').collect();
            slip[at] = if slip[at] == "babab" { "babad" } else { "babab" };
            let slipped = from_words(&slip.join(" "));
            // One in 65,536 slips is not found, and gives another key.
            prop_assert!(slipped.is_err() || slipped.unwrap().public() != key.public());
            slip[at] = "xyzzy";
            prop_assert_eq!(from_words(&slip.join(" ")).unwrap_err(), WordsError::Word(at + 1));
            prop_assert_eq!(from_words(&slip[1..].join(" ")).unwrap_err(), WordsError::Count(16));
        }
    }
}
