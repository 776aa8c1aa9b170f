//! Changing one entry of somebody's configuration, and not a byte more.
//!
//! The text is edited, not written anew: order, spacing and whatever else is in the file stay. The
//! result is read again and compared with what it should say; anything that does not fit is refused
//! rather than guessed, JSON with comments too.
use serde_json::Value;

/// Why a file is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Refused {
    /// It is no JSON as the standard has it: it may have comments or commas at the end.
    #[error("it is no plain JSON ({0}); it may have comments, which would be lost")]
    NotJson(String),
    /// Something stands where the servers should.
    #[error("`{0}` is not an object in it")]
    NotAnObject(String),
    /// A name is in it twice.
    #[error("`{0}` stands in it twice")]
    Twice(String),
    /// It is TOML of a form that we do not edit.
    #[error("line {line}: {what}")]
    Toml { line: usize, what: &'static str },
    /// What came of the edit is not what was meant.
    #[error("the change cannot be made without touching something else")]
    Unsure,
}

/// Returns `text` with the server `name` in `section`: set to `entry`, or taken out.
pub(super) fn json(
    text: &str,
    section: &str,
    name: &str,
    entry: Option<&Value>,
) -> Result<String, Refused> {
    let blank = text.trim().is_empty();
    let base = if blank { "{}" } else { text };
    let parsed = |text: &str| {
        serde_json::from_str::<Value>(text).map_err(|error| Refused::NotJson(error.to_string()))
    };
    let before = parsed(base)?;
    if !before.is_object() {
        return Err(Refused::NotAnObject("the file".to_owned()));
    }
    let mut meant = before.clone();
    let root = members(base, 0).ok_or(Refused::Unsure)?;
    let place = one(&root, section)?;
    let edited = match (place, entry) {
        (None, None) => return Ok(text.to_owned()),
        (None, Some(entry)) => {
            meant[section] = serde_json::json!({ name: entry });
            let indent = indent_of(base, &root);
            let value = pretty(&meant[section], &indent, 1);
            insert(base, &root, 0, section, &value, &indent, 1)
        }
        (Some(place), entry) => {
            if !before[section].is_object() {
                return Err(Refused::NotAnObject(section.to_owned()));
            }
            let servers = members(base, place.value.0).ok_or(Refused::Unsure)?;
            let indent = indent_of(base, &root);
            match (one(&servers, name)?, entry) {
                (None, None) => return Ok(text.to_owned()),
                (None, Some(entry)) => {
                    meant[section][name] = entry.clone();
                    let value = pretty(entry, &indent, 2);
                    insert(base, &servers, place.value.0, name, &value, &indent, 2)
                }
                (Some(server), Some(entry)) => {
                    if before[section][name] == *entry {
                        return Ok(text.to_owned());
                    }
                    meant[section][name] = entry.clone();
                    let (from, to) = server.value;
                    let value = pretty(entry, &indent, 2);
                    format!("{}{value}{}", &base[..from], &base[to..])
                }
                (Some(_), None) => {
                    if let Some(servers) = meant[section].as_object_mut() {
                        servers.remove(name);
                    }
                    remove(base, &servers, name)
                }
            }
        }
    };
    if parsed(&edited)? != meant {
        return Err(Refused::Unsure);
    }
    Ok(if blank && !edited.ends_with('\n') {
        edited + "\n"
    } else {
        edited
    })
}

/// A member of an object: where its name begins, and where its value lies.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    name: String,
    at: usize,
    value: (usize, usize),
}

fn one<'a>(members: &'a [Member], name: &str) -> Result<Option<&'a Member>, Refused> {
    let mut found = members.iter().filter(|member| member.name == name);
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(Refused::Twice(name.to_owned())),
    }
}

