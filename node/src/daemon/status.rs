//! Who and how this node is.
use rhizome_identity::{Authority, Role};
use rhizome_memory::{self as memory, RecoveryReport, Sharer};

use super::{
    caller::Caller,
    names::Names,
    node::{Node, blocking},
};
use crate::{
    api::types::{
        SCHEMA,
        node::{Fork, Recovery, SandboxSummary, SelfInfo, SelfSpace, Settings, ShareUse, Status},
    },
    error::ApiError,
};

/// Shares that a status names.
const MAX_SHARES: usize = 20;

impl Node {
    /// Says who asks, as the node sees it.
    pub(crate) async fn self_info(&self, caller: &Caller) -> Result<SelfInfo, ApiError> {
        let agent = match caller {
            // A node without a mesh has no certified agent; that is no error here.
            Caller::Owner if self.need_mesh().is_err() => None,
            Caller::Guest(guest) if guest.agent.is_none() => None,
            _ => Some(caller.agent(self, None).await?),
        };
        let authority = self.replica.authority();
        let names = Names(&authority);
        let mine = match agent {
            None => Vec::new(),
            Some(_) => caller.spaces(self, &authority)?,
        };
        let spaces = mine.iter().map(|id| SelfSpace {
            id: id.to_string(),
            name: names.space(id).name,
            role: authority
                .role_in(&self.id(), id)
                .map(|role| role.to_string())
                .unwrap_or_default(),
        });
        Ok(SelfInfo {
            schema: SCHEMA,
            agent: agent.map(|agent| names.agent(&agent.id())),
            node: self.named(),
            sandbox: caller.guest().map(|guest| guest.sandbox.clone()),
            image: caller.guest().map(|guest| guest.image.clone()),
            fingerprint: caller.fingerprint(self).to_string(),
            spaces: spaces.collect(),
        })
    }

    /// Says how the node is.
    pub(crate) async fn status(&self) -> Result<Status, ApiError> {
        let authority = self.replica.authority();
        let peers = self.mesh.peers();
        let connected = peers
            .iter()
            .filter(|peer| peer.state == rhizome_mesh::net::PeerState::Connected)
            .count();
        let role = authority.member(&self.id()).map(|member| member.role);
        let spaces = self.space_list(|space| {
            space
                .role
                .as_deref()
                .and_then(|role| role.parse::<Role>().ok())
                .is_some()
        });
        let free = self.data.free_bytes().unwrap_or_default();
        Ok(Status {
            api: self.api_addr.map(|addr| addr.to_string()),
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.named(),
            mesh: self.mesh_named(),
            role: role.map(|role| role.to_string()),
            root: self.data.join("root.key").exists(),
            data_dir: self.data.path().display().to_string(),
            socket: self.data.socket().display().to_string(),
            e2b: self.e2b.get().map(|door| door.at.url()),
            addrs: self.addrs(),
            pid: std::process::id(),
            started_ms: self.started_ms,
            resident_bytes: blocking(resident_bytes).await?,
            disk_free_bytes: free,
            spaces,
            members: authority.members().count(),
            connected,
            sandboxes: self.sandbox_summary(),
            recovery: self.recovery(),
            forks: self.forks(&authority),
            shares: self.shares(&authority, MAX_SHARES),
        })
    }

    /// Returns how the shares that are used most stand, at most `most` of them.
    pub(crate) fn shares(&self, authority: &Authority, most: usize) -> Vec<ShareUse> {
        let names = Names(authority);
        let shares = self.replica.shares().into_iter().take(most);
        shares
            .filter_map(|share| share_use(names, &share))
            .collect()
    }

    /// Returns the agents that signed two histories.
    pub(super) fn forks(&self, authority: &Authority) -> Vec<Fork> {
        let names = Names(authority);
        let forks = self.replica.forks().into_iter().map(|fork| Fork {
            space: names.space(&fork.space),
            author: names.agent(&fork.author),
            ours: fork.ours.to_string(),
            theirs: fork.theirs.to_string(),
        });
        forks.collect()
    }

    /// Returns every setting and where it came from.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            schema: SCHEMA,
            file: self.data.join("config.json").display().to_string(),
            settings: self.config.settings(),
        }
    }

    fn sandbox_summary(&self) -> SandboxSummary {
        let sandboxes = match self.sandboxes() {
            Ok(sandboxes) => sandboxes,
            Err(error) => {
                let causes = error.info().causes.iter();
                let problem = std::iter::once(error.to_string()).chain(causes.cloned());
                return SandboxSummary {
                    problem: Some(problem.collect::<Vec<_>>().join(": ")),
                    ..SandboxSummary::default()
                };
            }
        };
        let all = sandboxes.list();
        let living: Vec<_> = all.iter().filter(|info| !info.state.has_ended()).collect();
        let is_ready = |info: &&&rhizome_sandbox::SandboxInfo| {
            info.state == rhizome_sandbox::SandboxState::Ready
        };
        let waiting = sandboxes.pool();
        SandboxSummary {
            available: true,
            problem: None,
            accel: all.first().map(|info| info.accel.to_string()),
            ready: living.iter().filter(is_ready).count(),
            total: living.len(),
            waiting: waiting.len(),
            waiting_bytes: waiting.iter().map(|guest| guest.resident_bytes).sum(),
        }
    }

    fn recovery(&self) -> Recovery {
        let report = self.replica.recovery();
        let mut notes = recovery_notes(report);
        if self.replica.is_unconfirmed_copy() {
            notes.push(
                "this store was put back from a copy; nothing is published in a space before it was \
                 compared with a peer"
                    .to_owned(),
            );
        }
        match self.replica.refetched() {
            0 => {}
            refetched => notes.push(format!(
                "fetched {refetched} fragments of this node's own agents from peers"
            )),
        }
        Recovery {
            clean: report.is_clean(),
            took_ms: self.opened_in_ms,
            replayed: report.replayed,
            torn_bytes: report.torn_bytes,
            damaged: report.damage.len(),
            lost: report.lost.iter().map(ToString::to_string).collect(),
            index_rebuilt: report.index_rebuilt,
            notes,
        }
    }
}

/// Returns nothing for a kind of share that this version has no word for.
fn share_use(names: Names<'_>, share: &memory::ShareUse) -> Option<ShareUse> {
    let of = match &share.whose {
        Sharer::Author(id) => names.agent(id),
        Sharer::Node(id) => names.node(id),
        Sharer::Space(id) => names.space(id),
        _ => return None,
    };
    Some(ShareUse {
        kind: share.whose.kind().to_owned(),
        of,
        used_percent: share.used_percent(),
        bytes: share.bytes,
        fragments: share.fragments,
        over: share.over,
        refused: share.refused,
    })
}

/// Says in sentences what opening the store found; nothing if all was well.
pub(super) fn recovery_notes(report: &RecoveryReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.torn_bytes > 0 {
        let bytes = report.torn_bytes;
        notes.push(format!(
            "cut {bytes} bytes of an unfinished write; nothing acknowledged was in it"
        ));
    }
    for damage in &report.damage {
        notes.push(format!(
            "skipped a damaged region of segment {}, bytes {} to {}; peers are asked for what was in it",
            damage.segment, damage.from, damage.to
        ));
    }
    if !report.lost.is_empty() {
        let lost = report.lost.len();
        notes.push(format!(
            "{lost} fragments of this node's agents were in damaged regions"
        ));
    }
    if report.index_rebuilt {
        notes.push("built the index anew from the segments".to_owned());
    }
    notes
}

/// Returns the memory of this process that is in RAM; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}
