//! What sandboxes may reach, the secrets that they use, and what they were denied.
use std::sync::Arc;

use axum::http::StatusCode;
use rhizome_identity::{NodeId, Role, SpaceId};
use rhizome_sandbox::{
    SandboxInfo,
    egress::{EgressEvent, Policy, Rule, RuleError, Secret, SecretParts, SecretStoreError},
};
use tokio::sync::mpsc;

use super::{
    caller::Caller,
    fail,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        SCHEMA,
        network::{Denials, Network, NetworkBody, SecretSet, Secrets},
        sandbox::SandboxBody,
    },
    control::audit::Note,
    error::ApiError,
};

impl Node {
    /// Returns what a sandbox may reach.
    pub(crate) fn network(&self, wanted: &str) -> Result<Network, ApiError> {
        let info = self.find_sandbox(wanted)?;
        let usage = self.sandboxes()?.egress().usage(&info.id);
        Ok(Network {
            schema: SCHEMA,
            sandbox: info.id.to_string(),
            shown: info.network.to_string(),
            policy: info.network,
            secrets: info.secrets,
            usage,
        })
    }

    /// Changes what a sandbox may reach, at once.
    pub(crate) async fn set_network(
        &self,
        caller: &Caller,
        wanted: &str,
        body: NetworkBody,
    ) -> Result<Network, ApiError> {
        let info = self.find_sandbox(wanted)?;
        if matches!(caller, Caller::Peer(_)) && body.secrets.is_some() {
            return Err(no_secrets_for_peers());
        }
        let base = without(body.policy.unwrap_or(info.network), &body.forget)?;
        let policy = Policy::from_words(base, &body.allow, &body.deny);
        let policy = policy.map_err(|error| bad_policy(&error, error.hint()))?;
        let secrets = match body.secrets {
            Some(secrets) => self.known_secrets(secrets).await?,
            None => info.secrets,
        };
        let changed = self.sandboxes()?.set_network(&info.id, policy, secrets);
        changed.await.map_err(|error| fail::sandbox(&error))?;
        self.network(wanted)
    }

    /// Returns the policy of a sandbox that is to be made, and its secrets, if they may be.
    pub(crate) async fn network_of_new(
        &self,
        policy: Option<Policy>,
        secrets: Vec<String>,
    ) -> Result<(Policy, Vec<String>), ApiError> {
        Ok((
            policy.unwrap_or_default(),
            self.known_secrets(secrets).await?,
        ))
    }

    /// Says whether another node may have a sandbox with such a network made here: what it may
    /// reach is a hole in this node's wall.
    pub(crate) fn accept_network(
        &self,
        peer: &NodeId,
        body: &SandboxBody,
        spaces: &[SpaceId],
    ) -> Result<(), ApiError> {
        if !body.secrets.is_empty() {
            return Err(no_secrets_for_peers());
        }
        match &body.network {
            Some(policy) if !policy.is_none() => {
                self.peer_may(peer, spaces, Role::Admin, "a sandbox with a network")
            }
            _ => Ok(()),
        }
    }

    async fn known_secrets(&self, mut names: Vec<String>) -> Result<Vec<String>, ApiError> {
        if names.is_empty() {
            return Ok(names);
        }
        names.sort_unstable();
        names.dedup();
        let known = self.all_secrets().await?;
        match names
            .iter()
            .find(|name| !known.iter().any(|secret| secret.name() == *name))
        {
            None => Ok(names),
            Some(name) => Err(unknown_secret(&SecretStoreError::Unknown {
                name: super::memory::clip(name),
            })),
        }
    }

    /// Returns what a sandbox was denied.
    pub(crate) fn denials(&self, wanted: &str) -> Result<Denials, ApiError> {
        let info = self.find_sandbox(wanted)?;
        Ok(Denials {
            schema: SCHEMA,
            policy: info.network.to_string(),
            denials: self.sandboxes()?.egress().denials(&info.id),
        })
    }

    /// Says which of the secrets that a sandbox used where it slept it cannot use here, and why.
    /// Their values never leave the node that they are on.
    pub(crate) async fn secrets_missed(
        &self,
        used: &[String],
        info: &SandboxInfo,
    ) -> Result<Vec<String>, ApiError> {
        if used.is_empty() {
            return Ok(Vec::new());
        }
        let here = self.all_secrets().await?;
        let missed = used.iter().filter_map(|name| {
            if !info.secrets.contains(name) {
                return Some(format!(
                    "secret `{name}` is not granted to it on this node: `rhizome sandbox policy set {} --secret {name}`",
                    info.id
                ));
            }
            let is_here = here.iter().any(|secret| secret.name() == name);
            (!is_here).then(|| {
                format!("secret `{name}` is not on this node: `rhizome secret set {name}`")
            })
        });
        Ok(missed.collect())
    }

