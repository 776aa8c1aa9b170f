//! Sandboxes, as the API shows them.
use std::{collections::BTreeMap, sync::Arc};

use axum::http::StatusCode;
use rhizome_identity::{AgentId, Hash, Role, SpaceId};
use rhizome_sandbox::{
    ArrivingDisks, FileDownload, Progress as SandboxProgress, SandboxInfo, SandboxSpec,
    SandboxState,
};
use tokio::io::AsyncRead;

use super::{caller::Caller, fail, lifecycle::lease_shown, names::Names, node::Node};
use crate::{
    api::token::Holder,
    api::types::{
        SCHEMA,
        sandbox::{
            Arriving, DirListing, FileEntry, FileKind, FileStat, Sandbox, SandboxBody,
            SandboxCreated, Sandboxes,
        },
    },
    error::ApiError,
    remote::grants,
};

/// The node's own labels begin so; nobody else may set them.
pub(crate) const OWN_LABELS: &str = "rhizome.";
pub(crate) const AGENT_LABEL: &str = "rhizome.agent";
pub(crate) const SPACES_LABEL: &str = "rhizome.spaces";

impl Node {
    /// Makes a sandbox for an agent; the node writes down whom it works for.
    pub(crate) async fn create_sandbox(
        &self,
        body: SandboxBody,
        progress: SandboxProgress,
    ) -> Result<SandboxCreated, ApiError> {
        let sandboxes = self.sandboxes()?;
        let mut labels = body.labels;
        if let Some(label) = labels.keys().find(|label| label.starts_with(OWN_LABELS)) {
            let message = format!(
                "the label `{}` is the node's to set",
                super::memory::clip(label)
            );
            return Err(ApiError::denied(message));
        }
        labels.extend(self.labels_for(body.agent.as_deref(), &body.spaces).await?);
        let (network, secrets) = self.network_of_new(body.network, body.secrets).await?;
        let image = body.image.unwrap_or_else(|| "minimal".to_owned());
        let spec = SandboxSpec {
            name: body.name,
            image: self.image_here(image, &progress).await?,
            memory_mib: body.memory_mib.unwrap_or(0),
            vcpus: body.vcpus.unwrap_or(0),
            env: body.env,
            labels,
            requires: super::memory::parse_contract(body.requires)?,
            network,
            secrets,
            lease: body
                .lease
                .map(|lease| self.lease_of(lease))
                .transpose()?
                .flatten(),
        };
        let info = sandboxes
            .create(spec, Arc::clone(&progress))
            .await
            .map_err(|error| fail::sandbox(&error))?;
        let started = sandboxes.start_image(&info.id, &progress).await;
        started.map_err(|error| fail::image(&error))?;
        self.announce_runtime(&info).await;
        Ok(SandboxCreated {
            schema: SCHEMA,
            sandbox: self.sandbox_of(info),
        })
    }

    /// Returns the labels that say whom a sandbox works for.
    pub(crate) async fn labels_for(
        &self,
        agent: Option<&str>,
        spaces: &[String],
    ) -> Result<BTreeMap<String, String>, ApiError> {
        match agent {
            Some(agent) => self.door_labels(agent, spaces).await,
            None if spaces.is_empty() => Ok(BTreeMap::new()),
            // No agent works in it, but it belongs to those spaces: who may write there may use it,
            // and its snapshots are kept there.
            None => self.space_labels(spaces),
        }
    }

    /// Returns the labels that bind a sandbox to an agent and its spaces.
    pub(crate) async fn door_labels(
        &self,
        agent: &str,
        spaces: &[String],
    ) -> Result<BTreeMap<String, String>, ApiError> {
        // The default agent may not be certified yet; its name is found only once it is.
        let default = self.default_agent().await?;
        let authority = self.need_mesh()?;
        let id = if agent == default.name {
            default.id()
        } else {
            Names(&authority).find_agent(&self.id(), agent)?
        };
        self.local_agent(&id)?;
        let certified = authority.agent(&id);
        let allowed = |space: &SpaceId| {
            certified
                .and_then(|agent| agent.spaces.as_ref())
                .is_none_or(|spaces| spaces.contains(space))
        };
        let mut chosen = self.resolve_spaces(&authority, spaces)?;
        if spaces.is_empty() {
            chosen.retain(allowed);
        } else if let Some(space) = chosen.iter().find(|space| !allowed(space)) {
            let space = Names(&authority).space(space);
            return Err(ApiError::denied(format!(
                "the agent `{agent}` may not use the space `{space}`"
            ))
            .hint("create the agent with `--space`, or leave the space out"));
        }
        let chosen: Vec<_> = chosen.iter().map(ToString::to_string).collect();
        Ok(BTreeMap::from([
            (AGENT_LABEL.to_owned(), id.to_string()),
            (SPACES_LABEL.to_owned(), chosen.join(",")),
        ]))
    }

