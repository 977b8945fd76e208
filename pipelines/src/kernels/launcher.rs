//! Launches the device code of kernels that sum groups of items.
//!
//! Consecutive items that are all used form a run. A run is processed in as few rounds as the kernel's memory allows.
//! Each round is one set of launches. No thread waits for the launches.

use super::device::{promise, slots, stream};
use super::grouping::{Grouping, Outputs};
use super::joiner::Joiner;
use super::parameters::Cut;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

/// The items that one set of launches processes.
pub(super) struct Round {
    /// Input slots, starting with the frame of the first item.
    pub(super) from: Slice,
    /// Index of the first item in its frame.
    pub(super) origin: u64,
    /// Output slots, starting with the slot for the first output.
    pub(super) to: Slice,
    /// Division of the items into outputs.
    pub(super) cut: Cut,
    /// Number of items.
    pub(super) items: usize,
    pub(super) outputs: usize,
    /// Number of outputs that the round completes. All other outputs continue in the next round.
    pub(super) complete: usize,
    /// Number of items of earlier rounds in the first output.
    pub(super) pending: u64,
}

/// What a kernel sums on a GPU.
pub(super) trait DeviceSums: Send {
    /// Returns the size of an output in bytes.
    fn output_bytes(&self) -> usize;

    /// Returns the maximum number of outputs and of items of a round, both at least 1.
    fn limits(&self) -> (usize, usize);

    /// Returns the buffers in which frames are joined, if items continue across the ends of frames.
    fn joiner(&mut self) -> Option<&mut Joiner> {
        None
    }

    /// Launches the work of a round.
    fn launch(&mut self, stream: &driver::Stream, round: &Round) -> Result<(), KernelError>;
}

/// A kernel that sums groups of items on a GPU.
pub(super) struct Launcher<S> {
    grouping: Grouping,
    rounds: Rounds<S>,
    occupancy: f64,
}

/// Divides runs into rounds.
struct Rounds<S> {
    sums: S,
    /// Number of items per frame and per output.
    items: u64,
    /// Number of points between the starts of successive items.
    hop: u64,
    each: u64,
    /// Number of items in the output in progress.
    pending: u64,
}

/// A run of consecutive items.
#[derive(Clone, Copy)]
struct Run {
    /// Index of the first item, counted from the first item of the burst. For joined items: the index of its first point.
    first: u64,
    count: u64,
    /// Output slots, starting with the slot for the output of the first item.
    to: Slice,
}

impl<S: DeviceSums> Launcher<S> {
    pub(super) fn new(grouping: Grouping, sums: S, occupancy: f64) -> Self {
        let groups = grouping.groups();
        let rounds = Rounds {
            sums,
            // A buffer of joined frames is one long frame.
            items: match groups.joined {
                Some(_) => u64::from(u32::MAX),
                None => groups.items as u64,
            },
            hop: groups.hop as u64,
            each: groups.each,
            pending: 0,
        };
        Self {
            grouping,
            rounds,
            occupancy,
        }
    }
}

impl<S: DeviceSums> Kernel for Launcher<S> {
    fn outputs(&self, frames: usize) -> usize {
        self.grouping.outputs(frames)
    }

    fn occupancy(&self) -> Option<f64> {
        Some(self.occupancy)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let mut launching = Launching {
            stream: stream(on)?,
            from: slots(burst)?,
            rounds: &mut self.rounds,
            out,
            run: None,
        };
        let submitted = self.grouping.run(burst, &mut launching)?;
        launching.launch(false)?;
        launching.flush()?;
        Ok(submitted)
    }
}

impl<S: DeviceSums> Rounds<S> {
    /// Launches the rounds of a run. If `early` is true, the last item ends its output.
    fn launch(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        run: Run,
        early: bool,
    ) -> Result<(), KernelError> {
        let (mut first, mut to) = (run.first, run.to);
        let end = run.first + run.count;
        loop {
            let round = self.next(from, first, end, to, early);
            self.sums.launch(stream, &round)?;
            first += round.cut.total;
            to = to.after(round.complete);
            self.pending = if round.complete == round.outputs {
                0
            } else {
                (self.pending + round.cut.total) % self.each
            };
            if first == end {
                return Ok(());
            }
        }
    }

