//! Publishes frames without generating data.

use super::{BURST, STOP_POLL_INTERVAL, Traffic};
use daq_core::frame::FrameMeta;
use daq_core::notify::Wait;
use daq_core::ring::Producer;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The number of frames after which several publishers end.
#[derive(Debug)]
pub(super) struct CommonEnd {
    frames: AtomicU64,
    publishers: Barrier,
}

impl CommonEnd {
    pub(super) fn new(publishers: usize) -> Self {
        Self {
            frames: AtomicU64::new(0),
            publishers: Barrier::new(publishers),
        }
    }

    /// Waits until all publishers have called this function, and returns the largest of their numbers of frames.
    fn agree(&self, frames: u64) -> u64 {
        self.frames.fetch_max(frames, Ordering::Relaxed);
        self.publishers.wait();
        self.frames.load(Ordering::Relaxed)
    }
}

/// Publishes frames until `stop`, then as many as the other publishers of `end`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number of due frames is small and positive"
)]
pub(super) fn publish(
    mut producer: Producer,
    traffic: Traffic,
    stop: &AtomicBool,
    end: &CommonEnd,
) {
    let burst = BURST.min(producer.options().slots / 8).max(1);
    let (start, mut sequence) = (Instant::now(), 0);
    while !stop.load(Ordering::Acquire) {
        let wanted = match traffic.rate {
            None => burst,
            Some(rate) => {
                let due = (start.elapsed().as_secs_f64() * rate / traffic.frame as f64) as u64;
                usize::try_from(due.saturating_sub(sequence))
                    .unwrap_or(usize::MAX)
                    .min(burst)
            }
        };
        if wanted == 0 {
            std::hint::spin_loop();
            continue;
        }
        let got = put(&mut producer, wanted, sequence, traffic.frame);
        sequence += got as u64;
        if got == 0 && traffic.rate.is_none() {
            producer.wait(Wait::Adaptive, STOP_POLL_INTERVAL);
        } else if got < wanted && traffic.rate.is_some() {
            let refused = (wanted - got) as u64;
            producer.refuse(refused);
            sequence += refused;
        }
    }
    let end = end.agree(sequence);
    while sequence < end {
        let wanted = usize::try_from(end - sequence).unwrap_or(usize::MAX);
        let got = put(&mut producer, wanted, sequence, traffic.frame);
        sequence += got as u64;
        if got == 0 {
            producer.wait(Wait::Adaptive, STOP_POLL_INTERVAL);
        }
    }
}

/// Publishes up to `wanted` frames, limited by the free slots. Returns their number.
fn put(producer: &mut Producer, wanted: usize, first: u64, frame: usize) -> usize {
    let mut slots = producer.reserve(wanted);
    let got = slots.remaining();
    for sequence in (first..).take(got) {
        slots.finish(FrameMeta::whole(sequence, frame));
    }
    slots.publish();
    got
}
