//! Finishes one item on a separate thread while the sink fills the next item.
//!
//! There are two items. The sink fills one item. The finisher has the other item, which is either free or being
//! finished.

use crate::channel::{receive, spawn_server};
use crate::directory::failure;
use daq_core::sink::SinkError;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// State of the second item.
enum Second<T> {
    /// The item is free.
    Spare(T),
    /// The thread is finishing the item, or a call in progress uses the item.
    InUse,
    /// The item could not be finished and waits for another attempt.
    Stuck(T),
}

/// Double buffering: while the caller fills one item, a background thread finishes the other one, the second item.
/// Dropping this value blocks until the thread has finished its current item.
pub(crate) struct Finisher<T, E> {
    jobs: Option<SyncSender<T>>,
    done: Receiver<(T, Result<(), E>)>,
    thread: Option<JoinHandle<()>>,
    second: Second<T>,
    /// Time at which the second item was last submitted.
    since: Instant,
}

impl<T: Send + 'static, E: Send + 'static> Finisher<T, E> {
    /// Starts the thread `name`, which calls `finish` on each submitted item. `spare` is the second item.
    pub(crate) fn start(
        name: &str,
        spare: T,
        mut finish: impl FnMut(&mut T) -> Result<(), E> + Send + 'static,
    ) -> Result<Self, SinkError> {
        let (jobs, queue) = sync_channel::<T>(1);
        let (finished, done) = sync_channel(1);
        let serve = move |queue: Receiver<T>| {
            while let Some(mut job) = receive(&queue) {
                let result = finish(&mut job);
                if finished.send((job, result)).is_err() {
                    return;
                }
            }
        };
        let thread = spawn_server(name, queue, serve).map_err(|error| {
            let why = format!("{error}; raise the limit of tasks (ulimit -u, TasksMax=)");
            failure(format!("start the thread {name}"), why, &error)
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            second: Second::Spare(spare),
            since: Instant::now(),
        })
    }

    /// If the second item is free, exchanges it with the filled item, and the thread finishes the filled item. Returns
    /// whether the second item was free.
    pub(crate) fn exchange(&mut self, full_for: impl FnOnce(T) -> T) -> bool {
        match std::mem::replace(&mut self.second, Second::InUse) {
            Second::Spare(spare) => {
                self.send(full_for(spare));
                true
            }
            other => {
                self.second = other;
                false
            }
        }
    }

    /// Returns how long the thread has been finishing the second item; zero if the thread is idle.
    pub(crate) fn blocked_for(&self) -> Duration {
        match self.second {
            Second::InUse => self.since.elapsed(),
            Second::Spare(_) | Second::Stuck(_) => Duration::ZERO,
        }
    }

    fn send(&mut self, job: T) {
        self.since = Instant::now();
        let jobs = self
            .jobs
            .as_ref()
            .expect("the channel is open until this value is dropped");
        if jobs.send(job).is_err() {
            self.fail();
        }
    }

    /// Returns the second item if it was finished since the last call. If `wait` is true, waits until the thread has
    /// returned the item. If an earlier attempt to finish the item failed, starts another attempt.
    pub(crate) fn poll(&mut self, wait: bool) -> Result<Option<&mut T>, E> {
        match std::mem::replace(&mut self.second, Second::InUse) {
            spare @ Second::Spare(_) => {
                self.second = spare;
                return Ok(None);
            }
            Second::Stuck(job) => self.send(job),
            Second::InUse => {}
        }
        let outcome = if wait {
            receive(&self.done).ok_or(TryRecvError::Disconnected)
        } else {
            self.done.try_recv()
        };
        match outcome {
            Ok((job, Ok(()))) => {
                self.second = Second::Spare(job);
                Ok(match &mut self.second {
                    Second::Spare(job) => Some(job),
                    _ => None,
                })
            }
            Ok((job, Err(error))) => {
                self.second = Second::Stuck(job);
                Err(error)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => self.fail(),
        }
    }

    /// Propagates the panic that ended the thread. Until this value is dropped, the thread can end only by a panic.
    fn fail(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => panic!("the finisher's item was lost in an earlier panic"),
        }
    }
}

impl<T, E> Drop for Finisher<T, E> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns when its queue is closed and empty. A panic in it cannot be handled here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_close_is_retried() {
        let mut refuse = 2;
        let finish = move |n: &mut u32| {
            refuse -= u32::from(refuse > 0 && *n == 7);
            if *n == 7 && refuse > 0 {
                Err(*n)
            } else {
                Ok(())
            }
        };
        let mut finisher = Finisher::start("finisher", 0, finish).unwrap();
        assert_eq!(finisher.poll(true), Ok(None));
        assert!(finisher.exchange(|spare| spare + 7) && !finisher.exchange(|_| 9));
        assert_eq!(finisher.poll(true), Err(7));
        assert!(!finisher.exchange(|_| 9), "a stuck item is not free");
        assert_eq!(finisher.poll(true), Ok(Some(&mut 7)));
        assert!(finisher.exchange(|spare| spare + 1));
        assert_eq!(finisher.poll(true), Ok(Some(&mut 8)));
    }

    #[test]
    fn thread_panic_is_propagated_to_owner() {
        let finish = |n: &mut u32| -> Result<(), ()> { panic!("number {n} is bad") };
        let mut finisher = Finisher::start("finisher", 6, finish).unwrap();
        assert!(finisher.exchange(|spare| spare + 1));
        let mut failure = || {
            let poll = std::panic::AssertUnwindSafe(|| finisher.poll(true).is_ok());
            let panic = std::panic::catch_unwind(poll).unwrap_err();
            let text = panic.downcast_ref::<String>().cloned();
            text.unwrap_or_else(|| (*panic.downcast_ref::<&str>().unwrap()).to_owned())
        };
        assert_eq!(failure(), "number 7 is bad");
        assert!(failure().contains("an earlier panic"));
    }
}
