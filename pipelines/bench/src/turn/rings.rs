//! The corner turn between rings, with the gathers of a pipeline.

use super::Shape;
use crate::cores::joined;
use crate::harness::{Figures, Harness, Traffic, figures};
use crate::place::{PIECE, fill, write};
use crate::{BenchError, Common};
use daq_core::gpu::driver::Device;
use daq_core::ledger::ReaderLedger;
use daq_core::notify::{Notifier, Wait};
use daq_core::region::{Placement, Region};
use daq_core::staging::{
    Gather, Joins, MissingFill, Overflow, Rates, Share, Tuning, between, measure_peer, verify_peer,
};
use daq_core::units::ByteSize;
use std::sync::Arc;

/// A source and a target region on each GPU.
pub(super) struct Rings {
    devices: Vec<&'static Device>,
    before: Vec<Arc<Region>>,
    after: Vec<Arc<Region>>,
    /// Tunings of the copies from each GPU to each other GPU; those within a GPU are assumed.
    tunings: Vec<Vec<Tuning>>,
}

impl Rings {
    /// Allocates two regions of `bytes` bytes on each GPU, and measures the copies between all GPUs.
    pub(super) fn new(devices: &[&'static Device], bytes: usize) -> Result<Self, BenchError> {
        let regions = || {
            let regions = devices.iter().map(|device| Region::cuda(device, bytes));
            regions.collect::<Result<Vec<_>, _>>()
        };
        let tuning = |from: &'static Device, to: &'static Device| -> Result<_, BenchError> {
            if from.ordinal() == to.ordinal() {
                return Ok(Rates::assumed_between_gpus().tuning());
            }
            verify_peer(from, to)?;
            Ok(measure_peer(from, to)?.tuning())
        };
        let from = |from: &&'static Device| devices.iter().map(|to| tuning(from, to)).collect();
        Ok(Self {
            before: regions()?,
            after: regions()?,
            tunings: devices.iter().map(from).collect::<Result<_, _>>()?,
            devices: devices.to_vec(),
        })
    }

    /// Returns the size of each region.
    pub(super) fn bytes(&self) -> usize {
        let regions = self.before.iter().chain(&self.after);
        regions.map(|region| region.bytes()).min().unwrap_or(0)
    }

    /// Returns the source region of a GPU.
    pub(super) fn before(&self, gpu: usize) -> &Arc<Region> {
        &self.before[gpu]
    }

    /// Returns the target region of a GPU.
    pub(super) fn after(&self, gpu: usize) -> &Arc<Region> {
        &self.after[gpu]
    }

    /// Returns the tuning of the copies from `gpus` GPUs to one of them, as a pipeline selects it.
    fn tuning(&self, to: usize, gpus: usize) -> Tuning {
        let into = self.tunings[..gpus].iter().map(|tunings| tunings[to]);
        let largest = into.max_by_key(|tuning| tuning.chunk);
        largest.unwrap_or_else(|| Rates::assumed_between_gpus().tuning())
    }

    /// Describes the copies between `gpus` GPUs.
    pub(super) fn tuned(&self, gpus: usize) -> String {
        let tunings = (0..gpus).map(|to| {
            let Tuning { chunk, depth, .. } = self.tuning(to, gpus);
            format!("{} × {depth}", ByteSize(chunk as u64))
        });
        let tunings: Vec<_> = tunings.collect();
        format!("chunk size × chunks in flight {}", tunings.join(", "))
    }

    /// Measures the corner turn of frames of `shape`, then verifies all bytes of all slots.
    pub(super) fn turn(
        &self,
        common: &Common,
        shape: Shape,
        seed: u64,
    ) -> Result<Figures, BenchError> {
        each(shape.gpus, |gpu| {
            write(&self.before[gpu], own(seed, gpu))?;
            Ok(0)
        })?;
        let harness = self.start(shape)?;
        let (moved, copied) = harness.observe(common.window.0)?;
        let mut figures = figures(&moved);
        let verified = each(shape.gpus, |gpu| self.verify(shape, seed, gpu, copied[gpu]))?;
        figures[3] = verified as f64;
        Ok(figures)
    }

    /// Starts the rings, and a gather for each GPU.
    fn start(&self, shape: Shape) -> Result<Harness, BenchError> {
        let mut harness = Harness::new(shape.gpus);
        let traffic = Traffic {
            frame: shape.share(),
            rate: None,
        };
        let notifiers: Vec<_> = (0..shape.gpus)
            .map(|_| Arc::new(Notifier::default()))
            .collect();
        let sources = self.before[..shape.gpus].iter();
        let sources = sources.map(|region| harness.source(region, traffic, notifiers.clone()));
        let (sources, producers): (Vec<_>, Vec<_>) =
            sources.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        for (to, notifier) in notifiers.iter().enumerate() {
            let (target, tuning) = (&self.after[to], self.tuning(to, shape.gpus));
            let mut shares = Vec::new();
            for (from, source) in sources.iter().enumerate() {
                let method = between(&self.before[from], target, tuning.depth + 1)?;
                shares.push(Share {
                    reader: source.attach(true, 1, ReaderLedger::default())?,
                    method: method.ok_or_else(|| {
                        let gpu = Placement::Cuda(self.devices[from].ordinal());
                        BenchError::Thread(format!("no method copies from {gpu}"))
                    })?,
                    tile: Some(shape.before(from)),
                });
            }
            let gather = Gather::new(
                shares,
                harness.target(target, &sources[to], notifier, to)?,
                harness.copy_ledger(to),
                Joins::Tiles {
                    matrix: shape.matrix(),
                    target: shape.after(to),
                },
                (
                    Overflow::Wait,
                    MissingFill::new(Some(self.devices[to]), tuning.depth)?,
                ),
                &tuning,
                notifier.clone(),
            );
            harness.run(gather, Wait::Adaptive, to);
        }
        harness.publish(producers, traffic);
        Ok(harness)
    }

    /// Compares all slots of a target ring to which frames were copied with the sources. Returns the number of bytes.
    fn verify(&self, shape: Shape, seed: u64, gpu: usize, frames: u64) -> Result<u64, BenchError> {
        let Some(memory) = self.after[gpu].memory() else {
            return Ok(0);
        };
        let share = shape.share();
        let slots = self.after[gpu].bytes() / share;
        let used = usize::try_from(frames).map_or(slots, |frames| frames.min(slots));
        let mut bytes = vec![0; PIECE.next_multiple_of(shape.row)];
        for at in (0..used * share).step_by(bytes.len()) {
            let length = bytes.len().min(used * share - at);
            memory.read(at, &mut bytes[..length])?;
            if let Some(wrong) = wrong_row(shape, seed, gpu, at, &bytes[..length]) {
                return Err(BenchError::Thread(format!(
                    "wrong bytes from cuda:{} in channel {} of slot {} on cuda:{} after a corner turn of frames of {}; this is a defect in daq",
                    self.devices[wrong.from].ordinal(),
                    wrong.channel,
                    wrong.slot,
                    self.devices[gpu].ordinal(),
                    ByteSize(shape.frame as u64),
                )));
            }
        }
        Ok((used * share) as u64)
    }
}

/// The position of a part of a channel in a target ring, and the GPU that it came from.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    slot: usize,
    channel: usize,
    from: usize,
}

