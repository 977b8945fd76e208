//! Kernels that stay on a GPU, run by the engine as in a pipeline: from a frame that is committed in host memory to its
//! result in the output ring, alone and beside copies at full rate; and how many frames a second.

use super::place::Place;
use super::rig::{Load, Rig, index};
use super::table::{Cell, Table};
use super::{BenchError, Common, median, quantile};
use crate::engine::control::{Control, Pulse};
use crate::engine::kernel::{Parts, Runner};
use crate::kernels::file::{FileKernel, FrameKeys};
use crate::sys::upload::Upload;
use daq_core::cuda::Device;
use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelContext, KernelSpec, Side, Stream};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::ledger::{CopyLedger, KernelLedger, ReaderLedger, RingLedger};
use daq_core::mapped::{Backend, Writer};
use daq_core::plan::{Direction, Dispatch};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Producer, Reader, Ring, RingOptions};
use daq_core::staging::{Carrier, measure};
use daq_core::units::ByteSize;
use daq_core::wait::{Bell, Wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The code that every frame goes through.
const CODE: &str = include_str!("touch.cu");
/// Frames that are not counted, at the start of each way.
const WARM: usize = 500;
/// Bytes from one result to the next.
const LINE: usize = 64;
/// Slots of the rings.
const SLOTS: usize = 4096;
/// Bytes of a frame that a thread reads: one load.
const THREAD: usize = 16;
/// Bytes of the frames whose rate is measured.
const RATED: usize = 256;
/// Most frames that are committed and taken on at a time while their rate is measured.
const BURST: usize = 256;
/// Teams that their rate is measured with.
const TEAMS: [u32; 4] = [1, 8, 32, 64];
/// Bytes of the frames, and of the memory on either side, of the copies beside.
const BESIDE: (usize, usize) = (1 << 20, 256 << 20);
/// The longest copies beside: what was measured to be best, and shorter ones.
const CHUNKS: [Option<usize>; 4] = [None, Some(1 << 20), Some(512 << 10), Some(256 << 10)];
/// How long a result may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct ResidentArgs {
    /// Device, rounds, window.
    pub common: Common,
    /// Frames of each way a round.
    pub trips: usize,
    /// Bytes of a frame, multiples of 16.
    pub frames: Vec<usize>,
    /// Code to run instead of one that adds up a frame's words: a kernel of the user's own.
    pub file: Option<std::path::PathBuf>,
}

/// A kernel's ends: rings as the plan would make them for a kernel that is fed by a socket.
struct Line {
    producer: Producer,
    results: Reader,
    output: Arc<Region>,
    parts: Parts,
}

