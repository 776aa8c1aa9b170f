//! Reading the file that the reference memory server keeps: one entity or relation a line.
use serde_json::Value;

use super::model::{Entity, Relation};

/// The longest line that is looked at, in bytes.
pub(crate) const MAX_LINE: usize = 4 * 1024 * 1024;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    Entity(Entity),
    Relation(Relation),
    /// Nothing, and nothing was meant.
    Blank,
}

/// Reads one line.
///
/// # Errors
/// What is wrong with it, for people.
pub(crate) fn parse(line: &[u8]) -> Result<Line, String> {
    if line.len() > MAX_LINE {
        return Err(format!(
            "the line is {} bytes; at most {MAX_LINE} are read",
            line.len()
        ));
    }
    let text = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
    // Some editors begin a file with a mark of the byte order.
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Ok(Line::Blank);
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        if error.is_eof() {
            "the line ends in the middle of its JSON".to_owned()
        } else {
            format!("no JSON: {error}")
        }
    })?;
    let kind = value.get("type").and_then(Value::as_str);
    match kind {
        Some("entity") => read(value).map(Line::Entity),
        Some("relation") => read(value).map(Line::Relation),
        Some(other) => Err(format!(
            "`{}` is neither an entity nor a relation",
            other.chars().take(40).collect::<String>()
        )),
        None => Err("the line has no `type`".to_owned()),
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_reference_are_read() {
        let entity = br#"{"type":"entity","name":"a","entityType":"t","observations":["x"]}"#;
        let read = parse(entity).unwrap();
        assert!(matches!(read, Line::Entity(entity) if entity.observations == ["x"]));
        let relation = br#"{"type":"relation","from":"a","to":"b","relationType":"r"}"#;
        assert!(matches!(parse(relation).unwrap(), Line::Relation(_)));
        assert_eq!(parse(b" \r").unwrap(), Line::Blank);
    }

    #[test]
    fn what_is_damaged_says_how() {
        for (line, says) in [
            (
                &br#"{"type":"entity","name":"a","ent"#[..],
                "ends in the middle",
            ),
            (br#"{"type":"entity","name":"a"}"#, "entityType"),
            (br#"{"type":"ship"}"#, "`ship`"),
            (br#"{"name":"a"}"#, "no `type`"),
            (br#"nonsense"#, "no JSON"),
            (b"\xff\xfe", "UTF-8"),
        ] {
            let said = parse(line).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
