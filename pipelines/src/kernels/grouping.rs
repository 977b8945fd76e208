//! Decides which items of which frames belong to which output, for CPU and GPU alike.

mod series;

use super::account::Account;
use super::blend::{Blend, Step};
use super::{emit, whole};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ring::{Frame, Lease, SlotsMut};
use series::Series;

pub(super) use series::{Joined, max_items};

/// What happens to an output in progress at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtBoundary {
    /// The output continues and is flagged as incomplete.
    Continue,
    /// The output ends early.
    Finish,
    /// The output is discarded. Its frames count as failed.
    Restart,
}

/// How frames are grouped. An item is the smallest part of a frame that is added to an output: a spectrum or the whole
/// frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// Size of a whole frame; shorter frames fail.
    pub(super) input_bytes: usize,
    /// Number of items per frame, at least 1. Not used if items are joined.
    pub(super) items: usize,
    /// If set, items continue across the ends of frames.
    pub(super) joined: Option<Joined>,
    /// Number of items per output, at least 1.
    pub(super) each: u64,
    /// Number of points between the starts of successive items.
    pub(super) hop: usize,
    /// Number of points per second.
    pub(super) rate: Option<f64>,
    /// Whether frames with missing packets fail.
    pub(super) skip_incomplete: bool,
    pub(super) at_gap: AtBoundary,
    pub(super) at_epoch: AtBoundary,
}

impl Groups {
    /// Returns the duration of a number of points in nanoseconds; 0 if the rate is not known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and the time is never negative"
    )]
    fn delay_ns(&self, points: u64) -> u64 {
        self.rate
            .map_or(0, |rate| (points as f64 / rate * 1e9).round() as u64)
    }
}

/// Returns the maximum number of outputs of a frame with up to `items` items, if an output has `each` items. The output in progress
/// can lack one item.
pub(super) fn max_outputs(items: u128, each: u64) -> usize {
    usize::try_from(items.div_ceil(u128::from(each.max(1)))).unwrap_or(usize::MAX)
}

/// What a kernel computes from the items. The CPU and the CUDA implementation each implement this trait.
pub(super) trait Outputs {
    /// Appends frame `i` of the burst to the series of points, before the items that end in this frame are added. The last
    /// `tail` points before the frame are part of the next item. Called only if items are joined; `add` then counts the
    /// items from the first of these points.
    fn join(&mut self, _i: usize, _frame: &Frame<'_>, _tail: usize) -> Result<(), KernelError> {
        Ok(())
    }

    /// Adds `count` items of frame `i` of the burst to the output, starting with item number `first`.
    fn add(
        &mut self,
        i: usize,
        frame: &Frame<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError>;

    /// Writes the output with the metadata `meta` and starts the next one. If `early` is true, the output has fewer
    /// items than configured.
    fn finish(&mut self, meta: FrameMeta, early: bool) -> Result<(), KernelError>;

    /// Discards the items added since the last output.
    fn clear(&mut self) -> Result<(), KernelError>;
}

/// State of the output in progress.
pub(super) struct Grouping {
    groups: Groups,
    /// Number of items in the output in progress.
    grouped: u64,
    account: Account,
    blend: Blend,
    /// The series of points, if items are joined.
    series: Option<Series>,
}

impl Grouping {
    pub(super) fn new(groups: Groups) -> Self {
        Self {
            series: groups.joined.map(|joined| Series::new(joined, groups.hop)),
            groups,
            grouped: 0,
            account: Account::default(),
            blend: Blend::default(),
        }
    }

    pub(super) const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns the maximum number of outputs that `frames` more frames can produce.
    pub(super) fn outputs(&self, frames: usize) -> usize {
        if self.groups.at_epoch == AtBoundary::Finish {
            // Each frame ends at most one output: the output that contains the frame or, if the frame starts a new
            // epoch, the output before it.
            return frames * self.groups.items;
        }
        let items = match &self.series {
            Some(series) => series.max_items(frames),
            None => self.groups.items as u128 * frames as u128,
        };
        let items = items + u128::from(self.grouped);
        usize::try_from(items / u128::from(self.groups.each)).unwrap_or(usize::MAX)
    }

    /// Adds the frames of a burst to `outputs`.
    pub(super) fn run(
        &mut self,
        burst: &Lease<'_>,
        outputs: &mut impl Outputs,
    ) -> Result<Submitted, KernelError> {
        for (i, frame) in burst.iter().enumerate() {
            let meta = frame.meta();
            self.meet(meta, outputs)?;
            if meta.length < self.groups.input_bytes
                || (self.groups.skip_incomplete && meta.is_incomplete())
            {
                self.account.fail();
                self.blend.mark_incomplete();
                self.restart_series();
            } else if self.series.is_some() {
                self.join(i, &frame, outputs)?;
            } else {
                self.add(i, &frame, outputs)?;
            }
        }
        Ok(self.account.submit())
    }

    /// Handles a gap or a new epoch before the frame with the metadata `meta`.
    fn meet(&mut self, meta: &FrameMeta, outputs: &mut impl Outputs) -> Result<(), KernelError> {
        let step = self.blend.step(meta);
        let at_boundary = match step {
            Step::Next => return Ok(()),
            Step::Gap => self.groups.at_gap,
            Step::Epoch => self.groups.at_epoch,
        };
        self.restart_series();
        match at_boundary {
            AtBoundary::Continue => self.blend.mark_incomplete(),
            AtBoundary::Finish if self.blend.is_empty() => {}
            AtBoundary::Finish => self.finish(outputs, true)?,
            AtBoundary::Restart => {
                self.account.drop_accumulated();
                self.blend.clear();
                outputs.clear()?;
                self.grouped = 0;
            }
        }
        if step == Step::Epoch {
            self.blend.open_epoch();
        }
        Ok(())
    }

