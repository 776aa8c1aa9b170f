//! Guests that wait, as the API shows them.
use rhizome_sandbox::{PoolInfo, Progress as SandboxProgress, SandboxSpec};

use super::{fail, node::Node};
use crate::{
    api::types::{
        SCHEMA,
        pool::{Drained, Pool, PoolGuest, WarmBody},
    },
    error::ApiError,
};

impl Node {
    /// Returns the guests that wait.
    pub(crate) fn pool(&self) -> Result<Pool, ApiError> {
        let waiting = self.sandboxes()?.pool();
        Ok(Pool {
            schema: SCHEMA,
            guests: waiting.into_iter().map(shown).collect(),
        })
    }

    /// Boots a guest that will wait, unless one does.
    pub(crate) async fn warm(
        &self,
        body: WarmBody,
        progress: SandboxProgress,
    ) -> Result<Pool, ApiError> {
        let spec = SandboxSpec {
            image: body.image.unwrap_or_else(|| "minimal".to_owned()),
            memory_mib: body.memory_mib.unwrap_or(0),
            vcpus: body.vcpus.unwrap_or(0),
            ..SandboxSpec::default()
        };
        let warmed = self.sandboxes()?.warm(spec, progress).await;
        warmed.map_err(|error| fail::sandbox(&error))?;
        self.pool()
    }

    /// Lets go of the guests that wait.
    pub(crate) fn drain_pool(&self) -> Result<Drained, ApiError> {
        Ok(Drained {
            schema: SCHEMA,
            drained: self.sandboxes()?.drain_pool(),
        })
    }
}

fn shown(info: PoolInfo) -> PoolGuest {
    PoolGuest {
        image: info.image,
        image_id: info.image_id,
        memory_mib: info.memory_mib,
        vcpus: info.vcpus,
        resident_bytes: info.resident_bytes,
        made_ms: info.made_ms,
        taken: info.taken,
    }
}