/// A directory for the code, which is removed at the end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(file: Option<&std::path::Path>) -> Result<Self, BenchError> {
        let path = std::env::temp_dir().join(format!("daq-bench-{}", std::process::id()));
        let write = || {
            std::fs::create_dir_all(&path)?;
            let code = file.map_or_else(|| Ok(CODE.to_owned()), std::fs::read_to_string)?;
            std::fs::write(path.join("touch.cu"), code)
        };
        write().map_err(|error| {
            BenchError::Thread(format!(
                "cannot copy the code to {}: {error}; look at `--file`, or set TMPDIR to a directory that can be written",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A kernel that stays and has begun, with its ends.
struct Running {
    ends: Ends,
    runner: Runner,
    /// Where results are looked at.
    output: Option<Arc<Region>>,
}

/// The ends of a line: frames are committed at one, results come out at the other.
struct Ends {
    frame: usize,
    /// None at the end.
    producer: Option<Producer>,
    results: Reader,
    /// Frames so far.
    made: u64,
    /// What the words of the last one add up to.
    sum: u32,
    /// Microseconds of each until the engine has posted it, where the same thread is the engine.
    host: Vec<f64>,
}

impl Ends {
    /// Commits one frame and waits for its result, calling `step` meanwhile: how many microseconds that took.
    fn trip(
        &mut self,
        mut step: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let Some(producer) = &mut self.producer else {
            return Ok(f64::NAN);
        };
        let mut slots = producer.reserve(1);
        if let Some(bytes) = slots.bytes_mut() {
            self.sum = fill(bytes, self.made);
        }
        slots.finish(FrameMeta::whole(self.made, self.frame));
        let start = Instant::now();
        slots.publish();
        let mut looks = 0_u32;
        while self.results.pending() == 0 {
            step()?;
            if looks == 0 {
                self.host.push(start.elapsed().as_secs_f64() * 1e6);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 10) && start.elapsed() > PATIENCE {
                return Err(BenchError::Thread(format!(
                    "frame {} has no result after {PATIENCE:?}",
                    self.made
                )));
            }
        }
        let took = start.elapsed();
        drop(self.results.poll(1));
        self.made += 1;
        Ok(took.as_secs_f64() * 1e6)
    }

    /// `trips` of them behind some that are not counted.
    fn trips(
        &mut self,
        trips: usize,
        mut step: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Vec<f64>, BenchError> {
        for _ in 0..WARM {
            self.trip(&mut step)?;
        }
        (0..trips).map(|_| self.trip(&mut step)).collect()
    }

    /// Looks at the last result, once the kernel has ended.
    fn check(&self, output: Option<&Arc<Region>>) -> Result<(), BenchError> {
        let mut word = [0; 4];
        let last = usize::try_from(self.made - 1).unwrap_or(0) % SLOTS;
        let Some(memory) = output.and_then(|output| output.memory()) else {
            return Ok(());
        };
        memory.read(last * LINE, &mut word)?;
        let word = u32::from_le_bytes(word);
        if word == self.sum {
            return Ok(());
        }
        Err(BenchError::Thread(format!(
            "the kernel made {word} of a frame whose words add up to {}; `daq selftest gpu` looks closer",
            self.sum
        )))
    }
}

impl Running {
    /// Frames one after the other, everything by this thread.
    fn trips(&mut self, trips: usize) -> Result<Vec<f64>, BenchError> {
        let runner = &mut self.runner;
        self.ends.trips(trips, || {
            runner.step().map(|_| ()).map_err(BenchError::from)
        })
    }

    /// Ends the kernel and looks at its last result.
    fn end(self) -> Result<(), BenchError> {
        drop(self.runner);
        self.ends.check(self.output.as_ref())
    }

    /// The same frames with the engine's part on a core of its own; ends the kernel.
    fn trips_by_two(self, trips: usize, cores: &Cores) -> Result<Vec<f64>, BenchError> {
        let Self {
            mut ends,
            runner,
            output,
        } = self;
        let engine_cores = cores.clone();
        let (done, ends) = std::thread::scope(|scope| {
            let engine = scope.spawn(move || {
                engine_cores.take(1);
                runner.run(&Pulse::new("touch".to_owned()));
            });
            let done = cores.first(|| ends.trips(trips, || Ok(())));
            // The engine's thread ends with its source.
            ends.producer = None;
            let _ = engine.join();
            (done, ends)
        });
        let times = done?;
        ends.check(output.as_ref())?;
        Ok(times)
    }
}

struct Bench {
    cores: Cores,
    device: &'static Device,
    scratch: Scratch,
    /// Whether results are those of our own code.
    is_checked: bool,
}

fn layout(bytes: usize) -> Layout {
    Layout {
        scalar: Scalar::Int32,
        complex: false,
        channels: 1,
        points: bytes / 4,
        order: Order::Interleaved,
        axis: Axis::Time { rate: None },
        frame_rate: None,
    }
}

impl Bench {
    fn kernel(
        &self,
        frame: usize,
        teams: u32,
        dispatch: Dispatch,
        rings: Option<(&Ring, &Ring)>,
    ) -> Result<Box<dyn Kernel>, BenchError> {
        let threads = (frame / THREAD).next_multiple_of(32).clamp(32, 256);
        let keys = FileKernel {
            threads: u32::try_from(threads).unwrap_or(256),
            blocks: Some(1),
            teams: Some(teams),
            frame: FrameKeys {
                points: Some(1),
                ..FrameKeys::default()
            },
            ..FileKernel::new("touch.cu")
        };
        let input = layout(frame);
        let mut context = KernelContext {
            name: "touch".to_owned(),
            directory: self.scratch.0.clone(),
            burst: BURST,
            dispatch,
            ..KernelContext::alone(&input, Side::Cuda(self.device.ordinal()))
        };
        if let Some((input, output)) = rings {
            (context.slots, context.output) = (input.slice(), output.slice());
        }
        Ok(keys.build(&context)?)
    }

    /// Rings of `slots` slots for frames of `frame` bytes.
    fn line(&self, frame: usize, slots: usize, teams: u32) -> Result<Line, BenchError> {
        let bell = Arc::new(Bell::default());
        let options = |name: &str, bytes: usize| RingOptions::new(name, slots, bytes);
        let carried = |name: &str| RingOptions {
            bells: vec![bell.clone()],
            ..options(name, frame)
        };
        let host = Region::host(carried("host").region_bytes(), HostOptions::default())?;
        let gpu = Region::mapped(
            self.device,
            carried("gpu").region_bytes(),
            Writer::Cpu,
            &Backend::ALL,
        )?;
        let output = Region::cuda(self.device, options("out", 4).region_bytes())?;
        let (source, producer) = Ring::new(host, carried("host"), RingLedger::default())?;
        let quiet = RingOptions {
            quiet: true,
            ..options("gpu", frame)
        };
        let (input, copied) = Ring::new(gpu, quiet, RingLedger::default())?;
        let (out, made) = Ring::new(output.clone(), options("out", 4), RingLedger::default())?;
        let attach = |ring: &Ring| ring.attach(true, BURST, ReaderLedger::default());
        let carrier = Carrier::new(attach(&source)?, copied, CopyLedger::default(), BURST);
        let kernel = self.kernel(frame, teams, Dispatch::Persistent, Some((&input, &out)))?;
        Ok(Line {
            producer,
            results: attach(&out)?,
            parts: Parts {
                name: "touch".to_owned(),
                reader: attach(&input)?,
                producer: made,
                stream: None,
                kernel,
                ledger: KernelLedger::default(),
                burst: BURST,
                wait: Wait::Busy,
                control: Arc::new(Control::new(PATIENCE)),
                on_device: true,
                carrier: carrier.map(|carrier| (carrier, bell)),
            },
            output,
        })
    }

    /// A kernel that stays and has begun, with its ends.
    fn start(&self, frame: usize) -> Result<Running, BenchError> {
        let line = self.line(frame, SLOTS, 1)?;
        let mut runner = Runner::new(line.parts);
        runner.begin()?;
        Ok(Running {
            ends: Ends {
                frame,
                producer: Some(line.producer),
                results: line.results,
                made: 0,
                sum: 0,
                host: Vec::new(),
            },
            runner,
            output: self.is_checked.then_some(line.output),
        })
    }

    /// The same by a copy, a launch and a wait each.
    fn launches(&self, frame: usize, trips: usize) -> Result<Vec<f64>, BenchError> {
        let options = |name: &str, bytes: usize| RingOptions::new(name, 64, bytes);
        let gpu = Region::cuda(self.device, options("gpu", frame).region_bytes())?;
        let out = Region::cuda(self.device, options("out", 4).region_bytes())?;
        let (ring, mut copied) = Ring::new(gpu, options("gpu", frame), RingLedger::default())?;
        let (_, mut made) = Ring::new(out, options("out", 4), RingLedger::default())?;
        let mut reader = ring.attach(true, 1, ReaderLedger::default())?;
        let mut kernel = self.kernel(frame, 1, Dispatch::Launch, None)?;
        let upload = Upload::new(self.device, frame)?;
        let mut times = Vec::with_capacity(trips);
        for i in 0..WARM + trips {
            let start = Instant::now();
            upload.begin(frame)?;
            let mut slots = copied.reserve(1);
            slots.finish(FrameMeta::whole(i as u64, frame));
            slots.publish();
            if let Some(lease) = reader.poll(1) {
                let mut out = made.reserve(1);
                let _ = kernel.run(&lease, &mut out, Stream::Cuda(upload.stream()))?;
                upload.stream().synchronize()?;
                out.publish();
            }
            if i >= WARM {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(times)
    }

    /// Frames a second with so many teams.
    fn rate(&self, teams: u32, window: Duration) -> Result<f64, BenchError> {
        let Line {
            mut producer,
            mut results,
            parts,
            ..
        } = self.line(RATED, SLOTS, teams)?;
        let mut runner = Runner::new(parts);
        runner.begin()?;
        let stop = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let cores = &self.cores;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cores.take(2);
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let mut slots = producer.reserve(BURST / 4);
                    while slots.remaining() > 0 {
                        if let Some(bytes) = slots.bytes_mut() {
                            bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
                        }
                        slots.finish(FrameMeta::whole(n as u64, RATED));
                        n += 1;
                    }
                    slots.publish();
                }
                drop(producer);
            });
            scope.spawn(|| {
                cores.take(1);
                runner.run(&Pulse::new("touch".to_owned()));
            });
            let take = |results: &mut Reader| {
                let taken = results.poll(SLOTS).map_or(0, |lease| lease.len());
                done.fetch_add(taken as u64, Ordering::Relaxed);
            };
            let run = |results: &mut Reader, time: Duration| {
                let (start, before) = (Instant::now(), done.load(Ordering::Relaxed));
                while start.elapsed() < time {
                    take(results);
                }
                let frames = done.load(Ordering::Relaxed) - before;
                frames as f64 / start.elapsed().as_secs_f64()
            };
            run(&mut results, window / 4);
            let rate = run(&mut results, window);
            stop.store(true, Ordering::Relaxed);
            while !results.is_finished() {
                take(&mut results);
            }
            Ok(rate)
        })
    }
}

/// Fills a frame with words of frame `i` and gives their sum.
fn fill(bytes: &mut [u8], i: u64) -> u32 {
    let mut sum = 0_u32;
    for (word, n) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(0_u32..) {
        let value = n.wrapping_mul(2_654_435_761) ^ u32::try_from(i).unwrap_or(0);
        *word = value.to_le_bytes();
        sum = sum.wrapping_add(value);
    }
    sum
}

/// Cores for the measuring thread, the engine's and a source's, the last ones that the process may use. Asked once: a
/// thread that was given a core, and those that it starts, may use no other.
#[derive(Clone, Debug)]
struct Cores(Vec<usize>);

impl Cores {
    fn new() -> Self {
        let cores = daq_core::topology::Topology::detect().cores;
        Self(cores.into_iter().rev().take(3).collect())
    }

    /// Does `work` on the first of them, by a thread of its own: the caller's starts others, which inherit no core.
    fn first<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.take(0);
                work()
            });
            thread.join()
        });
        done.unwrap_or_else(|_| {
            Err(BenchError::Thread(
                "the measuring thread panicked; this is a defect of daq".to_owned(),
            ))
        })
    }

    /// Gives the calling thread the `n`-th of them; where there are too few it runs anywhere.
    fn take(&self, n: usize) {
        if let Some(core) = self.0.get(n).filter(|_| self.0.len() == 3) {
            let _ = daq_core::thread::pin(*core);
        }
    }
}