    fn space_labels(&self, spaces: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
        let authority = self.need_mesh()?;
        let chosen = self.resolve_spaces(&authority, spaces)?;
        let chosen: Vec<_> = chosen.iter().map(ToString::to_string).collect();
        Ok(BTreeMap::from([(
            SPACES_LABEL.to_owned(),
            chosen.join(","),
        )]))
    }

    /// Lists the sandboxes, newest first.
    ///
    /// Another node sees those of spaces in which it may work.
    pub(crate) async fn list_sandboxes(&self, caller: &Caller) -> Result<Sandboxes, ApiError> {
        let sandboxes = self.sandboxes()?.list();
        let authority = self.replica.authority();
        let may_see = |info: &SandboxInfo| match caller {
            Caller::Peer(peer) => {
                grants::may(&authority, peer, &Bound::of(info).spaces, Role::Writer).is_ok()
            }
            Caller::Token(holder) => is_of(info, holder),
            Caller::Owner | Caller::Guest(_) => true,
        };
        let sandboxes = sandboxes.into_iter().filter(may_see);
        let mut sandboxes: Vec<_> = sandboxes.map(|info| self.sandbox_of(info)).collect();
        if sandboxes.iter().any(|sandbox| !sandbox.spaces.is_empty()) {
            self.dress(&self.ledger_if_any().await?, &mut sandboxes);
        }
        Ok(Sandboxes {
            schema: SCHEMA,
            sandboxes,
            unanswered: Vec::new(),
        })
    }

    /// Returns one sandbox by id, name or unique prefix; for the owner also one that sleeps
    /// elsewhere.
    pub(crate) async fn show_sandbox(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<SandboxCreated, ApiError> {
        let sandbox = match self.find_sandbox(wanted) {
            Ok(info) => {
                let mut shown = [self.sandbox_of(info)];
                if !shown[0].spaces.is_empty() {
                    self.dress(&self.ledger_if_any().await?, &mut shown);
                }
                let [shown] = shown;
                shown
            }
            Err(error) => match (caller, self.find_record(caller, wanted).await) {
                (Caller::Owner, Ok(found)) => self.sleeper(&found),
                _ => return Err(error),
            },
        };
        Ok(SandboxCreated {
            schema: SCHEMA,
            sandbox,
        })
    }

    /// Returns a sandbox that `caller` may use; another looks as if it were not there.
    ///
    /// What a peer may is judged by its grants, before.
    pub(crate) fn find_sandbox_for(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<SandboxInfo, ApiError> {
        let holder = match caller {
            Caller::Owner | Caller::Peer(_) => return self.find_sandbox(wanted),
            Caller::Token(holder) if holder.may_sandbox => holder,
            Caller::Token(_) | Caller::Guest(_) => {
                return Err(ApiError::denied(
                    "no sandboxes are open to the one who asks",
                ));
            }
        };
        let all = self.sandboxes()?.list();
        let mine: Vec<_> = all.iter().filter(|info| is_of(info, holder)).collect();
        let id = |info: &SandboxInfo| info.id.to_string();
        let named = |info: &SandboxInfo| info.name.as_deref() == Some(wanted);
        let exact = mine.iter().find(|info| id(info) == wanted);
        // A name stands for the one that lives, if one does: those that ended keep theirs.
        let live = || mine.iter().find(|info| named(info) && is_alive(info));
        let ended = || mine.iter().find(|info| named(info));
        if let Some(info) = exact.or_else(live).or_else(ended) {
            return Ok((**info).clone());
        }
        let begun = mine.iter().filter(|info| id(info).starts_with(wanted));
        match begun.collect::<Vec<_>>()[..] {
            [one] if !wanted.is_empty() => Ok((**one).clone()),
            _ => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "unknown_sandbox",
                format!("there is no sandbox `{}`", super::memory::clip(wanted)),
            )
            .hint("`GET /v1/sandboxes` lists those that this token opens")),
        }
    }

