//! How many frames a kernel gets in one call.

use std::time::Duration;

/// Maximum duration of a call of a kernel on the CPU that has several frames.
const MAX_CALL: Duration = Duration::from_millis(250);

/// Limits the number of frames per call of a kernel on the CPU, from the durations of earlier calls.
///
/// A kernel on the CPU publishes its outputs when a call returns, and the thread gives no heartbeat before. So a slow kernel gets
/// one frame at a time, and a fast kernel whole bursts.
#[derive(Debug)]
pub(super) struct Pace {
    /// Maximum number of frames of the next call, before `per_frame` is considered.
    max: usize,
    /// Estimated duration of the work for one frame.
    per_frame: Duration,
}

impl Default for Pace {
    /// Returns the limits of a kernel that was never called: one frame.
    fn default() -> Self {
        Self {
            max: 1,
            per_frame: Duration::ZERO,
        }
    }
}

impl Pace {
    /// Returns the maximum number of frames of the next call, at least 1.
    pub(super) fn limit(&self) -> usize {
        let fits = MAX_CALL
            .as_nanos()
            .checked_div(self.per_frame.as_nanos())
            .map_or(usize::MAX, |frames| {
                usize::try_from(frames).unwrap_or(usize::MAX)
            });
        self.max.min(fits).max(1)
    }

    /// Records a call with `frames` frames. The limit at most doubles with each call, because the frames of one call can be
    /// faster than those of the next call, which may end an integration.
    pub(super) fn record(&mut self, frames: usize, took: Duration) {
        let frames = u32::try_from(frames.max(1)).unwrap_or(u32::MAX);
        let latest = took / frames;
        self.per_frame = if latest > self.per_frame {
            latest
        } else {
            // Slow frames are rare where they end integrations, so their time is forgotten slowly.
            let faster = self.per_frame.saturating_sub(latest);
            self.per_frame.saturating_sub(faster / 8)
        };
        self.max = self.limit().saturating_mul(2);
    }
}

/// Returns the largest number of frames up to `max` that produce at most `room` outputs. `outputs` returns the number of outputs
/// for a number of frames, and must not decrease.
pub(super) fn fitting(max: usize, room: usize, outputs: impl Fn(usize) -> usize) -> usize {
    if outputs(max) <= room {
        return max;
    }
    let (mut fits, mut exceeds) = (0, max);
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        if outputs(middle) <= room {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the numbers of frames of successive calls, if frames take the durations that `per_frame` returns.
    fn calls(count: usize, burst: usize, per_frame: impl Fn(usize) -> Duration) -> Vec<usize> {
        let mut pace = Pace::default();
        let mut calls = Vec::new();
        for i in 0..count {
            let frames = pace.limit().min(burst);
            pace.record(frames, per_frame(i) * u32::try_from(frames).unwrap());
            calls.push(frames);
        }
        calls
    }

    #[test]
    fn slow_kernels_get_one_frame_per_call() {
        assert_eq!(calls(4, 16, |_| ms(1200)), [1, 1, 1, 1]);
        assert_eq!(calls(4, 16, |_| ms(126)), [1, 1, 1, 1]);
    }

    #[test]
    fn fast_kernels_get_whole_bursts_soon() {
        assert_eq!(
            calls(7, 16, |_| Duration::from_micros(10)),
            [1, 2, 4, 8, 16, 16, 16]
        );
        assert_eq!(calls(5, 16, |_| Duration::ZERO), [1, 2, 4, 8, 16]);
    }

    #[test]
    fn calls_take_a_quarter_of_a_second_at_most() {
        assert_eq!(calls(6, 4096, |_| ms(30)), [1, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn one_slow_call_reduces_the_next_calls() {
        let slow_once = |i| if i == 6 { ms(500) } else { ms(1) };
        let calls = calls(60, 64, slow_once);
        assert_eq!(calls[6..9], [64, 1, 1]);
        assert_eq!(calls[59], 64);
    }

    #[test]
    fn frames_fit_the_free_slots() {
        for each in 1..5 {
            for (max, room) in [(0, 0), (1, 0), (16, 3), (16, 16), (4096, 100), (7, 1000)] {
                let outputs = |frames: usize| frames.div_ceil(each);
                let want = (0..=max).rev().find(|frames| outputs(*frames) <= room);
                assert_eq!(fitting(max, room, outputs), want.unwrap(), "{max} {room}");
            }
        }
        assert_eq!(fitting(16, 5, |frames| frames * 6), 0);
    }
}
