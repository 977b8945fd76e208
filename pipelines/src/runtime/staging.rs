//! A staging thread: the copies of one GPU and direction.

use super::{Control, FailureKind, Heartbeat, Progress, STOP_POLL_INTERVAL, kernel};
use daq_core::notify::Wait;
use daq_core::staging::{Stager, StagingError, Step};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Runner {
    /// What failures are told of, as in `copies to cuda:0`.
    pub(super) name: String,
    pub(super) stager: Stager,
    pub(super) wait: Wait,
    pub(super) control: Arc<Control>,
    /// How long a device may go on with its copies once the end is overdue.
    pub(super) patience: Duration,
}

/// How long a device has finished nothing although the end is overdue.
#[derive(Default)]
struct Hang(Option<Instant>);

impl Hang {
    fn lasts(&mut self, runner: &Runner) -> bool {
        if !runner.stager.has_in_flight() || !runner.control.is_overdue() {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= runner.patience
    }
}

impl Runner {
    pub(super) fn new(name: String, stager: Stager, wait: Wait, control: Arc<Control>) -> Self {
        Self {
            name,
            stager,
            wait,
            control,
            patience: kernel::HANG_TIMEOUT,
        }
    }

    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        // Sleeps end when they should, not up to 50 us later.
        daq_core::thread::wake_on_time();
        self.stager.tell_if_far("[staging] cores");
        let mut hang = Hang::default();
        match self.work(heartbeat, &mut hang) {
            Ok(true) => return,
            Ok(false) => self.control.fail(
                FailureKind::Defect,
                self.name.clone(),
                "the GPU has not finished its copies, and the end does not wait for it any longer; what it holds is \
                 not freed"
                    .to_owned(),
            ),
            Err(error) => {
                self.control
                    .fail(FailureKind::Device, self.name.clone(), error.to_string());
                // Frames that come while the sources stop are told as discarded.
                while !self.stager.discard() && !hang.lasts(&self) {
                    heartbeat.beat();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        if self.stager.has_in_flight() {
            self.stager.abandon();
        }
    }

    /// Copies until all sources are at their end; false where the device hangs.
    fn work(&mut self, heartbeat: &Heartbeat, hang: &mut Hang) -> Result<bool, StagingError> {
        let mut progress = Progress::new();
        loop {
            let step = self.stager.step()?;
            progress.look(self.stager.has_in_flight(), step == Step::Busy, heartbeat);
            match step {
                Step::Finished => return Ok(true),
                Step::Busy => hang.0 = None,
                Step::Idle if hang.lasts(self) => return Ok(false),
                Step::Idle => self.stager.wait(self.wait, STOP_POLL_INTERVAL),
            }
        }
    }
}
