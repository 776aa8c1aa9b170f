//! What a recipe wants started in every sandbox of its image, and what it waits for.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    ImageError,
    commit::{keep_tail, text_of},
};
use crate::{
    Progress, SandboxError, SandboxId, Sandboxes,
    channel::{ExecEvent, ExecHandle, ExecRequest, ExitStatus},
    progress::step,
};

/// How long a check may take to succeed: the first start of a service in an emulated guest.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// How long one try of it may take.
const TRY_LIMIT: Duration = Duration::from_secs(30);
/// Time between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(250);

impl Sandboxes {
    /// Runs the start command of a new sandbox's image in the background, and waits until its
    /// ready check succeeds. An image without either is ready at once.
    ///
    /// # Errors
    /// [`ImageError::NotReady`] with the last words of what failed; the sandbox lives on.
    pub async fn start_image(&self, id: &SandboxId, progress: &Progress) -> Result<(), ImageError> {
        let info = self.get(&id.to_string()).map_err(ImageError::sandbox)?;
        let config = self.images().stored_as(&info.image_id)?.info.config;
        let request = |argv: &[String]| ExecRequest {
            argv: argv.to_vec(),
            cwd: config.cwd.clone(),
            user: config.user.clone(),
            ..ExecRequest::default()
        };
        let mut started = None;
        if !config.start.is_empty() {
            step(progress, "start", config.start.join(" "));
            let start = ExecRequest {
                keep: true,
                ..request(&config.start)
            };
            started = Some(self.exec(id, start).await.map_err(ImageError::sandbox)?);
        }
        if !config.ready.is_empty() {
            step(progress, "start", "waiting until it is ready");
            let check = ExecRequest {
                timeout: Some(TRY_LIMIT),
                ..request(&config.ready)
            };
            self.wait_ready(id, &check, started.as_mut()).await?;
        }
        Ok(())
    }

    async fn wait_ready(
        &self,
        id: &SandboxId,
        check: &ExecRequest,
        mut started: Option<&mut ExecHandle>,
    ) -> Result<(), ImageError> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let (status, said) = self.to_end(id, check.clone()).await?;
            if status == ExitStatus::Code(0) {
                return Ok(());
            }
            if let Some(handle) = started.as_deref_mut()
                && let Some((status, said)) = ended(handle)
            {
                return Err(ImageError::NotReady {
                    what: format!(
                        "its start command ended with {status:?}: {}",
                        text_of(&said)
                    ),
                });
            }
            if Instant::now() > deadline {
                let said = text_of(&said);
                return Err(ImageError::NotReady {
                    what: format!("its ready check ended with {status:?}: {said}"),
                });
            }
            tokio::time::sleep(TRY_PAUSE).await;
        }
    }

    async fn to_end(
        &self,
        id: &SandboxId,
        request: ExecRequest,
    ) -> Result<(ExitStatus, Vec<u8>), ImageError> {
        let failed = |source| ImageError::sandbox(SandboxError::Exec { id: *id, source });
        let mut running = self.exec(id, request).await.map_err(ImageError::sandbox)?;
        let mut said = Vec::new();
        while let Some(event) = running.events.recv().await {
            match event.map_err(failed)? {
                ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => keep_tail(&mut said, &bytes),
                ExecEvent::Exit(status) => return Ok((status, said)),
            }
        }
        Ok((ExitStatus::Signal(9), said))
    }
}

/// Returns how a command ended, if it has; what it says meanwhile is taken, so that it goes on.
fn ended(handle: &mut ExecHandle) -> Option<(ExitStatus, Vec<u8>)> {
    let mut said = Vec::new();
    while let Ok(event) = handle.events.try_recv() {
        match event {
            Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes)) => keep_tail(&mut said, &bytes),
            Ok(ExecEvent::Exit(status)) => return Some((status, said)),
            Err(_) => return Some((ExitStatus::Signal(9), said)),
        }
    }
    None
}
