//! Measures several GPUs at the same time: staging from host memory to all of them, and copies between rings on two of
//! them. The upper limit of copies between GPUs is one large copy, measured in the same round.

use super::comparison::Comparison;
use super::figures::copy_rate;
use super::harness::{Figures, Group, Harness, Traffic, figures, only_rate};
use super::place::Ends;
use super::table::{Cell, Table, size};
use super::{BenchError, Common, FrameSizes, Publish, bytes};
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::notify::Wait;
use daq_core::region::{HostOptions, Placement, Region};
use daq_core::staging::{
    BaselineCopy, Direction, Route, Tuning, measure, measure_peer, verify_peer,
};
use daq_core::topology::Topology;
use daq_core::units::ByteSize;
use std::sync::Arc;

/// Size in bytes of the copies whose rate is the upper limit.
const LARGE: usize = 64 << 20;
/// Number of raw copies of single frames between two waits.
const PER_WAIT: usize = 256;
/// Options of `daq bench gpus`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    gpus: Gpus,
    #[command(flatten)]
    sizes: FrameSizes,
    /// Size of every ring, a multiple of 64 MiB.
    #[arg(long, default_value = "512 MiB", value_parser = bytes::<LARGE, { usize::MAX >> 1 }, LARGE>)]
    ring: usize,
}

/// The GPUs of a benchmark of several GPUs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Gpus {
    /// CUDA device numbers of the GPUs [default: all GPUs].
    #[arg(long, value_delimiter = ',')]
    gpus: Vec<u32>,
}

/// Measures, and passes the result tables to `publish`.
pub(super) fn gpus(common: &Common, args: &Args, publish: Publish<'_>) -> Result<(), BenchError> {
    let topology = Topology::detect();
    let devices = args.gpus.open(&topology)?;
    publish(staging(common, args, &topology, &devices)?);
    for (i, first) in devices.iter().enumerate() {
        for second in &devices[i + 1..] {
            if let Some(why) = without_access(&topology, &[first, second]) {
                publish(Table::of("not measured", "GPUs | reason", [why]));
                continue;
            }
            publish(Peers::new(common, first, second, args.ring)?.compare(args)?);
        }
    }
    Ok(())
}

impl Gpus {
    /// Opens the selected GPUs; at least two.
    pub(super) fn open(&self, topology: &Topology) -> Result<Vec<&'static Device>, BenchError> {
        let ordinals: Vec<u32> = if self.gpus.is_empty() {
            topology.gpus.iter().map(|gpu| gpu.ordinal).collect()
        } else {
            self.gpus.clone()
        };
        if ordinals.len() < 2 {
            let have = match ordinals.first() {
                Some(gpu) => format!("only cuda:{gpu} is selected"),
                None => topology.no_gpu.clone(),
            };
            return Err(BenchError::Thread(format!(
                "this benchmark compares several GPUs, but {have}; name at least two: --gpus 0,1"
            )));
        }
        let devices = ordinals.iter().map(|ordinal| Device::open(*ordinal));
        Ok(devices.collect::<Result<_, _>>()?)
    }
}

/// Returns a table row for the first two of the GPUs that cannot access each other's memory; `None` if all can.
pub(super) fn without_access(topology: &Topology, devices: &[&Device]) -> Option<Vec<Cell>> {
    let ordinals = devices.iter().map(|device| device.ordinal());
    let pairs = ordinals
        .clone()
        .flat_map(|one| ordinals.clone().map(move |other| (one, other)));
    let mut pairs = pairs.filter(|(one, other)| one != other);
    let (one, other) = pairs.find(|(one, other)| topology.peer_link(*one, *other).is_none())?;
    let why = "the GPUs cannot access each other's memory";
    Some(vec![format!("cuda:{one}, cuda:{other}").into(), why.into()])
}

/// Runs `groups` for the measurement window. With a `seed`, fills the sources with the pattern of this seed before, and
/// compares all targets afterwards. Returns the figures of all groups together.
fn run(common: &Common, groups: &[Group<'_>], seed: Option<u64>) -> Result<Figures, BenchError> {
    let copies = || groups.iter().flat_map(|group| &group.copies);
    if let Some(seed) = seed {
        for (ends, _) in copies() {
            ends.prepare(seed)?;
        }
    }
    let harness = Harness::start_groups(groups, Wait::Adaptive)?;
    let (moved, copied) = harness.observe(common.window.0)?;
    let mut figures = figures(&moved);
    if let Some(seed) = seed {
        let mut right = 0;
        for ((ends, traffic), frames) in copies().zip(copied) {
            right += ends.verify(seed, traffic.frame, frames)?;
        }
        figures[3] = right as f64;
    }
    Ok(figures)
}

/// The host memory and the GPU memory of one GPU's ring copy.
struct Staged {
    host: Arc<Region>,
    gpu: Arc<Region>,
    route: Route,
    tuning: Tuning,
}

impl Staged {
    fn new(device: &'static Device, topology: &Topology, bytes: usize) -> Result<Self, BenchError> {
        let host = Region::host(
            bytes,
            HostOptions {
                huge: true,
                node: topology.gpu_at(device.ordinal()).and_then(|gpu| gpu.node),
                ..HostOptions::default()
            },
        )?;
        host.pin(device)?;
        Ok(Self {
            host,
            gpu: Region::cuda(device, bytes)?,
            route: route(Placement::Host, Placement::Cuda(device.ordinal()))?,
            tuning: measure(device)?.tuning(Direction::In),
        })
    }

    /// Returns the copies from `host` to this GPU.
    fn group<'a>(&'a self, host: &'a Arc<Region>, frame: usize) -> Group<'a> {
        let ends = Ends {
            from: host,
            to: &self.gpu,
        };
        Group {
            route: self.route,
            tuning: self.tuning,
            copies: vec![(ends, Traffic { frame, rate: None })],
        }
    }
}

fn route(from: Placement, to: Placement) -> Result<Route, BenchError> {
    Route::between(from, to)
        .ok_or_else(|| BenchError::Thread(format!("no GPU copies from {from} to {to}")))
}

/// Which GPUs are staged to at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Targets {
    /// One GPU, by its position.
    One(usize),
    /// All GPUs, each from its own host ring.
    All,
    /// All GPUs from the same host memory.
    Same,
}

