//! The staging engine beside the other ways to bring frames to a GPU, and the bare copy as the ceiling.

use super::rig::{Load, Place, Rig};
use super::table::{Cell, Table};
use super::{BenchError, Common, median, rate};
use daq_core::cuda::{CudaError, Device, Mark};
use daq_core::plan::Direction;
use daq_core::staging::{BATCH, Bare, Tuning, measure};
use daq_core::units::ByteSize;
use daq_core::wait::Wait;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of every ring.
const RING: usize = 256 << 20;
/// The copy that is the ceiling.
const LARGE: usize = 64 << 20;
/// Batches of copies in flight.
const BATCHES: usize = 4;
/// How long a rig runs before it is looked at.
const WARM: Duration = Duration::from_millis(150);

/// What to measure.
#[derive(Clone, Debug)]
pub struct StagingArgs {
    /// Device, rounds, window.
    pub common: Common,
    /// Frame sizes in bytes.
    pub frames: Vec<usize>,
    /// Rings on one GPU at a time.
    pub rings: usize,
    /// How the engine's threads wait.
    pub wait: Wait,
    /// Stream for so long at a share of the ceiling and count what is lost, instead of comparing ways.
    pub soak: Option<(Duration, f64)>,
}

/// One way to bring frames to the GPU: what it is called and what it gave a round.
struct Way {
    name: String,
    frame: usize,
    rates: Vec<f64>,
    cores: Vec<f64>,
    copy: f64,
}

impl Way {
    fn new(name: impl Into<String>, frame: usize) -> Self {
        Self {
            name: name.into(),
            frame,
            rates: Vec::new(),
            cores: Vec::new(),
            copy: f64::NAN,
        }
    }
}

/// Measures and tells.
pub fn staging(args: &StagingArgs) -> Result<Vec<Table>, BenchError> {
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
        bare: Bare::new(device, Direction::In, LARGE.max(BATCH * (64 << 10)), false)?,
    };
    match args.soak {
        Some((time, share)) => session.soak(time, share).map(|table| vec![table]),
        None => session.compare(),
    }
}

struct Session<'a> {
    device: &'static Device,
    args: &'a StagingArgs,
    tunings: [Tuning; 2],
    places: Vec<Place>,
    bare: Bare,
}