    /// Selects how many of the remaining items from `first` to `end` are processed in one round.
    fn next(&self, from: &Slice, first: u64, end: u64, to: Slice, early: bool) -> Round {
        let (max_outputs, max_items) = self.sums.limits();
        let left = self.each - self.pending;
        let room = left.saturating_add((max_outputs as u64 - 1).saturating_mul(self.each));
        let total = (end - first).min(room).min(max_items as u64);
        let (outputs, complete) = if total < left {
            (1, 0)
        } else {
            let more = total - left;
            (1 + more.div_ceil(self.each), 1 + more / self.each)
        };
        let complete = if early && first + total == end {
            outputs
        } else {
            complete
        };
        Round {
            from: from.after(as_usize(first / self.items)),
            origin: first % self.items,
            to,
            cut: Cut {
                total,
                left: left.min(total),
                each: self.each.min(total.max(1)),
            },
            items: as_usize(total),
            outputs: as_usize(outputs),
            complete: as_usize(complete),
            pending: self.pending,
        }
    }
}

/// State that exists while the work of a burst is launched.
struct Launching<'a, 'b, S> {
    stream: &'a driver::Stream,
    from: Slice,
    rounds: &'a mut Rounds<S>,
    out: &'a mut SlotsMut<'b>,
    run: Option<Run>,
}

impl<S: DeviceSums> Launching<'_, '_, S> {
    /// Launches the work of the collected run. If `early` is true, ends the last output before it is complete.
    fn launch(&mut self, early: bool) -> Result<(), KernelError> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        self.flush()?;
        match self.rounds.sums.joiner() {
            Some(joiner) => {
                let from = joiner.slice(as_usize(run.first));
                self.rounds
                    .launch(self.stream, &from, Run { first: 0, ..run }, early)
            }
            None => self.rounds.launch(self.stream, &self.from, run, early),
        }
    }

    /// Copies the frames that wait to be joined.
    fn flush(&mut self) -> Result<(), KernelError> {
        match self.rounds.sums.joiner() {
            Some(joiner) => joiner.flush(self.stream, &self.from),
            None => Ok(()),
        }
    }

    fn run(&self, first: u64, count: u64) -> Run {
        Run {
            first,
            count,
            to: self.out.slice(),
        }
    }
}

impl<S: DeviceSums> Outputs for Launching<'_, '_, S> {
    fn join(&mut self, i: usize, _: &Frame<'_>, tail: usize) -> Result<(), KernelError> {
        let has_space = self
            .rounds
            .sums
            .joiner()
            .is_none_or(|joiner| joiner.has_space());
        if !has_space {
            self.launch(false)?;
            self.flush()?;
        }
        let Some(joiner) = self.rounds.sums.joiner() else {
            return Ok(());
        };
        if !has_space {
            joiner.turn(self.stream, tail)?;
        }
        joiner.push(self.stream, &self.from, i, tail)
    }

    fn add(
        &mut self,
        i: usize,
        _: &Frame<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError> {
        let (first, count) = (first as u64, count as u64);
        let (first, step) = match self.rounds.sums.joiner() {
            Some(joiner) => (
                joiner.start() as u64 + first * self.rounds.hop,
                self.rounds.hop,
            ),
            None => (i as u64 * self.rounds.items + first, 1),
        };
        match &mut self.run {
            Some(run) if run.first + run.count * step == first => run.count += count,
            _ => {
                self.launch(false)?;
                self.run = Some(self.run(first, count));
            }
        }
        Ok(())
    }

    fn finish(&mut self, meta: FrameMeta, early: bool) -> Result<(), KernelError> {
        // An output that ends early may have all its items in earlier bursts.
        let run = self.run.unwrap_or_else(|| self.run(0, 0));
        promise(self.out, self.rounds.sums.output_bytes(), meta)?;
        self.run = Some(run);
        if early { self.launch(true) } else { Ok(()) }
    }

    fn clear(&mut self) -> Result<(), KernelError> {
        self.launch(false)?;
        self.rounds.pending = 0;
        Ok(())
    }
}

/// Converts a count, which must fit into `usize`.
fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
