//! Text of others, cut to what there is room for.

/// Returns the beginning of a text, at most `max_bytes` of it and whole characters.
#[must_use]
pub fn clip(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("abc", 2), "ab");
        assert_eq!(clip("a\u{e9}\u{1f980}", 1), "a");
        assert_eq!(clip("a\u{e9}\u{1f980}", 2), "a");
        assert_eq!(clip("a\u{e9}\u{1f980}", 6), "a\u{e9}");
        assert_eq!(clip("a\u{e9}\u{1f980}", 7), "a\u{e9}\u{1f980}");
        assert_eq!(clip("\u{e9}", 0), "");
    }
}
