//! Measures the frame rate. One thread commits frames, the runtime submits them, and another thread reads the results.

use super::CORES;
use super::fixture::{Bench, Fixture, MAX_BATCH, Output, SLOTS, check, fill, total};
use crate::BenchError;
use crate::cores::{Cores, joined};
use daq_core::frame::FrameMeta;
use daq_core::ring::{Producer, Reader};
use daq_pipelines::runtime::control::{Heartbeat, Role};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frame size in bytes.
pub(super) const RATE_FRAME_BYTES: usize = 256;
/// The cores of a kernel's threads: for results, for the runtime, and for the source.
const RESULTS: usize = 0;
const RUNTIME: usize = 1;
const SOURCE: usize = 2;

impl Bench<'_> {
    /// Measures frames per second through `kernels` kernels, each with threads of its own and the given number of concurrent
    /// frames.
    pub(super) fn rate(&self, kernels: usize, concurrent_frames: u32) -> Result<f64, BenchError> {
        let prepared: Result<Vec<_>, _> = (0..kernels)
            .map(|_| self.prepare(RATE_FRAME_BYTES, concurrent_frames))
            .collect();
        let mut prepared = prepared?;
        for fixture in &mut prepared {
            fixture.runner.start()?;
        }
        let cores = Cores::near(self.device, CORES * kernels);
        let stop = AtomicBool::new(false);
        let measured: Result<Vec<_>, BenchError> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .step_by(CORES)
                .zip(prepared)
                .map(|(core, fixture)| {
                    let (cores, stop) = (&cores, &stop);
                    scope.spawn(move || self.rate_of((cores, core), fixture, stop))
                })
                .collect();
            threads.into_iter().map(joined).collect()
        });
        let mut sum = 0.0;
        // The results are verified after all kernels have ended, because reading them synchronises with the GPU.
        for (rate, produced, output) in measured? {
            output.check(produced)?;
            sum += rate;
        }
        Ok(sum)
    }

    /// Measures the frame rate of one kernel, with threads on three of `cores`, from number `core` on. Returns the rate, the number of
    /// frames and the results. The first kernel whose measurement ends stops all kernels.
    fn rate_of(
        &self,
        (cores, core): (&Cores, usize),
        fixture: Fixture,
        stop: &AtomicBool,
    ) -> Result<(f64, u64, Output), BenchError> {
        let window = self.common.window.0;
        let Fixture {
            ends,
            output,
            runner,
            control,
        } = fixture;
        let (producer, mut results) = (ends.producer, ends.results);
        std::thread::scope(|scope| {
            let source = scope.spawn(|| {
                cores.take(core + SOURCE);
                Ok(commit(producer, || {
                    stop.load(Ordering::Relaxed) || control.is_stopping()
                }))
            });
            let engine = scope.spawn(|| {
                cores.take(core + RUNTIME);
                runner.run(&Heartbeat::new("touch".to_owned(), Role::Step));
                check(&control)
            });
            cores.take(core + RESULTS);
            // The time until the rings are full is not counted.
            let is_over = || stop.load(Ordering::Relaxed) || control.is_stopping();
            let (before, _) = take(&mut results, window / 4, is_over);
            let (counted, rate) = take(&mut results, window, is_over);
            stop.store(true, Ordering::Relaxed);
            let mut read = before + counted;
            while !results.is_finished() {
                read += poll(&mut results);
            }
            let produced = joined(source);
            joined(engine)?;
            let produced = produced?;
            if read == produced {
                return Ok((rate, produced, output));
            }
            Err(BenchError::Thread(format!(
                "only {read} of {produced} frames have a result; this is a defect in daq"
            )))
        })
    }
}

/// Commits frames until `is_over` is true, then closes the ring. Returns the number of committed frames.
fn commit(mut producer: Producer, is_over: impl Fn() -> bool) -> u64 {
    let mut produced = 0;
    while !is_over() {
        let mut slots = producer.reserve(MAX_BATCH / 4);
        while slots.remaining() > 0 {
            if let Some(bytes) = slots.bytes_mut() {
                // Only the first frame in each slot is filled completely. Later frames change only the first word,
                // because the other words sum to 0.
                if produced < SLOTS as u64 {
                    fill(bytes, produced);
                }
                bytes[..4].copy_from_slice(&total(produced).to_le_bytes());
            }
            slots.finish(FrameMeta::whole(produced, RATE_FRAME_BYTES));
            produced += 1;
        }
        slots.publish();
    }
    produced
}

/// Reads results for the time `time` or until `is_over` is true. Returns the number of results, and the number of
/// results per second.
fn take(results: &mut Reader, time: Duration, is_over: impl Fn() -> bool) -> (u64, f64) {
    let (start, mut read) = (Instant::now(), 0);
    while start.elapsed() < time && !is_over() {
        read += poll(results);
    }
    (read, read as f64 / start.elapsed().as_secs_f64())
}

fn poll(results: &mut Reader) -> u64 {
    results.poll(SLOTS).map_or(0, |lease| lease.len() as u64)
}
