//! The copy of several rings, the shares of a spread ring, to one ring.

mod fill;
mod input;
mod order;
#[cfg(test)]
mod tests;

pub use fill::MissingFill;
pub use input::Share;

use super::StagingError;
use super::busy::Busy;
use super::copy_engine::{CopyThread, ENOUGH_IN_FLIGHT, Step, Tuning};
use super::ring_copy::Overflow;
use super::selection::without_packets;
use super::tile::{Matrix, Tile};
use crate::frame::{Flags, FrameMeta};
use crate::leak::leak;
use crate::ledger::CopyLedger;
use crate::notify::{Notifier, Wait};
use crate::ring::{Completion, Producer, Slice};
use input::Input;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the thread polls copies in flight.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// How frames of the shares become frames of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joins {
    /// Each share has whole frames. The target gets the frames of all shares in the order of their numbers.
    Frames,
    /// Each share has a rectangle of each frame. The target gets frames that consist of these rectangles.
    Tiles {
        /// The rows and columns of the whole frame.
        matrix: Matrix,
        /// The rectangle of the whole frame that the target's frames contain.
        target: Tile,
    },
}

/// Joins the frames of several rings in one ring.
///
/// A frame of which a rectangle is missing is published with the ring's fill pattern in place of the missing bytes, and with
/// the flag [`Flags::INCOMPLETE`]. A share is missing if its ring has been closed, or has frames with higher numbers only.
///
/// With [`Overflow::Discard`], a share is also missing while another share has filled half of its ring; its frames are
/// discarded when they arrive later. If copies of a share fail, its frames are discarded from then on, and the other shares
/// continue. Otherwise a failed copy ends the gather.
pub struct Gather {
    inputs: Vec<Input>,
    producer: Producer,
    ledger: CopyLedger,
    joins: Joins,
    overflow: Overflow,
    fill: MissingFill,
    depth: usize,
    /// Maximum number of frames in a batch.
    burst: usize,
    /// Batches in flight, oldest first.
    batches: VecDeque<Batch>,
    /// Number of batches that have ended.
    ended: u64,
    /// Number of the last frame that was started.
    last: Option<(u32, u64)>,
    notifier: Arc<Notifier>,
    busy: Busy,
    /// Whether a copy has failed whose batch is still in flight. No batch starts until all have ended.
    is_failing: bool,
}

/// Frames that are copied together.
#[derive(Debug)]
struct Batch {
    frames: u64,
    bytes: u64,
    /// Number of copies in flight.
    copies: usize,
    has_failed: bool,
    /// Completion of the fill of missing bytes.
    filled: Completion,
}

impl Gather {
    /// Creates a gather thread. All rings of `shares` and the ring of `producer` must notify `notifier`.
    ///
    /// # Panics
    /// If a share has no bytes in common with the target.
    pub fn new(
        shares: Vec<Share>,
        producer: Producer,
        ledger: CopyLedger,
        joins: Joins,
        (overflow, fill): (Overflow, MissingFill),
        tuning: &Tuning,
        notifier: Arc<Notifier>,
    ) -> Self {
        let target = match &joins {
            Joins::Frames => None,
            Joins::Tiles { target, .. } => Some(target),
        };
        let options = producer.options();
        // Each share contributes a copy of about one chunk.
        let chunks = tuning.chunk.saturating_mul(shares.len());
        let burst = (chunks / options.stride()).clamp(1, (options.slots / 4).max(1));
        let shares = shares.into_iter();
        let inputs: Vec<_> = shares.map(|share| share.into_input(target)).collect();
        let fits = |input: &Input| input.overlap.is_some() == target.is_some();
        assert!(
            inputs.iter().all(fits),
            "each share must have bytes in common with the target"
        );
        Self {
            inputs,
            producer,
            ledger,
            joins,
            overflow,
            fill,
            depth: tuning.depth.max(1),
            burst,
            batches: VecDeque::with_capacity(tuning.depth.max(1)),
            ended: 0,
            last: None,
            notifier,
            busy: Busy::default(),
            is_failing: false,
        }
    }

    /// Returns the target ring's name.
    pub fn to(&self) -> &str {
        &self.producer.options().name
    }

    /// Ends copies that are done, and publishes complete batches in order. Returns the number of batches that ended.
    fn reap(&mut self) -> Result<usize, StagingError> {
        let mut failure = None;
        for input in &mut self.inputs {
            let (batches, ended) = (&mut self.batches, self.ended);
            let (_, error) = input.work.reap(&mut input.reader, |batch, failed| {
                if let Some(batch) = batch.and_then(|batch| in_flight(batches, ended, batch)) {
                    batch.copies -= 1;
                    batch.has_failed |= failed;
                }
            });
            if let Some(error) = error {
                failure = Some(lose(input, self.overflow, error.into()));
                self.is_failing = true;
            }
        }
        let mut ended = 0;
        while let Some(batch) = self.batches.front()
            && batch.copies == 0
            && batch.filled.is_done()
            && !batch.has_failed
            && batch.filled.failure().is_none()
            && let Some(batch) = self.batches.pop_front()
        {
            self.producer.publish(batch.frames);
            self.ledger.frames.add(batch.frames);
            self.ledger.count_copy(batch.bytes);
            ended += 1;
        }
        ended += self.withdraw();
        self.ended += ended as u64;
        if ended > 0 {
            self.busy.ended(&self.ledger, self.batches.len());
        }
        match failure.flatten() {
            Some(error) => Err(error),
            None => Ok(ended),
        }
    }

