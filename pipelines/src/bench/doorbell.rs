//! Doorbells: how long a word takes from the CPU to a kernel that waits for it, and back.

use super::echo::{Echo, Resident};
use super::table::{Cell, Table};
use super::{BenchError, median, quantile};
use crate::sys::upload::Upload;
use daq_core::cuda::{Argument, CudaError, Device, Grid};
use daq_core::mapped::{Backend, Mapped, Refusal, Writer};
use daq_core::plan::Direction;
use daq_core::staging::Bare;
use daq_core::topology::Topology;
use daq_core::units::ByteSize;
use std::sync::Arc;
use std::time::Instant;

/// Trips that are not counted, at the start of each way.
const WARM: usize = 1000;
/// Trips of a way that launches are a part of, as a part of the others': they take longer and scatter less.
const SLOW: usize = 8;
/// Bytes of a bell's memory.
const BELL: usize = 4096;

/// Where frames begin, behind the line of the bell.
const FRAMES: usize = 4096;
/// Frames of a ring.
const SLOTS: usize = 512;
/// Frames that are posted with one doorbell while their rate is measured.
const BATCHES: [usize; 4] = [1, 8, 32, 128];
/// Bytes of those frames.
const RATED: usize = 256;

/// What is measured.
#[derive(Clone, Debug)]
pub struct DoorbellArgs {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// Rounds, of which medians are taken.
    pub rounds: usize,
    /// Round trips of each way a round.
    pub trips: usize,
    /// Sizes of what the CPU stores and the copy engine copies.
    pub sizes: Vec<usize>,
    /// Sizes of frames that a kernel reads.
    pub frames: Vec<usize>,
}

/// How a kernel looks at its bell and answers.
struct Look {
    name: &'static str,
    entry: &'static str,
    threads: u32,
}

/// What the kernels of pipelines do comes first.
const LOOKS: [Look; 4] = [
    Look {
        name: "acquire, release",
        entry: "daq_echo_ordered",
        threads: 1,
    },
    Look {
        name: "acquire",
        entry: "daq_echo_acquire",
        threads: 1,
    },
    Look {
        name: "relaxed",
        entry: "daq_echo_relaxed",
        threads: 1,
    },
    Look {
        name: "4 warps",
        entry: "daq_echo_warps",
        threads: 128,
    },
];

/// The percentiles of one way, a figure a round, in microseconds.
#[derive(Clone, Debug, Default)]
struct Figures([Vec<f64>; 3]);

impl Figures {
    const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

    fn add(&mut self, times: &[f64]) {
        for (figures, q) in self.0.iter_mut().zip(Self::QUANTILES) {
            figures.push(quantile(times, q));
        }
    }

    /// The median over the rounds of percentile number `i`.
    fn at(&self, i: usize) -> f64 {
        if self.0[i].is_empty() {
            return f64::NAN;
        }
        median(&self.0[i])
    }

    /// The three, and the second over the first.
    fn cells(&self) -> [Cell; 4] {
        [
            Cell::Number(self.at(0), 3),
            Cell::Number(self.at(1), 3),
            Cell::Number(self.at(2), 3),
            Cell::Number(self.at(1) / self.at(0), 2),
        ]
    }
}

/// A way to put something on a GPU and wait for it.
struct Rival {
    name: &'static str,
    run: fn(&Bench, u32) -> Result<bool, CudaError>,
}

const RIVALS: [Rival; 3] = [
    Rival {
        name: "empty launch + synchronise",
        run: |bench, _| {
            bench.launch()?;
            bench.upload.stream().synchronize().map(|()| true)
        },
    },
    Rival {
        name: "copy of 8 bytes + launch + synchronise",
        run: |bench, _| {
            bench.upload.begin(8)?;
            bench.launch()?;
            bench.upload.stream().synchronize().map(|()| true)
        },
    },
    Rival {
        name: "cuStreamWriteValue32 + synchronise",
        run: |bench, i| {
            let stream = bench.upload.stream();
            let has_call = stream.write_word(bench.upload.memory(), 0, i)?;
            stream.synchronize().map(|()| has_call)
        },
    },
];

