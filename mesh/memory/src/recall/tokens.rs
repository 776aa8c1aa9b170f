//! From text to tokens: one analyzer for alphabetic scripts, one for Han, Kana and Hangul.

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, Stemmer, StopWordFilter,
    TextAnalyzer, Token, TokenStream, Tokenizer,
};

/// The name under which the alphabetic analyzer is known to tantivy.
pub(super) const WORDS: &str = "rhizome_words";
/// The name under which the bigram analyzer is known to tantivy.
pub(super) const BIGRAMS: &str = "rhizome_bigrams";

/// Longer words are no words; a hash in hexadecimal still is.
const MAX_WORD: usize = 130;

/// Words of alphabetic scripts: lower case, ASCII where possible, no English stop words, stemmed.
pub(super) fn words() -> TextAnalyzer {
    TextAnalyzer::builder(Words)
        .filter(RemoveLongFilter::limit(MAX_WORD))
        .filter(LowerCaser)
        .filter(AsciiFoldingFilter)
        .filter(StopWordFilter::new(Language::English).expect("tantivy has English stop words"))
        .filter(Stemmer::new(Language::English))
        .build()
}

/// Bigrams over runs of Han, Kana and Hangul; a lone character is a unigram.
pub(super) fn bigrams() -> TextAnalyzer {
    TextAnalyzer::builder(Bigrams).build()
}

/// Returns the tokens of `text`.
pub(super) fn tokens(analyzer: &mut TextAnalyzer, text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    analyzer
        .token_stream(text)
        .process(&mut |token| tokens.push(token.text.clone()));
    tokens
}

fn is_cjk(character: char) -> bool {
    matches!(u32::from(character),
        // Han, with its iteration mark and zero, extensions and compatibility forms.
        0x3005 | 0x3007 | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x3_23af
        // Kana, half-width too, without the middle dot.
        | 0x3041..=0x3096 | 0x309d..=0x309f | 0x30a1..=0x30fa | 0x30fc..=0x30ff | 0x31f0..=0x31ff | 0xff66..=0xff9d
        // Hangul, composed or not.
        | 0x1100..=0x11ff | 0x3131..=0x318e | 0xa960..=0xa97c | 0xac00..=0xd7a3 | 0xd7b0..=0xd7fb)
}

#[derive(Clone)]
struct Words;

#[derive(Clone)]
struct Bigrams;

impl Tokenizer for Words {
    type TokenStream<'a> = Tokens;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Tokens {
        let mut tokens = Tokens::default();
        for run in runs(text, |character| {
            character.is_alphanumeric() && !is_cjk(character)
        }) {
            tokens.push(text, run.0, run.1);
        }
        tokens
    }
}

impl Tokenizer for Bigrams {
    type TokenStream<'a> = Tokens;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Tokens {
        let mut tokens = Tokens::default();
        for (from, to) in runs(text, is_cjk) {
            let starts: Vec<usize> = text[from..to]
                .char_indices()
                .map(|(at, _)| from + at)
                .chain([to])
                .collect();
            match starts.len() {
                2 => tokens.push(text, from, to),
                _ => starts
                    .windows(3)
                    .for_each(|pair| tokens.push(text, pair[0], pair[2])),
            }
        }
        tokens
    }
}

/// Returns the longest stretches of characters that `belongs` holds for, as byte ranges.
fn runs(text: &str, belongs: fn(char) -> bool) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut start = None;
    for (at, character) in text.char_indices() {
        match (start, belongs(character)) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                runs.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    runs.extend(start.map(|from| (from, text.len())));
    runs
}

/// Tokens made all at once; texts are bounded.
#[derive(Default)]
struct Tokens {
    tokens: Vec<Token>,
    next: usize,
}

impl Tokens {
    fn push(&mut self, text: &str, from: usize, to: usize) {
        self.tokens.push(Token {
            offset_from: from,
            offset_to: to,
            position: self.tokens.len(),
            text: text[from..to].to_owned(),
            position_length: 1,
        });
    }
}

impl TokenStream for Tokens {
    fn advance(&mut self) -> bool {
        self.next += 1;
        self.next <= self.tokens.len()
    }

    fn token(&self) -> &Token {
        &self.tokens[self.next - 1]
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.tokens[self.next - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_folded_freed_of_stop_words_and_stemmed() {
        let found = tokens(
            &mut words(),
            "The connections timed OUT in café_test: cdm-xxc 止损",
        );
        assert_eq!(
            found,
            ["connect", "time", "out", "cafe", "test", "cdm", "xxc"]
        );
    }

    #[test]
    fn runs_become_bigrams_and_a_lone_character_a_unigram() {
        assert_eq!(
            tokens(&mut bigrams(), "护城河 a 止 しりとり"),
            ["护城", "城河", "止", "しり", "りと", "とり"]
        );
        assert!(tokens(&mut bigrams(), "plain words").is_empty());
    }
}
