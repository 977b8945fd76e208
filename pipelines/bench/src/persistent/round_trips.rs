//! Measures the latency of single frames. Each frame is committed after the result of the previous one has arrived.

use super::fixture::{Fixture, RESULT_TIMEOUT, WARM_UP, check, fill};
use crate::BenchError;
use crate::cores::{Cores, joined};
use crate::figures::micros_since;
use daq_core::frame::FrameMeta;
use daq_core::ring::{Producer, Reader};
use daq_pipelines::runtime::control::{Heartbeat, Role};
use std::time::Instant;

/// The two endpoints: frames are committed at one, and results are read at the other.
pub(super) struct Ends {
    frame: usize,
    pub(super) producer: Producer,
    pub(super) results: Reader,
    /// Number of frames committed so far.
    made: u64,
    /// Time from the commit of each frame until it was submitted to the kernel, in microseconds. Measured only if the
    /// measuring thread also runs the runtime.
    host: Vec<f64>,
}

impl Ends {
    /// Takes the endpoints of rings for frames of `frame` bytes.
    pub(super) const fn new(frame: usize, producer: Producer, results: Reader) -> Self {
        Self {
            frame,
            producer,
            results,
            made: 0,
            host: Vec::new(),
        }
    }

    /// Commits one frame and waits for its result; calls `step` while waiting. Returns the latency in microseconds.
    fn round_trip(
        &mut self,
        mut step: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let mut slots = self.producer.reserve(1);
        if let Some(bytes) = slots.bytes_mut() {
            fill(bytes, self.made);
        }
        slots.finish(FrameMeta::whole(self.made, self.frame));
        let start = Instant::now();
        slots.publish();
        let mut looks = 0_u32;
        while self.results.pending() == 0 {
            step()?;
            if looks == 0 {
                self.host.push(micros_since(start));
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 10) && start.elapsed() > RESULT_TIMEOUT {
                return Err(BenchError::Thread(format!(
                    "no result for frame {} within {RESULT_TIMEOUT:?}",
                    self.made
                )));
            }
        }
        let took = micros_since(start);
        drop(self.results.poll(1));
        self.made += 1;
        Ok(took)
    }

    /// Measures the latency of `round_trips` frames. The warm-up frames before them are not measured.
    fn round_trips(
        &mut self,
        round_trips: usize,
        mut step: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Vec<f64>, BenchError> {
        for _ in 0..WARM_UP.min(round_trips) {
            self.round_trip(&mut step)?;
        }
        (0..round_trips)
            .map(|_| self.round_trip(&mut step))
            .collect()
    }
}

impl Fixture {
    /// Returns the time from the commit of each frame until it was submitted to the kernel, in microseconds.
    pub(super) fn host(&self) -> &[f64] {
        &self.ends.host
    }

    /// Measures the latency of frames one after another. The calling thread does all work.
    pub(super) fn round_trips(&mut self, round_trips: usize) -> Result<Vec<f64>, BenchError> {
        let runner = &mut self.runner;
        self.ends.round_trips(round_trips, || {
            runner.step().map(|_| ()).map_err(BenchError::from)
        })
    }

    /// Stops the kernel and verifies its last results.
    pub(super) fn end(self) -> Result<(), BenchError> {
        drop(self.runner);
        check(&self.control)?;
        self.output.check(self.ends.made)
    }

    /// Measures the latency of frames one after another, with the runtime in a separate thread on another core. Then
    /// ends the kernel.
    pub(super) fn round_trips_by_two(
        self,
        round_trips: usize,
        cores: &Cores,
    ) -> Result<Vec<f64>, BenchError> {
        let Self {
            mut ends,
            output,
            runner,
            control,
        } = self;
        let (times, made) = std::thread::scope(|scope| {
            let engine = scope.spawn(|| {
                cores.take(1);
                runner.run(&Heartbeat::new("touch".to_owned(), Role::Step));
                check(&control)
            });
            let watched = || {
                if control.is_stopping() {
                    return check(&control);
                }
                Ok(())
            };
            let done = cores.first(|| {
                let times = ends.round_trips(round_trips, watched);
                // The runtime's thread ends when its source has ended.
                let made = ends.made;
                drop(ends);
                times.map(|times| (times, made))
            });
            // The error of the runtime is more specific than the missing result, so return it first.
            joined(engine).and(done)
        })?;
        output.check(made)?;
        Ok(times)
    }
}
