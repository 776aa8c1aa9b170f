//! Threads that wait for work.
//!
//! Making and ending a thread is system calls on end; for a request that is answered in less time
//! than that, one that is there already is used.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use super::{lock, spawn};

/// Threads that wait for work at most.
const MAX_IDLE: usize = 6;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that do what comes, each at once: there are as many as are needed.
#[derive(Default)]
pub(crate) struct Workers {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// For each there is a thread that waits.
    jobs: VecDeque<Job>,
    /// Threads that wait and have no job yet.
    idle: usize,
}

impl Workers {
    /// Does `job` on a thread of its own.
    ///
    /// # Errors
    /// If there is no thread to be had; the job is dropped then.
    pub(crate) fn run(
        self: &Arc<Self>,
        name: &str,
        job: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let mut waiting = lock(&self.waiting);
        if waiting.idle > 0 {
            waiting.idle -= 1;
            waiting.jobs.push_back(Box::new(job));
            drop(waiting);
            self.more.notify_one();
            return Ok(());
        }
        drop(waiting);
        let workers = Arc::clone(self);
        spawn(name, move || {
            job();
            workers.work();
        })
        .map(drop)
    }

    /// Does what comes, unless enough others wait for it. One whose job panics is gone with it.
    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        if waiting.idle >= MAX_IDLE {
            return None;
        }
        waiting.idle += 1;
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            waiting = self
                .more
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_job_is_done_at_once_and_few_threads_stay() {
        let workers = Arc::new(Workers::default());
        for _ in 0..3 {
            let (told, heard) = mpsc::channel();
            let mut gates = Vec::new();
            for _ in 0..3 * MAX_IDLE {
                let (open, gate) = mpsc::channel::<()>();
                let told = told.clone();
                let job = move || {
                    told.send(()).unwrap();
                    let _ = gate.recv();
                };
                workers.run("job", job).unwrap();
                gates.push(open);
            }
            // All of them run although none has ended.
            for _ in &gates {
                heard.recv().unwrap();
            }
            drop(gates);
        }
        assert!(lock(&workers.waiting).idle <= MAX_IDLE);
        assert!(lock(&workers.waiting).jobs.is_empty());
    }
}
