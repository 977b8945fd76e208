//! Commits one chunk on a thread of its own while the next is filled.

use super::batch::Batch;
use super::store::Store;
use daq_core::sink::SinkError;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

type Outcome = (Batch, Result<(), SinkError>);

/// Where the second chunk is.
enum Second {
    Spare(Batch),
    Committing,
    /// It could not be committed yet.
    Stuck(Batch),
}

/// The second chunk and the thread that commits.
pub(super) struct Worker {
    jobs: Option<SyncSender<Batch>>,
    done: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// `None` only inside of a call.
    second: Option<Second>,
}

/// What was committed.
pub(super) struct Committed {
    /// Rows of the store.
    pub(super) rows: u64,
    /// Payload bytes in them.
    pub(super) bytes: u64,
    /// Whether it ended with a whole chunk.
    pub(super) whole: bool,
}

impl Worker {
    /// Starts the thread; `spare` is the second chunk.
    pub(super) fn start(mut store: Store, spare: Batch) -> Result<Self, SinkError> {
        let (jobs, queue) = sync_channel::<Batch>(1);
        let (finished, done) = sync_channel::<Outcome>(1);
        let serve = move || {
            while let Ok(mut batch) = queue.recv() {
                let result = store.commit(&mut batch);
                if finished.send((batch, result)).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("daq-zarr".to_owned());
        let thread = builder.spawn(serve).map_err(|error| SinkError::Failed {
            what: "starting the thread that writes chunks".to_owned(),
            why: format!("{error}; raise the limit of tasks (ulimit -u, TasksMax)"),
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            second: Some(Second::Spare(spare)),
        })
    }

    /// The second chunk, if it is free. What is taken is to be [`send`](Self::send) back.
    pub(super) fn spare(&mut self) -> Option<Batch> {
        match self
            .second
            .take_if(|second| matches!(second, Second::Spare(_)))
        {
            Some(Second::Spare(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Commits `batch` from now on.
    pub(super) fn send(&mut self, mut batch: Batch) {
        batch.clear_tail();
        self.resend(batch);
    }

    fn resend(&mut self, batch: Batch) {
        let jobs = self.jobs.as_ref().expect("open until drop");
        jobs.send(batch)
            .expect("the thread ends only after this sender");
        self.second = Some(Second::Committing);
    }

    /// Looks after the chunk being committed, to its end if `wait`. One that failed before is tried again.
    pub(super) fn look(&mut self, wait: bool) -> Result<Option<Committed>, SinkError> {
        if let Some(Second::Stuck(batch)) = self
            .second
            .take_if(|second| matches!(second, Second::Stuck(_)))
        {
            self.resend(batch);
        }
        if !matches!(self.second, Some(Second::Committing)) {
            return Ok(None);
        }
        let outcome = if wait {
            self.done.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.done.try_recv()
        };
        match outcome {
            Ok((batch, Ok(()))) => {
                let committed = Committed {
                    rows: batch.end(),
                    bytes: batch.bytes,
                    whole: batch.is_full(),
                };
                self.second = Some(Second::Spare(batch));
                Ok(Some(committed))
            }
            Ok((batch, Err(error))) => {
                self.second = Some(Second::Stuck(batch));
                Err(error)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                unreachable!("the thread ends only after this receiver's owner")
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns when its queue is closed and empty; there is nothing to do about a panic in it here.
            let _ = thread.join();
        }
    }
}
