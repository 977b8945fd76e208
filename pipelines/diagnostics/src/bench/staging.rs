//! Compares the copy engine with other methods to copy frames to a GPU. Large baseline copies give the upper limit.

use super::harness::{Harness, Load, Sample, index};
use super::place::Place;
use super::table::{Cell, Table};
use super::{BenchError, Common, Publish, median, rate};
use daq_core::gpu::driver::{CudaError, Device, StreamEvent};
use daq_core::notify::Wait;
use daq_core::staging::Direction;
use daq_core::staging::{BATCH, BaselineCopy, Tuning, measure};
use daq_core::units::ByteSize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of every ring in bytes. Baseline copies use the same amount of memory.
const RING: usize = 256 << 20;
/// Size in bytes of the copies whose rate is the upper limit.
const LARGE: usize = 64 << 20;
/// Number of copy batches in flight.
const BATCHES: usize = 4;
/// Time for which a harness runs before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(150);

/// Options of `daq bench staging`.
#[derive(Clone, Debug)]
pub struct StagingArgs {
    /// GPU, number of rounds, and duration per method.
    pub common: Common,
    /// Frame sizes in bytes.
    pub frames: Vec<usize>,
    /// Number of concurrent rings on one GPU.
    pub rings: usize,
    /// How the copy engine threads wait.
    pub wait: Wait,
    /// If set, stream for the given time at a share of the upper limit and count lost frames, instead of comparing
    /// methods.
    pub soak: Option<(Duration, f64)>,
}

/// One method to copy frames to or from the GPU, with its results per round.
struct Method {
    name: String,
    frame: usize,
    direction: Direction,
    rates: Vec<f64>,
    cores: Vec<f64>,
    copy: f64,
    /// Number of bytes that were verified after the first round; `None` before that.
    verified: Option<u64>,
}

impl Method {
    fn new(name: impl Into<String>, frame: usize, direction: Direction) -> Self {
        Self {
            name: name.into(),
            frame,
            direction,
            rates: Vec::new(),
            cores: Vec::new(),
            copy: f64::NAN,
            verified: None,
        }
    }

    /// Records the rates that follow from the counters of two samples.
    fn note(&mut self, before: &Sample, after: &Sample, took: f64) {
        let i = index(self.direction);
        let bytes = (after.bytes[i] - before.bytes[i]) as f64;
        let cpu = after.cpu[i].saturating_sub(before.cpu[i]);
        self.rates.push(bytes / took);
        self.cores.push(cpu.as_secs_f64() / took);
        self.copy = bytes / (after.copies[i] - before.copies[i]).max(1) as f64;
    }
}

const IN_BESIDE: &str = "engine in, concurrent out";
const OUT_BESIDE: &str = "engine out, concurrent in";

/// Measures, and passes the result tables to `publish`.
pub fn staging(args: &StagingArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let device = args.common.open()?;
    let profile = measure(device)?;
    let tunings = [
        profile.tuning(Direction::In),
        profile.tuning(Direction::Out),
    ];
    let mut session = Session {
        device,
        args,
        tunings,
        places: Vec::new(),
        baseline: BaselineCopy::new(device, Direction::In, RING, false)?,
        seed: 0,
    };
    match args.soak {
        Some((time, share)) => publish(session.soak(time, share)?),
        None => session.compare()?.into_iter().for_each(publish),
    }
    Ok(())
}