/// Returns the members of the object that begins at or after `from`, of text that is valid JSON.
fn members(text: &str, from: usize) -> Option<Vec<Member>> {
    let bytes = text.as_bytes();
    let mut at = skip_space(bytes, from);
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    at = skip_space(bytes, at + 1);
    let mut members = Vec::new();
    while bytes.get(at) != Some(&b'}') {
        let end = string_end(bytes, at)?;
        let name = serde_json::from_str(text.get(at..end)?).ok()?;
        let colon = skip_space(bytes, end);
        if bytes.get(colon) != Some(&b':') {
            return None;
        }
        let begin = skip_space(bytes, colon + 1);
        let stop = value_end(bytes, begin)?;
        members.push(Member {
            name,
            at,
            value: (begin, stop),
        });
        at = skip_space(bytes, stop);
        match bytes.get(at) {
            Some(b',') => at = skip_space(bytes, at + 1),
            Some(b'}') => {}
            _ => return None,
        }
    }
    Some(members)
}

fn skip_space(bytes: &[u8], from: usize) -> usize {
    let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    from + bytes
        .get(from..)
        .unwrap_or_default()
        .iter()
        .take_while(space)
        .count()
}

fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from) != Some(&b'"') {
        return None;
    }
    let mut at = from + 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

fn value_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    loop {
        match bytes.get(at) {
            Some(b'"') => {
                at = string_end(bytes, at)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            Some(b'{' | b'[') => depth += 1,
            Some(b'}' | b']') if depth == 0 => return (at > from).then_some(at),
            Some(b'}' | b']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            Some(b',' | b' ' | b'\t' | b'\n' | b'\r') if depth == 0 => return Some(at),
            Some(_) => {}
            None => return None,
        }
        at += 1;
    }
}

/// Returns the white space before the first member of the root, as that of one step.
fn indent_of(text: &str, root: &[Member]) -> String {
    let Some(first) = root.first() else {
        return "  ".to_owned();
    };
    let line = text[..first.at]
        .rfind('\n')
        .map_or("", |end| &text[end + 1..first.at]);
    let space = |character: char| matches!(character, ' ' | '\t');
    if !line.is_empty() && line.chars().all(space) {
        line.to_owned()
    } else {
        "  ".to_owned()
    }
}

/// Returns `value` as text whose later lines are indented by `depth` steps.
fn pretty(value: &Value, indent: &str, depth: usize) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(value, &mut serializer).expect("a value has string keys");
    let text = String::from_utf8(out).expect("JSON is UTF-8");
    text.replace('\n', &format!("\n{}", indent.repeat(depth)))
}

/// Returns `text` with one more member at the end of the object that begins at or after `from`.
fn insert(
    text: &str,
    members: &[Member],
    from: usize,
    name: &str,
    value: &str,
    indent: &str,
    depth: usize,
) -> String {
    let name = Value::from(name);
    let line = format!("\n{}{name}: {value}", indent.repeat(depth));
    match members.last() {
        Some(last) => {
            let end = last.value.1;
            format!("{},{line}{}", &text[..end], &text[end..])
        }
        None => {
            let open = skip_space(text.as_bytes(), from) + 1;
            let close = skip_space(text.as_bytes(), open);
            let outer = indent.repeat(depth - 1);
            format!("{}{line}\n{outer}{}", &text[..open], &text[close..])
        }
    }
}

/// Returns `text` without the member `name`, the comma that goes with it included.
fn remove(text: &str, members: &[Member], name: &str) -> String {
    let place = members.iter().position(|member| member.name == name);
    let Some(place) = place else {
        return text.to_owned();
    };
    let member = &members[place];
    match (place.checked_sub(1), members.get(place + 1)) {
        // From the end of the one before, with the comma and the line between.
        (Some(before), _) => {
            let from = members[before].value.1;
            format!("{}{}", &text[..from], &text[member.value.1..])
        }
        (None, Some(next)) => format!("{}{}", &text[..member.at], &text[next.at..]),
        (None, None) => {
            let open = text[..member.at].trim_end().len();
            let close = skip_space(text.as_bytes(), member.value.1);
            format!("{}{}", &text[..open], &text[close..])
        }
    }
}

