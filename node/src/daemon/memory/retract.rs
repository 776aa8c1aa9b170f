//! Taking a memory back, and what was ever said of it.
use rhizome_identity::PublicKey;
use rhizome_memory::{DocId, MemoryItem, PublishRequest, retraction};

use super::{
    super::{
        caller::{Caller, Scope},
        fail,
        node::{Node, blocking},
    },
    parse_doc,
};
use crate::{
    api::types::{
        SCHEMA,
        memory::{MemoryHistory, Published, RetractParams},
    },
    error::ApiError,
};

impl Node {
    /// Takes a memory back: it is in no list and no answer from here on, on any node; its history
    /// and `why` still show it.
    pub(crate) async fn retract(
        &self,
        caller: &Caller,
        doc: &str,
        params: RetractParams,
    ) -> Result<Published, ApiError> {
        let agent = caller.agent(self, params.agent.as_deref()).await?;
        let scope = caller.readable(self, params.space.as_deref())?;
        let item = self
            .find_memory(scope, parse_doc(doc)?)
            .await?
            .filter(|item| !item.retracted && !item.kind.is_record())
            .ok_or_else(|| not_here(doc))?;
        let space = item.space;
        let request = PublishRequest {
            space,
            draft: retraction(&item),
            fingerprint: caller.fingerprint(self),
        };
        let replica = self.replica.clone();
        let published = blocking(move || replica.publish(&agent.key, request))
            .await?
            .map_err(fail::publish)?;
        Ok(Published {
            schema: SCHEMA,
            id: published.id.to_string(),
            doc: item.doc.to_string(),
            space: space.to_string(),
            seq: published.seq,
            at_ms: published.hlc.unix_ms(),
            replicas: Vec::new(),
            confirmed: false,
        })
    }

    /// Returns what was ever said in a memory, and in those it replaces or that replace it.
    pub(crate) async fn history(
        &self,
        caller: &Caller,
        doc: &str,
        space: Option<&str>,
    ) -> Result<MemoryHistory, ApiError> {
        let scope = caller.readable(self, space)?;
        let id = parse_doc(doc)?;
        let replica = self.replica.clone();
        let said = blocking(move || {
            for space in scope.0 {
                let said = replica.history(&space, &id).map_err(fail::replica)?;
                if !said.is_empty() {
                    return Ok(said);
                }
            }
            Ok::<_, ApiError>(Vec::new())
        })
        .await??;
        if said.is_empty() {
            return Err(not_here(doc));
        }
        let authority = self.replica.authority();
        Ok(MemoryHistory {
            schema: SCHEMA,
            statements: said
                .into_iter()
                .map(|item| self.memory_of(&authority, item))
                .collect(),
        })
    }

    /// Returns a memory of these spaces, retracted or not.
    pub(super) async fn find_memory(
        &self,
        scope: Scope,
        doc: DocId,
    ) -> Result<Option<MemoryItem>, ApiError> {
        self.note_distrust();
        let replica = self.replica.clone();
        blocking(move || {
            for space in &scope.0 {
                if let Some(item) = replica.memory(space, &doc).map_err(fail::replica)? {
                    return Ok(Some(item));
                }
            }
            Ok(None)
        })
        .await?
    }

    /// Tells the store whom the owner of this node does not trust, names looked up as they are now.
    pub(crate) fn note_distrust(&self) {
        let wanted = &self.config.memory.distrust;
        if wanted.is_empty() {
            return;
        }
        let authority = self.replica.authority();
        let is_meant = |id: &dyn ToString, name: &str| {
            wanted
                .iter()
                .any(|wanted| *wanted == name || *wanted == id.to_string())
        };
        let agents = authority
            .agents()
            .filter(|agent| is_meant(&agent.id, &agent.name))
            .map(|agent| PublicKey::from(agent.id));
        let nodes = authority
            .members()
            .filter(|member| member.node != self.id() && is_meant(&member.node, &member.name))
            .map(|member| PublicKey::from(member.node));
        self.replica.distrust(agents.chain(nodes).collect());
    }
}

fn not_here(doc: &str) -> ApiError {
    ApiError::not_found(format!(
        "no memory with the document id {} is here",
        super::clip(doc)
    ))
    .hint("`rhizome memory list` shows what is here")
}
