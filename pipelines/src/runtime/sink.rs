//! Runs a sink on its own thread: passes frames to the sink, and waits or drops frames while the sink cannot write.

use super::{Control, FailureKind, Heartbeat, STALL_TIMEOUT, STOP_POLL_INTERVAL};
use daq_core::ledger::SinkLedger;
use daq_core::log_limit::LogLimit;
use daq_core::notify::Wait;
use daq_core::ring::{Completion, Lease, Reader};
use daq_core::sink::{Sink, SinkError};
use daq_core::units::counted;
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
        heartbeat.end_counts();
        let finished = self.sink.finish();
        let refusal = self.refusal().filter(|_| !failed);
        let errors = [result, finished].into_iter().filter_map(Result::err);
        for why in errors.map(|error| error.to_string()).chain(refusal) {
            let sink = format!("sink `{}`", self.name);
            self.control.fail(FailureKind::Io, sink, why);
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

    /// Returns why the sink did not write the last frames: its disk is full, or its receiver is not available.
    fn refusal(&self) -> Option<String> {
        self.ledger.full.get().then(|| {
            let dropped = counted(self.ledger.dropped.get(), "frame");
            format!("accepts no frames at the end of the run; {dropped} were dropped")
        })
    }

    fn work(&mut self, heartbeat: &Heartbeat) -> Result<(), SinkError> {
        let mut ticked = Instant::now();
        // Limits the rate of messages about a sink that repeatedly stops and resumes accepting frames.
        let limits = <(LogLimit, LogLimit)>::default();
        // True while the sink has seen frames that it has not accepted yet. These frames are offered next.
        let mut is_partial = false;
        // True after the first burst that was offered to the sink when the drain time was over.
        let mut was_overdue = false;
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
            let (taken, result) = if was_overdue {
                (0, writer.overdue(lease.len()))
            } else {
                was_overdue = writer.control.is_overdue();
                writer.write(&lease)
            };
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
    /// so that a sink with frames in flight always has further frames to send. If the drain time is over, the sink gets no
    /// further frames.
    fn write(&mut self, lease: &Lease<'_>) -> (usize, Result<Flow, SinkError>) {
        let mut taken = 0;
        while taken < lease.len() {
            beat(self.sink, self.heartbeat);
            match self.sink.consume(lease, taken) {
                // A frame that takes long is being sent.
                Ok(0) if self.control.is_overdue() => {
                    return (taken, self.overdue(lease.len() - taken));
                }
                Ok(frames) => {
                    taken += frames;
                    if self.ledger.full.get() {
                        self.ledger.full.set(false);
                        self.limits.1.run(|suppressed| {
                            tracing::warn!("sink {}: accepts frames again{suppressed}", self.name);
                        });
                    }
                    if taken < lease.len() && self.control.is_overdue() {
                        return (taken, self.overdue(lease.len() - taken));
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

    /// Returns the end of a sink that has not accepted `frames` frames within the drain time.
    fn overdue(&self, frames: usize) -> Result<Flow, SinkError> {
        if !self.guarantee {
            return Ok(Flow::Done);
        }
        Err(SinkError::Failed {
            what: "the drain time is over".to_owned(),
            why: format!(
                "at least {} were not written and count as `dropped`; increase `--drain`",
                counted(frames, "frame")
            ),
        })
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
    use daq_core::frame::FrameMeta;
    use daq_core::ledger::{ReaderLedger, RingLedger};
    use daq_core::region::{HostOptions, Region};
    use daq_core::ring::{Ring, RingOptions};
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// A sink that accepts at most `room` frames, and whose receiver acknowledges none of them.
    struct Slow {
        room: usize,
    }

    impl Sink for Slow {
        fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
            let taken = self.room.min(lease.len() - from);
            self.room -= taken;
            Ok(taken)
        }

        fn finish(&mut self) -> Result<(), SinkError> {
            Err(SinkError::Away {
                what: "the receiver".to_owned(),
                why: "it acknowledged nothing".to_owned(),
            })
        }
    }

    /// Runs a sink that accepts 2 of 5 frames until the drain time is over. Returns the failures of the pipeline and the
    /// number of dropped frames.
    fn failures_of_slow_sink(guarantee: bool) -> (Vec<String>, u64) {
        failures_of_sink(Box::new(Slow { room: 2 }), guarantee, 8)
    }

    /// Runs a sink with 5 frames in bursts of at most `burst`, after the drain time is over.
    fn failures_of_sink(sink: Box<dyn Sink>, guarantee: bool, burst: usize) -> (Vec<String>, u64) {
        let heartbeat = Heartbeat::new("slow".to_owned(), Role::Sink);
        failures_with(&heartbeat, sink, guarantee, burst)
    }

    fn failures_with(
        heartbeat: &Heartbeat,
        sink: Box<dyn Sink>,
        guarantee: bool,
        burst: usize,
    ) -> (Vec<String>, u64) {
        let options = RingOptions::new("raw", 8, 8);
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        let (ring, mut producer) = Ring::new(region, options, RingLedger::default()).unwrap();
        let reader = ring.attach(guarantee, 8, ReaderLedger::default()).unwrap();
        assert_eq!(producer.claim(5), 5);
        let mut slots = producer.reserve(5);
        for number in 0..5 {
            slots.finish(FrameMeta::whole(number, 8));
        }
        slots.publish();
        producer.close();
        let control = Arc::new(Control::new(Duration::ZERO));
        control.stop();
        while !control.is_overdue() {
            std::thread::yield_now();
        }
        let ledger = SinkLedger::default();
        let runner = Runner {
            name: "slow".to_owned(),
            sink,
            reader,
            ledger: ledger.clone(),
            guarantee,
            burst,
            wait: Wait::default(),
            control: control.clone(),
        };
        runner.run(heartbeat);
        let failures = control.failures();
        let failures = failures.into_iter().map(|failure| failure.why).collect();
        (failures, ledger.dropped.get())
    }

    #[test]
    fn frames_not_written_within_drain_time_fail_sink_with_guarantee() {
        let (failures, dropped) = failures_of_slow_sink(true);
        assert_eq!(dropped, 3);
        assert_eq!(
            failures,
            [
                "the drain time is over: at least 3 frames were not written and count as `dropped`; increase `--drain`",
                "the receiver is not available: it acknowledged nothing"
            ]
        );
        let (failures, dropped) = failures_of_slow_sink(false);
        assert_eq!(dropped, 3);
        assert_eq!(
            failures,
            ["the receiver is not available: it acknowledged nothing"]
        );
    }

    /// A sink that writes one frame at a time, and would never end if it got a frame after each one.
    struct OneByOne;

    impl Sink for OneByOne {
        fn consume(&mut self, _: &Lease<'_>, _: usize) -> Result<usize, SinkError> {
            Ok(1)
        }

        fn finish(&mut self) -> Result<(), SinkError> {
            Ok(())
        }
    }

    #[test]
    fn sink_that_makes_progress_ends_after_drain_time() {
        for burst in [1, 8] {
            let (failures, dropped) = failures_of_sink(Box::new(OneByOne), true, burst);
            assert_eq!((failures.len(), dropped), (1, 4), "{failures:?}");
            assert!(failures[0].contains("increase `--drain`"), "{failures:?}");
            let (failures, dropped) = failures_of_sink(Box::new(OneByOne), false, burst);
            assert_eq!((failures.len(), dropped), (0, 4), "{failures:?}");
        }
    }

    /// A sink that reports whether all frames were counted before it is finished.
    struct Finished {
        heartbeat: Arc<Heartbeat>,
        had_final_counts: Arc<AtomicBool>,
    }

    impl Sink for Finished {
        fn consume(&mut self, _: &Lease<'_>, _: usize) -> Result<usize, SinkError> {
            assert!(!self.heartbeat.has_final_counts());
            Ok(0)
        }

        fn finish(&mut self) -> Result<(), SinkError> {
            self.had_final_counts
                .store(self.heartbeat.has_final_counts(), Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn frames_are_counted_before_sink_is_finished() {
        for guarantee in [true, false] {
            let heartbeat = Heartbeat::new("slow".to_owned(), Role::Sink);
            let had_final_counts = Arc::new(AtomicBool::new(false));
            let sink = Finished {
                heartbeat: heartbeat.clone(),
                had_final_counts: had_final_counts.clone(),
            };
            failures_with(&heartbeat, Box::new(sink), guarantee, 8);
            assert!(had_final_counts.load(Ordering::Relaxed));
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