    /// Narrows what the holder of a token asks for to what its token allows.
    pub(crate) fn accept_sandbox_of(
        &self,
        holder: &Arc<Holder>,
        mut body: SandboxBody,
    ) -> Result<SandboxBody, ApiError> {
        let caller = Caller::Token(Arc::clone(holder));
        if !caller.may_sandbox() {
            return Err(ApiError::denied("this token opens no sandboxes"));
        }
        if body.network.is_some() || !body.secrets.is_empty() {
            return Err(ApiError::denied(
                "what a sandbox may reach, and the secrets it uses, are the owner's to say",
            )
            .hint("ask the owner for `rhizome sandbox policy`, once it is made"));
        }
        let own = self.local_agent(&holder.agent)?;
        let wanted = body.agent.take();
        super::caller::only(
            &own,
            wanted.as_deref(),
            "a token's sandboxes work for its agent",
        )?;
        body.agent = Some(holder.agent.to_string());
        let spaces: Vec<SpaceId> = match body.spaces.is_empty() {
            true => caller.readable(self, None)?.0,
            false => {
                let spaces = body.spaces.iter();
                let spaces = spaces.map(|space| caller.space(self, Some(space)));
                spaces.collect::<Result<_, _>>()?
            }
        };
        if spaces.is_empty() {
            return Err(ApiError::denied("this token opens no space any more"));
        }
        body.spaces = spaces.iter().map(ToString::to_string).collect();
        Ok(body)
    }

    pub(crate) fn find_sandbox(&self, wanted: &str) -> Result<SandboxInfo, ApiError> {
        self.sandboxes()?
            .get(wanted)
            .map_err(|error| fail::sandbox(&error))
    }

    pub(crate) async fn kill_sandbox(&self, wanted: &str) -> Result<(), ApiError> {
        let info = self.find_sandbox(wanted)?;
        let killed = self.sandboxes()?.kill(&info.id).await;
        killed.map_err(|error| fail::sandbox(&error))?;
        self.record_end(&info).await;
        Ok(())
    }