/// The percentiles of one way, a figure a round.
#[derive(Clone, Default)]
struct Figures([Vec<f64>; 3]);

impl Figures {
    fn add(&mut self, times: &[f64]) {
        for (figures, q) in self.0.iter_mut().zip([0.5, 0.99, 0.999]) {
            figures.push(quantile(times, q));
        }
    }

    fn at(&self, i: usize) -> f64 {
        median(&self.0[i])
    }

    fn cells(&self) -> [Cell; 3] {
        [0, 1, 2].map(|i| Cell::Number(self.at(i), 3))
    }
}

/// Measures and tells.
pub fn resident(args: &ResidentArgs) -> Result<Vec<Table>, BenchError> {
    let bench = Bench {
        cores: Cores::new(),
        device: args.common.open()?,
        scratch: Scratch::new(args.file.as_deref())?,
        is_checked: args.file.is_none(),
    };
    Ok(vec![
        latencies(&bench, args)?,
        beside(&bench, args)?,
        rates(&bench, args)?,
    ])
}

fn latencies(bench: &Bench, args: &ResidentArgs) -> Result<Table, BenchError> {
    let mut figures =
        vec![[Figures::default(), Figures::default(), Figures::default()]; args.frames.len()];
    let mut hosts = vec![Vec::new(); args.frames.len()];
    for _ in 0..args.common.rounds {
        for ((&frame, ways), hosts) in args.frames.iter().zip(&mut figures).zip(&mut hosts) {
            let mut running = bench.start(frame)?;
            ways[0].add(&bench.cores.first(|| running.trips(args.trips))?);
            hosts.push(median(&running.ends.host));
            running.end()?;
            ways[1].add(&bench.start(frame)?.trips_by_two(args.trips, &bench.cores)?);
            ways[2].add(
                &bench
                    .cores
                    .first(|| bench.launches(frame, args.trips / 8))?,
            );
        }
    }
    let mut table = Table::new(
        format!(
            "{}: microseconds from a frame's commit to its result, {} frames, medians of {}",
            bench.device.name(),
            args.trips,
            args.common.rounds
        ),
        &[
            "frame",
            "way",
            "p50",
            "p99",
            "p99.9",
            "of it the host",
            "÷ copy + launch",
        ],
    );
    for ((frame, ways), hosts) in args.frames.iter().zip(&figures).zip(&hosts) {
        let hosts = [median(hosts), f64::NAN, f64::NAN];
        let names = [
            "stays, one thread",
            "stays, committed by another thread",
            "copy + launch + synchronise",
        ];
        for ((name, way), host) in names.into_iter().zip(ways).zip(hosts) {
            let [p50, p99, p999] = way.cells();
            let ratio = Cell::Number(way.at(0) / ways[2].at(0), 3);
            let frame = ByteSize(*frame as u64).to_string();
            let host = Cell::Number(host, 3);
            table.row(vec![frame.into(), name.into(), p50, p99, p999, host, ratio]);
        }
    }
    Ok(table)
}