/// Returns `text` with the server `name` in the table `section`: set to `entry`, or taken out.
///
/// Only a table of its own is edited, of single lines; multi-line strings are not looked into.
pub(super) fn toml(
    text: &str,
    section: &str,
    name: &str,
    entry: Option<&Value>,
) -> Result<String, Refused> {
    let refuse = |line, what| Err(Refused::Toml { line, what });
    let header = format!("[{section}.{name}]");
    let mut block: Option<(usize, usize)> = None;
    let mut at = 0;
    let mut inside = false;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let number = number + 1;
        let said = line.trim();
        if said.contains("\"\"\"") || said.contains("'''") {
            return refuse(number, "a string of several lines, which we do not read");
        }
        let squeezed: String = said
            .chars()
            .filter(|c| !matches!(c, ' ' | '\t' | '"' | '\''))
            .collect();
        if said.starts_with('[') {
            let is_ours = squeezed.split('#').next() == Some(&header);
            if is_ours && block.is_some() {
                return Err(Refused::Twice(name.to_owned()));
            }
            inside = is_ours;
            if is_ours {
                block = Some((at, at + line.len()));
            } else if squeezed.starts_with(&format!("[{section}.{name}.")) {
                return refuse(number, "the server has tables of its own");
            }
        } else if inside {
            let simple = said.is_empty() || said.starts_with('#') || said.contains('=');
            let open = said.matches('[').count() != said.matches(']').count();
            if !simple || open {
                return refuse(number, "a value of several lines");
            }
            if !said.is_empty()
                && let Some((_, end)) = &mut block
            {
                *end = at + line.len();
            }
        } else if squeezed.starts_with(&format!("{section}="))
            || squeezed.starts_with(&format!("{section}."))
        {
            return refuse(number, "the servers stand in a form that we do not edit");
        }
        at += line.len();
    }
    let written = entry.map(|entry| {
        let mut lines = header.clone() + "\n";
        for (key, value) in entry.as_object().into_iter().flatten() {
            // What JSON writes of strings and lists of them is TOML too.
            lines.push_str(&format!("{key} = {value}\n"));
        }
        lines
    });
    Ok(match (block, written) {
        (None, None) => text.to_owned(),
        (None, Some(written)) => {
            let gap = match text {
                "" => "",
                text if text.ends_with("\n\n") => "",
                text if text.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            format!("{text}{gap}{written}")
        }
        (Some((from, to)), Some(written)) => format!("{}{written}{}", &text[..from], &text[to..]),
        (Some((from, to)), None) => {
            let before = text[..from].trim_end_matches('\n');
            let after = text[to..].trim_start_matches('\n');
            match (before.is_empty(), after.is_empty()) {
                (true, _) => after.to_owned(),
                (false, true) => format!("{before}\n"),
                (false, false) => format!("{before}\n\n{after}"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry() -> Value {
        json!({"command": "/bin/rhizome", "args": ["mcp"]})
    }

    fn set(text: &str) -> Result<String, Refused> {
        json(text, "mcpServers", "rhizome", Some(&entry()))
    }

    fn unset(text: &str) -> Result<String, Refused> {
        json(text, "mcpServers", "rhizome", None)
    }

    #[test]
    fn an_empty_file_becomes_a_whole_one() {
        let made = set("").unwrap();
        assert!(made.ends_with("}\n"), "{made}");
        let value: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(value, json!({"mcpServers": {"rhizome": entry()}}));
        assert_eq!(set(&made).unwrap(), made, "twice is once");
    }

    #[test]
    fn not_a_byte_of_the_rest_changes() {
        let text = "{\n\t\"z\": 1.50,\n\t\"big\": 12345678901234567890123,\n\t\"mcpServers\": {\n\t\t\"other\": {\"command\": \"a\\\"}\"}\n\t},\n\t\"a\": [1,2]\n}\n";
        let made = set(text).unwrap();
        for kept in [
            "\"z\": 1.50,",
            "12345678901234567890123",
            "\"a\": [1,2]",
            "{\"command\": \"a\\\"}\"}",
        ] {
            assert!(made.contains(kept), "{made}");
        }
        assert!(made.contains("\n\t\t\"rhizome\": {"), "{made}");
        assert_eq!(unset(&made).unwrap(), text, "and back again");
    }

    #[test]
    fn a_section_is_made_where_there_is_none() {
        for text in [
            "{}",
            "{\n}",
            "{\"theme\": \"dark\"}",
            "{\n    \"theme\": \"dark\"\n}\n",
        ] {
            let made = set(text).unwrap();
            let value: Value = serde_json::from_str(&made).unwrap();
            assert_eq!(value["mcpServers"]["rhizome"], entry(), "{made}");
        }
        assert_eq!(unset("{\"theme\": 1}").unwrap(), "{\"theme\": 1}");
    }

    #[test]
    fn what_is_there_is_replaced_or_taken_out() {
        let text = "{\"mcpServers\": {\"rhizome\": {\"command\": \"old\"}, \"b\": {}}}";
        let value: Value = serde_json::from_str(&set(text).unwrap()).unwrap();
        assert_eq!(value, json!({"mcpServers": {"rhizome": entry(), "b": {}}}));
        assert_eq!(unset(text).unwrap(), "{\"mcpServers\": {\"b\": {}}}");
        let alone = "{\"mcpServers\": {\"rhizome\": {}}}";
        assert_eq!(unset(alone).unwrap(), "{\"mcpServers\": {}}");
    }

    #[test]
    fn what_we_do_not_understand_is_left_alone() {
        for text in [
            "{ // mine\n}",
            "{\"a\": 1,}",
            "{'a': 1}",
            "\u{feff}{}",
            "{\"a\": ",
        ] {
            assert!(matches!(set(text), Err(Refused::NotJson(_))), "{text}");
        }
        assert!(matches!(set("[]"), Err(Refused::NotAnObject(_))));
        assert!(matches!(
            set("{\"mcpServers\": []}"),
            Err(Refused::NotAnObject(_))
        ));
        let twice = "{\"mcpServers\": {}, \"mcpServers\": {\"a\": {}}}";
        assert_eq!(set(twice), Err(Refused::Twice("mcpServers".to_owned())));
    }

    #[test]
    fn toml_tables_are_added_replaced_and_taken_out() {
        let set = |text: &str| toml(text, "mcp_servers", "rhizome", Some(&entry()));
        let unset = |text: &str| toml(text, "mcp_servers", "rhizome", None);
        let text = "model = \"o\" # mine\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        let made = set(text).unwrap();
        let block = "[mcp_servers.rhizome]\nargs = [\"mcp\"]\ncommand = \"/bin/rhizome\"\n";
        assert_eq!(made, format!("{text}\n{block}"));
        assert_eq!(set(&made).unwrap(), made);
        assert_eq!(unset(&made).unwrap(), text);
        let old = "[mcp_servers.rhizome]\ncommand = \"old\"\n\n[other]\na = 1\n";
        assert_eq!(set(old).unwrap(), format!("{block}\n[other]\na = 1\n"));
        for refused in [
            "mcp_servers = { rhizome = { command = \"x\" } }\n",
            "mcp_servers.rhizome.command = \"x\"\n",
            "a = \"\"\"\n[mcp_servers.rhizome]\n\"\"\"\n",
            "[mcp_servers.rhizome]\nargs = [\n\"a\",\n]\n",
            "[mcp_servers.rhizome]\ncommand = \"x\"\n[mcp_servers.rhizome.env]\nA = \"1\"\n",
        ] {
            assert!(set(refused).is_err(), "{refused}");
        }
    }
}
