//! A kernel's thread: a burst in, slots out, both given up when the work is done.

use super::{Control, FailureKind, PATIENCE, Pulse};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ledger::KernelLedger;
use daq_core::ring::{Completion, Producer, Reader};
use daq_core::wait::Wait;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

pub(super) struct Runner {
    pub(super) name: String,
    pub(super) kernel: Box<dyn Kernel>,
    pub(super) reader: Reader,
    pub(super) producer: Producer,
    pub(super) ledger: KernelLedger,
    pub(super) burst: usize,
    pub(super) wait: Wait,
    pub(super) control: Arc<Control>,
    /// How long a device may go on with one burst once the end is overdue.
    pub(super) patience: Duration,
    /// Since when the end is overdue and a device has finished nothing.
    pub(super) hanging: Option<Instant>,
}

/// How long a device may go on with one burst once the end is overdue, unless told otherwise.
pub(super) const HANG: Duration = Duration::from_secs(5);

/// Work that a device has not finished: what to count and publish when it has.
struct InFlight {
    outputs: u64,
    submitted: Submitted,
}

impl Runner {
    pub(super) fn run(mut self, pulse: &Pulse) {
        let mut in_flight = VecDeque::with_capacity(self.producer.options().slots);
        if let Err(error) = self.work(pulse, &mut in_flight) {
            self.control.fail(
                FailureKind::Defect,
                format!("kernel `{}`", self.name),
                error.to_string(),
            );
            // Frames that come while the sources stop are told as discarded.
            while !self.reader.is_finished() && !self.hangs() {
                pulse.beat();
                self.reap(&mut in_flight);
                self.reader.discard_pending();
                self.reader.wait(self.wait, PATIENCE);
            }
        }
        if self.reader.has_in_flight() {
            // Whatever the device was given may be used by it at any time.
            self.producer.keep_memory();
            std::mem::forget(self.kernel);
            let _ = self.reader.leave(Duration::ZERO);
        }
    }

    /// Whether a device has not finished a burst for so long that the end must not wait for it.
    fn hangs(&mut self) -> bool {
        if !self.reader.has_in_flight() || !self.control.is_overdue() {
            self.hanging = None;
            return false;
        }
        self.hanging.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    fn work(
        &mut self,
        pulse: &Pulse,
        in_flight: &mut VecDeque<InFlight>,
    ) -> Result<(), KernelError> {
        loop {
            pulse.beat();
            self.reap(in_flight);
            if self.hangs() {
                return Err(KernelError(format!(
                    "the device has not finished {} frames, and the end does not wait for it any longer; what it holds \
                     is not freed",
                    self.reader.held()
                )));
            }
            // What waits decides how many slots are taken: slots reserved for frames that are not there would
            // look overwritten to readers of the output that are not waited for.
            let waiting = usize::try_from(self.reader.pending()).unwrap_or(usize::MAX);
            let waiting = waiting.min(self.burst);
            if waiting == 0 {
                if self.reader.is_finished() {
                    return Ok(());
                }
                self.reader.wait(self.wait, PATIENCE);
                continue;
            }
            let mut slots = self.producer.reserve(self.kernel.outputs(waiting));
            let room = slots.remaining();
            // Most often all of them; fewer when the output ring is nearly full.
            let frames = (0..=waiting)
                .rev()
                .find(|frames| self.kernel.outputs(*frames) <= room)
                .unwrap_or(0);
            if frames == 0 {
                // What is in flight becomes frames in the output, and their readers make room.
                if self.reader.has_in_flight() {
                    self.reader.wait_in_flight(self.wait, PATIENCE);
                } else {
                    self.producer.wait(self.wait, PATIENCE);
                }
                continue;
            }
            // A reader that may be overrun can find nothing after all.
            let Some(lease) = self.reader.poll(frames) else {
                self.reader.wait_in_flight(self.wait, PATIENCE);
                continue;
            };
            self.ledger.input.add(lease.len() as u64);
            let submitted = match self.kernel.run(&lease, &mut slots, Stream::Host) {
                Ok(submitted) => submitted,
                Err(error) => {
                    self.ledger.failed.add(lease.len() as u64);
                    return Err(error);
                }
            };
            if matches!(submitted.completion, Completion::Immediate) && in_flight.is_empty() {
                let outputs = slots.publish() as u64;
                count(&self.ledger, &submitted, outputs);
                lease.retire(Completion::Immediate);
            } else {
                let outputs = slots.submit() as u64;
                lease.retire(submitted.completion.clone());
                in_flight.push_back(InFlight { outputs, submitted });
            }
        }
    }

    /// Publishes the output of work that is done.
    fn reap(&mut self, in_flight: &mut VecDeque<InFlight>) {
        let Self {
            reader,
            producer,
            ledger,
            hanging,
            ..
        } = self;
        reader.reap(|_| {
            *hanging = None;
            if let Some(done) = in_flight.pop_front() {
                producer.publish(done.outputs);
                count(ledger, &done.submitted, done.outputs);
            }
        });
    }
}

fn count(ledger: &KernelLedger, submitted: &Submitted, outputs: u64) {
    ledger.made.add(outputs);
    // Out of `withheld` before into the others: a snapshot in between shows frames as pending, never twice.
    let before = ledger.withheld.get();
    let left = submitted.released + submitted.dropped;
    ledger.withheld.set(before + submitted.withheld - left);
    ledger.failed.add(submitted.failed + submitted.dropped);
    ledger.consumed.add(submitted.consumed + submitted.released);
}