struct Bench {
    upload: Upload,
    nothing: daq_core::cuda::Function,
    echo: Echo,
    /// A bell of each backend that can make one.
    bells: Vec<Arc<Mapped>>,
    refused: Vec<Refusal>,
}

impl Bench {
    /// Copies have at most `most` bytes.
    fn new(device: &'static Device, most: usize) -> Result<Self, BenchError> {
        let echo = Echo::new(device)?;
        let (mut bells, mut refused) = (Vec::new(), Vec::new());
        for &backend in Writer::Bell.backends() {
            match Mapped::with(device, BELL, backend) {
                Ok(mapped) => bells.push(mapped),
                Err(refusal) => refused.push(refusal),
            }
        }
        Ok(Self {
            upload: Upload::new(device, most.max(8))?,
            nothing: echo.module().function("daq_nothing")?,
            echo,
            bells,
            refused,
        })
    }

    fn launch(&self) -> Result<(), CudaError> {
        self.nothing
            .launch(self.upload.stream(), &Grid::line(1, 1), &[])
    }

    /// Memory for frames of each backend that made a bell, but not the host's.
    fn data(&self, device: &'static Device, bytes: usize) -> Vec<Arc<Mapped>> {
        let backends = self.bells.iter().map(|bell| bell.backend());
        backends
            .filter(|backend| *backend != Backend::Host)
            .filter_map(|backend| Mapped::with(device, bytes, backend).ok())
            .collect()
    }

    /// A kernel that reads frames of `bytes` bytes from `slots` slots.
    fn reader(
        &self,
        target: &Arc<Mapped>,
        bytes: usize,
        slots: usize,
        threads: u32,
    ) -> Result<Resident, BenchError> {
        let arguments = [
            Argument::U64(target.address() + FRAMES as u64),
            Argument::U64(stride(bytes) as u64),
            Argument::U64(slots as u64),
            Argument::U64(bytes as u64),
            Argument::U64(0),
        ];
        self.echo
            .start("daq_echo_frames", threads, target, &arguments, None)
    }

    /// Round trips through one bell.
    fn trips(&self, bell: &Arc<Mapped>, look: &Look, trips: usize) -> Result<Vec<f64>, BenchError> {
        let mut kernel = self.echo.start(look.entry, look.threads, bell, &[], None)?;
        let mut times = Vec::with_capacity(trips);
        for i in 0..WARM + trips {
            let start = Instant::now();
            let at = kernel.ring()?;
            kernel.wait(at)?;
            let took = start.elapsed();
            if i >= WARM {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
        kernel.stop()?;
        Ok(times)
    }

    /// The same of a rival; nothing where the driver lacks it.
    fn rival(&self, rival: &Rival, trips: usize) -> Result<Vec<f64>, BenchError> {
        let mut times = Vec::with_capacity(trips);
        for i in 0..WARM + trips {
            let start = Instant::now();
            let is_there = (rival.run)(self, u32::try_from(i).unwrap_or(0))?;
            let took = start.elapsed();
            if !is_there {
                break;
            }
            if i >= WARM {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
        Ok(times)
    }
}

/// Microseconds of one look at the host's clock.
fn clock() -> f64 {
    let times: Vec<f64> = (0..10_000)
        .map(|_| Instant::now().elapsed().as_secs_f64() * 1e6)
        .collect();
    median(&times)
}

/// Runs the calling thread alone on the last core that it may use of the GPU's node, or of all; that core, and whether
/// it is of the node.
fn settle(device: &Device) -> Option<(usize, bool)> {
    let topology = Topology::detect();
    let gpu = topology
        .gpus
        .iter()
        .find(|gpu| gpu.ordinal == device.ordinal());
    let node = gpu.and_then(|gpu| gpu.node);
    let is_near = |core: &usize| node.is_some() && topology.node_of(*core) == node;
    let mut cores = topology.cores.iter().copied().rev();
    let near = cores.clone().find(is_near);
    let core = near.or_else(|| cores.next())?;
    daq_core::thread::pin(core).ok()?;
    Some((core, near.is_some()))
}

/// Round trips through doorbells beside what else puts work on a GPU; stores of the CPU beside copies.
pub fn doorbell(args: &DoorbellArgs) -> Result<Vec<Table>, BenchError> {
    let device = Device::open(args.device)?;
    // On a thread of its own, so that the caller's may go on running anywhere.
    let measured = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let core = settle(device);
                let most = args.frames.iter().copied().max().unwrap_or(0);
                let bench = Bench::new(device, most)?;
                let mut tables = round_trips(device, &bench, args, core)?;
                tables.push(frames(device, &bench, args)?);
                tables.push(rates(device, &bench, args)?);
                tables.push(stores(device, &bench, args)?);
                Ok(tables)
            })
            .join()
    });
    measured.unwrap_or_else(|_| {
        Err(BenchError::Thread(
            "the measuring thread panicked; this is a defect of daq".to_owned(),
        ))
    })
}

