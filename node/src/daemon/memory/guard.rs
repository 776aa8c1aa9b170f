//! What may not be published: texts with something in them that looks like a live secret.
use axum::http::StatusCode;
use rhizome_memory::{ContextPatch, Draft};

use super::super::node::Node;
use crate::{
    error::ApiError,
    secrets::{self, SecretRule},
};

impl Node {
    /// Applies the rule for secrets to a text that is about to be shared; `place` names it.
    pub(crate) fn screen(&self, place: &str, text: &mut String) -> Result<(), ApiError> {
        screen(self.config.memory.secrets, place, text)
    }

    /// Applies the rule to a name, which cannot be redacted without being another.
    pub(crate) fn screen_name(&self, place: &str, name: &str) -> Result<(), ApiError> {
        match self.config.memory.secrets {
            SecretRule::Allow => Ok(()),
            _ => screen(SecretRule::Refuse, place, &mut name.to_owned()),
        }
    }

    /// Says whether a draft would be published, and leaves it as it would be.
    pub(crate) fn may_publish(&self, draft: &mut Draft) -> Result<(), ApiError> {
        self.screen_draft(draft)?;
        draft.check().map_err(|error| {
            let refused = ApiError::new(StatusCode::BAD_REQUEST, "bad_draft", &error);
            refused.maybe_hint(error.hint())
        })
    }

    pub(super) fn screen_draft(&self, draft: &mut Draft) -> Result<(), ApiError> {
        let rule = self.config.memory.secrets;
        if rule == SecretRule::Allow {
            return Ok(());
        }
        screen(rule, "title", &mut draft.title)?;
        screen(rule, "text", &mut draft.text)?;
        for tag in &mut draft.tags {
            screen(rule, "tags", tag)?;
        }
        for (place, text) in [("key", &mut draft.key), ("task", &mut draft.task)] {
            if let Some(text) = text {
                screen(rule, place, text)?;
            }
        }
        for piece in &mut draft.evidence {
            screen(rule, "evidence", piece)?;
        }
        for (name, value) in &mut draft.fields {
            // A value may be telling only together with its name: `password` and what follows.
            let before = format!("{name}=");
            let mut both = format!("{before}{value}");
            screen(rule, "fields", &mut both)?;
            if let Some(screened) = both.strip_prefix(&before)
                && screened != value
            {
                *value = screened.to_owned();
            }
        }
        Ok(())
    }

    /// Applies the rule for secrets to all that a checkpoint says.
    pub(crate) fn screen_patch(&self, patch: ContextPatch) -> Result<ContextPatch, ApiError> {
        let rule = self.config.memory.secrets;
        if rule == SecretRule::Allow {
            return Ok(patch);
        }
        let broken = |error: serde_json::Error| {
            ApiError::internal("a checkpoint is no JSON").caused_by(Some(&error))
        };
        let mut value = serde_json::to_value(&patch).map_err(broken)?;
        if screen_value(rule, "checkpoint", &mut value)? {
            return serde_json::from_value(value).map_err(broken);
        }
        Ok(patch)
    }
}

/// Applies the rule to every string in `value`; returns whether one has changed.
fn screen_value(
    rule: SecretRule,
    place: &str,
    value: &mut serde_json::Value,
) -> Result<bool, ApiError> {
    use serde_json::Value;
    let mut changed = false;
    match value {
        Value::String(text) => {
            let before = text.len();
            screen(rule, place, text)?;
            changed = text.len() != before;
        }
        Value::Array(values) => {
            for value in values {
                changed |= screen_value(rule, place, value)?;
            }
        }
        Value::Object(values) => {
            for (name, value) in values {
                changed |= screen_value(rule, name, value)?;
            }
        }
        _ => {}
    }
    Ok(changed)
}

fn screen(rule: SecretRule, place: &str, text: &mut String) -> Result<(), ApiError> {
    match rule {
        SecretRule::Allow => Ok(()),
        SecretRule::Redact => {
            if let std::borrow::Cow::Owned(redacted) = secrets::redact(text) {
                *text = redacted;
            }
            Ok(())
        }
        SecretRule::Refuse => match secrets::find(text).first() {
            None => Ok(()),
            Some(found) => Err(ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "secret_found",
                format!("`{place}` holds what looks like {}", found.what),
            )
            .hint(
                "nothing was published: say where the secret is kept instead of what it is; \
                 `memory.secrets` in config.json can be `redact` or `allow`. What was published \
                 before goes from every node with `rhizome memory redact <document>`; change the \
                 secret all the same",
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted() -> String {
        format!("the key is AKIA{} there", "IOSFODNN7REALKEY")
    }

    #[test]
    fn a_refusal_does_not_repeat_the_secret() {
        let mut text = planted();
        let refused = screen(SecretRule::Refuse, "text", &mut text).unwrap_err();
        assert_eq!(refused.code(), "secret_found");
        let said = serde_json::to_string(refused.info()).unwrap();
        assert!(!said.contains("AKIA"), "{said}");
        assert!(said.contains("an AWS access key id"), "{said}");
    }

    #[test]
    fn every_string_of_a_checkpoint_is_looked_at() {
        let patch = ContextPatch {
            goal: Some("deploy".into()),
            errors: vec![rhizome_memory::ErrorEntry {
                error: "denied".into(),
                cause: Some(planted()),
                ..Default::default()
            }],
            ..ContextPatch::default()
        };
        let mut value = serde_json::to_value(&patch).unwrap();
        let refused = screen_value(SecretRule::Refuse, "checkpoint", &mut value).unwrap_err();
        assert!(refused.to_string().contains("`cause`"), "{refused}");
        assert!(screen_value(SecretRule::Redact, "checkpoint", &mut value).unwrap());
        let redacted: ContextPatch = serde_json::from_value(value).unwrap();
        let cause = redacted.errors[0].cause.as_deref().unwrap();
        assert_eq!(cause, "the key is [redacted: an AWS access key id] there");
    }
}