fn beside(bench: &Bench, args: &ResidentArgs) -> Result<Table, BenchError> {
    let profile = measure(bench.device)?;
    let (frame, memory) = BESIDE;
    let place = Place::new(bench.device, memory)?;
    let load = Load {
        direction: Direction::In,
        frame,
        rate: None,
    };
    let small = *args.frames.first().unwrap_or(&64);
    let mut ways = vec![(Vec::new(), Vec::new(), Figures::default()); CHUNKS.len()];
    let mut most = Vec::new();
    for _ in 0..args.common.rounds {
        for (chunk, (alone, both, figures)) in CHUNKS.iter().zip(&mut ways) {
            let tunings = [Direction::In, Direction::Out]
                .map(|direction| profile.tuning_for(direction, *chunk, None));
            // Memory is had, and given back, while nothing is under way.
            let mut running = bench.start(small)?;
            let places = std::slice::from_ref(&place);
            let rig = Rig::start(bench.device, places, &[load], tunings, Wait::Busy)?;
            std::thread::sleep(Duration::from_millis(100));
            let rate =
                |time: &mut dyn FnMut() -> Result<(), BenchError>| -> Result<f64, BenchError> {
                    let (start, before) =
                        (Instant::now(), rig.sample().bytes[index(Direction::In)]);
                    time()?;
                    let bytes = rig.sample().bytes[index(Direction::In)] - before;
                    Ok(bytes as f64 / start.elapsed().as_secs_f64())
                };
            alone.push(rate(&mut || {
                std::thread::sleep(args.common.window);
                Ok(())
            })?);
            both.push(rate(&mut || {
                figures.add(&bench.cores.first(|| running.trips(args.trips))?);
                Ok(())
            })?);
            rig.stop()?;
            running.end()?;
        }
        most.push(median(&ways[0].0));
    }
    let most = median(&most);
    let mut table = Table::new(
        format!(
            "{}: frames of {} beside copies of the staging engine at full rate, medians of {}",
            bench.device.name(),
            ByteSize(small as u64),
            args.common.rounds
        ),
        &[
            "longest copy",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "copies GB/s",
            "alone GB/s",
            "÷ the best",
        ],
    );
    for (chunk, (alone, both, figures)) in CHUNKS.iter().zip(&ways) {
        let chunk = chunk.map_or_else(
            || {
                format!(
                    "{} (as measured)",
                    ByteSize(profile.tuning(Direction::In).chunk as u64)
                )
            },
            |chunk| ByteSize(chunk as u64).to_string(),
        );
        let [p50, p99, p999] = figures.cells();
        table.row(vec![
            chunk.into(),
            p50,
            p99,
            p999,
            Cell::Number(median(both) / 1e9, 2),
            Cell::Number(median(alone) / 1e9, 2),
            Cell::Number(median(both) / most, 3),
        ]);
    }
    Ok(table)
}

fn rates(bench: &Bench, args: &ResidentArgs) -> Result<Table, BenchError> {
    let mut rates = vec![Vec::new(); TEAMS.len()];
    for _ in 0..args.common.rounds {
        for (teams, rates) in TEAMS.into_iter().zip(&mut rates) {
            rates.push(bench.rate(teams, args.common.window)? / 1e6);
        }
    }
    let mut table = Table::new(
        format!(
            "{}: million frames of {} a second, committed by one thread, taken by another; medians of {}",
            bench.device.name(),
            ByteSize(RATED as u64),
            args.common.rounds
        ),
        &["teams", "million/s"],
    );
    for (teams, rates) in TEAMS.into_iter().zip(&rates) {
        table.row(vec![
            teams.to_string().into(),
            Cell::Number(median(rates), 2),
        ]);
    }
    Ok(table)
}

impl From<daq_core::kernel::KernelError> for BenchError {
    fn from(error: daq_core::kernel::KernelError) -> Self {
        match error {
            daq_core::kernel::KernelError::Cuda(error) => Self::Cuda(error),
            other => Self::Thread(other.to_string()),
        }
    }
}
