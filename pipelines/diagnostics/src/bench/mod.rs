//! `daq bench` measures this machine: each benchmark compares methods on scenarios.

mod bar;
mod comparison;
mod copies;
mod cores;
mod cpu;
mod doorbell;
pub(crate) mod echo;
mod figures;
mod fpga;
mod gpus;
mod harness;
mod launch;
mod mapping;
mod persistent;
mod pipeline;
mod place;
mod plot;
mod rdma;
mod report;
mod scratch;
mod staging;
mod table;
mod tcp;
mod turn;

pub(crate) use pipeline::{Environment, free_port};
pub use rdma::Measured;
pub use report::{Report, ReportError};
pub(crate) use scratch::Scratch;
pub use table::Table;

use comparison::Comparison;
use daq_core::entry::Registry;
use daq_core::gpu::bar_mapping::BarMappingError;
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::region::RegionError;
use daq_core::ring::RingError;
use daq_core::staging::{MeasureError, StagingError};
use daq_core::units::{ByteSize, Span, UnitError};
use daq_pipelines::console::Progress;
use std::num::ParseIntError;
use std::time::Duration;

/// Receives each table as soon as it is measured.
pub type Publish<'a> = &'a mut (dyn FnMut(Table) + Send);

/// Errors of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Memory cannot be allocated.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A ring cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The baseline copies cannot be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A mapping cannot be used.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
    /// A persistent kernel did not answer.
    #[error(
        "no answer from the kernel within {seconds} s: the doorbell was rung {rung} times, and the last answer was {seen}; the GPU may not see CPU stores to this memory"
    )]
    Silent {
        /// Number of times that the doorbell was rung.
        rung: u64,
        /// The last answer of the kernel.
        seen: u64,
        /// Timeout in seconds.
        seconds: u64,
    },
    /// The copy engine failed.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// A thread of the measurement failed.
    #[error("{0}")]
    Thread(String),
}

/// A benchmark with its options.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Benchmark {
    /// Compare the copy engine thread with other methods to copy frames to a GPU.
    ///
    /// The upper limit is one large copy.
    Staging(staging::Args),
    /// Compare staging to several GPUs with staging to one GPU.
    ///
    /// Copies between rings on two GPUs are also compared with raw copies between the GPUs, in one direction and in both.
    Gpus(gpus::Args),
    /// Compare the corner turn between GPUs with raw copies of the same parts of frames, and with contiguous copies.
    ///
    /// All bytes are verified.
    Turn(turn::Args),
    /// Measure single copies to and from a GPU, CPU stores, mapping of GPU memory, or kernel launches.
    Copy(copies::Args),
    /// Measure the round trip of a word from the CPU to a persistent kernel, compared with launches and copies.
    Doorbell(doorbell::Args),
    /// Measure the latency and the rate of persistent kernels in a pipeline.
    ///
    /// The latency is the time from a frame's commit to its result, with and without concurrent copies.
    Persistent(persistent::Args),
    /// Measure emulated FPGA cards: throughput, CPU time and latency until a kernel reads a frame.
    ///
    /// Emulated cards in this process and in another process are measured. The cards write to host memory and, if this
    /// machine has a GPU, to GPU memory.
    Fpga(fpga::Args),
    /// Measure RDMA between two hosts: bandwidth and latency of host and GPU memory.
    ///
    /// Queue pairs alone and streams from ring to ring, direct and staged, are measured. Start this command with --listen
    /// on one host, then with --to on the other host, which prints the results. Without both options, both sides run on
    /// this host. The listening side accepts the first connection without authentication: use a trusted network.
    Rdma(rdma::Args),
    /// Measure streams over TCP on this host, from ring to ring, and the CPU time of both ends.
    ///
    /// The baseline is a loop of send and receive calls into an equal ring.
    Tcp(tcp::Args),
}

impl Benchmark {
    /// Returns an error if options cannot be used together. `has_report` is true if a report is requested.
    pub fn check(&self, has_report: bool) -> Result<(), String> {
        match self {
            Self::Copy(args) => args.check(),
            Self::Rdma(args) => args.check(has_report),
            _ => Ok(()),
        }
    }

    /// Returns the name on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Staging(_) => "staging",
            Self::Gpus(_) => "gpus",
            Self::Turn(_) => "turn",
            Self::Copy(_) => "copy",
            Self::Doorbell(_) => "doorbell",
            Self::Persistent(_) => "persistent",
            Self::Fpga(_) => "fpga",
            Self::Rdma(_) => "rdma",
            Self::Tcp(_) => "tcp",
        }
    }

    /// Returns the description in the help of the command line.
    fn about(&self) -> String {
        let command = <Self as clap::Subcommand>::augment_subcommands(clap::Command::new("bench"));
        let command = command.find_subcommand(self.name());
        let about = command.and_then(|command| {
            let long = command.get_long_about();
            long.or_else(|| command.get_about())
        });
        about.map(ToString::to_string).unwrap_or_default()
    }

    /// Measures, and passes the result tables to `publish`. Returns the result of [`Benchmark::Rdma`] that later plans
    /// use, if there is one.
    pub fn run(
        &self,
        common: &Common,
        publish: Publish<'_>,
    ) -> Result<Option<Measured>, BenchError> {
        match self {
            Self::Staging(args) => staging::staging(common, args, publish)?,
            Self::Gpus(args) => gpus::gpus(common, args, publish)?,
            Self::Turn(args) => turn::turn(common, args, publish)?,
            Self::Copy(args) => copies::copy(common, args, publish)?,
            Self::Doorbell(args) => doorbell::doorbell(common, args, publish)?,
            Self::Persistent(args) => persistent::persistent(common, args, publish)?,
            Self::Fpga(args) => fpga::fpga(common, args, publish)?,
            Self::Rdma(args) => return rdma::rdma(common, args, publish),
            Self::Tcp(args) => tcp::tcp(common, args, publish)?,
        }
        Ok(None)
    }
}

