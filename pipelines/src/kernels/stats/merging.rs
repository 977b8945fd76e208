//! Decides which frames go into which output, on CPU and GPU.

use super::super::account::Account;
use super::super::blend::{Blend, Step};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{KernelError, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease};

/// Counters, implemented by the CPU and the CUDA side.
pub(super) trait Tallies {
    /// Counts the numbers of frame `i` of the burst.
    fn add(&mut self, i: usize, frame: &Frame<'_>) -> Result<(), KernelError>;

    /// Writes the counts as one frame with this metadata, and resets them.
    fn finish(&mut self, meta: FrameMeta) -> Result<(), KernelError>;
}

/// State of the current output.
pub(super) struct Merging {
    input_bytes: usize,
    every: u64,
    /// Number of frames merged since the last output.
    merged: u64,
    account: Account,
    blend: Blend,
}

impl Merging {
    pub(super) fn new(input: &Layout, every: u64) -> Self {
        Self {
            input_bytes: input.frame_bytes(),
            every,
            merged: 0,
            account: Account::default(),
            blend: Blend::default(),
        }
    }

    /// Maximum number of outputs that `frames` more frames can produce: each frame ends at most its own output, or at a
    /// new epoch the previous one.
    pub(super) const fn outputs(frames: usize) -> usize {
        frames
    }

    /// Adds a burst to `tallies`.
    pub(super) fn run(
        &mut self,
        burst: &Lease<'_>,
        tallies: &mut impl Tallies,
    ) -> Result<Submitted, KernelError> {
        for (i, frame) in burst.iter().enumerate() {
            let meta = frame.meta();
            let step = self.blend.step(meta);
            if step == Step::Epoch {
                if !self.blend.is_empty() {
                    self.finish(tallies)?;
                }
                self.blend.open_epoch();
            } else if step == Step::Gap {
                self.blend.mark_incomplete();
            }
            if meta.length < self.input_bytes {
                self.account.fail();
                self.blend.mark_incomplete();
                continue;
            }
            self.blend.add(meta, meta.sequence / self.every, 0);
            tallies.add(i, &frame)?;
            self.merged += 1;
            if self.merged == self.every {
                self.finish(tallies)?;
                self.account.take();
            } else {
                self.account.hold();
            }
        }
        Ok(self.account.submit())
    }

    fn finish(&mut self, tallies: &mut impl Tallies) -> Result<(), KernelError> {
        tallies.finish(self.blend.finish())?;
        self.merged = 0;
        self.account.release_accumulated();
        Ok(())
    }
}
