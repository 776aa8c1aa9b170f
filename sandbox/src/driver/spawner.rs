//! The one thread that starts monitors.
//!
//! A monitor asks the kernel to be killed when its parent dies, so that no guest outlives a
//! daemon that was killed. The kernel takes *the thread* that started it for the parent, and
//! async worker threads come and go; this one lives as long as the process.

use std::{
    io,
    sync::{OnceLock, mpsc},
    thread,
};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<mpsc::SyncSender<Job>> = OnceLock::new();
/// Starts that may wait for the thread: as many as sandboxes that begin at the same moment.
const QUEUE: usize = 16;

/// Starts a process from the long-lived thread.
pub(super) async fn spawn(mut command: Command) -> io::Result<Child> {
    let jobs = JOBS.get_or_init(|| {
        let (jobs, queue) = mpsc::sync_channel::<Job>(QUEUE);
        thread::Builder::new()
            .name("monitor-spawner".to_owned())
            .spawn(move || queue.into_iter().for_each(|job| job()))
            .expect("a thread can be started");
        jobs
    });
    let runtime = Handle::current();
    let (answer, answered) = oneshot::channel();
    let job: Job = Box::new(move || {
        // The child is reaped by the runtime that asked for it.
        let _entered = runtime.enter();
        let _ = answer.send(command.spawn());
    });
    let full = |_| io::Error::other("too many monitors start at once");
    jobs.try_send(job).map_err(full)?;
    answered.await.map_err(io::Error::other)?
}
