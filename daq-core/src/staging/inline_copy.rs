//! One copy between two rings by stores of the CPU alone, made by the thread that needs the frames.
//!
//! What it publishes may still be on its way to the GPU: that thread is the target's only reader, and fences before it
//! tells the GPU of a frame.

use super::target::{self, Target};
use crate::gpu::bar_mapping::BarMappingError;
use crate::ledger::CopyLedger;
use crate::ring::{Producer, Reader};

/// A ring in host memory, and one on a GPU that the CPU stores its frames to.
///
/// ```text
///   raw@host ──poll──▶ store ──publish──▶ raw                all in one step of whoever calls it
/// ```
/// No thread, stream or lock stands between the two: whoever steps sees the frames in the target at once. One that is
/// dropped closes the target.
#[derive(Debug)]
pub struct InlineCopy {
    reader: Reader,
    producer: Producer,
    target: Target,
    ledger: CopyLedger,
    /// Most frames of a step.
    burst: u64,
    /// Slots that are claimed at a time: a claim costs a fence, which single frames need not each pay.
    ahead: u64,
    /// Whether the memory was lost: nothing is published any more, for the slots before it were never filled.
    failed: bool,
}

impl InlineCopy {
    /// A copy from `reader`'s ring to `producer`'s of at most `burst` frames a step; `None` where the CPU cannot store
    /// to the target or cannot read the source, which both regions tell beforehand.
    ///
    /// `reader` must be guaranteed, or its ring's producer one that can be held back.
    ///
    /// # Panics
    /// If the rings' slots differ in size.
    pub fn new(
        reader: Reader,
        producer: Producer,
        ledger: CopyLedger,
        burst: usize,
    ) -> Option<Self> {
        let target = Target::of(&reader, &producer)?;
        Some(Self::with(reader, producer, ledger, burst, target))
    }

    pub(super) fn with(
        reader: Reader,
        producer: Producer,
        ledger: CopyLedger,
        burst: usize,
        target: Target,
    ) -> Self {
        let (from, to) = (reader.options(), producer.options());
        assert_eq!(from.stride(), to.stride(), "slots of one size are copied");
        let burst = burst.max(1) as u64;
        Self {
            burst,
            ahead: burst.min(to.slots as u64 / 4).max(1),
            reader,
            producer,
            target,
            ledger,
            failed: false,
        }
    }

    /// Copies and publishes what is ready and has a slot, and says how many frames that were; never waits.
    ///
    /// # Errors
    /// Why the memory cannot be used any more. The frames are counted as failed, and from then on nothing is copied.
    #[inline]
    pub fn step(&mut self) -> Result<usize, BarMappingError> {
        let pending = self.reader.pending().min(self.burst);
        if pending == 0 || self.failed {
            return Ok(0);
        }
        let open = self.producer.open();
        if open < pending {
            self.producer.claim(self.ahead.max(pending - open));
        }
        let room = self.producer.open().min(pending);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let Some(lease) = self.reader.poll(room) else {
            return Ok(0);
        };
        let frames = lease.len();
        match target::store(&self.target, lease, &mut self.producer, &self.ledger, false) {
            Ok(()) => Ok(frames),
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Whether a step would copy something.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.failed && self.reader.pending() > 0 && self.producer.room() > 0
    }

    /// Whether the source is gone and everything of it has been published.
    pub fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// Skips what waits, counting it as discarded, and says whether the source is at its end: after a failure, or where
    /// nobody reads the target any more.
    pub fn discard(&mut self) -> bool {
        self.reader.discard_pending();
        self.is_finished()
    }

    /// A word in the log if the GPU hangs on another node than the calling thread's core; for the thread that will call
    /// [`step`](Self::step), `remedy` says how its core is chosen.
    pub fn warn_if_remote_numa(&self, remedy: &str) {
        self.target.warn_if_remote_numa(remedy);
    }

    /// The source ring's name.
    pub fn from(&self) -> &str {
        &self.reader.options().name
    }

    /// The target ring's name.
    pub fn to(&self) -> &str {
        &self.producer.options().name
    }
}