fn way(backend: Backend) -> String {
    match backend {
        Backend::Host => "doorbell in host memory".to_owned(),
        backend => format!("doorbell by {backend}"),
    }
}

fn round_trips(
    device: &Device,
    bench: &Bench,
    args: &DoorbellArgs,
    core: Option<(usize, bool)>,
) -> Result<Vec<Table>, BenchError> {
    let mut bells = vec![Figures::default(); bench.bells.len() * LOOKS.len()];
    let mut rivals = vec![Figures::default(); RIVALS.len()];
    for _ in 0..args.rounds {
        let mut cells = bells.iter_mut();
        for bell in &bench.bells {
            for (look, figures) in LOOKS.iter().zip(&mut cells) {
                figures.add(&bench.trips(bell, look, args.trips)?);
            }
        }
        for (rival, figures) in RIVALS.iter().zip(&mut rivals) {
            let times = bench.rival(rival, args.trips / SLOW)?;
            if !times.is_empty() {
                figures.add(&times);
            }
        }
    }
    let place = match core {
        Some((core, true)) => format!("core {core}, on the GPU's node"),
        Some((core, false)) => format!("core {core}"),
        None => "any core".to_owned(),
    };
    let title = format!(
        "{}: microseconds from a store to the kernel's answer, {} trips, medians of {}; {place}; a look at the clock takes {:.3}, once in each",
        device.identity().name,
        args.trips,
        args.rounds,
        clock(),
    );
    let columns = [
        "way",
        "kernel",
        "p50",
        "p99",
        "p99.9",
        "p99/p50",
        "x host p50",
    ];
    let mut table = Table::new(title, &columns);
    // The same look at a bell in host memory.
    let host = |look: usize| {
        bench
            .bells
            .iter()
            .position(|bell| bell.backend() == Backend::Host)
            .map_or(f64::NAN, |i| bells[i * LOOKS.len() + look].at(0))
    };
    let row = |table: &mut Table, way: String, kernel: &str, figures: &Figures, host: f64| {
        let mut cells = vec![way.into(), kernel.into()];
        cells.extend(figures.cells());
        cells.push(Cell::Number(figures.at(0) / host, 2));
        table.row(cells);
    };
    for (bell, figures) in bench.bells.iter().zip(bells.chunks(LOOKS.len())) {
        for (i, (look, figures)) in LOOKS.iter().zip(figures).enumerate() {
            row(&mut table, way(bell.backend()), look.name, figures, host(i));
        }
    }
    for (rival, figures) in RIVALS.iter().zip(&rivals) {
        row(&mut table, rival.name.to_owned(), "–", figures, host(0));
    }
    let mut tables = vec![table];
    let mut table = Table::new(
        "ratios of p50, and of p99 to it, each with the kernel whose p50 is least",
        &["way", "kernel", "/ host memory", "/ launch", "p99/p50"],
    );
    let best = |figures: &[Figures]| {
        let all = figures.iter().enumerate();
        let best = all.min_by(|(_, a), (_, b)| a.at(0).total_cmp(&b.at(0)));
        best.map_or((0, Figures::default()), |(i, figures)| (i, figures.clone()))
    };
    let of_bell = |bell: usize| best(&bells[bell * LOOKS.len()..(bell + 1) * LOOKS.len()]);
    let in_host = bench
        .bells
        .iter()
        .position(|bell| bell.backend() == Backend::Host)
        .map_or(f64::NAN, |bell| of_bell(bell).1.at(0));
    for (i, bell) in bench.bells.iter().enumerate() {
        let (look, figures) = of_bell(i);
        table.row(vec![
            way(bell.backend()).into(),
            LOOKS[look].name.into(),
            Cell::Number(figures.at(0) / in_host, 3),
            Cell::Number(figures.at(0) / rivals[0].at(0), 3),
            Cell::Number(figures.at(1) / figures.at(0), 3),
        ]);
    }
    tables.push(table);
    if !bench.refused.is_empty() {
        let mut table = Table::new("memory that no doorbell was tried in", &["why"]);
        for refusal in &bench.refused {
            table.row(vec![refusal.to_string().into()]);
        }
        tables.push(table);
    }
    Ok(tables)
}