    pub(crate) async fn sandbox_logs(&self, wanted: &str) -> Result<String, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        self.sandboxes()?
            .logs(&id)
            .await
            .map_err(|error| fail::sandbox(&error))
    }

    pub(crate) async fn stat(&self, wanted: &str, path: &str) -> Result<FileStat, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let stat = self
            .sandboxes()?
            .stat(&id, path)
            .await
            .map_err(|error| fail::sandbox(&error))?;
        let name = path
            .rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or("/");
        Ok(FileStat {
            schema: SCHEMA,
            file: file_entry(name.to_owned(), &stat),
        })
    }

    pub(crate) async fn list_dir(&self, wanted: &str, path: &str) -> Result<DirListing, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let entries = self
            .sandboxes()?
            .list_dir(&id, path)
            .await
            .map_err(|error| fail::sandbox(&error))?;
        let entries = entries
            .into_iter()
            .map(|entry| file_entry(entry.name, &entry.stat))
            .collect();
        Ok(DirListing {
            schema: SCHEMA,
            entries,
        })
    }

    pub(crate) async fn make_dir(
        &self,
        wanted: &str,
        path: &str,
        mode: u32,
    ) -> Result<(), ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let made = self.sandboxes()?.make_dir(&id, path, mode).await;
        made.map_err(|error| fail::sandbox(&error))
    }

    pub(crate) async fn read_file(
        &self,
        wanted: &str,
        path: &str,
    ) -> Result<FileDownload, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let opened = self.sandboxes()?.read_file(&id, path).await;
        opened.map_err(|error| fail::sandbox(&error))
    }

    /// Removes a file, a link or an empty directory.
    pub(crate) async fn remove_file(&self, wanted: &str, path: &str) -> Result<(), ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let removed = self.sandboxes()?.remove(&id, path, false).await;
        removed.map_err(|error| fail::sandbox(&error))
    }

    pub(crate) async fn write_file(
        &self,
        wanted: &str,
        path: &str,
        mode: u32,
        reader: impl AsyncRead + Send + Unpin,
    ) -> Result<u64, ApiError> {
        let id = self.find_sandbox(wanted)?.id;
        let written = self.sandboxes()?.write_file(&id, path, mode, reader).await;
        written.map_err(|error| fail::sandbox(&error))
    }

    pub(crate) fn sandbox_of(&self, info: SandboxInfo) -> Sandbox {
        let authority = self.replica.authority();
        let names = Names(&authority);
        let bound = Bound::of(&info);
        let reason = match &info.state {
            SandboxState::Failed { reason } => Some(reason.clone()),
            SandboxState::Lost { what } => Some(what.clone()),
            SandboxState::Paused => {
                let waits = |arriving: &ArrivingDisks| arriving.waits.clone();
                info.arriving.as_ref().and_then(waits)
            }
            _ => None,
        };
        let labels = info
            .labels
            .iter()
            .filter(|(label, _)| !label.starts_with(OWN_LABELS));
        Sandbox {
            id: info.id.to_string(),
            name: info.name.clone(),
            image: info.image.clone(),
            image_id: info.image_id.clone(),
            state: info.state.phase().to_string(),
            reason,
            driver: info.driver.clone(),
            accel: info.accel.to_string(),
            memory_mib: info.memory_mib,
            vcpus: info.vcpus,
            created_ms: info.created_ms,
            boot_ms: info.boot_ms,
            requires: info.requires.clone().into(),
            lease: info.lease.as_ref().map(lease_shown),
            snapshot: info
                .snapshot
                .as_ref()
                .map(|snapshot| snapshot.manifest.to_string()),
            parent: info.parent.map(|parent| parent.to_string()),
            arriving: info.arriving.as_ref().map(|arriving| Arriving {
                bytes: arriving.bytes,
                left: arriving.left,
                waits: arriving.waits.clone(),
            }),
            agent: bound.agent.map(|agent| names.agent(&agent)),
            spaces: names.spaces(&bound.spaces),
            network: info.network.to_string(),
            labels: labels
                .map(|(label, value)| (label.clone(), value.clone()))
                .collect(),
            fingerprint_hash: Hash::from_bytes(info.fingerprint.hash()).to_string(),
            fingerprint: serde_json::to_value(&info.fingerprint).unwrap_or_default(),
            node: Some(self.named()),
            wake_on: Vec::new(),
            woken_by: None,
            copies: None,
        }
    }
}

/// Whom a sandbox works for, as the node wrote it down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) agent: Option<AgentId>,
    pub(crate) spaces: Vec<SpaceId>,
}

impl Bound {
    /// Reads the labels of a sandbox; what does not parse grants nothing.
    pub(crate) fn of(info: &SandboxInfo) -> Self {
        Self::of_labels(&info.labels)
    }

    /// As [`Self::of`], for labels alone.
    pub(crate) fn of_labels(labels: &BTreeMap<String, String>) -> Self {
        let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
        Self {
            agent: label(AGENT_LABEL).parse().ok(),
            spaces: label(SPACES_LABEL)
                .split(',')
                .filter_map(|id| id.parse().ok())
                .collect(),
        }
    }
}

/// Returns whether a sandbox belongs to the spaces of a token, and to no other.
fn is_of(info: &SandboxInfo, holder: &Holder) -> bool {
    let spaces = Bound::of(info).spaces;
    !spaces.is_empty() && spaces.iter().all(|space| holder.spaces.contains(space))
}

/// Returns whether a sandbox may still speak.
pub(crate) fn is_alive(info: &SandboxInfo) -> bool {
    !info.state.has_ended()
}

fn file_entry(name: String, stat: &rhizome_sandbox::FileStat) -> FileEntry {
    use rhizome_sandbox::FileKind as Kind;
    let kind = match stat.kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Dir,
        Kind::Symlink => FileKind::Link,
        Kind::Other => FileKind::Other,
    };
    FileEntry {
        name,
        kind,
        size: stat.size,
        mode: stat.mode,
    }
}