/// Options of every benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The entries that measured pipelines can use.
    #[arg(skip)]
    pub registry: Registry,
    /// Shows which measurement runs.
    #[arg(skip)]
    pub progress: Progress,
    /// CUDA device number of the GPU.
    #[arg(long, global = true, default_value_t = 0)]
    device: u32,
    /// Number of rounds. The median is reported.
    #[arg(long, global = true, default_value = "5", value_parser = count::<1, { usize::MAX }>)]
    rounds: usize,
    /// Duration of a measurement of throughput per method and round.
    #[arg(long, global = true, value_name = "TIME", default_value = "300 ms", value_parser = duration)]
    window: Span,
}

impl Common {
    fn open(&self) -> Result<&'static Device, CudaError> {
        Device::open(self.device)
    }

    /// Compares methods on scenarios, see [`Comparison::run`].
    fn compare<'a, S, M, const N: usize>(
        &self,
        scenarios: &'a [S],
        methods: &'a [M],
        measure: impl FnMut(&'a S, &'a M) -> Result<Option<[f64; N]>, BenchError>,
    ) -> Result<Comparison<'a, S, M, N>, BenchError> {
        self.compare_in(self.rounds, false, scenarios, methods, measure)
    }

    /// Compares as [`compare`](Self::compare), with the arguments of [`Comparison::run`].
    fn compare_in<'a, S, M, const N: usize>(
        &self,
        rounds: usize,
        is_rotated: bool,
        scenarios: &'a [S],
        methods: &'a [M],
        mut measure: impl FnMut(&'a S, &'a M) -> Result<Option<[f64; N]>, BenchError>,
    ) -> Result<Comparison<'a, S, M, N>, BenchError> {
        let steps = scenarios.len() * methods.len();
        self.progress.rounds(rounds, steps);
        Comparison::run(
            rounds,
            is_rotated,
            scenarios,
            methods,
            |scenario, method| {
                self.progress.step(None);
                measure(scenario, method)
            },
        )
    }
}

/// The frame sizes of a benchmark of staging.
#[derive(Clone, Debug, clap::Args)]
struct FrameSizes {
    /// Frame sizes.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8 KiB,64 KiB,1 MiB,4 MiB",
        value_parser = bytes::<1, MAX_BYTES, 1>
    )]
    frames: Vec<usize>,
}

/// Parses a number from `MIN` to `MAX`.
fn count<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .map_err(|error: ParseIntError| error.to_string())?;
    check_range(count, MIN, MAX, |limit| limit.to_string())
}

/// Parses a size from `MIN` to `MAX` bytes that is a multiple of `MULTIPLE`.
fn bytes<const MIN: usize, const MAX: usize, const MULTIPLE: usize>(
    text: &str,
) -> Result<usize, String> {
    let ByteSize(bytes) = text.parse().map_err(|error: UnitError| error.to_string())?;
    let shown = |bytes: usize| ByteSize(bytes as u64).to_string();
    let bytes = check_range(
        usize::try_from(bytes).unwrap_or(usize::MAX),
        MIN,
        MAX,
        shown,
    )?;
    if bytes.is_multiple_of(MULTIPLE) {
        return Ok(bytes);
    }
    let (multiple, next) = (shown(MULTIPLE), shown(bytes.next_multiple_of(MULTIPLE)));
    Err(format!(
        "the size must be a multiple of {multiple}; use {next}"
    ))
}

/// Returns `value` if it is from `min` to `max`.
fn check_range<T: PartialOrd>(
    value: T,
    min: T,
    max: T,
    shown: impl Fn(T) -> String,
) -> Result<T, String> {
    if (&min..=&max).contains(&&value) {
        Ok(value)
    } else if value < min {
        Err(format!("the minimum is {}", shown(min)))
    } else {
        Err(format!("the maximum is {}", shown(max)))
    }
}

/// Parses a time that is longer than zero.
fn duration(text: &str) -> Result<Span, String> {
    match text.parse().map_err(|error: UnitError| error.to_string())? {
        Span(Duration::ZERO) => Err("the time must be longer than zero; try 1 s".to_owned()),
        span => Ok(span),
    }
}

/// Maximum size of a frame or a copy in bytes.
const MAX_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_outside_their_range_are_rejected() {
        assert_eq!(count::<1, 32>("32"), Ok(32));
        assert_eq!(count::<1, 32>("0").unwrap_err(), "the minimum is 1");
        assert_eq!(count::<1, 32>("33").unwrap_err(), "the maximum is 32");
        assert!(count::<1, 32>("-1").is_err());
        let size = bytes::<64, MAX_BYTES, 64>;
        assert_eq!(size("1 KiB"), Ok(1024));
        assert_eq!(size("0 B").unwrap_err(), "the minimum is 64 B");
        assert_eq!(size("65 MiB").unwrap_err(), "the maximum is 64 MiB");
        let error = size("100 B").unwrap_err();
        assert_eq!(error, "the size must be a multiple of 64 B; use 128 B");
        assert_eq!(duration("1 s"), Ok(Span(Duration::from_secs(1))));
        assert!(duration("0 s").unwrap_err().contains("longer than zero"));
    }
}
