//! A node for the tests of its doors.
use std::sync::Arc;

use rhizome_identity::{AgentId, SpaceId};
use serde_json::json;

use crate::{
    api::types::{
        memory::Published,
        mesh::{AgentBody, InitBody, SpaceBody},
    },
    config::UpFlags,
    daemon::{Daemon, caller::Caller, node::Node},
};

/// A node `laptop` with the spaces `findings` and `secrets`, and beside its own agent `mender`, for
/// the first of them alone, and `other`.
pub(crate) struct World {
    pub(crate) daemon: Daemon,
    pub(crate) findings: SpaceId,
    pub(crate) secrets: SpaceId,
    pub(crate) mender: AgentId,
    _dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = UpFlags {
            name: Some("laptop".into()),
            bind: Some("127.0.0.1:0".parse().unwrap()),
            no_mdns: true,
            no_sandboxes: true,
            ..UpFlags::default()
        };
        let daemon = Daemon::start(dir.path(), flags).await.unwrap();
        let node = daemon.node();
        let init = InitBody {
            space: Some("findings".into()),
            ..InitBody::default()
        };
        let founded = node.init(init).await.unwrap();
        let secrets = SpaceBody {
            name: "secrets".into(),
        };
        let secrets = node.create_space(secrets).await.unwrap();
        let mender = AgentBody {
            name: "mender".into(),
            spaces: Some(vec!["findings".to_owned()]),
            ..AgentBody::default()
        };
        let mender = node.create_agent(mender).await.unwrap();
        let other = AgentBody {
            name: "other".into(),
            ..AgentBody::default()
        };
        node.create_agent(other).await.unwrap();
        Self {
            findings: founded.space.unwrap().id.parse().unwrap(),
            secrets: secrets.space.id.parse().unwrap(),
            mender: mender.agent.id.parse().unwrap(),
            daemon,
            _dir: dir,
        }
    }

    pub(crate) fn node(&self) -> Arc<Node> {
        Arc::clone(self.daemon.node())
    }

    /// Publishes as the owner of the node, in whatever space.
    pub(crate) async fn publish(&self, space: &SpaceId, title: &str) -> Published {
        let body = json!({"kind": "fact", "title": title, "space": space.to_string()});
        let body = serde_json::from_value(body).unwrap();
        self.node().publish(&Caller::Owner, body).await.unwrap()
    }
}
