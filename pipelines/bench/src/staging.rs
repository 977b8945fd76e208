//! Compares the copy engine with other methods to copy frames to a GPU. Large baseline copies give the upper limit.

use super::chart::Chart;
use super::comparison::Comparison;
use super::figures::{copy_rate, median};
use super::harness::{Figures, Harness, Load, figures, index, only_rate};
use super::place::Place;
use super::table::{Cell, Table, numbers, size};
use super::{BenchError, Common, FrameSizes, Publish, check_range, count, duration};
use daq_core::gpu::driver::{CudaError, Device, StreamEvent};
use daq_core::notify::Wait;
use daq_core::staging::{BATCH, BaselineCopy, Direction, Tuning, measure};
use daq_core::units::{ByteSize, Span};
use std::collections::{BTreeSet, VecDeque};
use std::num::ParseFloatError;
use std::sync::Arc;
use std::time::Instant;

/// Size of every ring in bytes. Baseline copies use the same amount of memory.
const RING: usize = 256 << 20;
/// Size in bytes of the copies whose rate is the upper limit.
const LARGE: usize = 64 << 20;
/// Number of copy batches in flight.
const BATCHES: usize = 4;
/// Options of `daq bench staging`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sizes: FrameSizes,
    /// Number of GPU rings that run at the same time; a single ring is measured for comparison. Each ring needs 256 MiB
    /// of host memory and 256 MiB of GPU memory.
    #[arg(long, default_value = "8", value_parser = count::<1, { usize::MAX }>)]
    rings: usize,
    /// How the copy engine threads wait.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitArg,
    /// Instead of the comparison, stream for this time at a share of the upper limit, and count lost frames.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    soak: Option<Span>,
    /// Share of the upper limit at which --soak streams, 0.01 to 10.
    #[arg(long, default_value = "0.9", requires = "soak", value_parser = share)]
    share: f64,
}

/// Parses the share of the upper limit.
fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .map_err(|error: ParseFloatError| error.to_string())?;
    check_range(share, 0.01, 10.0, |limit| limit.to_string())
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WaitArg {
    Adaptive,
    Busy,
}

/// One method to copy frames to or from the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// A copy and a wait per frame.
    CopyAndWait,
    /// A copy per frame.
    Copy,
    /// Batched copies.
    Batch,
    /// The copy engine thread with one ring.
    Engine(Direction),
    /// The copy engine thread with several rings to the GPU.
    Rings(usize),
    /// The copy engine threads of both directions at the same time. The measurement of the first direction also
    /// measures the second direction.
    Both(Direction),
}

impl Method {
    fn name(self) -> String {
        let name = match self {
            Self::CopyAndWait => "copy + wait per frame",
            Self::Copy => "copy per frame",
            Self::Batch => "batched copies",
            Self::Engine(Direction::In) => "engine in",
            Self::Engine(Direction::Out) => "engine out",
            Self::Rings(rings) => return format!("engine in, {rings} rings"),
            Self::Both(Direction::In) => "engine in, concurrent out",
            Self::Both(Direction::Out) => "engine out, concurrent in",
        };
        name.to_owned()
    }

    const fn direction(self) -> Direction {
        match self {
            Self::Engine(direction) | Self::Both(direction) => direction,
            _ => Direction::In,
        }
    }
}

/// Measures, and passes the result tables to `publish`.
pub(super) fn staging(
    common: &Common,
    args: &Args,
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let profile = measure(device)?;
    let tunings = [
        profile.tuning(Direction::In),
        profile.tuning(Direction::Out),
    ];
    let mut session = Session {
        device,
        common,
        args,
        tunings,
        places: Vec::new(),
        baseline: BaselineCopy::new(device, Direction::In, RING, false)?,
        seed: 0,
    };
    match args.soak {
        Some(time) => publish(session.soak(time)?),
        None => session.compare(publish)?,
    }
    Ok(())
}