    async fn all_secrets(&self) -> Result<Vec<Secret>, ApiError> {
        let store = self.sandboxes()?.secrets().clone();
        let listed = blocking(move || store.list()).await?;
        listed.map_err(|error| secret_store(&error))
    }

    /// Returns the secrets of this node, without their values.
    pub(crate) async fn secrets(&self) -> Result<Secrets, ApiError> {
        let secrets = self.all_secrets().await?;
        Ok(Secrets {
            schema: SCHEMA,
            secrets: secrets.iter().map(Into::into).collect(),
        })
    }

    /// Keeps a secret, for the sandboxes that use one of that name too.
    pub(crate) async fn set_secret(&self, parts: SecretParts) -> Result<SecretSet, ApiError> {
        let secret = Secret::try_from(parts)
            .map_err(|error| ApiError::of(StatusCode::BAD_REQUEST, "bad_secret", &error))?;
        let shown = SecretSet::from(&secret);
        let sandboxes = self.sandboxes()?.clone();
        let kept = blocking(move || {
            sandboxes.secrets().set(&secret)?;
            sandboxes.refresh_secrets();
            Ok(())
        });
        kept.await?.map_err(|error| secret_store(&error))?;
        Ok(shown)
    }

    /// Forgets a secret; its placeholder then stands for nothing.
    pub(crate) async fn remove_secret(&self, name: String) -> Result<(), ApiError> {
        let sandboxes = self.sandboxes()?.clone();
        let removed = blocking(move || {
            sandboxes.secrets().remove(&name)?;
            sandboxes.refresh_secrets();
            Ok(())
        });
        removed.await?.map_err(|error| secret_store(&error))
    }
}

/// A secret is the owner's: another node neither hands one out nor finds out which there are.
pub(crate) fn no_secrets_for_peers() -> ApiError {
    ApiError::denied("the secrets of a node are its owner's alone to hand out")
        .hint("run `rhizome sandbox policy set <sandbox> --secret NAME` on that node")
}

fn without(policy: Policy, forget: &[String]) -> Result<Policy, ApiError> {
    let mut rules = Vec::new();
    for word in forget {
        let rule: Result<Rule, RuleError> = word.parse();
        rules.push(rule.map_err(|error| bad_policy(&error, Some(error.hint())))?);
    }
    let known = |rule: &Rule| policy.allowed().contains(rule) || policy.denied().contains(rule);
    if let Some(rule) = rules.iter().find(|rule| !known(rule)) {
        let message = format!("the policy has no rule `{rule}`");
        return Err(
            ApiError::new(StatusCode::NOT_FOUND, "unknown_rule", message)
                .hint("`rhizome sandbox policy show <sandbox>` lists them"),
        );
    }
    let keep = |list: &[Rule]| {
        list.iter()
            .filter(|rule| !rules.contains(rule))
            .cloned()
            .collect()
    };
    let left = Policy::new(
        policy.default_is(),
        keep(policy.allowed()),
        keep(policy.denied()),
    );
    left.map_err(|error| bad_policy(&error, error.hint()))
}

fn bad_policy(error: &(dyn std::error::Error + 'static), hint: Option<String>) -> ApiError {
    ApiError::of(StatusCode::BAD_REQUEST, "bad_policy", error).maybe_hint(hint)
}

fn unknown_secret(error: &SecretStoreError) -> ApiError {
    ApiError::of(StatusCode::NOT_FOUND, "unknown_secret", error)
        .hint("`rhizome secret list` shows those of this node; `rhizome secret set` makes one")
}

fn secret_store(error: &SecretStoreError) -> ApiError {
    match error {
        SecretStoreError::Unknown { .. } => unknown_secret(error),
        SecretStoreError::TooMany => ApiError::of(StatusCode::CONFLICT, "too_many", error)
            .hint("remove one with `rhizome secret rm`"),
        error => ApiError::of(StatusCode::INTERNAL_SERVER_ERROR, "secrets_failed", error),
    }
}

/// Writes denials down until no more can come. What a guest repeats is one of them already.
pub(crate) async fn note_denials(node: Arc<Node>, mut events: mpsc::Receiver<EgressEvent>) {
    loop {
        let event = tokio::select! {
            biased; // Stopping first.
            () = node.stop.cancelled() => return,
            event = events.recv() => event,
        };
        let Some(EgressEvent { sandbox, denial }) = event else {
            return;
        };
        let detail = format!(
            "{} {}: {}",
            denial.attempt, denial.denied.destination, denial.denied.rule
        );
        let on = Some(sandbox.to_string());
        let note = Note::of_daemon("egress.denied", on, "denied").detail(detail);
        node.audit.note(note).await;
    }
}