    fn restart_series(&mut self) {
        if let Some(series) = &mut self.series {
            series.restart();
        }
    }

    /// Adds the items that end in a frame.
    fn join(
        &mut self,
        i: usize,
        frame: &Frame<'_>,
        outputs: &mut impl Outputs,
    ) -> Result<(), KernelError> {
        let Some(mut series) = self.series.take() else {
            return Ok(());
        };
        let tail = usize::try_from(series.tail()).unwrap_or(usize::MAX);
        let items = series.push(frame.meta());
        outputs.join(i, frame, tail)?;
        let each = self.groups.each;
        let mut next = items.start;
        while next < items.end {
            let some = next..items.end.min(next + (each - self.grouped));
            series.blend(&some, each, &mut self.blend, |points| {
                self.groups.delay_ns(points)
            });
            let [first, count] = [next - items.start, some.end - next]
                .map(|items| usize::try_from(items).unwrap_or(usize::MAX));
            outputs.add(i, frame, first, count)?;
            self.grouped += some.end - next;
            next = some.end;
            if self.grouped == each {
                self.finish(outputs, false)?;
            }
        }
        if self.grouped == 0 && !series.has_new_points() {
            self.account.take();
        } else {
            self.account.hold();
        }
        self.series = Some(series);
        Ok(())
    }

    fn add(
        &mut self,
        i: usize,
        frame: &Frame<'_>,
        outputs: &mut impl Outputs,
    ) -> Result<(), KernelError> {
        let Groups { items, each, .. } = self.groups;
        let meta = frame.meta();
        let mut next = 0;
        while next < items {
            let room = usize::try_from(each - self.grouped).unwrap_or(usize::MAX);
            let count = room.min(items - next);
            self.blend.add(
                meta,
                self.number(meta, next),
                self.groups.delay_ns((next * self.groups.hop) as u64),
            );
            outputs.add(i, frame, next, count)?;
            self.grouped += count as u64;
            next += count;
            if self.grouped == each {
                self.finish(outputs, false)?;
            }
        }
        if self.grouped == 0 {
            self.account.take();
        } else {
            self.account.hold();
        }
        Ok(())
    }

    fn finish(&mut self, outputs: &mut impl Outputs, early: bool) -> Result<(), KernelError> {
        outputs.finish(self.blend.finish(), early)?;
        self.grouped = 0;
        self.account.release_accumulated();
        Ok(())
    }

    /// Returns the number of the output whose first item is item `i` of the frame.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "frame numbers wrap at 64 bits"
    )]
    fn number(&self, meta: &FrameMeta, i: usize) -> u64 {
        let first = u128::from(meta.sequence) * self.groups.items as u128 + i as u128;
        (first / u128::from(self.groups.each)) as u64
    }
}

/// What a kernel sums on the CPU.
pub(super) trait Sums: Send {
    /// Returns the size of an output in bytes.
    fn output_bytes(&self) -> usize;

    /// Appends a frame to the series of points, of which the last `tail` points are kept. Called only if items are joined.
    fn join(&mut self, _frame: &[u8], _tail: usize) {}

    /// Adds `count` items of a frame, starting with item number `first`. If items are joined, they are counted from the
    /// first point that `join` kept.
    fn add(&mut self, frame: &[u8], first: usize, count: usize);

    /// Writes the output.
    fn write(&self, slot: &mut [u8]);

    /// Resets the sums.
    fn clear(&mut self);
}

/// A kernel that sums groups of items on the CPU.
pub(super) struct CpuKernel<S> {
    pub(super) grouping: Grouping,
    pub(super) sums: S,
}

impl<S: Sums> Kernel for CpuKernel<S> {
    fn outputs(&self, frames: usize) -> usize {
        self.grouping.outputs(frames)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let input_bytes = self.grouping.groups.input_bytes;
        let mut writing = Writing {
            input_bytes,
            sums: &mut self.sums,
            out,
        };
        self.grouping.run(burst, &mut writing)
    }
}

/// The sums, and the output slots to which they are written.
struct Writing<'a, 'b, S> {
    input_bytes: usize,
    sums: &'a mut S,
    out: &'a mut SlotsMut<'b>,
}

impl<S: Sums> Outputs for Writing<'_, '_, S> {
    fn join(&mut self, _: usize, frame: &Frame<'_>, tail: usize) -> Result<(), KernelError> {
        if let Some(bytes) = whole(frame, self.input_bytes)? {
            self.sums.join(bytes, tail);
        }
        Ok(())
    }

    fn add(
        &mut self,
        _: usize,
        frame: &Frame<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError> {
        if let Some(bytes) = whole(frame, self.input_bytes)? {
            self.sums.add(bytes, first, count);
        }
        Ok(())
    }

    fn finish(&mut self, meta: FrameMeta, _: bool) -> Result<(), KernelError> {
        let sums = &*self.sums;
        emit(self.out, sums.output_bytes(), meta, |slot| sums.write(slot))?;
        self.sums.clear();
        Ok(())
    }

    fn clear(&mut self) -> Result<(), KernelError> {
        self.sums.clear();
        Ok(())
    }
}
