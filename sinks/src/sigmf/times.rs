//! Decides which frames begin a capture because of their time, and lists the times that captures do not show.

use super::recording::{Moment, Recording, nanoseconds};

/// Maximum number of listed times in a segment's metadata.
pub(super) const MAX_TIMES: usize = 1 << 19;

/// Maximum number of bytes of one listed time in the metadata text: a number on its own line.
const TIME_BYTES: u64 = 36;

/// Maximum difference between a time and the predicted time that counts as equal, in nanoseconds. Both are rounded.
const ROUNDING_NS: u64 = 2;

/// Minimum step of a clock that is read on arrival, in nanoseconds. Delays in the network and in Linux are usually shorter.
const ARRIVAL_STEP_NS: u64 = 10_000_000;

/// The minimum step doubles after this many captures that begin at a step.
const STEPS_PER_DOUBLING: usize = 500;

/// A listed time of a frame without a time.
const UNKNOWN: i64 = i64::MIN;

/// How the time of a frame relates to its capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeClass {
    /// The time follows from the capture's start and the rate.
    Predicted,
    /// The time must be listed.
    Listed,
    /// The time begins another capture.
    Step,
}

/// The listed times of one capture: those of its last frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    /// Index of the first listed time in [`Times`].
    start: usize,
    count: usize,
}

/// Times of the frames of a segment, as differences to the start of their capture.
#[derive(Debug)]
pub(super) struct Times {
    offsets: Vec<i64>,
    /// Number of captures that begin at a step in time.
    steps: usize,
    max_steps: usize,
}

impl Times {
    /// Creates an empty list. At most `max_steps` captures begin only because of a step in time.
    pub(super) fn new(max_steps: usize) -> Self {
        Self {
            offsets: Vec::with_capacity(MAX_TIMES),
            steps: 0,
            max_steps,
        }
    }

    pub(super) fn clear(&mut self) {
        self.offsets.clear();
        self.steps = 0;
    }

    /// Returns whether there is no room for the time of another frame.
    pub(super) fn is_full(&self) -> bool {
        self.offsets.len() == MAX_TIMES
    }

    /// Returns the maximum number of bytes of the times in the metadata text after one more frame.
    pub(super) fn json_bytes(&self) -> u64 {
        (self.offsets.len() as u64 + 1) * TIME_BYTES
    }

    /// Returns how the time `next` of frame number `frames` of a capture continues the capture, which begins at `start`.
    pub(super) fn classify(
        &mut self,
        recording: &Recording,
        (start, frames, listed): (Option<Moment>, u64, Option<Listed>),
        next: Option<Moment>,
    ) -> TimeClass {
        let default = if listed.is_some() {
            TimeClass::Listed
        } else {
            TimeClass::Predicted
        };
        let (Some(start), Some(next)) = (start, next) else {
            // Without a rate, a capture that begins without a time cannot contain a frame with a time.
            let begins = start.is_none() && next.is_some() && recording.frame_ns().is_none();
            return if begins { TimeClass::Step } else { default };
        };
        if start.clock != next.clock {
            return TimeClass::Step;
        }
        let Some(frame_ns) = recording.frame_ns() else {
            return TimeClass::Listed;
        };
        let predicted = start.ns.saturating_add(nanoseconds(frames, Some(frame_ns)));
        let difference = next.ns.abs_diff(predicted);
        if difference > self.min_step(recording, frame_ns, next) && self.steps < self.max_steps {
            self.steps += 1;
            return TimeClass::Step;
        }
        if difference > ROUNDING_NS {
            TimeClass::Listed
        } else {
            default
        }
    }

    /// Returns the minimum difference to the predicted time that begins a capture, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is never negative, and the cast saturates"
    )]
    fn min_step(&self, recording: &Recording, frame_ns: f64, time: Moment) -> u64 {
        let sample_ns = (frame_ns / recording.frame_samples().max(1) as f64).ceil() as u64;
        let step = if time.clock.is_arrival() {
            ARRIVAL_STEP_NS.max(sample_ns)
        } else {
            sample_ns.max(ROUNDING_NS)
        };
        step.saturating_mul(1 << (self.steps / STEPS_PER_DOUBLING).min(63))
    }

    /// Lists the time `next` of the next frame of a capture that begins at `start`. Allocates nothing.
    pub(super) fn list(
        &mut self,
        listed: &mut Option<Listed>,
        start: Option<Moment>,
        next: Option<Moment>,
    ) {
        if self.is_full() {
            return;
        }
        let offset = start.zip(next).and_then(|(start, next)| {
            i64::try_from(i128::from(next.ns) - i128::from(start.ns)).ok()
        });
        let listed = listed.get_or_insert(Listed {
            start: self.offsets.len(),
            count: 0,
        });
        listed.count += 1;
        self.offsets.push(offset.unwrap_or(UNKNOWN));
    }

    /// Returns the listed times of a capture, as differences to its start.
    pub(super) fn of(&self, listed: Listed) -> Vec<Option<i64>> {
        self.offsets[listed.start..][..listed.count]
            .iter()
            .map(|offset| Some(*offset).filter(|offset| *offset != UNKNOWN))
            .collect()
    }
}
