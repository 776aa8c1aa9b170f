//! Volumes in sandboxes of this node, as other nodes ask for it.

use rhizome_identity::Role;

use super::{Known, Node};
use crate::{
    daemon::{caller::Caller, sandbox::Bound},
    error::ApiError,
};

impl Node {
    /// Says whether the caller may use a volume in a sandbox of this node, or in the one that has it
    /// if none is named. What another node may is returned by its id, so that what was judged is
    /// what is then worked on.
    pub(crate) async fn volume_in_sandbox(
        &self,
        caller: &Caller,
        volume: String,
        sandbox: Option<String>,
    ) -> Result<(String, Option<String>), ApiError> {
        let Caller::Peer(peer) = caller else {
            return Ok((volume, sandbox));
        };
        self.sandboxes()?;
        // Of another space's volumes it does not even learn the names.
        let known = self.find_volume(caller, &volume).await?;
        let what = format!("the volume `{}`", known.volume.name);
        self.peer_may(peer, &[known.space], Role::Writer, &what)?;
        let sandbox = match sandbox {
            Some(sandbox) => sandbox,
            None => self.sandbox_with(&known).await?,
        };
        let info = self.find_sandbox(&sandbox)?;
        let what = format!("the sandbox `{sandbox}`");
        self.peer_may(peer, &Bound::of(&info).spaces, Role::Writer, &what)?;
        let volume = known.volume.volume.to_string();
        Ok((volume, Some(info.id.to_string())))
    }

    async fn sandbox_with(&self, known: &Known) -> Result<String, ApiError> {
        let live = self.live_of(known, None)?;
        let sandbox = live.state.lock().await.record.sandbox;
        Ok(sandbox.to_string())
    }
}