struct Session<'a> {
    device: &'static Device,
    common: &'a Common,
    args: &'a Args,
    tunings: [Tuning; 2],
    places: Vec<Place>,
    baseline: BaselineCopy,
    /// Seed of the pattern that was written last.
    seed: u64,
}

impl Session<'_> {
    /// Returns the rate of large copies in bytes per second.
    fn ceiling(&mut self, direction: Direction) -> Result<f64, CudaError> {
        self.baseline.turn(direction);
        // Two copies are in flight, so that one is always queued behind the other.
        copy_rate(&[&self.baseline], (LARGE, 2), self.common.window.0)
    }

    /// Measures single copies, with a wait after `count` copies.
    fn each(&mut self, frame: usize, count: usize) -> Result<Figures, CudaError> {
        self.baseline.turn(Direction::In);
        copy_rate(&[&self.baseline], (frame, count), self.common.window.0).map(only_rate)
    }

    /// Measures the rate of batched copies. Returns NaN if the driver does not support batched copies.
    fn batch(&mut self, frame: usize) -> Result<f64, CudaError> {
        let count = BATCH.min(self.baseline.bytes() / frame);
        self.baseline.turn(Direction::In);
        if !self.baseline.begin_batch(0, frame, count)? {
            return Ok(f64::NAN);
        }
        self.baseline.finish()?;
        let (start, mut bytes) = (Instant::now(), 0);
        let mut marks: VecDeque<Arc<StreamEvent>> = VecDeque::with_capacity(BATCHES);
        while start.elapsed() < self.common.window.0 {
            if marks.len() == BATCHES
                && let Some(oldest) = marks.pop_front()
            {
                BaselineCopy::wait(&oldest);
            }
            let at = self.baseline.walk(frame * count);
            self.baseline.begin_batch(at, frame, count)?;
            marks.push_back(self.baseline.record_event()?);
            bytes += frame * count;
        }
        self.baseline.finish()?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }

    /// Runs the copy engine with `rings` ring copies per direction. Returns the figures of each direction.
    fn engine(
        &mut self,
        frame: usize,
        directions: &[Direction],
        rings: usize,
        is_verified: bool,
    ) -> Result<[Figures; 2], BenchError> {
        let loads: Vec<_> = directions
            .iter()
            .flat_map(|direction| {
                let load = Load {
                    direction: *direction,
                    frame,
                    rate: None,
                };
                std::iter::repeat_n(load, rings)
            })
            .collect();
        if is_verified {
            self.prepare(&loads)?;
        }
        let harness = self.start(&loads)?;
        let (moved, copied) = harness.observe(self.common.window.0)?;
        let verified = if is_verified {
            self.verify(&loads, &copied)?.map(|bytes| bytes as f64)
        } else {
            [f64::NAN; 2]
        };
        Ok([0, 1].map(|i| {
            let [rate, cores, copy, _] = figures(&moved[i..=i]);
            [rate, cores, copy, verified[i]]
        }))
    }

    fn start(&self, loads: &[Load]) -> Result<Harness, BenchError> {
        let wait = match self.args.wait {
            WaitArg::Adaptive => Wait::Adaptive,
            WaitArg::Busy => Wait::Busy,
        };
        Harness::start(self.device, &self.places, loads, self.tunings, wait)
    }

    /// Creates regions for `loads`, and fills the sources with a pattern that no target contains.
    fn prepare(&mut self, loads: &[Load]) -> Result<(), BenchError> {
        while self.places.len() < loads.len() {
            self.places.push(Place::new(self.device, RING)?);
        }
        self.seed += 1;
        for (load, place) in loads.iter().zip(&self.places) {
            place.prepare(load.direction, self.seed)?;
        }
        Ok(())
    }

    /// Verifies the bytes copied after [`prepare`](Self::prepare). Returns the number of bytes per direction.
    fn verify(&self, loads: &[Load], copied: &[u64]) -> Result<[u64; 2], BenchError> {
        let mut right = [0; 2];
        for ((load, place), frames) in loads.iter().zip(&self.places).zip(copied) {
            right[index(load.direction)] +=
                place.verify(load.direction, self.seed, load.frame, *frames)?;
        }
        Ok(right)
    }

    fn compare(&mut self, publish: Publish<'_>) -> Result<(), BenchError> {
        let args = self.args;
        let mut methods = vec![
            Method::CopyAndWait,
            Method::Copy,
            Method::Batch,
            Method::Engine(Direction::In),
            Method::Engine(Direction::Out),
            Method::Rings(args.rings),
            Method::Both(Direction::In),
            Method::Both(Direction::Out),
        ];
        methods.retain(|method| *method != Method::Rings(1));
        let per_round = args.sizes.frames.len() * methods.len();
        let (mut calls, mut ceilings) = (0, [Vec::new(), Vec::new()]);
        // The figures of both directions that were measured together.
        let mut both = [[f64::NAN; 4]; 2];
        let common = self.common;
        let compared = common.compare(&args.sizes.frames, &methods, |&frame, &method| {
            if calls % per_round == 0 {
                ceilings[0].push(self.ceiling(Direction::In)?);
                ceilings[1].push(self.ceiling(Direction::Out)?);
            }
            let is_first = calls < per_round;
            calls += 1;
            let direction = method.direction();
            Ok(Some(match method {
                Method::CopyAndWait => self.each(frame, 1)?,
                // Wait regularly, so that the queue does not grow without limit.
                Method::Copy => self.each(frame, BATCH)?,
                Method::Batch => only_rate(self.batch(frame)?),
                Method::Engine(_) => {
                    self.engine(frame, &[direction], 1, is_first)?[index(direction)]
                }
                Method::Rings(rings) => self.engine(frame, &[direction], rings, is_first)?[0],
                Method::Both(_) => {
                    if direction == Direction::In {
                        both = self.engine(frame, &[direction, Direction::Out], 1, is_first)?;
                    }
                    both[index(direction)]
                }
            }))
        })?;
        let ceilings = ceilings.each_ref().map(|rates| median(rates));
        publish(self.rates(ceilings, &compared));
        publish(ratios(&methods, &compared));
        Ok(())
    }

    fn rates(&self, ceilings: [f64; 2], compared: &Comparison<'_, usize, Method, 4>) -> Table {
        let [inward, outward] = &self.tunings;
        let bytes = |bytes: usize| ByteSize(bytes as u64);
        let title = format!(
            "{}: maximum rate (64 MiB copies) {:.2} GB/s to GPU, {:.2} GB/s from GPU; ring size {}; chunk size {} to GPU, {} from GPU; chunks in flight {} to GPU, {} from GPU",
            self.device.name(),
            ceilings[0] / 1e9,
            ceilings[1] / 1e9,
            bytes(RING),
            bytes(inward.chunk),
            bytes(outward.chunk),
            inward.depth,
            outward.depth,
        );
        let columns =
            "method | frame | GB/s | ÷ ceiling | × copy + wait | mean copy | cores | verified";
        let [ceiling_in, ceiling_out] = ceilings.map(|rate| rate / 1e9);
        let names = |is_shown: fn(&str) -> bool| {
            let names: BTreeSet<_> = compared.rows().map(|it| it.method.name()).collect();
            names.into_iter().filter(|name| is_shown(name)).collect()
        };
        let inward = names(|name| !name.contains("concurrent") && name != "engine out");
        let both = names(|name| name.starts_with("engine") && !name.ends_with("rings"));
        let chart = |title: &str, methods| {
            Chart::rates(title, "GB/s")
                .over("frame", "frame size")
                .by(&["method"], "GB/s")
                .own(&["engine"])
                .only(methods)
                .ceiling("ceiling: 64\u{a0}MiB copies to the GPU", ceiling_in)
        };
        let inward = chart("Copies to the GPU", inward);
        let both = chart("Both directions at once", both)
            .ceiling("ceiling: 64\u{a0}MiB copies from the GPU", ceiling_out);
        let table = compared.table(&title, columns, |it| {
            let [rate, cores, copy, _] = it.figures;
            let verified = it.rounds.first().map_or(f64::NAN, |first| first[3]);
            vec![
                it.method.name().into(),
                size(*it.scenario),
                Cell::Number(rate / 1e9, 2),
                Cell::Number(rate / ceilings[index(it.method.direction())], 3),
                Cell::Number(rate / it.all[0][0], 1),
                rounded(copy),
                Cell::Number(cores, 2),
                rounded(verified),
            ]
        });
        table.with(inward).with(both)
    }

    /// Streams at a share of the upper limit and counts lost frames.
    fn soak(&mut self, time: Span) -> Result<Table, BenchError> {
        let share = self.args.share;
        let ceiling = self.ceiling(Direction::In)?;
        let title = format!(
            "{}: {time} at {share} of the maximum of {:.2} GB/s; publishers do not wait for free slots",
            self.device.name(),
            ceiling / 1e9
        );
        self.common
            .progress
            .timed_rounds(self.args.sizes.frames.len(), time.0);
        let mut table = Table::new(title, "frame | GB/s | frames | lost | cores | verified");
        for frame in &self.args.sizes.frames {
            let load = Load {
                direction: Direction::In,
                frame: *frame,
                rate: Some(ceiling * share),
            };
            self.common.progress.step(None);
            self.prepare(&[load])?;
            let start = Instant::now();
            let harness = self.start(&[load])?;
            std::thread::sleep(time.0);
            let sample = harness.sample();
            let took = start.elapsed().as_secs_f64();
            let (last, copied) = harness.stop()?;
            let verified = self.verify(&[load], &copied)?[0];
            table.row(vec![
                size(*frame),
                Cell::Number(sample.bytes[0] as f64 / took / 1e9, 2),
                Cell::Number(last.frames as f64, 0),
                Cell::Number(last.lost as f64, 0),
                Cell::Number(sample.cpu[0].as_secs_f64() / took, 3),
                rounded(verified as f64),
            ]);
        }
        Ok(table)
    }
}

