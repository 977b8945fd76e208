//! A copy between two rings by CPU stores, done by the thread that needs the frames.
//!
//! Stores of a published frame may not have arrived in GPU memory yet. Therefore this thread must be the target's only
//! reader, and it must execute a fence before it notifies the GPU of a frame.

use super::target::{self, Target};
use crate::gpu::bar_mapping::BarMappingError;
use crate::ledger::CopyLedger;
use crate::ring::{Producer, Reader};

/// Copies a ring in host memory to a ring on a GPU by CPU stores.
///
/// ```text
///   raw@host ──poll──▶ store ──publish──▶ raw                all in one step of the calling thread
/// ```
/// The copy uses no thread, stream or lock. The frames are published in the target before the step returns. Dropping
/// the copy closes the target.
#[derive(Debug)]
pub struct InlineCopy {
    reader: Reader,
    producer: Producer,
    target: Target,
    ledger: CopyLedger,
    /// Maximum number of frames per step.
    burst: u64,
    /// Number of slots claimed at a time. Claiming several slots together avoids the fence of a claim for each frame.
    ahead: u64,
    /// Whether the memory was lost. Then no more frames are published, because earlier slots were never filled.
    failed: bool,
}

impl InlineCopy {
    /// Creates a copy from the ring of `reader` to the ring of `producer`, with at most `burst` frames per step.
    /// Returns `None` if the CPU cannot write the target or cannot read the source.
    ///
    /// `reader` must be guaranteed, or the producer of its ring must support backpressure.
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
        assert_eq!(
            from.stride(),
            to.stride(),
            "both rings must have slots of the same size"
        );
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

    /// Copies and publishes the frames that are ready, as far as the target has free slots. Returns their number. Never
    /// waits.
    ///
    /// # Errors
    /// If the memory can no longer be used. The frames are counted as failed, and no more frames are copied.
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

    /// Whether a step would copy at least one frame.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.failed && self.reader.pending() > 0 && self.producer.room() > 0
    }

    /// Whether the source is closed and all its frames have been published.
    pub fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// Discards pending frames and counts them as discarded; returns whether the source has ended. Call this after a
    /// failure, or if the target has no reader any more.
    pub fn discard(&mut self) -> bool {
        self.reader.discard_pending();
        self.is_finished()
    }

    /// Logs a warning if the GPU is on another NUMA node than the calling thread's core. Call it on the thread that
    /// calls [`step`](Self::step); `remedy` names the setting for its core.
    pub fn warn_if_remote_numa(&self, remedy: &str) {
        self.target.warn_if_remote_numa(remedy);
    }

    /// Returns the source ring's name.
    pub fn from(&self) -> &str {
        &self.reader.options().name
    }

    /// Returns the target ring's name.
    pub fn to(&self) -> &str {
        &self.producer.options().name
    }
}
