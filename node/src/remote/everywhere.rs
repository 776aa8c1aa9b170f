//! Sandboxes of other nodes, and for other nodes.
use std::time::Duration;

use futures::future::join_all;
use rhizome_identity::{Authority, NodeId, Role, SpaceId};
use rhizome_sandbox::Gate;

use super::{
    asleep::ELSEWHERE,
    placement::{self, Need},
};
use crate::{
    agents::check_agent_name,
    api::types::{
        mesh::AgentBody,
        remote::Unanswered,
        sandbox::{Sandbox, SandboxBody, Sandboxes},
    },
    daemon::{caller::Caller, fail, names::Names, node::Node},
    error::ApiError,
};

/// How long a node may take to list its sandboxes.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Most sandboxes that are taken from one node's list.
const MAX_LISTED: usize = 1_000;

impl Node {
    /// Lists the sandboxes of this node and of every one that is connected; those that do not
    /// answer in time are named.
    pub(crate) async fn sandboxes_everywhere(&self) -> Result<Sandboxes, ApiError> {
        let authority = self.replica.authority();
        let mut all = match self.list_sandboxes(&Caller::Owner).await {
            Ok(own) => own,
            // A node that runs none of its own still shows those of the others.
            Err(_) => Sandboxes {
                schema: crate::api::types::SCHEMA,
                sandboxes: Vec::new(),
                unanswered: Vec::new(),
            },
        };
        let asking = self.connected().into_iter().map(async |peer| {
            let answer = self.ask(peer, "/v1/sandboxes", LIST_TIMEOUT).await;
            (peer, answer)
        });
        for (peer, answer) in join_all(asking).await {
            let node = Names(&authority).node(&peer);
            match answer {
                Ok(Sandboxes { sandboxes, .. }) => {
                    all.sandboxes
                        .extend(sandboxes.into_iter().take(MAX_LISTED).map(|mut sandbox| {
                            // Which node it is was proved by its connection, not by its word.
                            sandbox.node = Some(node.clone());
                            sandbox
                        }));
                }
                // A node without sandboxes has answered all the same.
                Err(error) if error.code() == "no_sandboxes" => {}
                Err(error) => all.unanswered.push(Unanswered {
                    node,
                    problem: error.to_string(),
                }),
            }
        }
        // Where it slept once says less than where it is; where nobody says anything, the record
        // does.
        let elsewhere = |sandbox: &Sandbox| sandbox.state == ELSEWHERE;
        let found: Vec<_> = all.sandboxes.iter().filter(|one| !elsewhere(one)).collect();
        let mut listed: Vec<_> = found.iter().map(|one| one.id.clone()).collect();
        all.sandboxes
            .retain(|one| !elsewhere(one) || !listed.contains(&one.id));
        listed.extend(all.sandboxes.iter().map(|one| one.id.clone()));
        let ledger = self.ledger_if_any().await?;
        all.sandboxes.extend(self.unlisted(&ledger, &listed));
        Ok(all)
    }

    /// Says whether this node makes the sandbox that `peer` asks for, and as what.
    ///
    /// It belongs to spaces in which the peer may write. If an agent shall work in it, that is one
    /// of this node, made for the peer: a node lends nobody the voice of its own agents.
    pub(crate) async fn accept_sandbox(
        &self,
        peer: &NodeId,
        mut body: SandboxBody,
    ) -> Result<SandboxBody, ApiError> {
        let authority = self.need_mesh()?;
        let spaces = self.spaces_of_peer(&authority, peer, &body.spaces)?;
        self.accept_network(peer, &body, &spaces)?;
        let facts = self.own_facts().await?;
        placement::fits(&facts, &Need::of_sandbox(&body), true)
            .map_err(|unfit| placement::nobody(&[ApiError::denied(unfit)]))?;
        body.spaces = spaces.iter().map(ToString::to_string).collect();
        if let Some(wanted) = &body.agent {
            body.agent = Some(self.agent_for(&authority, peer, wanted, &spaces).await?);
        }
        let labels = self.labels_for(body.agent.as_deref(), &body.spaces).await?;
        self.limits
            .may_run(&labels)
            .map_err(|over| fail::sandbox(&over.into()))?;
        Ok(body)
    }

    /// Returns the spaces that `wanted` names, or the only one the peer may write in.
    fn spaces_of_peer(
        &self,
        authority: &Authority,
        peer: &NodeId,
        wanted: &[String],
    ) -> Result<Vec<SpaceId>, ApiError> {
        if wanted.is_empty() {
            return Ok(vec![Caller::Peer(*peer).space(self, None)?]);
        }
        let spaces = self.resolve_spaces(authority, wanted)?;
        self.peer_may(peer, &spaces, Role::Writer, "a sandbox in these spaces")?;
        Ok(spaces)
    }

    /// Returns the name of the agent of this node that works for `peer` as `wanted`, made and
    /// certified if it is not there yet.
    pub(crate) async fn agent_for(
        &self,
        authority: &Authority,
        peer: &NodeId,
        wanted: &str,
        spaces: &[SpaceId],
    ) -> Result<String, ApiError> {
        let name = agent_name(wanted, &Names(authority).node(peer).to_string());
        check_agent_name(&name).map_err(|error| fail::agent_keys(&error))?;
        let me = self.id();
        let known = authority
            .agents()
            .find(|agent| agent.node == me && agent.name == name);
        let enough = known.is_some_and(|agent| {
            let allowed = agent.spaces.as_ref();
            allowed.is_none_or(|allowed| spaces.iter().all(|space| allowed.contains(space)))
        });
        if known.is_some() && !enough {
            return Err(ApiError::denied(format!(
                "the agent `{name}` of this node may not use these spaces"
            )));
        }
        if known.is_none() {
            let body = AgentBody {
                name: name.clone(),
                spaces: Some(spaces.iter().map(ToString::to_string).collect()),
                expires_secs: None,
                by: None,
            };
            self.create_agent(body).await?;
        }
        Ok(name)
    }
}

/// Returns the name of the agent that works here as `wanted` of the node `of`.
fn agent_name(wanted: &str, of: &str) -> String {
    let plain = |text: &str, limit: usize| -> String {
        let kept = |c: char| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '-'
            }
        };
        text.chars().map(kept).take(limit).collect()
    };
    let suffix = format!("-of-{}", plain(of, 24));
    let wanted = plain(wanted, 36);
    if wanted.ends_with(&suffix) {
        wanted
    } else {
        format!("{wanted}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_made_for_a_peer_says_so_in_its_name() {
        assert_eq!(agent_name("mender", "laptop"), "mender-of-laptop");
        assert_eq!(agent_name("mender-of-laptop", "laptop"), "mender-of-laptop");
        assert_eq!(agent_name("a b/ü", "my node"), "a-b---of-my-node");
        let long = agent_name(&"x".repeat(200), &"y".repeat(200));
        assert!(check_agent_name(&long).is_ok(), "{long}");
    }
}
