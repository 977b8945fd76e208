//! Frames a second: one thread commits them, the engine takes them on, another thread takes their results.

use super::fixture::{Bench, Fixture, SLOTS, check, fill, total};
use crate::bench::BenchError;
use crate::bench::cores::joined;
use daq_core::frame::FrameMeta;
use daq_core::ring::{Producer, Reader};
use daq_pipelines::runtime::control::{Heartbeat, Role};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the frames whose rate is measured.
pub(super) const RATED: usize = 256;
/// Most frames that are committed and taken on at a time.
pub(super) const BURST: usize = 256;

impl Bench {
    /// Frames a second with so many teams.
    pub(super) fn rate(&self, teams: u32, window: Duration) -> Result<f64, BenchError> {
        let Fixture {
            producer,
            mut results,
            output,
            runner,
            control,
        } = self.fixture(RATED, teams)?;
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
                // Not counted: until the rings are full.
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
                "of {made} frames {taken} have a result; this is a defect of daq"
            )))
        })?;
        output.check(made)?;
        Ok(rate)
    }
}

/// Commits frames until `is_over`; how many. Then the source is at its end.
fn commit(mut producer: Producer, is_over: impl Fn() -> bool) -> u64 {
    let mut made = 0;
    while !is_over() {
        let mut slots = producer.reserve(BURST / 4);
        while slots.remaining() > 0 {
            if let Some(bytes) = slots.bytes_mut() {
                // What a slot has behind the first word adds up to 0 from its first frame on.
                if made < SLOTS as u64 {
                    fill(bytes, made);
                }
                bytes[..4].copy_from_slice(&total(made).to_le_bytes());
            }
            slots.finish(FrameMeta::whole(made, RATED));
            made += 1;
        }
        slots.publish();
    }
    made
}

/// Takes results for as long, unless `is_over`: how many, and how many a second.
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
