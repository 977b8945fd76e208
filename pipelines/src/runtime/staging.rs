//! A thread that copies between rings: the copies along one route, or those that join the shares of a spread ring.

use super::{Control, FailureKind, Heartbeat, Progress, STOP_POLL_INTERVAL, kernel};
use daq_core::notify::Wait;
use daq_core::staging::{CopyThread, StagingError, Step};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Runner {
    /// Component name in error messages, for example `copies to cuda:0`.
    pub(super) name: String,
    pub(super) copies: Box<dyn CopyThread>,
    pub(super) wait: Wait,
    pub(super) control: Arc<Control>,
    /// Whether a failure loses only the frames that this thread copies, and the pipeline continues.
    pub(super) isolated: bool,
    /// Maximum time for a device to complete a copy after the drain deadline.
    pub(super) hang_timeout: Duration,
}

/// Time after the drain deadline since which the device has completed no copy; `None` if the device makes progress.
#[derive(Default)]
struct Hang(Option<Instant>);

impl Hang {
    fn lasts(&mut self, runner: &Runner) -> bool {
        if !runner.copies.has_in_flight() || !runner.control.is_overdue() {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= runner.hang_timeout
    }
}

impl Runner {
    pub(super) fn new(
        name: String,
        copies: Box<dyn CopyThread>,
        wait: Wait,
        control: Arc<Control>,
    ) -> Self {
        Self {
            name,
            copies,
            wait,
            control,
            isolated: false,
            hang_timeout: kernel::HANG_TIMEOUT,
        }
    }

    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        // Reduces the timer slack of Linux for this thread, because otherwise sleeps end up to 50 µs late.
        daq_core::thread::wake_on_time();
        self.copies.warn_if_remote_numa("[staging] cores");
        let mut hang = Hang::default();
        match self.work(heartbeat, &mut hang) {
            Ok(true) => return,
            Ok(false) => self.control.fail(
                FailureKind::Defect,
                self.name.clone(),
                "the GPU has not finished its copies in time; daq exits without waiting for the \
                 GPU, and the memory that the GPU uses is not freed"
                    .to_owned(),
            ),
            Err(error) => {
                let (name, why) = (self.name.clone(), error.to_string());
                if self.isolated {
                    self.control.lose(FailureKind::Device, name, why);
                    self.copies.close();
                } else {
                    self.control.fail(FailureKind::Device, name, why);
                }
                // Frames that arrive until the sources stop are counted as discarded.
                while !self.copies.discard() && !hang.lasts(&self) {
                    heartbeat.beat();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        if self.copies.has_in_flight() {
            self.copies.leak();
        }
    }

    /// Copies until all sources have ended; returns false if the device hangs.
    fn work(&mut self, heartbeat: &Heartbeat, hang: &mut Hang) -> Result<bool, StagingError> {
        let mut progress = Progress::new();
        loop {
            let step = self.copies.step()?;
            progress.observe(self.copies.has_in_flight(), step == Step::Busy, heartbeat);
            match step {
                Step::Finished => return Ok(true),
                Step::Busy => hang.0 = None,
                Step::Idle if hang.lasts(self) => return Ok(false),
                Step::Idle => self.copies.wait(self.wait, STOP_POLL_INTERVAL),
            }
        }
    }
}
