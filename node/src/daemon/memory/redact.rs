//! Redacting a memory: its bodies are taken for good, on every node that hears of it.
use axum::http::StatusCode;
use rhizome_identity::Authority;
use rhizome_memory::{DocId, PublishError, RedactRequest, RedactedBy};

use super::{
    super::{
        caller::{Caller, Scope},
        fail,
        names::Names,
        node::{Node, blocking},
    },
    parse_doc,
};
use crate::{
    agents::LocalAgent,
    api::types::{
        SCHEMA,
        memory::{RedactBody, RedactReceipt, Redaction},
    },
    error::ApiError,
};

impl Node {
    /// Redacts a document; on return its bodies are off this node's disk.
    pub(crate) async fn redact(
        &self,
        caller: &Caller,
        doc: &str,
        body: RedactBody,
    ) -> Result<RedactReceipt, ApiError> {
        let named = body.agent.is_some();
        let agent = caller.agent(self, body.agent.as_deref()).await?;
        let scope = caller.readable(self, body.space.as_deref())?;
        let doc = parse_doc(doc)?;
        let mut reason = body.reason;
        self.screen("reason", &mut reason)?;
        let request = |space| RedactRequest {
            space,
            doc,
            reason: reason.clone(),
            // Whoever is bound to one agent takes back what that one said, and nothing else.
            own_only: caller.is_bound(),
            fingerprint: caller.fingerprint(self),
        };
        let mut nothing = PublishError::NothingToRedact(doc);
        for space in &scope.0 {
            let agent = match named || caller.is_bound() {
                true => agent.clone(),
                false => self.author_here(scope_of(*space), doc, &agent).await?,
            };
            let (replica, request) = (self.replica.clone(), request(*space));
            let redacted = blocking(move || replica.redact(&agent.key, &request)).await?;
            let redacted = match redacted {
                Err(error @ PublishError::NothingToRedact(_)) => {
                    nothing = error;
                    continue;
                }
                redacted => redacted.map_err(fail::publish)?,
            };
            return Ok(RedactReceipt {
                schema: SCHEMA,
                doc: doc.to_string(),
                space: space.to_string(),
                redactions: redacted
                    .published
                    .iter()
                    .map(|published| published.id.to_string())
                    .collect(),
                taken: redacted.taken as u64,
                left: redacted.left as u64,
            });
        }
        match self.redaction_of(&scope, doc) {
            Some(error) => Err(error),
            None => Err(fail::publish(nothing)),
        }
    }

    /// Returns the agent of this node that wrote a memory, or `default`.
    async fn author_here(
        &self,
        scope: Scope,
        doc: DocId,
        default: &LocalAgent,
    ) -> Result<LocalAgent, ApiError> {
        let item = self.find_memory(scope, doc).await?;
        let author = item.and_then(|item| self.local_agent(&item.author).ok());
        Ok(author.unwrap_or_else(|| default.clone()))
    }

    /// Returns the error that says who redacted a document, if somebody did.
    pub(super) fn redaction_of(&self, scope: &Scope, doc: DocId) -> Option<ApiError> {
        let by = scope
            .0
            .iter()
            .find_map(|space| self.replica.redacted(space, &doc))?;
        let by = redaction(&self.replica.authority(), by);
        let because = by
            .reason
            .as_ref()
            .map(|reason| format!(", because: {reason}"))
            .unwrap_or_default();
        let message = format!(
            "the memory {doc} was redacted by {} on {}{because}",
            by.author, by.node
        );
        let gone = ApiError::new(StatusCode::GONE, "redacted", message);
        Some(gone.hint(format!("`rhizome memory why {}` says more", by.redaction)))
    }
}

fn scope_of(space: rhizome_identity::SpaceId) -> Scope {
    Scope(vec![space])
}

/// Puts names to who redacted something.
pub(super) fn redaction(authority: &Authority, by: RedactedBy) -> Redaction {
    let names = Names(authority);
    Redaction {
        redaction: by.redaction.to_string(),
        author: names.author(&by.author),
        node: names.node(&by.node),
        at_ms: by.hlc.unix_ms(),
        reason: by.reason,
    }
}
