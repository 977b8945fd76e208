//! Makes finished segments whole on a thread of its own, while the next one is written.

use super::sink_error;
use crate::segment::{Closed, SegmentError, SegmentWriter};
use daq_core::sigmf::Meta;
use daq_core::sink::SinkError;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// A segment that takes no more frames.
struct Job {
    writer: SegmentWriter,
    meta: Box<Meta>,
}

type Outcome = (Job, Result<Closed, SegmentError>);

/// Where the second writer is.
enum Second {
    /// Free.
    Spare(SegmentWriter),
    /// With the thread.
    Closing,
    /// Its segment could not be closed for want of space.
    Stuck(Job),
}

/// Why a segment was not closed.
pub(super) enum Trouble {
    /// There is no space for it yet; it is tried again.
    Full(SinkError),
    /// It was given up.
    Lost(Abandoned),
}

/// What became of a segment that was given up.
pub(super) struct Abandoned {
    /// Why, and what is left of it.
    pub(super) error: SinkError,
    /// Its frames that are not in the file, or not wholly.
    pub(super) frames: u64,
}

/// The second writer and the thread that closes segments.
pub(super) struct Closer {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    /// `None` only inside of a call.
    second: Option<Second>,
}

impl Closer {
    /// Starts the thread; `spare` is the second writer.
    pub(super) fn start(spare: SegmentWriter) -> Result<Self, SinkError> {
        let (jobs, queue) = sync_channel::<Job>(1);
        let (finished, done) = sync_channel::<Outcome>(1);
        let serve = move || {
            while let Ok(mut job) = queue.recv() {
                let result = job.writer.close(&job.meta.to_json());
                if finished.send((job, result)).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("daq-close".to_owned());
        let thread = builder.spawn(serve).map_err(|error| SinkError::Failed {
            what: "starting the thread that closes segments".to_owned(),
            why: format!("{error}; raise the limit of tasks (ulimit -u, TasksMax)"),
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            second: Some(Second::Spare(spare)),
        })
    }

    /// Whether [`swap`](Self::swap) can be called.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.second, Some(Second::Spare(_)))
    }

    /// Puts the free writer in place of `active`, whose segment is closed with `meta` from now on.
    pub(super) fn swap(&mut self, active: &mut SegmentWriter, meta: Meta) {
        debug_assert!(self.is_ready(), "the second writer is not free");
        if let Some(Second::Spare(spare)) = self
            .second
            .take_if(|second| matches!(second, Second::Spare(_)))
        {
            let writer = std::mem::replace(active, spare);
            self.send(Job {
                writer,
                meta: Box::new(meta),
            });
        }
    }

    fn send(&mut self, job: Job) {
        let jobs = self.jobs.as_ref().expect("open until drop");
        jobs.send(job)
            .expect("the thread ends only after this sender");
        self.second = Some(Second::Closing);
    }

    /// Looks after the segment being closed, to its end if `wait`, and says whether it is whole now. One that found no
    /// space before is tried again.
    pub(super) fn look(&mut self, wait: bool) -> Result<bool, Trouble> {
        if let Some(Second::Stuck(job)) = self
            .second
            .take_if(|second| matches!(second, Second::Stuck(_)))
        {
            self.send(job);
        }
        if !matches!(self.second, Some(Second::Closing)) {
            return Ok(false);
        }
        let outcome = if wait {
            self.done.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.done.try_recv()
        };
        let (mut job, result) = match outcome {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => {
                unreachable!("the thread ends only after this receiver's owner")
            }
        };
        match result {
            Ok(_) => {
                self.second = Some(Second::Spare(job.writer));
                Ok(true)
            }
            Err(error @ SegmentError::Full { .. }) => {
                self.second = Some(Second::Stuck(job));
                Err(Trouble::Full(sink_error(error)))
            }
            Err(error) => {
                let lost = abandon(&mut job.writer, &job.meta, &error);
                self.second = Some(Second::Spare(job.writer));
                Err(Trouble::Lost(lost))
            }
        }
    }

    /// Closes what is left to close, and gives it up if that cannot be.
    pub(super) fn end(&mut self) -> Result<bool, Abandoned> {
        match self.look(true) {
            Ok(closed) => Ok(closed),
            Err(Trouble::Lost(lost)) => Err(lost),
            Err(Trouble::Full(error)) => match self.second.take() {
                Some(Second::Stuck(mut job)) => {
                    let lost = abandon(&mut job.writer, &job.meta, &error);
                    self.second = Some(Second::Spare(job.writer));
                    Err(lost)
                }
                other => {
                    self.second = other;
                    Ok(false)
                }
            },
        }
    }
}

/// Gives up the open segment of `writer`, for which `meta` would have been written.
pub(super) fn abandon(
    writer: &mut SegmentWriter,
    meta: &Meta,
    why: &dyn std::error::Error,
) -> Abandoned {
    let total = writer.len();
    let path = writer.abandon();
    let kept = path
        .as_ref()
        .and_then(|path| path.metadata().ok())
        .map_or(0, |file| file.len().min(total));
    let bytes = total - kept;
    let (frame_bytes, frames) = meta
        .global
        .stream
        .as_ref()
        .map_or((1, 0), |s| (s.frame_bytes.max(1), s.frames));
    let frames = bytes.div_ceil(frame_bytes).min(frames);
    let what = path.map_or_else(|| "a segment".to_owned(), |path| path.display().to_string());
    let why = format!(
        "this segment could not be made whole: {why}. {kept} bytes are kept in it, {frames} frames are not"
    );
    Abandoned {
        error: SinkError::Failed { what, why },
        frames,
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns when its queue is closed and empty; there is nothing to do about a panic in it here.
            let _ = thread.join();
        }
    }
}
