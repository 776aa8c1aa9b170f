//! What the tool `memory` takes.
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::TOOL;

const DESCRIPTION: &str = "Keep notes as text files below /memories: view, create, str_replace, \
    insert, delete, rename. They stay between conversations and are shared: others may edit the \
    same file at the same time, and both edits stand.";

/// Returns the tool.
///
/// One field, `command`, decides which others there are. That is told below `dependentSchemas`:
/// clients pass a schema on to model providers that refuse a union at its top.
pub(super) fn tool() -> Tool {
    let mut properties = JsonObject::new();
    properties.insert(
        "command".to_owned(),
        json!({
            "type": "string",
            "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
            "description": "What to do.",
        }),
    );
    let mut variants = Vec::new();
    for (command, fields) in COMMANDS {
        let mut own = json!({ "command": { "const": command } });
        let mut required = vec!["command"];
        for field in *fields {
            let (name, schema) = field.schema();
            own[name] = schema.clone();
            properties.entry(name).or_insert(schema);
            if field.is_required() {
                required.push(name);
            }
        }
        variants.push(json!({ "properties": own, "required": required }));
    }
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": ["command"],
        "dependentSchemas": { "command": { "oneOf": variants } },
    });
    let Value::Object(schema) = schema else {
        unreachable!("it was written as an object");
    };
    let mut tool = Tool::new(TOOL, DESCRIPTION, Arc::new(schema));
    tool.title = Some("Memory files".to_owned());
    tool.annotations = Some(
        ToolAnnotations::new()
            .read_only(false)
            .destructive(true)
            .idempotent(false)
            .open_world(false),
    );
    tool
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Path,
    ViewRange,
    FileText,
    OldStr,
    NewStr,
    InsertLine,
    InsertText,
    OldPath,
    NewPath,
}

const COMMANDS: &[(&str, &[Field])] = &[
    ("view", &[Field::Path, Field::ViewRange]),
    ("create", &[Field::Path, Field::FileText]),
    ("str_replace", &[Field::Path, Field::OldStr, Field::NewStr]),
    (
        "insert",
        &[Field::Path, Field::InsertLine, Field::InsertText],
    ),
    ("delete", &[Field::Path]),
    ("rename", &[Field::OldPath, Field::NewPath]),
];

impl Field {
    fn is_required(self) -> bool {
        !matches!(self, Self::ViewRange | Self::NewStr)
    }

    fn schema(self) -> (&'static str, Value) {
        let text = |name, description: &str| {
            let schema = json!({ "type": "string", "description": description });
            (name, schema)
        };
        match self {
            Self::Path => text("path", "A file or directory: /memories or below."),
            Self::ViewRange => (
                "view_range",
                json!({
                    "type": "array",
                    "items": { "type": "integer" },
                    "minItems": 2,
                    "maxItems": 2,
                    "description": "First and last line to show, from 1; -1 is the end.",
                }),
            ),
            Self::FileText => text("file_text", "What the new file says."),
            Self::OldStr => text("old_str", "What is in the file, exactly once."),
            Self::NewStr => text("new_str", "What to put in its place."),
            Self::InsertLine => (
                "insert_line",
                json!({
                    "type": "integer",
                    "minimum": 0,
                    "description": "After which line to insert; 0 is the top.",
                }),
            ),
            Self::InsertText => text("insert_text", "The lines to insert."),
            Self::OldPath => text("old_path", "What to rename."),
            Self::NewPath => text("new_path", "Its new path, where nothing is yet."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_says_what_it_takes() {
        let tool = tool();
        let schema = Value::Object((*tool.input_schema).clone());
        assert_eq!(schema["type"], "object");
        assert!(schema.get("oneOf").is_none(), "no union at the top");
        let variants = schema["dependentSchemas"]["command"]["oneOf"]
            .as_array()
            .expect("a list");
        assert_eq!(variants.len(), 6);
        let insert = &variants[3];
        assert_eq!(insert["properties"]["command"]["const"], "insert");
        assert_eq!(
            insert["required"],
            json!(["command", "path", "insert_line", "insert_text"])
        );
        assert_eq!(variants[0]["required"], json!(["command", "path"]));
    }
}