    /// Withdraws all batches after a failure, when nothing is in flight any more. Their slots are used again. Returns the
    /// number of batches.
    fn withdraw(&mut self) -> usize {
        let is_over = |batch: &Batch| batch.copies == 0 && batch.filled.is_done();
        let has_failed = |batch: &Batch| batch.has_failed || batch.filled.failure().is_some();
        if !self.batches.iter().all(is_over) {
            return 0;
        }
        let withdrawn = self.batches.len();
        if withdrawn == 0 || !self.batches.iter().any(has_failed) {
            self.is_failing &= withdrawn > 0;
            return 0;
        }
        for batch in self.batches.drain(..) {
            self.producer.withdraw(batch.frames);
            self.ledger.failed.add(batch.frames);
        }
        self.is_failing = false;
        withdrawn
    }

    /// Whether a batch can be started.
    fn has_room(&self) -> bool {
        self.batches.len() < self.depth
            && !self.is_failing
            && self.fill.has_room()
            && self.inputs.iter().all(|input| input.method.has_room())
    }

    /// Returns the minimum number of frames of the next batch.
    fn min_frames(&self) -> usize {
        if self.batches.len() < ENOUGH_IN_FLIGHT {
            1
        } else {
            self.burst
        }
    }

    /// Starts the next batch; returns false if too few frames are ready or the target has no free slot.
    fn begin(&mut self) -> Result<bool, StagingError> {
        if !self.has_room() {
            return Ok(false);
        }
        let room = self.producer.reserve(self.burst).remaining();
        let Some((frames, last)) = (room > 0).then(|| self.choose(room)).flatten() else {
            return Ok(false);
        };
        if frames < self.min_frames() {
            return Ok(false);
        }
        self.last = Some(last);
        let slots = self.producer.reserve(frames).slice();
        let mut batch = Batch {
            frames: frames as u64,
            bytes: 0,
            copies: 0,
            has_failed: false,
            filled: Completion::Immediate,
        };
        self.ledger.started.add(batch.frames);
        self.describe(frames);
        let filled = self.fill_missing(slots, frames);
        let number = self.ended + self.batches.len() as u64;
        let mut failure = None;
        match filled {
            Ok(done) => batch.filled = done,
            Err(error) => (batch.has_failed, failure) = (true, Some(error)),
        }
        for input in self.inputs.iter_mut().filter(|input| input.take.count > 0) {
            // SAFETY: the slots stay reserved until the batch is published or withdrawn, which requires the end of the
            // copy. Both rings live as long as this value, which waits for its copies or leaks the memory of the rings.
            let started = unsafe { input.start(slots, number) };
            batch.bytes += started.bytes;
            batch.copies += usize::from(started.in_flight);
            if let Some(error) = started.error {
                batch.has_failed = true;
                failure = failure.or(lose(input, self.overflow, error));
            }
        }
        self.is_failing |= batch.has_failed;
        self.producer.submit(batch.frames);
        self.batches.push_back(batch);
        self.busy.started(&self.ledger, self.batches.len());
        failure.map_or(Ok(true), Err)
    }

    /// Writes the metadata of the frames of the next batch.
    fn describe(&mut self, frames: usize) {
        let first = self.producer.submitted();
        for i in 0..frames {
            let meta = match &self.joins {
                Joins::Tiles { matrix, target } => {
                    let meta = self.joined(i, frames, *matrix, target);
                    self.producer
                        .describe(first + i as u64, &meta, std::iter::empty());
                    continue;
                }
                Joins::Frames => self.inputs.iter().find_map(|input| {
                    let after = input.take.index_of(i)?;
                    Some((input.reader.meta(after)?, input, after))
                }),
            };
            if let Some((meta, input, after)) = meta {
                let present = input.reader.present_words(after);
                self.producer.describe(first + i as u64, &meta, present);
            }
        }
    }

    /// Returns the metadata of frame `i` of the next batch, which consists of rectangles.
    fn joined(&self, i: usize, frames: usize, matrix: Matrix, target: &Tile) -> FrameMeta {
        let (mut joined, mut bytes) = (None::<FrameMeta>, 0);
        let mut is_whole = true;
        let mut shortest = usize::MAX;
        for input in &self.inputs {
            let meta = input.reader.meta(i as u64);
            let Some(meta) = meta.filter(|_| input.take.count == frames) else {
                is_whole = false;
                continue;
            };
            bytes += meta.length;
            if meta.length < input.bytes {
                shortest = shortest.min(meta.length);
            }
            let flags = joined.map_or(meta.flags, |joined| joined.flags.with(meta.flags));
            joined = Some(FrameMeta {
                flags,
                ..joined.unwrap_or(meta)
            });
        }
        let meta = joined.unwrap_or_default();
        if is_whole {
            // The shares are the whole frame, of which the first `bytes` bytes are valid.
            return without_packets(meta, matrix.length_in(target, bytes));
        }
        let flags = meta.flags.with(Flags::INCOMPLETE);
        // Bytes after the end of a short share are stale. A byte is at least as far from the start of the frame as from the
        // start of its share.
        let length = shortest.min(target.bytes());
        without_packets(FrameMeta { flags, ..meta }, length)
    }

