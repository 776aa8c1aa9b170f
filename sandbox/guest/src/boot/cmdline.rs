//! The words on the kernel's command line that are ours.

/// Prefix of our words on the kernel's command line.
const PREFIX: &str = "rhizome.";

/// Our words on the kernel's command line, without their prefix.
#[derive(Debug)]
pub(crate) struct Words(Vec<(String, String)>);

impl Words {
    pub(crate) fn parse(line: &str) -> Self {
        let words = line.split_whitespace().filter_map(|word| {
            let (name, value) = word.strip_prefix(PREFIX)?.split_once('=')?;
            (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        });
        Self(words.collect())
    }

    /// Returns the value of a word; the last one counts, as for the kernel.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_words_count_and_the_last_one_wins() {
        let words = Words::parse(
            "quiet root=/dev/x rhizome.root=/dev/vda rhizome.root=/dev/vdb rhizome.upper= rhizome.x\n",
        );
        assert_eq!(words.get("root"), Some("/dev/vdb"));
        assert_eq!(words.get("upper"), None);
        assert_eq!(words.get("x"), None);
    }
}
