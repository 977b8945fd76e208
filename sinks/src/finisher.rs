//! Finishes one thing on a thread of its own while the next is filled.
//!
//! There are two of each thing: the sink fills one, the finisher has the other, free or being finished.

use daq_core::sink::SinkError;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Where the second thing is.
enum Second<T> {
    /// Free.
    Spare(T),
    /// With the thread, or in the hands of a call.
    Away,
    /// It could not be finished.
    Stuck(T),
}

/// The second thing and the thread that finishes. Dropping it waits for what the thread is at.
pub(crate) struct Finisher<T, E> {
    jobs: Option<SyncSender<T>>,
    done: Receiver<(T, Result<(), E>)>,
    thread: Option<JoinHandle<()>>,
    second: Second<T>,
}

impl<T: Send + 'static, E: Send + 'static> Finisher<T, E> {
    /// Starts thread `name`, which calls `finish` with what it is sent; `spare` is the second thing.
    pub(crate) fn start(
        name: &str,
        spare: T,
        mut finish: impl FnMut(&mut T) -> Result<(), E> + Send + 'static,
    ) -> Result<Self, SinkError> {
        let (jobs, queue) = sync_channel::<T>(1);
        let (finished, done) = sync_channel(1);
        let serve = move || {
            while let Ok(mut job) = queue.recv() {
                let result = finish(&mut job);
                if finished.send((job, result)).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(serve).map_err(|error| SinkError::Failed {
            what: format!("starting the thread {name}"),
            why: format!("{error}; raise the limit of tasks (ulimit -u, TasksMax)"),
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            second: Second::Spare(spare),
        })
    }

    /// Whether [`exchange`](Self::exchange) would do something.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.second, Second::Spare(_))
    }

    /// Gives the second thing, if it is free, for what is to be finished from now on, and says whether it was.
    pub(crate) fn exchange(&mut self, full_for: impl FnOnce(T) -> T) -> bool {
        match std::mem::replace(&mut self.second, Second::Away) {
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

    fn send(&mut self, job: T) {
        let jobs = self.jobs.as_ref().expect("open until drop");
        jobs.send(job)
            .expect("the thread ends only after this sender");
    }

    /// Looks after what is being finished, to its end if `wait`, and hands it out if it is finished now. What could not be
    /// before is tried again; if it cannot be now, it is [`stuck`](Self::give_up).
    pub(crate) fn look(&mut self, wait: bool) -> Result<Option<&T>, E> {
        match std::mem::replace(&mut self.second, Second::Away) {
            spare @ Second::Spare(_) => {
                self.second = spare;
                return Ok(None);
            }
            Second::Stuck(job) => self.send(job),
            Second::Away => {}
        }
        let outcome = if wait {
            self.done.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.done.try_recv()
        };
        match outcome {
            Ok((job, Ok(()))) => {
                self.second = Second::Spare(job);
                Ok(match &self.second {
                    Second::Spare(job) => Some(job),
                    _ => None,
                })
            }
            Ok((job, Err(error))) => {
                self.second = Second::Stuck(job);
                Err(error)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                unreachable!("the thread ends only after this receiver's owner")
            }
        }
    }

    /// Frees what is stuck, if something is, with what `abandon` makes of it.
    pub(crate) fn give_up<R>(&mut self, abandon: impl FnOnce(&mut T) -> R) -> Option<R> {
        match std::mem::replace(&mut self.second, Second::Away) {
            Second::Stuck(mut job) => {
                let result = abandon(&mut job);
                self.second = Second::Spare(job);
                Some(result)
            }
            other => {
                self.second = other;
                None
            }
        }
    }
}

impl<T, E> Drop for Finisher<T, E> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns when its queue is closed and empty; there is nothing to do about a panic in it here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_is_tried_again_or_given_up() {
        let mut refuse = 2;
        let finish = move |n: &mut u32| {
            refuse -= u32::from(refuse > 0 && *n == 7);
            if *n == 7 && refuse > 0 || *n == 8 {
                Err(*n)
            } else {
                Ok(())
            }
        };
        let mut finisher = Finisher::start("finisher", 0, finish).unwrap();
        assert_eq!(finisher.look(true), Ok(None));
        assert!(finisher.exchange(|spare| spare + 7) && !finisher.exchange(|_| 9));
        assert_eq!(finisher.look(true), Err(7));
        assert!(!finisher.is_ready());
        assert_eq!(finisher.look(true), Ok(Some(&7)));
        assert!(finisher.exchange(|_| 8));
        assert_eq!(finisher.look(true), Err(8));
        assert_eq!(finisher.give_up(|n| std::mem::replace(n, 1)), Some(8));
        assert_eq!(finisher.give_up(|_| ()), None);
        assert!(finisher.exchange(|spare| spare + 1));
        assert_eq!(finisher.look(true), Ok(Some(&2)));
    }
}