    /// Fills the bytes of the shares that the next batch lacks.
    fn fill_missing(&self, slots: Slice, frames: usize) -> Result<Completion, StagingError> {
        let first = self.producer.submitted();
        let missing = self.inputs.iter().filter(|input| input.take.count == 0);
        let mut missing = missing
            .filter_map(|input| input.overlap.as_ref())
            .peekable();
        if missing.peek().is_none() {
            return Ok(Completion::Immediate);
        }
        for overlap in missing {
            // SAFETY: the slots stay reserved until the batch is published or withdrawn, which requires the end of these
            // fills and of all fills before them on the same stream.
            unsafe {
                self.fill
                    .fill(&self.producer, overlap, (slots, first), frames)
            }?;
        }
        self.fill.record_event()
    }

    fn is_finished(&self) -> bool {
        self.batches.is_empty() && self.inputs.iter().all(Input::is_finished)
    }

    /// Whether a step may have work to do.
    fn is_ready(&self) -> bool {
        let is_done = |input: &Input| input.reader.is_oldest_done();
        let is_filled =
            |batch: &Batch| batch.copies == 0 && !batch.has_failed && batch.filled.is_done();
        let min = self.min_frames() as u64;
        // A share of whole frames has only a part of the frames of a batch.
        let min_each = match self.joins {
            Joins::Frames => 1,
            Joins::Tiles { .. } => min,
        };
        let has_frames = |input: &Input| input.reader.pending() >= min_each || input.is_over(0);
        let is_pending = |input: &Input| input.reader.pending() > 0;
        self.inputs.iter().any(is_done)
            || self.batches.front().is_some_and(is_filled)
            || self.has_room()
                && self.producer.room() >= min
                && self.inputs.iter().any(is_pending)
                && self.inputs.iter().all(has_frames)
    }
}

/// Returns the batch number `batch` if it is in flight.
fn in_flight(batches: &mut VecDeque<Batch>, ended: u64, batch: u64) -> Option<&mut Batch> {
    let index = usize::try_from(batch.checked_sub(ended)?).ok()?;
    batches.get_mut(index)
}

/// Handles a failure of the copies of a share: logs it and discards the share's frames from now on, or returns the error if
/// it ends the gather.
fn lose(input: &mut Input, overflow: Overflow, error: StagingError) -> Option<StagingError> {
    let was_lost = std::mem::replace(&mut input.is_lost, true);
    if overflow == Overflow::Wait {
        return Some(error);
    }
    if !was_lost {
        tracing::error!(
            "ring {}: cannot copy its frames: {error}; they are discarded and counted, and the other shares continue",
            input.reader.options().name
        );
    }
    None
}

impl CopyThread for Gather {
    fn step(&mut self) -> Result<Step, StagingError> {
        let mut moved = self.reap()? > 0;
        if self.is_finished() {
            return Ok(Step::Finished);
        }
        while self.begin()? {
            moved = true;
        }
        if moved {
            // Copies by the CPU have already ended.
            self.reap()?;
        }
        Ok(if moved { Step::Busy } else { Step::Idle })
    }

    fn wait(&self, policy: Wait, limit: Duration) {
        let ready = || self.is_ready();
        if self.batches.is_empty() {
            // Frames that are ready while a share waits may become late.
            let limit = limit.min(Duration::from_millis(5));
            self.notifier.wait(policy, limit, ready);
        } else {
            self.notifier
                .wait_polling(policy, POLL_INTERVAL, limit, ready);
        }
    }

    fn has_in_flight(&self) -> bool {
        !self.batches.is_empty() || self.inputs.iter().any(|input| !input.work.is_empty())
    }

    fn discard(&mut self) -> bool {
        // The failure has already been reported.
        let _ = self.reap();
        for input in &mut self.inputs {
            let pending = input.reader.pending();
            input.discard(pending);
        }
        self.is_finished()
    }

    fn close(&mut self) {
        self.producer.close();
    }

    fn leak(mut self: Box<Self>) {
        for input in &mut self.inputs {
            input.method.leak();
            input.reader.leak();
        }
        self.producer.leak();
        leak(self);
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        self.fill.settle();
        let mut has_leaked = false;
        for input in &mut self.inputs {
            has_leaked |= !input.reader.detach();
        }
        if has_leaked {
            self.producer.leak();
        }
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("inputs", &self.inputs)
            .field("to", &self.to())
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}