struct Session<'a> {
    device: &'static Device,
    args: &'a StagingArgs,
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
        let baseline = &self.baseline;
        baseline.begin(baseline.walk(LARGE), LARGE)?;
        baseline.finish()?;
        rate(
            self.args.common.window,
            || {
                // Two copies are in flight, so that one is always queued behind the other.
                baseline.begin(baseline.walk(LARGE), LARGE)?;
                baseline.begin(baseline.walk(LARGE), LARGE)?;
                baseline.finish().map(|()| 2 * LARGE)
            },
            || baseline.finish(),
        )
    }

    fn each_and_wait(&mut self, frame: usize) -> Result<f64, CudaError> {
        self.baseline.turn(Direction::In);
        let baseline = &self.baseline;
        rate(
            self.args.common.window,
            || {
                baseline.begin(baseline.walk(frame), frame)?;
                baseline.finish().map(|()| frame)
            },
            || baseline.finish(),
        )
    }

    fn each(&mut self, frame: usize) -> Result<f64, CudaError> {
        self.baseline.turn(Direction::In);
        let baseline = &self.baseline;
        rate(
            self.args.common.window,
            || {
                // Record events regularly, so that the queue does not grow without limit.
                for _ in 0..BATCH {
                    baseline.begin(baseline.walk(frame), frame)?;
                }
                baseline.finish().map(|()| frame * BATCH)
            },
            || baseline.finish(),
        )
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
        while start.elapsed() < self.args.common.window {
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

    /// Runs the copy engine for the duration of a measurement, with `rings` ring copies per method. The first run
    /// verifies the copied bytes.
    fn engine(&mut self, methods: &mut [&mut Method], rings: usize) -> Result<(), BenchError> {
        let loads: Vec<_> = methods
            .iter()
            .flat_map(|method| {
                let load = Load {
                    direction: method.direction,
                    frame: method.frame,
                    rate: None,
                };
                std::iter::repeat_n(load, rings)
            })
            .collect();
        let is_first = methods.iter().all(|method| method.rates.is_empty());
        if is_first {
            self.prepare(&loads)?;
        }
        let harness = Harness::start(
            self.device,
            &self.places,
            &loads,
            self.tunings,
            self.args.wait,
        )?;
        std::thread::sleep(WARM_UP);
        let (before, start) = (harness.sample(), Instant::now());
        std::thread::sleep(self.args.common.window);
        let (after, took) = (harness.sample(), start.elapsed().as_secs_f64());
        let (last, lanes) = harness.stop()?;
        if last.lost > 0 {
            return Err(BenchError::Thread(format!(
                "{} frames were not copied; this is a defect in daq",
                last.lost
            )));
        }
        let verified = if is_first {
            self.verify(&loads, &lanes)?
        } else {
            [0; 2]
        };
        for method in methods {
            method.note(&before, &after, took);
            if is_first {
                method.verified = Some(verified[index(method.direction)]);
            }
        }
        Ok(())
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
    fn verify(&self, loads: &[Load], lanes: &[u64]) -> Result<[u64; 2], BenchError> {
        let mut right = [0; 2];
        for ((load, place), frames) in loads.iter().zip(&self.places).zip(lanes) {
            right[index(load.direction)] +=
                place.verify(load.direction, self.seed, load.frame, *frames)?;
        }
        Ok(right)
    }

    fn compare(&mut self) -> Result<Vec<Table>, BenchError> {
        let args = self.args;
        let mut ceilings = [Vec::new(), Vec::new()];
        let mut methods: Vec<Method> = Vec::new();
        for frame in &args.frames {
            for name in [
                "copy + wait per frame",
                "copy per frame",
                "batched copies",
                "engine in",
            ] {
                methods.push(Method::new(name, *frame, Direction::In));
            }
            methods.push(Method::new("engine out", *frame, Direction::Out));
            if args.rings > 1 {
                let name = format!("engine in, {} rings", args.rings);
                methods.push(Method::new(name, *frame, Direction::In));
            }
            methods.push(Method::new(IN_BESIDE, *frame, Direction::In));
            methods.push(Method::new(OUT_BESIDE, *frame, Direction::Out));
        }
        for _ in 0..args.common.rounds {
            ceilings[0].push(self.ceiling(Direction::In)?);
            ceilings[1].push(self.ceiling(Direction::Out)?);
            let mut rest = methods.iter_mut();
            while let Some(method) = rest.next() {
                let frame = method.frame;
                let figure = match method.name.as_str() {
                    "copy + wait per frame" => self.each_and_wait(frame)?,
                    "copy per frame" => self.each(frame)?,
                    "batched copies" => self.batch(frame)?,
                    "engine in" | "engine out" => {
                        self.engine(&mut [method], 1)?;
                        continue;
                    }
                    IN_BESIDE => {
                        let mut both: Vec<_> = [method].into_iter().chain(rest.next()).collect();
                        self.engine(&mut both, 1)?;
                        continue;
                    }
                    _ => {
                        self.engine(&mut [method], args.rings)?;
                        continue;
                    }
                };
                method.rates.push(figure);
            }
        }
        Ok(self.tables(&ceilings, &methods))
    }

    fn tables(&self, ceilings: &[Vec<f64>; 2], methods: &[Method]) -> Vec<Table> {
        let ceiling = ceilings.each_ref().map(|rates| median(rates));
        let [inward, outward] = &self.tunings;
        let size = |bytes: usize| ByteSize(bytes as u64).to_string();
        let name = &self.device.identity().name;
        let mut table = Table::new(
            format!(
                "{name}: maximum rate (64 MiB copies) {:.2} GB/s to GPU, {:.2} GB/s from GPU; ring size {}; chunk size {} to GPU, {} from GPU; chunks in flight {} to GPU, {} from GPU; medians of {} rounds",
                ceiling[0] / 1e9,
                ceiling[1] / 1e9,
                size(RING),
                size(inward.chunk),
                size(outward.chunk),
                inward.depth,
                outward.depth,
                self.args.common.rounds,
            ),
            &[
                "method",
                "frame",
                "GB/s",
                "÷ ceiling",
                "× copy + wait",
                "mean copy",
                "cores",
                "verified",
            ],
        );
        for method in methods {
            let rate = median(&method.rates);
            let against = ceiling[index(method.direction)];
            let slow = methods
                .iter()
                .find(|other| other.frame == method.frame && other.name == "copy + wait per frame");
            table.row(vec![
                method.name.clone().into(),
                size(method.frame).into(),
                Cell::Number(rate / 1e9, 2),
                Cell::Number(rate / against, 3),
                Cell::Number(slow.map_or(f64::NAN, |slow| rate / median(&slow.rates)), 1),
                if method.copy.is_nan() {
                    "–".into()
                } else {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "the value is a size in bytes"
                    )]
                    let mean = method.copy as u64;
                    ByteSize(mean).rounded().to_string().into()
                },
                Cell::Number(
                    if method.cores.is_empty() {
                        f64::NAN
                    } else {
                        median(&method.cores)
                    },
                    2,
                ),
                match method.verified {
                    Some(bytes) => ByteSize(bytes).rounded().to_string().into(),
                    None => "–".into(),
                },
            ]);
        }
        let mut ratios = Table::new(
            "Ratios",
            &[
                "frame",
                "input with concurrent output ÷ input alone",
                "output with concurrent input ÷ output alone",
                "rings ÷ one ring",
                "engine ÷ copy + wait",
                "cores in",
                "cores out",
            ],
        );
        let figure = |name: &str, frame: usize| {
            methods
                .iter()
                .find(|method| method.name == name && method.frame == frame)
        };
        let rate = |name: &str, frame| {
            figure(name, frame).map_or(f64::NAN, |method| median(&method.rates))
        };
        let cores = |name: &str, frame| {
            figure(name, frame).map_or(f64::NAN, |method| median(&method.cores))
        };
        for frame in &self.args.frames {
            let frame = *frame;
            let rings = rate(&format!("engine in, {} rings", self.args.rings), frame);
            let [inward, outward] = [rate("engine in", frame), rate("engine out", frame)];
            ratios.row(vec![
                size(frame).into(),
                Cell::Number(rate(IN_BESIDE, frame) / inward, 3),
                Cell::Number(rate(OUT_BESIDE, frame) / outward, 3),
                Cell::Number(rings / inward, 3),
                Cell::Number(inward / rate("copy + wait per frame", frame), 1),
                Cell::Number(cores("engine in", frame), 3),
                Cell::Number(cores("engine out", frame), 3),
            ]);
        }
        vec![table, ratios]
    }

    /// Streams at a share of the upper limit and counts lost frames.
    fn soak(&mut self, time: Duration, share: f64) -> Result<Table, BenchError> {
        let ceiling = self.ceiling(Direction::In)?;
        let title = format!(
            "{}: {} at {share} of the maximum of {:.2} GB/s; publishers do not wait for free slots",
            self.device.identity().name,
            daq_core::units::Span(time),
            ceiling / 1e9
        );
        let mut table = Table::new(
            title,
            &["frame", "GB/s", "frames", "lost", "cores", "verified"],
        );
        for frame in &self.args.frames {
            let load = Load {
                direction: Direction::In,
                frame: *frame,
                rate: Some(ceiling * share),
            };
            self.prepare(&[load])?;
            let start = Instant::now();
            let harness = Harness::start(
                self.device,
                &self.places,
                &[load],
                self.tunings,
                self.args.wait,
            )?;
            std::thread::sleep(time);
            let sample = harness.sample();
            let took = start.elapsed().as_secs_f64();
            let (last, lanes) = harness.stop()?;
            let verified = self.verify(&[load], &lanes)?[0];
            table.row(vec![
                ByteSize(*frame as u64).to_string().into(),
                Cell::Number(sample.bytes[0] as f64 / took / 1e9, 2),
                Cell::Number(last.frames as f64, 0),
                Cell::Number(last.lost as f64, 0),
                Cell::Number(sample.cpu[0].as_secs_f64() / took, 3),
                ByteSize(verified).rounded().to_string().into(),
            ]);
        }
        Ok(table)
    }
}
