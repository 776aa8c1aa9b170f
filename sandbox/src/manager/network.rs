//! The network of sandboxes: what each may reach, and the secrets that it may use.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use super::{Inner, Sandboxes, entry::Entry};
use crate::{
    SandboxError, SandboxId, SandboxInfo,
    channel::GuestChannel,
    egress::{Attempt, Boundaries, Denied, EgressError, EgressEvent, Policy, Secret, SecretStore},
};

/// Most secrets of one sandbox.
const MAX_SECRETS: usize = 32;

impl Sandboxes {
    /// Returns the boundaries, for what they know: policies, denials, bytes.
    #[must_use]
    pub fn egress(&self) -> &Boundaries {
        &self.inner.egress
    }

    /// Returns the secrets of the node. After a change, call [`Self::refresh_secrets`].
    #[must_use]
    pub fn secrets(&self) -> &SecretStore {
        &self.inner.secrets
    }

    /// Returns what yields each denial; only the first caller gets it.
    #[must_use]
    pub fn egress_events(&self) -> Option<mpsc::Receiver<EgressEvent>> {
        let mut events = self.inner.egress_events.lock();
        events.as_mut().ok()?.take()
    }

    /// Changes what a sandbox may reach and which secrets it may use, at once, and keeps it.
    ///
    /// # Errors
    /// [`SandboxError::Unknown`], [`SandboxError::Invalid`], [`SandboxError::Network`],
    /// [`SandboxError::Directory`].
    pub async fn set_network(
        &self,
        id: &SandboxId,
        policy: Policy,
        secrets: Vec<String>,
    ) -> Result<SandboxInfo, SandboxError> {
        let entry = self.inner.entry(id)?;
        check(&secrets)?;
        let before = entry.info();
        entry
            .change(|record| {
                record.info.fingerprint.network = policy.to_string();
                record.info.network = policy;
                record.info.secrets = secrets;
            })
            .map_err(|source| SandboxError::Directory {
                path: entry.dir.clone(),
                source,
            })?;
        let trusted = self.inner.egress.authority_pem(id);
        let defined = define(&self.inner, &entry);
        if let Err(error) = defined {
            // What is kept must be what holds.
            let _ = entry.change(|record| {
                record.info.fingerprint.network = before.fingerprint.network;
                record.info.network = before.network;
                record.info.secrets = before.secrets;
            });
            return Err(error);
        }
        // The first secret brings a certificate that the guest does not trust yet.
        if self.inner.egress.authority_pem(id) != trusted
            && let Some(channel) = entry.session()
        {
            attach(&self.inner, &entry, &channel).await?;
        }
        Ok(entry.info())
    }

    /// Lets every sandbox use its secrets as they are now.
    pub fn refresh_secrets(&self) {
        let entries: Vec<_> = self.inner.entries().values().cloned().collect();
        for entry in entries {
            if let Err(error) = define(&self.inner, &entry) {
                warn!(sandbox = %entry.id, %error, "a sandbox's secrets cannot be used");
            }
        }
    }
}

/// Refuses secrets that are too many or no names.
pub(super) fn check(secrets: &[String]) -> Result<(), SandboxError> {
    if secrets.len() > MAX_SECRETS || secrets.iter().any(|name| name.len() > 64) {
        return Err(SandboxError::Invalid {
            what: format!("a sandbox uses at most {MAX_SECRETS} secrets"),
        });
    }
    Ok(())
}

/// Gives a guest that just answered its network.
pub(super) async fn attach(
    inner: &Arc<Inner>,
    entry: &Entry,
    channel: &GuestChannel,
) -> Result<(), SandboxError> {
    define(inner, entry)?;
    match inner.egress.attach(&entry.id, channel).await {
        Ok(()) => Ok(()),
        // Without a device nothing leaves, which is what was asked for.
        Err(EgressError::Guest(error)) if entry.info().network.is_none() => {
            warn!(sandbox = %entry.id, %error, "the guest has no network device, and so no word of what is denied");
            Ok(())
        }
        Err(source) => Err(SandboxError::Network {
            id: entry.id,
            source,
        }),
    }
}

/// The network of a guest that is nobody's yet: it leads nowhere, and goes with whoever holds it.
pub(super) struct Nowhere<'a> {
    inner: &'a Inner,
    id: SandboxId,
}

impl<'a> Nowhere<'a> {
    /// Sets up such a network in a guest, so that its copies find theirs set up.
    pub(super) async fn attach(inner: &'a Inner, id: SandboxId, channel: &GuestChannel) -> Self {
        let attached = async {
            inner.egress.define(&id, &Policy::none(), Vec::new())?;
            inner.egress.attach(&id, channel).await
        };
        if let Err(error) = attached.await {
            warn!(sandbox = %id, %error, "the guest has no network device");
        }
        Self { inner, id }
    }
}

impl Drop for Nowhere<'_> {
    fn drop(&mut self) {
        self.inner.egress.forget(&self.id);
    }
}

fn define(inner: &Inner, entry: &Entry) -> Result<(), SandboxError> {
    let info = entry.info();
    // What has ended uses nothing; what it was denied can still be read.
    let secrets = match info.state.has_ended() {
        true => Vec::new(),
        false => of(inner, &info.secrets),
    };
    let here: Vec<String> = secrets
        .iter()
        .map(|secret| secret.name().to_owned())
        .collect();
    let defined = inner.egress.define(&entry.id, &info.network, secrets);
    defined.map_err(|source| SandboxError::Network {
        id: entry.id,
        source,
    })?;
    if !info.state.has_ended() {
        let missing = info.secrets.iter().filter(|name| !here.contains(name));
        for name in missing {
            // Its placeholder stands for nothing, and the agent should not have to find that out.
            inner.egress.deny(&entry.id, Attempt::Secret, absent(name));
        }
    }
    Ok(())
}

/// What a sandbox is told of a secret that it may use, where there is none of that name.
fn absent(name: &str) -> Denied {
    Denied {
        rule: format!("secret `{name}` is not on this node"),
        destination: name.to_owned(),
        how_to_ask: format!("ask the owner of this node for `rhizome secret set {name}` there"),
    }
}

fn of(inner: &Inner, names: &[String]) -> Vec<Secret> {
    inner.secrets.named(names).unwrap_or_else(|error| {
        warn!(%error, "the secrets of this node cannot be read; placeholders stand for nothing");
        Vec::new()
    })
}