fn staging(
    common: &Common,
    args: &Args,
    topology: &Topology,
    devices: &[&'static Device],
) -> Result<Table, BenchError> {
    let staged = devices
        .iter()
        .map(|device| Staged::new(device, topology, args.ring));
    let staged = staged.collect::<Result<Vec<_>, _>>()?;
    let mut methods: Vec<_> = (0..staged.len()).map(Targets::One).collect();
    methods.extend([Targets::All, Targets::Same]);
    let mut seeds = Seeds::new(args.sizes.frames.len() * methods.len());
    let compared = common.compare(&args.sizes.frames, &methods, |&frame, &targets| {
        let groups: Vec<_> = match targets {
            Targets::One(gpu) => vec![staged[gpu].group(&staged[gpu].host, frame)],
            Targets::All => staged.iter().map(|to| to.group(&to.host, frame)).collect(),
            Targets::Same => {
                let host = &staged[0].host;
                staged.iter().map(|to| to.group(host, frame)).collect()
            }
        };
        run(common, &groups, seeds.next()).map(Some)
    })?;
    let title = format!("Staging to {} GPUs at the same time", staged.len());
    let columns = "method | frame | GB/s | ÷ sum of each GPU alone | mean copy | cores | verified";
    let alone = staged.len();
    Ok(table(&compared, &title, columns, |targets, all| {
        let sum: f64 = all[..alone].iter().map(|figures| figures[0]).sum();
        match targets {
            Targets::One(gpu) => (
                format!("to cuda:{} alone", devices[*gpu].ordinal()),
                f64::NAN,
            ),
            Targets::All => ("to all GPUs, a host ring each".to_owned(), sum),
            Targets::Same => ("to all GPUs from the same host memory".to_owned(), sum),
        }
    }))
}

/// One table row per method and frame size. `about` returns the method's name and the rate to which its rate is compared.
fn table<M>(
    compared: &Comparison<'_, usize, M, 4>,
    title: &str,
    columns: &str,
    about: impl Fn(&M, &[Figures]) -> (String, f64),
) -> Table {
    compared.table(title, columns, |it| {
        let [rate, cores, copy, _] = it.figures;
        let verified = it.rounds.first().map_or(f64::NAN, |first| first[3]);
        let (name, base) = about(it.method, &it.all);
        vec![
            name.into(),
            size(*it.scenario),
            Cell::Number(rate / 1e9, 2),
            Cell::Number(rate / base, 3),
            super::staging::rounded(copy),
            Cell::Number(cores, 2),
            super::staging::rounded(verified),
        ]
    })
}

/// The seeds of the measurements of the first round, whose bytes are verified.
struct Seeds {
    next: u64,
    last: u64,
}

impl Seeds {
    const fn new(measurements: usize) -> Self {
        Self {
            next: 1,
            last: measurements as u64,
        }
    }

    /// Returns the seed of this measurement; `None` after the first round.
    fn next(&mut self) -> Option<u64> {
        let seed = self.next;
        self.next += 1;
        (seed <= self.last).then_some(seed)
    }
}

/// A method to copy frames between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Large copies by the source, from the GPU with this position to the other.
    Raw(usize),
    /// Large copies by the target.
    Pull(usize),
    /// A copy per frame by the source.
    Each(usize),
    /// A ring copy.
    Ring(usize),
    /// Large copies in both directions at the same time.
    RawBoth,
    /// Ring copies in both directions at the same time.
    RingBoth,
}

/// The order is that of the columns in which ratios find their base.
const METHODS: [Method; 10] = [
    Method::Raw(0),
    Method::Raw(1),
    Method::RawBoth,
    Method::Pull(0),
    Method::Pull(1),
    Method::Each(0),
    Method::Each(1),
    Method::Ring(0),
    Method::Ring(1),
    Method::RingBoth,
];

