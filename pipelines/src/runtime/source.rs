//! Runs a source on its own thread: fills frames, calls `tick`, and waits for packets or free slots.

use super::{Control, FailureKind, Heartbeat, STOP_POLL_INTERVAL};
use daq_core::notify::Wait;
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum sleep of the thread that closes frames while other threads fill the same reorder window.
const SHARED_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Registration of a thread as a writer of a shared reorder window. The registration ends when this value is dropped.
pub(super) struct Writing {
    count: Arc<AtomicU64>,
    is_in: bool,
}

impl Writing {
    pub(super) fn join(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self {
            count: count.clone(),
            is_in: true,
        }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_in) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn are_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.leave();
    }
}

pub(super) struct Runner {
    pub(super) name: String,
    pub(super) filler: Box<dyn Filler>,
    pub(super) window: ReorderWindow,
    pub(super) wait: Wait,
    /// Registration of this thread as a writer of the reorder window.
    pub(super) writing: Writing,
    /// Number of source threads that have started.
    pub(super) started: Arc<AtomicU64>,
    pub(super) control: Arc<Control>,
}

impl Runner {
    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        let result = self.filler.start();
        if result.is_ok() {
            self.started.fetch_add(1, Ordering::AcqRel);
        }
        if let Err(error) = result.and_then(|()| self.fill(heartbeat)) {
            let name = format!("source `{}`", self.name);
            self.control.fail(FailureKind::Io, name, error.to_string());
        }
        self.filler.finish(&mut self.window);
        self.writing.leave();
        // Only the window of the sequencer closes frames, so this thread continues until the other threads have ended.
        while self.window.is_sequencer() && self.writing.are_any() {
            heartbeat.beat();
            self.window.tick(Instant::now());
            std::thread::sleep(SHARED_POLL_INTERVAL);
        }
        if self.control.wants_whole_frames(&self.name) {
            self.window.finish_frame();
        } else {
            self.window.finish();
        }
    }

    fn fill(&mut self, heartbeat: &Heartbeat) -> Result<(), daq_core::source::SourceError> {
        let serves_others = self.window.is_sequencer() && !self.window.is_exclusive();
        let timeout = match self.wait {
            Wait::Busy => Duration::ZERO,
            _ if serves_others => SHARED_POLL_INTERVAL,
            _ => STOP_POLL_INTERVAL,
        };
        while !self.control.is_stopping() {
            heartbeat.beat();
            match self.filler.fill(&mut self.window, timeout)? {
                Polled::Busy | Polled::Idle => {}
                Polled::Until(wait) if self.wait == Wait::Busy => {
                    let until = Instant::now() + wait.min(STOP_POLL_INTERVAL);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                Polled::Until(wait) => std::thread::sleep(wait.min(timeout)),
                Polled::Full => self.window.wait(self.wait, STOP_POLL_INTERVAL),
                Polled::Ended => break,
            }
            self.window.tick(Instant::now());
        }
        Ok(())
    }
}
