//! Runs a sink on its own thread: passes frames to the sink, and waits or drops frames while the sink cannot write.

use super::{Control, FailureKind, Heartbeat, STALL_TIMEOUT, STOP_POLL_INTERVAL};
use daq_core::ledger::SinkLedger;
use daq_core::log_limit::LogLimit;
use daq_core::notify::Wait;
use daq_core::ring::{Completion, Lease, Reader};
use daq_core::sink::{Sink, SinkError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between retries while the sink cannot write.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between calls of the sink's `tick`.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Runner {
    pub(super) name: String,
    pub(super) sink: Box<dyn Sink>,
    pub(super) reader: Reader,
    pub(super) ledger: SinkLedger,
    pub(super) guarantee: bool,
    pub(super) burst: usize,
    pub(super) wait: Wait,
    pub(super) control: Arc<Control>,
}

/// The parts of a runner that are needed while a lease borrows the runner's reader.
struct Writer<'a> {
    name: &'a str,
    sink: &'a mut dyn Sink,
    ledger: &'a SinkLedger,
    guarantee: bool,
    control: &'a Control,
    heartbeat: &'a Heartbeat,
    limits: &'a (LogLimit, LogLimit),
}

impl Runner {
    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        let result = self.work(heartbeat);
        let failed = result.is_err();
        let finished = self.sink.finish();
        for error in [result, finished].into_iter().filter_map(Result::err) {
            self.control.fail(
                FailureKind::Io,
                format!("sink `{}`", self.name),
                error.to_string(),
            );
        }
        if failed {
            // A failed sink must not block the ring; further frames count as discarded.
            while !self.reader.is_finished() {
                heartbeat.beat();
                self.ledger.dropped.add(self.reader.discard_pending());
                self.reader.wait(self.wait, STOP_POLL_INTERVAL);
            }
        }
    }

    fn work(&mut self, heartbeat: &Heartbeat) -> Result<(), SinkError> {
        let mut ticked = Instant::now();
        // Limits the rate of messages about a sink that repeatedly stops and resumes accepting frames.
        let limits = <(LogLimit, LogLimit)>::default();
        // True while the sink has seen frames that it has not accepted yet. These frames are offered next.
        let mut is_partial = false;
        loop {
            beat(&mut *self.sink, heartbeat);
            if ticked.elapsed() >= TICK_INTERVAL && !is_partial {
                ticked = Instant::now();
                self.sink.tick()?;
            }
            let Some(lease) = self.reader.poll(self.burst) else {
                if self.reader.is_finished() || self.control.closes_sinks() {
                    return Ok(());
                }
                self.reader.wait(self.wait, STOP_POLL_INTERVAL);
                continue;
            };
            let mut writer = Writer {
                name: &self.name,
                sink: &mut *self.sink,
                ledger: &self.ledger,
                guarantee: self.guarantee,
                control: &self.control,
                heartbeat,
                limits: &limits,
            };
            let (taken, result) = writer.write(&lease);
            is_partial = false;
            if taken == lease.len() {
                lease.retire(Completion::Immediate);
            } else if let Ok(Flow::Partial) = result {
                is_partial = true;
                lease.retire_first(taken);
            } else {
                self.ledger.dropped.add((lease.len() - taken) as u64);
                lease.discard_after(taken);
            }
            result?;
        }
    }
}

/// What happens to the frames of a burst that the sink has not accepted.
enum Flow {
    /// They are dropped, if there are any.
    Done,
    /// They are offered again, together with newer frames.
    Partial,
}

impl Writer<'_> {
    /// Passes the burst to the sink. Returns the number of frames that the sink accepted.
    ///
    /// If the ring waits for the sink, a sink that has accepted a part of the burst gets the rest with the next burst,
    /// so that a sink with frames in flight always has further frames to send.
    fn write(&mut self, lease: &Lease<'_>) -> (usize, Result<Flow, SinkError>) {
        let mut taken = 0;
        while taken < lease.len() {
            beat(self.sink, self.heartbeat);
            match self.sink.consume(lease, taken) {
                // A frame that takes long is being sent.
                Ok(0) if self.control.is_overdue() => return (taken, Ok(Flow::Done)),
                Ok(frames) => {
                    taken += frames;
                    if self.ledger.full.get() {
                        self.ledger.full.set(false);
                        self.limits.1.run(|suppressed| {
                            tracing::warn!("sink {}: accepts frames again{suppressed}", self.name);
                        });
                    }
                    if frames > 0 && taken < lease.len() && lease.is_guaranteed() {
                        return (taken, Ok(Flow::Partial));
                    }
                }
                Err(error @ (SinkError::Full { .. } | SinkError::Away { .. })) => {
                    if !self.ledger.full.get() {
                        self.ledger.full.set(true);
                        let policy = if self.guarantee {
                            "blocking the ring until the sink continues"
                        } else {
                            "dropping frames until the sink continues"
                        };
                        self.limits.0.run(|suppressed| {
                            tracing::error!("sink {}: {error}; {policy}{suppressed}", self.name);
                        });
                    }
                    if !self.guarantee {
                        return (taken, Ok(Flow::Done));
                    }
                    if self.control.is_overdue() {
                        return (taken, Err(error));
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(Flow::Done))
    }
}

/// Gives a heartbeat, unless a write on another thread of the sink hangs.
fn beat(sink: &mut dyn Sink, heartbeat: &Heartbeat) {
    if sink.blocked_for() < STALL_TIMEOUT {
        heartbeat.beat();
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::Role;
    use super::*;

    /// A sink whose separate writer thread has been busy with one write for the given time.
    struct Writing(Duration);

    impl Sink for Writing {
        fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
            Ok(lease.len() - from)
        }

        fn blocked_for(&mut self) -> Duration {
            self.0
        }

        fn finish(&mut self) -> Result<(), SinkError> {
            Ok(())
        }
    }

    #[test]
    fn hanging_write_on_other_thread_stops_heartbeat() {
        let heartbeat = Heartbeat::new("disk".to_owned(), Role::Sink);
        let before = heartbeat.beats();
        beat(&mut Writing(STALL_TIMEOUT), &heartbeat);
        assert_eq!(heartbeat.beats(), before);
        beat(&mut Writing(STALL_TIMEOUT / 2), &heartbeat);
        assert_ne!(heartbeat.beats(), before);
    }
}
