//! Decides which frames belong to which output, for CPU and GPU alike.

use super::super::account::Account;
use super::super::blend::{Blend, Step};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{KernelError, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease};

/// Counters of one output. The CPU implementation and the CUDA implementation each implement this trait.
pub(super) trait Tallies {
    /// Adds the numbers in frame `i` of the burst to the counters.
    fn add(&mut self, i: usize, frame: &Frame<'_>) -> Result<(), KernelError>;

    /// Writes the counters as one output frame with the metadata `meta`, and resets the counters.
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

    /// Returns the maximum number of outputs that `frames` more frames can produce. Each frame completes at most one
    /// output: the output that contains the frame or, if the frame starts a new epoch, the output before it.
    pub(super) const fn outputs(frames: usize) -> usize {
        frames
    }

    /// Adds the frames of a burst to `tallies`.
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