impl Session<'_> {
    /// Bytes a second of large copies.
    fn ceiling(&mut self, direction: Direction) -> Result<f64, CudaError> {
        self.bare.turn(direction);
        let bare = &self.bare;
        bare.begin(0, LARGE)?;
        bare.finish()?;
        rate(
            self.args.common.window,
            || {
                // Two, so that one is always waiting behind the other.
                bare.begin(0, LARGE)?;
                bare.begin(0, LARGE)?;
                bare.finish().map(|()| 2 * LARGE)
            },
            || bare.finish(),
        )
    }

    fn each_and_wait(&mut self, frame: usize) -> Result<f64, CudaError> {
        self.bare.turn(Direction::In);
        let (bare, mut at) = (&self.bare, 0);
        rate(
            self.args.common.window,
            || {
                at = (at + frame) % (bare.bytes() - frame + 1);
                bare.begin(at, frame)?;
                bare.finish().map(|()| frame)
            },
            || bare.finish(),
        )
    }

    fn each(&mut self, frame: usize) -> Result<f64, CudaError> {
        self.bare.turn(Direction::In);
        let (bare, mut at) = (&self.bare, 0);
        rate(
            self.args.common.window,
            || {
                // Marked now and then, so that the queue does not grow without bound.
                for _ in 0..BATCH {
                    at = (at + frame) % (bare.bytes() - frame + 1);
                    bare.begin(at, frame)?;
                }
                bare.finish().map(|()| frame * BATCH)
            },
            || bare.finish(),
        )
    }

    /// Not a number where the driver has no such call.
    fn batch(&mut self, frame: usize) -> Result<f64, CudaError> {
        if frame * BATCH > self.bare.bytes() {
            return Ok(f64::NAN);
        }
        self.bare.turn(Direction::In);
        if !self.bare.begin_batch(0, frame)? {
            return Ok(f64::NAN);
        }
        self.bare.finish()?;
        let (start, mut bytes) = (Instant::now(), 0);
        let mut marks: VecDeque<Arc<Mark>> = VecDeque::with_capacity(BATCHES);
        while start.elapsed() < self.args.common.window {
            if marks.len() == BATCHES
                && let Some(oldest) = marks.pop_front()
            {
                Bare::wait(&oldest);
            }
            self.bare.begin_batch(0, frame)?;
            marks.push_back(self.bare.mark()?);
            bytes += frame * BATCH;
        }
        self.bare.finish()?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }

    /// Runs the engine with `loads` for a window.
    fn engine(&mut self, loads: &[Load], way: &mut Way) -> Result<f64, BenchError> {
        while self.places.len() < loads.len() {
            self.places.push(Place::new(self.device, RING)?);
        }
        let rig = Rig::start(
            self.device,
            &self.places,
            loads,
            self.tunings,
            self.args.wait,
        )?;
        std::thread::sleep(WARM);
        let (before, start) = (rig.sample(), Instant::now());
        std::thread::sleep(self.args.common.window);
        let (after, took) = (rig.sample(), start.elapsed().as_secs_f64());
        let last = rig.stop()?;
        if last.lost > 0 {
            return Err(BenchError::Thread(format!(
                "{} frames did not come through; this is a defect in daq",
                last.lost
            )));
        }
        let bytes = (after.bytes - before.bytes) as f64;
        way.rates.push(bytes / took);
        way.cores
            .push((after.cpu.saturating_sub(before.cpu)).as_secs_f64() / took);
        way.copy = bytes / (after.copies - before.copies).max(1) as f64;
        Ok(bytes / took)
    }

    fn compare(&mut self) -> Result<Vec<Table>, BenchError> {
        let args = self.args;
        let frames = &args.frames;
        let load = |direction, frame| Load {
            direction,
            frame,
            rate: None,
        };
        let mut ceilings = [Vec::new(), Vec::new()];
        let mut both: Vec<Way> = Vec::new();
        let mut ways: Vec<Way> = Vec::new();
        for frame in frames {
            for name in [
                "copy + wait a frame",
                "copy a frame",
                "batched copies",
                "engine in",
                "engine out",
            ] {
                ways.push(Way::new(name, *frame));
            }
            if args.rings > 1 {
                ways.push(Way::new(format!("engine in, {} rings", args.rings), *frame));
            }
            both.push(Way::new("engine both ways", *frame));
        }
        for _ in 0..args.common.rounds {
            ceilings[0].push(self.ceiling(Direction::In)?);
            ceilings[1].push(self.ceiling(Direction::Out)?);
            for way in &mut ways {
                let frame = way.frame;
                let figure = match way.name.as_str() {
                    "copy + wait a frame" => self.each_and_wait(frame)?,
                    "copy a frame" => self.each(frame)?,
                    "batched copies" => self.batch(frame)?,
                    "engine in" => {
                        self.engine(&[load(Direction::In, frame)], way)?;
                        continue;
                    }
                    "engine out" => {
                        self.engine(&[load(Direction::Out, frame)], way)?;
                        continue;
                    }
                    _ => {
                        let loads = vec![load(Direction::In, frame); args.rings];
                        self.engine(&loads, way)?;
                        continue;
                    }
                };
                way.rates.push(figure);
            }
            for way in &mut both {
                let loads = [
                    load(Direction::In, way.frame),
                    load(Direction::Out, way.frame),
                ];
                self.engine(&loads, way)?;
            }
        }
        Ok(self.tell(&ceilings, &ways, &both))
    }

    fn tell(&self, ceilings: &[Vec<f64>; 2], ways: &[Way], both: &[Way]) -> Vec<Table> {
        let ceiling = ceilings.each_ref().map(|rates| median(rates));
        let [inward, outward] = &self.tunings;
        let size = |bytes: usize| ByteSize(bytes as u64).to_string();
        let name = &self.device.identity().name;
        let mut table = Table::new(
            format!(
                "{name}: bare copies of 64 MiB {:.2} GB/s in, {:.2} GB/s out; rings of {}; chunks of {} in, {} out, {} and {} in flight; medians of {}",
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
                "way",
                "frame",
                "GB/s",
                "of ceiling",
                "x copy+wait",
                "mean copy",
                "cores",
            ],
        );
        for way in ways {
            let rate = median(&way.rates);
            let against = if way.name == "engine out" {
                ceiling[1]
            } else {
                ceiling[0]
            };
            let slow = ways
                .iter()
                .find(|other| other.frame == way.frame && other.name == "copy + wait a frame");
            table.row(vec![
                way.name.clone().into(),
                size(way.frame).into(),
                Cell::Number(rate / 1e9, 2),
                Cell::Number(rate / against, 3),
                Cell::Number(slow.map_or(f64::NAN, |slow| rate / median(&slow.rates)), 1),
                if way.copy.is_nan() {
                    "–".into()
                } else {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a size in bytes"
                    )]
                    let mean = way.copy as u64;
                    ByteSize(mean).rounded().to_string().into()
                },
                Cell::Number(
                    if way.cores.is_empty() {
                        f64::NAN
                    } else {
                        median(&way.cores)
                    },
                    2,
                ),
            ]);
        }
        let mut ratios = Table::new(
            "Ratios",
            &[
                "frame",
                "both ways / (in + out)",
                "rings / one ring",
                "engine / copy+wait",
                "cores in",
                "cores out",
            ],
        );
        let figure = |name: &str, frame: usize| {
            ways.iter()
                .find(|way| way.name == name && way.frame == frame)
        };
        let rate =
            |name: &str, frame| figure(name, frame).map_or(f64::NAN, |way| median(&way.rates));
        let cores =
            |name: &str, frame| figure(name, frame).map_or(f64::NAN, |way| median(&way.cores));
        for way in both {
            let frame = way.frame;
            let alone = rate("engine in", frame) + rate("engine out", frame);
            let rings = rate(&format!("engine in, {} rings", self.args.rings), frame);
            ratios.row(vec![
                size(frame).into(),
                Cell::Number(median(&way.rates) / alone, 3),
                Cell::Number(rings / rate("engine in", frame), 3),
                Cell::Number(
                    rate("engine in", frame) / rate("copy + wait a frame", frame),
                    1,
                ),
                Cell::Number(cores("engine in", frame), 3),
                Cell::Number(cores("engine out", frame), 3),
            ]);
        }
        vec![table, ratios]
    }

    /// Streams at a share of the ceiling and counts what is lost.
    fn soak(&mut self, time: Duration, share: f64) -> Result<Table, BenchError> {
        let ceiling = self.ceiling(Direction::In)?;
        let title = format!(
            "{}: {} at {share} of {:.2} GB/s, publishers that do not wait",
            self.device.identity().name,
            daq_core::units::Span(time),
            ceiling / 1e9
        );
        let mut table = Table::new(title, &["frame", "GB/s", "frames", "lost", "cores"]);
        for frame in &self.args.frames {
            if self.places.is_empty() {
                self.places.push(Place::new(self.device, RING)?);
            }
            let load = Load {
                direction: Direction::In,
                frame: *frame,
                rate: Some(ceiling * share),
            };
            let start = Instant::now();
            let rig = Rig::start(
                self.device,
                &self.places,
                &[load],
                self.tunings,
                self.args.wait,
            )?;
            std::thread::sleep(time);
            let cpu = rig.sample().cpu;
            let took = start.elapsed().as_secs_f64();
            let last = rig.stop()?;
            table.row(vec![
                ByteSize(*frame as u64).to_string().into(),
                Cell::Number(last.bytes as f64 / took / 1e9, 2),
                Cell::Number(last.frames as f64, 0),
                Cell::Number(last.lost as f64, 0),
                Cell::Number(cpu.as_secs_f64() / took, 3),
            ]);
        }
        Ok(table)
    }
}