/// Round trips with a frame that the kernel reads, beside a copy and a launch.
fn frames(
    device: &'static Device,
    bench: &Bench,
    args: &DoorbellArgs,
) -> Result<Table, BenchError> {
    /// Slots that the frames lie in by turns.
    const TURNS: usize = 16;
    let most = args.frames.iter().copied().max().unwrap_or(1);
    let targets = bench.data(device, FRAMES + TURNS * stride(most));
    let from = vec![1; most];
    let mut figures = vec![vec![Figures::default(); targets.len() + 1]; args.frames.len()];
    for _ in 0..args.rounds {
        for (&bytes, row) in args.frames.iter().zip(&mut figures) {
            for (target, figures) in targets.iter().zip(row.iter_mut()) {
                // A thread for each 16 bytes, in whole warps.
                let threads = bytes.div_ceil(16).next_multiple_of(32).min(512);
                let threads = u32::try_from(threads).unwrap_or(32);
                let mut kernel = bench.reader(target, bytes, TURNS, threads)?;
                let mut slots = (0..TURNS).cycle();
                let times = timed(args.trips, || {
                    let slot = slots.next().unwrap_or(0);
                    let at = FRAMES + slot * stride(bytes);
                    let at = kernel.post([at].into_iter(), &from[..bytes])?;
                    kernel.wait(at)
                })?;
                kernel.stop()?;
                figures.add(&times);
            }
            let times = timed(args.trips / SLOW, || {
                bench.upload.begin(bytes)?;
                bench.launch()?;
                Ok(bench.upload.stream().synchronize()?)
            })?;
            if let Some(figures) = row.last_mut() {
                figures.add(&times);
            }
        }
    }
    let title = format!(
        "{}: microseconds from a frame in the cache to the answer of a kernel that has read it; medians of {}",
        device.name(),
        args.rounds
    );
    let columns = [
        "frame",
        "way",
        "p50",
        "p99",
        "p99.9",
        "p99/p50",
        "x copy p50",
    ];
    let mut table = Table::new(title, &columns);
    for (bytes, row) in args.frames.iter().zip(&figures) {
        let copy = row.last().map_or(f64::NAN, |copy| copy.at(0));
        let ways = targets
            .iter()
            .map(|target| format!("stores and doorbell by {}", target.backend()))
            .chain(["copy + launch + synchronise".to_owned()]);
        for (way, figures) in ways.zip(row) {
            let mut cells = vec![ByteSize(*bytes as u64).to_string().into(), way.into()];
            cells.extend(figures.cells());
            cells.push(Cell::Number(figures.at(0) / copy, 2));
            table.row(cells);
        }
    }
    Ok(table)
}

