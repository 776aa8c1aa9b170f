//! The document tells of every route, and the copies of it are what the code makes.
use std::{fs, path::PathBuf};

use super::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// `RHIZOME_BLESS=1` writes the copy anew.
#[test]
fn the_checked_in_document_is_what_the_code_makes() {
    let path = root().join("docs/openapi.json");
    let made = text();
    if std::env::var_os("RHIZOME_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/openapi.json is not what the code makes: `rhizome api openapi > docs/openapi.json`"
    );
}

#[test]
fn every_operation_says_what_it_answers_and_every_reference_leads_somewhere() {
    let document = document();
    let mut seen = std::collections::BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let name = format!("{method} {path}");
            assert!(
                seen.insert(operation["operationId"].as_str().unwrap().to_owned()),
                "{name}"
            );
            let answers = operation["responses"].as_object().unwrap();
            assert!(answers.len() > 1, "{name} answers nothing but errors");
            let summary = operation["summary"].as_str().unwrap();
            assert!(!summary.is_empty() && !summary.ends_with('.'), "{name}");
        }
    }
    references(&document, &document);
}

fn references(document: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            fields
                .values()
                .for_each(|field| references(document, field));
        }
        Value::Array(items) => items.iter().for_each(|item| references(document, item)),
        _ => {}
    }
}

/// A route that goes past the table would be in no document.
#[test]
fn routes_are_made_in_the_table_alone() {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut past = Vec::new();
    let mut left = vec![
        source.join("api"),
        source.join("remote"),
        source.join("mcp"),
    ];
    left.push(source.join("door.rs"));
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        let is_table = path.ends_with("api/table.rs") || path.ends_with("openapi/tests.rs");
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let words = [
            ".route(\"/",
            ".route(\n            \"/",
            ".nest(",
            "route_service(",
        ];
        if !is_table && words.iter().any(|word| text.contains(word)) {
            past.push(path);
        }
    }
    assert!(
        past.is_empty(),
        "routes that no document tells of: {past:?}"
    );
}

/// The document has exactly the routes that the routers answer.
#[test]
fn the_document_and_the_routers_have_the_same_routes() {
    let document = document();
    let told = document["paths"].as_object().unwrap();
    let told: usize = told
        .values()
        .map(|item| item.as_object().unwrap().len())
        .sum();
    assert_eq!(told, routes::tables().len());
    for (described, _) in routes::tables() {
        let method = described.method.as_str().to_ascii_lowercase();
        assert!(document["paths"][described.path][method].is_object());
    }
}