/// Two GPUs that write each other's memory. Every pair has the copies from the first to the second GPU, then the copies
/// back.
struct Peers<'a> {
    common: &'a Common,
    devices: [&'static Device; 2],
    routes: [Route; 2],
    tunings: [Tuning; 2],
    push: [BaselineCopy; 2],
    pull: [BaselineCopy; 2],
    /// Source and target region of each direction.
    rings: [[Arc<Region>; 2]; 2],
}

impl<'a> Peers<'a> {
    fn new(
        common: &'a Common,
        first: &'static Device,
        second: &'static Device,
        bytes: usize,
    ) -> Result<Self, BenchError> {
        let pairs = [(first, second), (second, first)];
        let each = |(from, to): (&'static Device, &'static Device)| -> Result<_, BenchError> {
            verify_peer(from, to)?;
            let rings = [Region::cuda(from, bytes)?, Region::cuda(to, bytes)?];
            rings[1].grant(from)?;
            Ok((
                route(
                    Placement::Cuda(from.ordinal()),
                    Placement::Cuda(to.ordinal()),
                )?,
                measure_peer(from, to)?.tuning(),
                BaselineCopy::between_gpus(from, to, bytes, false)?,
                BaselineCopy::between_gpus(from, to, bytes, true)?,
                rings,
            ))
        };
        let (forward, back) = (each(pairs[0])?, each(pairs[1])?);
        Ok(Self {
            common,
            devices: [first, second],
            routes: [forward.0, back.0],
            tunings: [forward.1, back.1],
            push: [forward.2, back.2],
            pull: [forward.3, back.3],
            rings: [forward.4, back.4],
        })
    }

    /// Returns the figures of large copies by all `copies` at the same time.
    fn raw(&self, copies: &[&BaselineCopy]) -> Result<Figures, CudaError> {
        // Four copies per direction are in flight, so that the links never wait for the host.
        copy_rate(copies, (LARGE, 4), self.common.window.0).map(only_rate)
    }

    /// Returns the ring copies of one direction.
    fn group(&self, direction: usize, frame: usize) -> Group<'_> {
        let [from, to] = &self.rings[direction];
        Group {
            route: self.routes[direction],
            tuning: self.tunings[direction],
            copies: vec![(Ends { from, to }, Traffic { frame, rate: None })],
        }
    }

    fn compare(&self, args: &Args) -> Result<Table, BenchError> {
        let mut seeds = Seeds::new(args.sizes.frames.len() * METHODS.len());
        let window = self.common.window.0;
        let compared = self
            .common
            .compare(&args.sizes.frames, &METHODS, |&frame, &method| {
                let seed = seeds.next();
                Ok(Some(match method {
                    Method::Raw(way) => self.raw(&[&self.push[way]])?,
                    Method::Pull(way) => self.raw(&[&self.pull[way]])?,
                    Method::RawBoth => self.raw(&[&self.push[0], &self.push[1]])?,
                    Method::Each(way) => {
                        only_rate(copy_rate(&[&self.push[way]], (frame, PER_WAIT), window)?)
                    }
                    Method::Ring(way) => run(self.common, &[self.group(way, frame)], seed)?,
                    Method::RingBoth => {
                        let groups = [self.group(0, frame), self.group(1, frame)];
                        run(self.common, &groups, seed)?
                    }
                }))
            })?;
        let chunks = self.tunings.map(|tuning| {
            let chunk = ByteSize(tuning.chunk as u64);
            format!("{chunk} × {}", tuning.depth)
        });
        let [one, other] = self.devices.map(Device::ordinal);
        let title = format!(
            "Copies between cuda:{one} and cuda:{other}; chunk size × chunks in flight {} to cuda:{other}, {} to cuda:{one}",
            chunks[0], chunks[1]
        );
        let columns = "method | frame | GB/s | ÷ raw copy | mean copy | cores | verified";
        Ok(table(&compared, &title, columns, |method, all| {
            let name = |way: usize| self.routes[way].to_string();
            match method {
                Method::Raw(way) => (format!("raw copies of 64 MiB, {}", name(*way)), f64::NAN),
                Method::RawBoth => ("raw copies of 64 MiB, both directions".to_owned(), f64::NAN),
                Method::Pull(way) => (
                    format!("the same by the target GPU, {}", name(*way)),
                    all[*way][0],
                ),
                Method::Each(way) => (format!("raw copy per frame, {}", name(*way)), all[*way][0]),
                Method::Ring(way) => (format!("ring copy, {}", name(*way)), all[*way][0]),
                Method::RingBoth => ("ring copies, both directions".to_owned(), all[2][0]),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_use_raw_copies_of_same_direction() {
        // `compare` finds the base of a ratio by its position.
        assert_eq!(
            METHODS[..3],
            [Method::Raw(0), Method::Raw(1), Method::RawBoth]
        );
    }

    #[test]
    fn only_first_round_is_verified() {
        let mut seeds = Seeds::new(2);
        assert_eq!(
            [seeds.next(), seeds.next(), seeds.next()],
            [Some(1), Some(2), None]
        );
    }
}