/// Returns the first row with wrong bytes among the `bytes` from offset `at` of the target ring of `gpu`, both multiples of
/// the length of a row.
fn wrong_row(shape: Shape, seed: u64, gpu: usize, at: usize, bytes: &[u8]) -> Option<Row> {
    let (share, first_row) = (shape.share(), shape.after(gpu).rows.start);
    let mut wanted = vec![0; shape.row];
    bytes.chunks(shape.row).enumerate().find_map(|(i, row)| {
        let offset = at + i * shape.row;
        let piece = offset % share / shape.row;
        let position = Row {
            slot: offset / share,
            channel: first_row + piece / shape.gpus,
            from: piece % shape.gpus,
        };
        let source = position.slot * share + position.channel * shape.row;
        fill(&mut wanted, source, own(seed, position.from));
        (row != wanted).then_some(position)
    })
}

/// Returns the seed of a GPU's source. All words of all sources of a measurement differ.
const fn own(seed: u64, gpu: usize) -> u64 {
    seed << 8 | gpu as u64
}

/// Calls `work` for all GPUs at the same time, and returns the sum of the results.
fn each(
    gpus: usize,
    work: impl Fn(usize) -> Result<u64, BenchError> + Sync,
) -> Result<u64, BenchError> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..gpus)
            .map(|gpu| scope.spawn(move || work(gpu)))
            .collect();
        threads.into_iter().map(joined).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_byte_of_a_corner_turn_is_found() {
        let shape = Shape::new(2, 1 << 10, 64);
        let (seed, gpu, share) = (7, 1, shape.share());
        // Two slots of the target, copied row by row from the sources.
        let mut target = vec![0; 2 * share];
        for (i, row) in target.chunks_mut(shape.row).enumerate() {
            let (slot, piece) = (i * shape.row / share, i % (share / shape.row));
            let channel = shape.channels() * gpu + piece / 2;
            fill(
                row,
                slot * share + channel * shape.row,
                own(seed, piece % 2),
            );
        }
        assert_eq!(wrong_row(shape, seed, gpu, 0, &target), None);
        assert_eq!(wrong_row(shape, seed, gpu, share, &target[share..]), None);
        for at in 0..target.len() {
            target[at] ^= 1;
            let found = wrong_row(shape, seed, gpu, 0, &target).unwrap();
            let piece = at % share / shape.row;
            assert_eq!((found.slot, found.from), (at / share, piece % 2), "{at}");
            target[at] ^= 1;
        }
        // Content of another measurement, and of the other GPU's half.
        assert!(wrong_row(shape, seed + 1, gpu, 0, &target).is_some());
        assert!(wrong_row(shape, seed, 0, 0, &target).is_some());
    }
}
