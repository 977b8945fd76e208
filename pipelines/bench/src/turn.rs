//! Measures the corner turn between GPUs: each GPU has a part of the points of all channels, and gets all points of a part of
//! the channels. Only the transport is measured, because the slots of the rings are filled in advance.

mod raw;
mod rings;

use super::table::{Cell, Table, size};
use super::{BenchError, Common, MAX_BYTES, Publish, bytes, gpus};
use daq_core::gpu::driver::Device;
use daq_core::staging::{Matrix, Tile};
use daq_core::topology::Topology;
use raw::Raw;
use rings::Rings;

/// Minimum size of a ring in bytes.
const MIN_RING: usize = 1 << 20;

/// Options of `daq bench turn`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    gpus: gpus::Gpus,
    /// Sizes of whole frames, of which each GPU has one part. They are rounded up, so that all parts are equal.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1 MiB,8 MiB,64 MiB",
        value_parser = bytes::<1, MAX_BYTES, 1>
    )]
    frames: Vec<usize>,
    /// Numbers of contiguous bytes to copy, multiples of 64 bytes: the part of one channel that one GPU has.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "512 B,4 KiB,64 KiB",
        value_parser = bytes::<64, MAX_BYTES, 64>
    )]
    rows: Vec<usize>,
    /// Size of each of the two rings on every GPU, a multiple of 1 MiB.
    #[arg(long, default_value = "512 MiB", value_parser = bytes::<MIN_RING, { usize::MAX >> 1 }, MIN_RING>)]
    ring: usize,
}

/// The frames of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    gpus: usize,
    /// Size of a whole frame in bytes.
    frame: usize,
    /// Size in bytes of the part of one channel that one GPU has at first.
    row: usize,
}

impl Shape {
    /// Returns frames of at least `frame` bytes that can be divided equally.
    const fn new(gpus: usize, frame: usize, row: usize) -> Self {
        Self {
            gpus,
            frame: frame.next_multiple_of(row * gpus * gpus),
            row,
        }
    }

    /// Returns the channels and points of a whole frame.
    const fn matrix(self) -> Matrix {
        Matrix {
            rows: self.frame / (self.row * self.gpus),
            row_bytes: self.row * self.gpus,
        }
    }

    /// Returns the size of the part of a frame that one GPU has, before and after the corner turn.
    const fn share(self) -> usize {
        self.frame / self.gpus
    }

    /// Returns the number of channels that one GPU has after the corner turn.
    const fn channels(self) -> usize {
        self.matrix().rows / self.gpus
    }

    /// Returns the part of a frame that GPU `gpu` has before the corner turn.
    fn before(self, gpu: usize) -> Tile {
        Tile {
            columns: gpu * self.row..(gpu + 1) * self.row,
            ..self.matrix().whole()
        }
    }

    /// Returns the part of a frame that GPU `gpu` has after the corner turn.
    fn after(self, gpu: usize) -> Tile {
        Tile {
            rows: gpu * self.channels()..(gpu + 1) * self.channels(),
            ..self.matrix().whole()
        }
    }
}

/// A method to exchange the parts of frames between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Copies without rings, of parts that cross links only.
    Raw(Raw),
    /// Copies between rings, as in a pipeline.
    Rings,
}

/// The order is that of the columns in which ratios find their base.
const METHODS: [Method; 5] = [
    Method::Raw(Raw::Contiguous),
    Method::Raw(Raw::Frames),
    Method::Raw(Raw::Slices),
    Method::Raw(Raw::Channels),
    Method::Rings,
];

