//! Measures the frame rate. One thread commits frames, the runtime submits them, and another thread reads the results.

use super::fixture::{Bench, Fixture, SLOTS, check, fill, total};
use crate::bench::BenchError;
use crate::bench::cores::joined;
use daq_core::frame::FrameMeta;
use daq_core::ring::{Producer, Reader};
use daq_pipelines::runtime::control::{Heartbeat, Role};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frame size in bytes.
pub(super) const RATE_FRAME_BYTES: usize = 256;
/// Maximum number of frames committed and submitted in one batch.
pub(super) const MAX_BATCH: usize = 256;

impl Bench<'_> {
    /// Measures frames per second with the given number of concurrent frames.
    pub(super) fn rate(&self, concurrent_frames: u32) -> Result<f64, BenchError> {
        let window = self.common.window.0;
        let Fixture {
            ends,
            output,
            runner,
            control,
        } = self.fixture(RATE_FRAME_BYTES, concurrent_frames)?;
        let (producer, mut results) = (ends.producer, ends.results);
        let stop = AtomicBool::new(false);
        let cores = &self.cores;
        let (rate, made) = std::thread::scope(|scope| {
            let source = scope.spawn(|| {
                cores.take(2);
                Ok(commit(producer, || {
                    stop.load(Ordering::Relaxed) || control.is_stopping()
                }))
            });
            let engine = scope.spawn(|| {
                cores.take(1);
                runner.run(&Heartbeat::new("touch".to_owned(), Role::Step));
                check(&control)
            });
            let taken = cores.first(|| {
                // The time until the rings are full is not counted.
                let (before, _) = take(&mut results, window / 4, || control.is_stopping());
                let (counted, rate) = take(&mut results, window, || control.is_stopping());
                stop.store(true, Ordering::Relaxed);
                let mut taken = before + counted;
                while !results.is_finished() {
                    taken += poll(&mut results);
                }
                Ok((rate, taken))
            });
            stop.store(true, Ordering::Relaxed);
            let made = joined(source);
            joined(engine)?;
            let ((rate, taken), made) = (taken?, made?);
            if taken == made {
                return Ok((rate, made));
            }
            Err(BenchError::Thread(format!(
                "only {taken} of {made} frames have a result; this is a defect in daq"
            )))
        })?;
        output.check(made)?;
        Ok(rate)
    }
}

/// Commits frames until `is_over` is true, then closes the ring. Returns the number of committed frames.
fn commit(mut producer: Producer, is_over: impl Fn() -> bool) -> u64 {
    let mut made = 0;
    while !is_over() {
        let mut slots = producer.reserve(MAX_BATCH / 4);
        while slots.remaining() > 0 {
            if let Some(bytes) = slots.bytes_mut() {
                // Only the first frame in each slot is filled completely. Later frames change only the first word,
                // because the other words sum to 0.
                if made < SLOTS as u64 {
                    fill(bytes, made);
                }
                bytes[..4].copy_from_slice(&total(made).to_le_bytes());
            }
            slots.finish(FrameMeta::whole(made, RATE_FRAME_BYTES));
            made += 1;
        }
        slots.publish();
    }
    made
}

/// Reads results for the time `time` or until `is_over` is true. Returns the number of results, and the number of
/// results per second.
fn take(results: &mut Reader, time: Duration, is_over: impl Fn() -> bool) -> (u64, f64) {
    let (start, mut taken) = (Instant::now(), 0);
    while start.elapsed() < time && !is_over() {
        taken += poll(results);
    }
    (taken, taken as f64 / start.elapsed().as_secs_f64())
}

fn poll(results: &mut Reader) -> u64 {
    results.poll(SLOTS).map_or(0, |lease| lease.len() as u64)
}
