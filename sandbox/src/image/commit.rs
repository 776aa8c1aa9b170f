//! A sandbox's files become a root file system.
//!
//! The guest is asked for an archive of what it sees: whatever driver runs it and however its
//! disks are layered, that is the whole and the truth. What comes is a layer of a stranger, and
//! passes all the rules of one.

use std::path::Path;

use tokio::io::AsyncWriteExt;

use super::{
    ImageConfig, ImageError, ImageInfo, check_name,
    import::{MAX_LAYER_BYTES, bare_archive},
    pack::repack,
    rootfs::{Rootfs, Roots},
};
use crate::{
    Progress, ProgressEvent, SandboxError, SandboxId, Sandboxes,
    channel::{ExecEvent, ExecRequest, ExitStatus},
    progress::step,
};

/// Prints an archive of all but what is made anew at each start. Directories of the root are named
/// one by one, since not every `tar` can leave out.
const ARCHIVE: &str = r#"cd / || exit 1
set --
for name in * .[!.]*; do
  [ -e "$name" ] || [ -L "$name" ] || continue
  case $name in proc|sys|dev|run|tmp|lost+found) ;; *) set -- "$@" "./$name" ;; esac
done
exec tar -cf - "$@""#;
/// What GNU tar answers when a file changed under it: the archive is whole all the same.
const CHANGED: i32 = 1;
/// Bytes of standard error that are kept for a failure.
const TAIL_BYTES: usize = 2048;
/// Bytes between two reports.
const REPORT_BYTES: u64 = 16 * 1024 * 1024;

/// What a root file system that came from a guest is to be.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    pub(super) key: String,
    pub(super) name: String,
    pub(super) parent: Option<String>,
    pub(super) lineage: Vec<String>,
    pub(super) config: ImageConfig,
}

impl Sandboxes {
    /// Makes an image of what a running sandbox holds on its disk now; programs go on meanwhile,
    /// and what they have in memory is not part of it.
    ///
    /// # Errors
    /// [`ImageError::BadName`]; [`ImageError::Guest`] when the guest has no `tar` or ends;
    /// [`ImageError::Import`] when what it sends is no honest archive.
    pub async fn commit_image(
        &self,
        id: &SandboxId,
        name: &str,
        progress: Progress,
    ) -> Result<ImageInfo, ImageError> {
        check_name(name)?;
        let info = self.get(&id.to_string()).map_err(ImageError::sandbox)?;
        let from = self.images().stored_as(&info.image_id)?.info;
        let made_ms = crate::manager::now_ms();
        let taken = Taken {
            // Each commit is its own: a guest's disk is never the same twice.
            key: Rootfs::key_of(&format!("commit {id} {made_ms}"), name),
            name: name.to_owned(),
            lineage: vec![format!("commit: {id} of {}", from.name)],
            parent: from.root,
            config: from.config,
        };
        let rootfs = take(self, id, taken, &progress).await?;
        Ok(self.images().assemble(Some(rootfs), &progress).await?.info)
    }
}

/// Fetches what a guest holds, and packs it.
pub(super) async fn take(
    sandboxes: &Sandboxes,
    id: &SandboxId,
    taken: Taken,
    progress: &Progress,
) -> Result<Rootfs, ImageError> {
    let roots: &Roots = sandboxes.images().roots();
    let staged = roots.stage(progress).await?;
    let scratch = staged.scratch()?;
    let archive = scratch.join("guest.tar");
    let limit = roots.free_bytes()?.min(MAX_LAYER_BYTES);
    fetch(sandboxes, id, &archive, limit, progress).await?;
    let merged = scratch.join("merged.tar");
    bare_archive(&archive, &merged, limit, progress).await?;
    std::fs::remove_file(&archive).map_err(ImageError::io(&archive))?;
    let image = staged.image();
    let format = repack(&merged, &scratch.join("tree"), &image, progress).await?;
    let rootfs = Rootfs {
        key: taken.key,
        name: taken.name,
        parent: taken.parent,
        lineage: taken.lineage,
        config: taken.config,
        format: format.to_owned(),
        ..Rootfs::default()
    };
    staged.commit(rootfs).await
}

/// Writes the guest's archive to a file of at most `limit` bytes.
async fn fetch(
    sandboxes: &Sandboxes,
    id: &SandboxId,
    to: &Path,
    limit: u64,
    progress: &Progress,
) -> Result<(), ImageError> {
    step(progress, "commit", "reading the files of the guest");
    let request = ExecRequest {
        argv: ["sh", "-c", ARCHIVE].map(str::to_owned).to_vec(),
        ..ExecRequest::default()
    };
    let started = sandboxes.exec(id, request).await;
    let mut running = started.map_err(ImageError::sandbox)?;
    let file = tokio::fs::File::create(to).await;
    let mut file = tokio::io::BufWriter::with_capacity(1 << 20, file.map_err(ImageError::io(to))?);
    let (mut read, mut reported) = (0_u64, 0);
    let mut tail = Vec::new();
    let ended = loop {
        let event = running.events.recv().await.transpose();
        match event.map_err(|source| ImageError::sandbox(SandboxError::Exec { id: *id, source }))? {
            Some(ExecEvent::Stdout(bytes)) => {
                read += bytes.len() as u64;
                if read > limit {
                    return Err(ImageError::Guest {
                        what: format!("its files are more than {} MiB", limit >> 20),
                    });
                }
                file.write_all(&bytes).await.map_err(ImageError::io(to))?;
                if read - reported >= REPORT_BYTES {
                    reported = read;
                    progress(ProgressEvent {
                        step: "commit",
                        detail: "reading the files of the guest",
                        done: read,
                        total: 0,
                    });
                }
            }
            Some(ExecEvent::Stderr(bytes)) => keep_tail(&mut tail, &bytes),
            Some(ExecEvent::Exit(status)) => break status,
            None => break ExitStatus::Signal(9),
        }
    };
    file.flush().await.map_err(ImageError::io(to))?;
    let is_whole = match ended {
        ExitStatus::Code(0) => true,
        ExitStatus::Code(CHANGED) => read > 0,
        _ => false,
    };
    if is_whole {
        return Ok(());
    }
    Err(ImageError::Guest {
        what: format!("`tar` ended with {ended:?}: {}", text_of(&tail)),
    })
}

/// Keeps the end of what a guest's program said.
pub(super) fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    tail.extend_from_slice(bytes);
    let surplus = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..surplus);
}

/// Makes text of a guest's bytes that can stand in an error.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c == '\n' || !c.is_control() { c } else { '?' };
    text.trim().chars().map(plain).collect()
}
