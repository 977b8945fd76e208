//! Decides which spectra belong to which output, for CPU and GPU alike.

use super::super::account::Account;
use super::super::blend::{Blend, Step};
use super::{Gap, Partial, PowerSpectrum, Shape};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{KernelError, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease};

/// Sums of spectra. The CPU implementation and the CUDA implementation each implement this trait.
pub(super) trait Sums {
    /// Adds `count` spectra of every channel of frame `i` of the burst, starting with spectrum number `first`.
    fn add(
        &mut self,
        i: usize,
        frame: &Frame<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError>;

    /// Writes the average as an output frame with the metadata `meta`, and resets the sums.
    fn finish(&mut self, meta: FrameMeta) -> Result<(), KernelError>;

    /// Resets the sums.
    fn clear(&mut self) -> Result<(), KernelError>;
}

/// State of the current integration.
pub(super) struct Integration {
    shape: Shape,
    input_bytes: usize,
    /// Number of points per second and channel.
    rate: Option<f64>,
    skip: bool,
    restart: bool,
    /// Number of spectra that the sums contain.
    summed: u64,
    account: Account,
    blend: Blend,
}

impl Integration {
    pub(super) fn new(keys: &PowerSpectrum, input: &Layout, shape: Shape) -> Self {
        Self {
            shape,
            input_bytes: input.frame_bytes(),
            rate: input.sample_rate().filter(|rate| *rate > 0.0),
            skip: keys.partial == Partial::Skip,
            restart: keys.gap == Gap::Restart,
            summed: 0,
            account: Account::default(),
            blend: Blend::default(),
        }
    }

    /// Returns the maximum number of outputs that `frames` more frames can produce.
    pub(super) fn outputs(&self, frames: usize) -> usize {
        let spectra = self.shape.spectra as u128 * frames as u128 + u128::from(self.summed);
        usize::try_from(spectra / u128::from(self.shape.integrate)).unwrap_or(usize::MAX)
    }

    /// Adds the spectra of a burst to `sums`.
    pub(super) fn run(
        &mut self,
        burst: &Lease<'_>,
        sums: &mut impl Sums,
    ) -> Result<Submitted, KernelError> {
        for (i, frame) in burst.iter().enumerate() {
            let meta = frame.meta();
            self.meet(meta, sums)?;
            if meta.length < self.input_bytes || (self.skip && meta.is_incomplete()) {
                self.account.fail();
                self.blend.mark_incomplete();
            } else {
                self.integrate(i, &frame, sums)?;
            }
        }
        Ok(self.account.submit())
    }

    /// Restarts the integration if the frame with the metadata `meta` does not continue the integration.
    fn meet(&mut self, meta: &FrameMeta, sums: &mut impl Sums) -> Result<(), KernelError> {
        let step = self.blend.step(meta);
        let restart = match step {
            Step::Next => false,
            Step::Gap => self.restart,
            Step::Epoch => true,
        };
        if restart {
            self.account.drop_accumulated();
            self.blend.clear();
            sums.clear()?;
            self.summed = 0;
        } else if step == Step::Gap {
            self.blend.mark_incomplete();
        }
        if step == Step::Epoch {
            self.blend.open_epoch();
        }
        Ok(())
    }

    fn integrate(
        &mut self,
        i: usize,
        frame: &Frame<'_>,
        sums: &mut impl Sums,
    ) -> Result<(), KernelError> {
        let Shape {
            spectra, integrate, ..
        } = self.shape;
        let meta = frame.meta();
        let mut next = 0;
        while next < spectra {
            let room = usize::try_from(integrate - self.summed).unwrap_or(usize::MAX);
            let count = room.min(spectra - next);
            self.blend
                .add(meta, self.number(meta, next), self.delay_ns(next));
            sums.add(i, frame, next, count)?;
            self.summed += count as u64;
            next += count;
            if self.summed == integrate {
                sums.finish(self.blend.finish())?;
                self.summed = 0;
                self.account.release_accumulated();
            }
        }
        if self.summed == 0 {
            self.account.take();
        } else {
            self.account.hold();
        }
        Ok(())
    }

    /// Returns the number of the output whose first spectrum is spectrum `i` of the frame.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "frame numbers wrap at 64 bits"
    )]
    fn number(&self, meta: &FrameMeta, i: usize) -> u64 {
        let first = u128::from(meta.sequence) * self.shape.spectra as u128 + i as u128;
        (first / u128::from(self.shape.integrate)) as u64
    }

    /// Returns the time from the first sample of a frame to the first sample of its spectrum `i`, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and the time is never negative"
    )]
    fn delay_ns(&self, i: usize) -> u64 {
        self.rate.map_or(0, |rate| {
            ((i * self.shape.hop) as f64 / rate * 1e9).round() as u64
        })
    }
}