/// Frames a second through a ring with credits, by the number that one doorbell tells of.
fn rates(device: &'static Device, bench: &Bench, args: &DoorbellArgs) -> Result<Table, BenchError> {
    let targets = bench.data(device, FRAMES + SLOTS * stride(RATED));
    let from = vec![1; RATED];
    let mut figures = vec![vec![Vec::new(); BATCHES.len()]; targets.len()];
    for _ in 0..args.rounds {
        for (target, row) in targets.iter().zip(&mut figures) {
            for (batch, figures) in BATCHES.iter().zip(row) {
                let mut kernel = bench.reader(target, RATED, SLOTS, 512)?;
                let frames = args.trips.next_multiple_of(*batch) * 8;
                let start = Instant::now();
                for first in (0..frames).step_by(*batch) {
                    // The slots' last frames have a credit.
                    let due = (first + batch).saturating_sub(SLOTS);
                    kernel.wait(due as u64)?;
                    let slots = (first..first + batch).map(|frame| frame % SLOTS);
                    let offsets = slots.map(|slot| FRAMES + slot * stride(RATED));
                    kernel.post(offsets, &from)?;
                }
                kernel.wait(frames as u64)?;
                figures.push(frames as f64 / start.elapsed().as_secs_f64() / 1e6);
                kernel.stop()?;
            }
        }
    }
    let title = format!(
        "{}: million frames of {} a second through a ring with credits, one storing thread; medians of {}",
        device.name(),
        ByteSize(RATED as u64),
        args.rounds
    );
    let mut table = Table::new(title, &["way", "frames a doorbell", "million/s"]);
    for (target, row) in targets.iter().zip(&figures) {
        for (batch, figures) in BATCHES.iter().zip(row) {
            table.row(vec![
                target.backend().name().into(),
                Cell::Number(*batch as f64, 0),
                Cell::Number(median(figures), 2),
            ]);
        }
    }
    Ok(table)
}

/// Bytes from one frame of `bytes` bytes to the next.
const fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

/// Stores of the CPU until they have left it, beside copies until they are done.
fn stores(
    device: &'static Device,
    bench: &Bench,
    args: &DoorbellArgs,
) -> Result<Table, BenchError> {
    let most = args.sizes.iter().copied().max().unwrap_or(1);
    let bare = Bare::new(device, Direction::In, most, false)?;
    let targets = bench.data(device, most);
    let from = vec![1; most];
    let mut figures = vec![vec![Figures::default(); targets.len() + 1]; args.sizes.len()];
    for _ in 0..args.rounds {
        for (&bytes, row) in args.sizes.iter().zip(&mut figures) {
            let trips = args.trips / SLOW;
            for (target, figures) in targets.iter().zip(row.iter_mut()) {
                let times = timed(trips, || Ok(target.copy_to(0, &from[..bytes])?))?;
                figures.add(&times);
            }
            let times = timed(trips, || {
                bare.begin(0, bytes)?;
                Ok(bare.finish()?)
            })?;
            if let Some(figures) = row.last_mut() {
                figures.add(&times);
            }
        }
    }
    let title = format!(
        "{}: microseconds until the CPU's stores have left it, beside copies; medians of {}",
        device.identity().name,
        args.rounds
    );
    let columns = ["bytes", "way", "p50", "p99", "p99.9", "p99/p50", "x faster"];
    let mut table = Table::new(title, &columns);
    for (bytes, row) in args.sizes.iter().zip(&figures) {
        let copy = row.last().map_or(f64::NAN, |copy| copy.at(0));
        let ways = targets
            .iter()
            .map(|target| format!("stores by {}", target.backend()))
            .chain(["cuMemcpyHtoDAsync + synchronise".to_owned()]);
        for (way, figures) in ways.zip(row) {
            let mut cells = vec![ByteSize(*bytes as u64).to_string().into(), way.into()];
            cells.extend(figures.cells());
            cells.push(Cell::Number(copy / figures.at(0), 1));
            table.row(cells);
        }
    }
    Ok(table)
}

/// Microseconds of each of `trips` calls, after as many again at most that are not counted.
fn timed(
    trips: usize,
    mut work: impl FnMut() -> Result<(), BenchError>,
) -> Result<Vec<f64>, BenchError> {
    let warm = WARM.min(trips);
    let mut times = Vec::with_capacity(trips);
    for i in 0..warm + trips {
        let start = Instant::now();
        work()?;
        let took = start.elapsed();
        if i >= warm {
            times.push(took.as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}