/// Returns a table of the ratios of methods.
fn ratios(methods: &[Method], compared: &Comparison<'_, usize, Method, 4>) -> Table {
    let columns = "frame | input with concurrent output ÷ input alone | output with concurrent input ÷ output alone | rings ÷ one ring | engine ÷ copy + wait | cores in | cores out";
    let rows = compared.by_scenario().map(|(frame, figures)| {
        let of = |is_it: fn(&Method) -> bool| {
            let at = methods.iter().position(is_it);
            at.map_or([f64::NAN; 4], |at| figures[at])
        };
        let inward = of(|method| *method == Method::Engine(Direction::In));
        let outward = of(|method| *method == Method::Engine(Direction::Out));
        let both_in = of(|method| *method == Method::Both(Direction::In));
        let both_out = of(|method| *method == Method::Both(Direction::Out));
        let rings = of(|method| matches!(method, Method::Rings(_)));
        let ratios = [
            both_in[0] / inward[0],
            both_out[0] / outward[0],
            rings[0] / inward[0],
        ];
        let mut cells = vec![size(*frame)];
        cells.extend(numbers(ratios, 3));
        cells.push(Cell::Number(inward[0] / figures[0][0], 1));
        cells.extend(numbers([inward[1], outward[1]], 3));
        cells
    });
    Table::of("Ratios", columns, rows)
}

/// Returns a cell with a rounded number of bytes; a dash if the number is NaN.
pub(super) fn rounded(bytes: f64) -> Cell {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is a size in bytes"
    )]
    let size = ByteSize(bytes as u64);
    if bytes.is_nan() {
        "–".into()
    } else {
        size.rounded().to_string().into()
    }
}