/// Measures, and passes the result tables to `publish`.
pub(super) fn turn(common: &Common, args: &Args, publish: Publish<'_>) -> Result<(), BenchError> {
    let topology = Topology::detect();
    let devices = args.gpus.open(&topology)?;
    if let Some(why) = gpus::without_access(&topology, &devices) {
        publish(Table::of("not measured", "GPUs | reason", [why]));
        return Ok(());
    }
    let rings = Rings::new(&devices, args.ring)?;
    let powers = (1..).map(|exponent| 1 << exponent);
    let mut counts: Vec<usize> = powers.take_while(|count| *count < devices.len()).collect();
    counts.push(devices.len());
    for count in counts {
        publish(compare(common, args, &rings, &devices[..count])?);
    }
    Ok(())
}

fn compare(
    common: &Common,
    args: &Args,
    rings: &Rings,
    devices: &[&'static Device],
) -> Result<Table, BenchError> {
    let gpus = devices.len();
    let shapes: Vec<_> = args
        .frames
        .iter()
        .flat_map(|frame| args.rows.iter().map(|row| Shape::new(gpus, *frame, *row)))
        .collect();
    let mut seed = 0;
    // A part of the bytes remains on its GPU.
    let crossing = (gpus - 1) as f64 / gpus as f64;
    let compared = common.compare(&shapes, &METHODS, |&shape, &method| match method {
        Method::Raw(raw) => {
            let rate = rings.raw(shape, raw, common.window.0)?;
            Ok(rate.map(|rate| [rate, f64::NAN, f64::NAN, f64::NAN]))
        }
        Method::Rings => {
            seed += 1;
            let [total, cores, _, verified] = rings.turn(common, shape, seed)?;
            Ok(Some([total * crossing, total, cores, verified]))
        }
    })?;
    let title = format!("Corner turn between {gpus} GPUs; {}", rings.tuned(gpus));
    let columns = "method | frame | row | GB/s over links | from each GPU | with local copies | ÷ contiguous copies | ÷ fastest raw rows | cores | verified per round";
    Ok(compared.table(&title, columns, |it| {
        let [links, total, cores, verified] = it.figures;
        let rows = it.all[1..METHODS.len() - 1].iter();
        let fastest = rows.map(|figures| figures[0]).fold(f64::NAN, f64::max);
        let ratio = |base: f64| match it.method {
            Method::Raw(Raw::Contiguous) => Cell::Number(f64::NAN, 3),
            Method::Raw(_) | Method::Rings => Cell::Number(links / base, 3),
        };
        vec![
            it.method.name().into(),
            size(it.scenario.frame),
            size(it.scenario.row),
            Cell::Number(links / 1e9, 2),
            Cell::Number(links / 1e9 / gpus as f64, 2),
            Cell::Number(total / 1e9, 2),
            ratio(it.all[0][0]),
            ratio(fastest),
            Cell::Number(cores, 2),
            super::staging::rounded(verified),
        ]
    }))
}

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::Raw(Raw::Contiguous) => "raw contiguous copies",
            Self::Raw(Raw::Frames) => "raw 2D copy per frame",
            Self::Raw(Raw::Slices) => "raw 3D copy of many frames",
            Self::Raw(Raw::Channels) => "raw 2D copy per channel of many frames",
            Self::Rings => "rings",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_complete() {
        for (gpus, frame, row) in [(2, 1 << 20, 512), (3, 1000, 64), (4, 1, 4096)] {
            let shape = Shape::new(gpus, frame, row);
            assert!(shape.frame >= frame);
            let bytes = |tile: fn(Shape, usize) -> Tile| {
                let tiles = (0..gpus).map(|gpu| tile(shape, gpu).bytes());
                assert!(tiles.clone().all(|bytes| bytes == shape.share()));
                tiles.sum::<usize>()
            };
            assert_eq!(bytes(Shape::before), shape.frame);
            assert_eq!(bytes(Shape::after), shape.frame);
        }
    }

    #[test]
    fn ratios_use_contiguous_copies_and_raw_rows() {
        // `compare` finds the bases of ratios by their positions.
        assert_eq!(METHODS[0], Method::Raw(Raw::Contiguous));
        assert_eq!(METHODS[METHODS.len() - 1], Method::Rings);
    }
}
