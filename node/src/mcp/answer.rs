//! Answers of tools: for programs as a structure, for the model as text.
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{api::extract::MAX_BODY_BYTES, error::ApiError};

/// Returns an answer that says `value` to programs and `text` to the model.
pub(crate) fn told(text: impl Into<String>, value: &impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content =
        Some(serde_json::to_value(value).expect("answers have string keys"));
    result
}

/// Returns an answer that says `value` to both, as JSON.
pub(crate) fn structured(value: &impl Serialize) -> CallToolResult {
    let text = serde_json::to_string_pretty(value).expect("answers have string keys");
    told(text, value)
}

/// Returns the answer to a call that failed: what failed, the causes, what to try.
///
/// It carries no structure: a structure would have to follow the tool's output schema.
pub(crate) fn failed(error: &ApiError) -> CallToolResult {
    let info = error.info();
    let text = format!("error ({}): {}", info.code, sentence(error));
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    let mut meta = rmcp::model::MetaObject::default();
    meta.0.insert("rhizome/error".to_owned(), json!(info));
    result.meta = Some(meta);
    result
}

/// Returns `outcome` as an answer: what failed is told to the model, which can act on it.
pub(crate) fn of(outcome: Result<CallToolResult, ApiError>) -> CallToolResult {
    outcome.unwrap_or_else(|error| failed(&error))
}

/// Reads the arguments of a call.
///
/// # Errors
/// If they are not those of the tool: an answer that says what is wrong, so that the model can mend it.
pub(crate) fn arguments<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ApiError> {
    let value = serde_json::Value::Object(arguments);
    // The transports bound a message; a memory's own bound is told where it is published.
    const { assert!(super::MAX_MESSAGE_BYTES > MAX_BODY_BYTES) };
    serde_json::from_value(value).map_err(|error| {
        ApiError::bad_request("the arguments are not those of this tool").caused_by(Some(&error))
    })
}

/// Returns what failed, the causes, what to try.
pub(crate) fn sentence(error: &ApiError) -> String {
    let info = error.info();
    let mut text = info.message.clone();
    for cause in &info.causes {
        text.push_str("\n  cause: ");
        text.push_str(cause);
    }
    if let Some(hint) = &info.hint {
        text.push_str("\n   hint: ");
        text.push_str(hint);
    }
    text
}
