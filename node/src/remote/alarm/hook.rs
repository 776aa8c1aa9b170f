//! What people and other programs ask about alarms: webhooks, and what a sandbox waits for.
use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use rhizome_identity::Role;
use rhizome_memory::now_ms;

use super::condition::{Cause, Condition, WakeOnError, Word, hash_of, is_token};
use crate::{
    api::types::{
        SCHEMA,
        remote::Resumed,
        wake::{Waiting, WakeOnBody},
    },
    daemon::{caller::Caller, memory::clip, names::Names, node::Node},
    error::ApiError,
    remote::{
        asleep::shown,
        record::{Found, Rest},
        wake::claim_of,
    },
};

/// What a token's path begins with.
const PATH: &str = "/v1/wake/";

/// Conditions that were asked for, and the path of the webhook, if one is among them.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) webhook: Option<String>,
}

impl Asked {
    /// Reads words, and draws a token where one is needed.
    pub(crate) fn parse(words: &[String]) -> Result<Self, ApiError> {
        let words = Word::parse_all(words, now_ms()).map_err(|error| bad(&error))?;
        let token = match words.contains(&Word::Webhook) {
            true => Some(draw()?),
            false => None,
        };
        let conditions = Word::conditions(words, token.as_deref().unwrap_or_default());
        Ok(Self {
            conditions,
            webhook: token.map(|token| format!("{PATH}{token}")),
        })
    }
}

impl Node {
    /// Wakes the sandbox whose webhook this is, here, and hands `body` to it.
    ///
    /// The work goes on when the caller goes away.
    pub(crate) async fn wake_by_hook(
        self: &Arc<Self>,
        token: &str,
        body: Bytes,
    ) -> Result<Resumed, ApiError> {
        let unknown = || {
            let message = "no sandbox that sleeps waits for this";
            ApiError::new(StatusCode::NOT_FOUND, "unknown_webhook", message).hint(
                "a webhook wakes its sandbox once; `rhizome sandbox wake-on set` makes another",
            )
        };
        if !is_token(token) {
            return Err(unknown());
        }
        let token = hash_of(token);
        let records = self.records(&Caller::Owner).await?;
        let found = records
            .into_iter()
            .find(|found| Self::waits_for_token(found, &token))
            .ok_or_else(unknown)?;
        if !self.may_rouse(&found) {
            let authority = self.replica.authority();
            let names = found
                .holders
                .iter()
                .map(|node| Names(&authority).node(node).to_string());
            let names: Vec<_> = names.collect();
            let message = "this node holds no copy of the sandbox, or may not wake it";
            return Err(ApiError::new(StatusCode::CONFLICT, "not_holder", message)
                .hint(format!("send it to one of: {}", names.join(", "))));
        }
        let (node, bytes) = (Arc::clone(self), body.len() as u64);
        let waking = self.tasks.spawn(async move {
            let cause = Cause::Webhook { bytes };
            node.rouse_found(&found, cause, Some(body)).await
        });
        waking.await.map_err(|error| {
            ApiError::internal("the wake-up ended in a panic").caused_by(Some(&error))
        })?
    }

    /// Changes what a sandbox that sleeps waits for, from any node that may write in its space.
    pub(crate) async fn set_wake_on(&self, body: WakeOnBody) -> Result<Waiting, ApiError> {
        let asked = Asked::parse(&body.wake_on)?;
        let found = self.find_record(&Caller::Owner, &body.what).await?;
        self.peer_may(
            &self.id(),
            &[found.space],
            Role::Writer,
            "what the sandbox waits for",
        )?;
        if found.record.rest != Rest::Asleep {
            let message = format!(
                "the sandbox does not sleep: it {}",
                match found.record.rest {
                    Rest::Awake => "runs",
                    Rest::Asleep | Rest::Ended => "was ended",
                }
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "not_asleep", message)
                .hint("put it to sleep with `rhizome sandbox hibernate --wake-on …`"));
        }
        // Nobody wakes it by what it waited for while that changes.
        let arbiter = self.claim(&found, false).await?;
        let mut record = found.record.clone();
        record.wake_on = asked.conditions;
        let said = self.publish_record(found.space, &record).await;
        self.return_claim(&claim_of(&found), arbiter).await;
        said?;
        Ok(waiting(&Found { record, ..found }, asked.webhook))
    }

    /// Returns what a sandbox waits for.
    pub(crate) async fn show_wake_on(&self, what: &str) -> Result<Waiting, ApiError> {
        let found = self.find_record(&Caller::Owner, what).await?;
        Ok(waiting(&found, None))
    }
}

fn waiting(found: &Found, webhook: Option<String>) -> Waiting {
    let record = &found.record;
    let is_asleep = record.rest == Rest::Asleep;
    let conditions = record.wake_on.iter().filter(|_| is_asleep);
    Waiting {
        schema: SCHEMA,
        sandbox: record.sandbox.to_string(),
        name: record.name.as_deref().map(clip),
        wake_on: conditions.map(shown).collect(),
        webhook,
    }
}

fn bad(error: &WakeOnError) -> ApiError {
    ApiError::of(StatusCode::BAD_REQUEST, "bad_wake_on", error).hint(error.hint())
}

/// Draws a token that nobody guesses.
fn draw() -> Result<String, ApiError> {
    let mut bytes = [0_u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
        |error| ApiError::internal("the system gives no random bytes").caused_by(Some(&error)),
    )?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_has_a_path_of_its_own_and_its_record_does_not_tell_it() {
        let asked = || Asked::parse(&["webhook".into(), "time=1h".into()]).unwrap();
        let (one, other) = (asked(), asked());
        assert_ne!(one.webhook, other.webhook);
        let path = one.webhook.unwrap();
        let token = path.strip_prefix(PATH).unwrap();
        assert!(is_token(token), "{token}");
        assert_eq!(
            one.conditions[0],
            Condition::Webhook {
                token: hash_of(token)
            }
        );
        assert!(Asked::parse(&["time=1h".into()]).unwrap().webhook.is_none());
        let refused = Asked::parse(&["rain".into()]).unwrap_err();
        assert_eq!(refused.code(), "bad_wake_on");
        assert!(refused.info().hint.is_some());
    }
}
