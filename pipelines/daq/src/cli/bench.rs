//! `daq bench`: benchmarks of this machine.

use super::{exit, show, state, tune};
use clap::{Subcommand, ValueEnum};
use daq_core::entry::Registry;
use daq_core::notify::Wait;
use daq_core::units::{ByteSize, Span};
use daq_diagnostics::bench::{
    self, BenchError, Common, DoorbellArgs, FpgaArgs, PersistentArgs, Publish, RdmaArgs, Role,
    StagingArgs, Table,
};
use daq_pipelines::console::print_error;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    shared: Shared,
}

// Default sizes.
const STAGED_FRAMES: &str = "8 KiB,64 KiB,1 MiB,4 MiB";
const SMALL_COPIES: &str = "4 B,64 B,256 B,1 KiB,4 KiB";
const DOORBELL_FRAMES: &str = "64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB";
const PERSISTENT_FRAMES: &str = "64 B,256 B,1 KiB,4 KiB,16 KiB";
const MESSAGES: &str = "8 B,64 B,512 B,4 KiB,32 KiB,256 KiB,1 MiB,4 MiB";
const STORES: &str = "4 B,16 B,64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB";

#[derive(Debug, Subcommand)]
enum What {
    /// Compare the copy engine thread with other methods to copy frames to a GPU. The upper limit is one large copy.
    Staging {
        /// Frame sizes.
        #[arg(long, value_delimiter = ',', default_value = STAGED_FRAMES)]
        frames: Vec<ByteSize>,
        /// Number of GPU rings that run at the same time; a single ring is measured for comparison. Each ring needs
        /// 256 MiB of host memory and 256 MiB of GPU memory.
        #[arg(long, default_value_t = 8)]
        rings: usize,
        /// How the copy engine threads wait.
        #[arg(long, value_enum, default_value = "adaptive")]
        wait: WaitArg,
        /// Instead of the comparison, stream for this time at a share of the upper limit, and count lost frames.
        #[arg(long, value_name = "TIME")]
        soak: Option<Span>,
        /// Share of the upper limit at which --soak streams.
        #[arg(long, default_value_t = 0.9, requires = "soak")]
        share: f64,
    },
    /// Measure single copies to and from a GPU, CPU stores, mapping of GPU memory, or kernel launches.
    Copy {
        /// What to measure.
        #[arg(long, value_enum, default_value = "bandwidth")]
        mode: CopyMode,
        /// Sizes of copies, or of mapped memory with --mode mapping. The default depends on the mode.
        #[arg(long, value_delimiter = ',')]
        sizes: Vec<ByteSize>,
        /// With --mode bandwidth and latency: sizes of CPU stores to GPU memory, aligned and unaligned, at most 4 MiB.
        #[arg(long, value_delimiter = ',', default_value = STORES)]
        stores: Vec<ByteSize>,
        /// With --mode launch: bursts per method and round.
        #[arg(long, default_value_t = 2000)]
        bursts: usize,
        /// With --mode launch: kernels per burst.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
        kernels: Vec<usize>,
    },
    /// Measure the round trip of a word from the CPU to a persistent kernel, compared with launches and copies.
    Doorbell {
        /// Round trips per method and round.
        #[arg(long, default_value_t = 20_000)]
        round_trips: usize,
        /// Sizes of CPU stores and of GPU copies.
        #[arg(long, value_delimiter = ',', default_value = SMALL_COPIES)]
        sizes: Vec<ByteSize>,
        /// Sizes of frames that a kernel reads.
        #[arg(long, value_delimiter = ',', default_value = DOORBELL_FRAMES)]
        frames: Vec<ByteSize>,
    },
    /// Measure persistent kernels in a pipeline: latency from a frame's commit to its result, with and without
    /// concurrent copies, and frames per second.
    Persistent {
        /// Frames per method and round.
        #[arg(long, default_value_t = 20_000)]
        round_trips: usize,
        /// Frame sizes, multiples of 16 bytes.
        #[arg(long, value_delimiter = ',', default_value = PERSISTENT_FRAMES)]
        frames: Vec<ByteSize>,
        /// CUDA file of the kernel, as `file` in [kernel.NAME]. The default kernel adds up the words of a frame.
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Measure emulated FPGA cards: throughput, CPU time and latency until a kernel reads a frame. Emulated cards in
    /// this process and in another process are measured. The cards write to host memory and, if this machine has a GPU,
    /// to GPU memory.
    Fpga {
        /// Frames per method and round whose latency is measured.
        #[arg(long, default_value_t = 300)]
        round_trips: usize,
        /// Frame sizes, multiples of 64 bytes, 4 KiB to 8 MiB.
        #[arg(long, value_delimiter = ',', default_value = "64 KiB,1 MiB,4 MiB")]
        frames: Vec<ByteSize>,
    },
    /// Measure RDMA between two hosts: bandwidth and latency of host and GPU memory, for queue pairs alone and from
    /// ring to ring, direct and staged. Start this command with --listen on one host, then with --to on the other host,
    /// which prints the results. Without both options, both sides run on this host. The listening side accepts the
    /// first connection without authentication: use a trusted network.
    Rdma(RdmaOptions),
}

#[derive(Debug, clap::Args)]
struct RdmaOptions {
    /// Listen at this address for the measuring side, and exit when the measuring side exits.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "to")]
    listen: Option<SocketAddr>,
    /// Connect to the listening side at this address and measure.
    #[arg(long, value_name = "ADDRESS")]
    to: Option<SocketAddr>,
    /// Network cards, for example `mlx5_0:PORT@GID`. Both sides need the same number of cards. `emulated:ADDRESS` is an
    /// emulated card. The default is the first card, or an emulated one. The measurements of queue pairs alone (without
    /// rings) use only the first card.
    #[arg(long, value_delimiter = ',')]
    nics: Vec<String>,
    /// Round trips per method and round.
    #[arg(long, default_value_t = 1000)]
    round_trips: usize,
    /// Save the largest frame size at which the card sends faster from GPU memory than from host memory. A sink `rdma`
    /// with `path = "auto"` uses this value. Requires exactly one card.
    #[arg(long, conflicts_with = "listen")]
    keep: bool,
    /// Directory for the saved value. The default is the state directory by the rules of systemd and XDG.
    #[arg(long, value_name = "DIR", requires = "keep")]
    state_dir: Option<PathBuf>,
    /// Message sizes, multiples of 8 bytes, at most 64 MiB.
    #[arg(long, value_delimiter = ',', default_value = MESSAGES)]
    sizes: Vec<ByteSize>,
}

/// Options of every benchmark.
#[derive(Debug, clap::Args)]
struct Shared {
    /// CUDA device number of the GPU.
    #[arg(long, global = true, default_value_t = 0)]
    device: u32,
    /// Number of rounds. The median is reported.
    #[arg(long, global = true, default_value_t = 5)]
    rounds: usize,
    /// Duration of a measurement of throughput per method and round.
    #[arg(long, global = true, value_name = "TIME", default_value = "300 ms")]
    window: Span,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WaitArg {
    Adaptive,
    Busy,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CopyMode {
    /// Throughput of copies and of CPU stores.
    Bandwidth,
    /// Latency of copies, of frames from ring to ring, and of CPU stores.
    Latency,
    /// Time to allocate and free CPU-mapped GPU memory, by backend.
    Mapping,
    /// Single kernel launches compared with a CUDA graph of the same kernels.
    Launch,
}

impl CopyMode {
    /// Returns `sizes`, or the default sizes of this mode if there are none.
    fn sizes(self, sizes: &[ByteSize]) -> Vec<usize> {
        let exponents = match self {
            Self::Latency => 6..=20,
            Self::Mapping => 16..=28,
            _ => 12..=26,
        };
        match (sizes, self) {
            ([], _) => exponents.step_by(2).map(|exponent| 1 << exponent).collect(),
            (_, Self::Mapping) => at_most(usize::MAX, sizes),
            _ => bytes(sizes),
        }
    }
}

/// Returns the sizes in bytes, at most 64 MiB.
fn bytes(sizes: &[ByteSize]) -> Vec<usize> {
    at_most(64 << 20, sizes)
}

fn at_most(max: usize, sizes: &[ByteSize]) -> Vec<usize> {
    let sizes = sizes
        .iter()
        .map(|size| usize::try_from(size.0).unwrap_or(usize::MAX));
    sizes.map(|size| size.clamp(1, max)).collect()
}

pub(super) fn bench(registry: &Registry, args: &Args) -> u8 {
    let common = Common {
        registry: registry.clone(),
        device: args.shared.device,
        rounds: args.shared.rounds.max(1),
        window: args.shared.window.0,
    };
    let mut output = Output::new(args.shared.json);
    match measure(&args.what, common, &mut |table| output.add(&table)) {
        Ok(()) => output.end(),
        Err(error) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn measure(what: &What, common: Common, publish: Publish<'_>) -> Result<(), BenchError> {
    match what {
        What::Staging {
            frames,
            rings,
            wait,
            soak,
            share,
        } => {
            let args = StagingArgs {
                common,
                frames: bytes(frames),
                rings: (*rings).max(1),
                wait: match wait {
                    WaitArg::Adaptive => Wait::Adaptive,
                    WaitArg::Busy => Wait::Busy,
                },
                soak: soak.map(|soak| (soak.0, *share)),
            };
            bench::staging(&args, publish)
        }
        What::Copy {
            mode,
            sizes,
            stores,
            bursts,
            kernels,
        } => {
            let (sizes, stores) = (mode.sizes(sizes), bytes(stores));
            match mode {
                CopyMode::Bandwidth => bench::bandwidth(&common, &sizes, &stores, publish),
                CopyMode::Latency => bench::latency(&common, &sizes, &stores, publish),
                CopyMode::Mapping => bench::mapping(&common, &sizes, publish),
                CopyMode::Launch => {
                    let kernels: Vec<_> = kernels.iter().map(|count| (*count).max(1)).collect();
                    bench::launch(&common, (*bursts).max(1), &kernels, publish)
                }
            }
        }
        What::Doorbell {
            round_trips,
            sizes,
            frames,
        } => {
            let args = DoorbellArgs {
                common,
                round_trips: (*round_trips).max(8),
                sizes: bytes(sizes),
                frames: bytes(frames),
            };
            bench::doorbell(&args, publish)
        }
        What::Persistent {
            round_trips,
            frames,
            file,
        } => {
            let frames = bytes(frames).into_iter();
            let args = PersistentArgs {
                common,
                round_trips: (*round_trips).max(8),
                frames: frames.map(|frame| frame.next_multiple_of(16)).collect(),
                file: file.clone(),
            };
            bench::persistent(&args, publish)
        }
        What::Fpga {
            round_trips,
            frames,
        } => {
            let frames = bytes(frames).into_iter();
            let args = FpgaArgs {
                common,
                round_trips: (*round_trips).max(8),
                frames: frames
                    .map(|frame| frame.clamp(4 << 10, 8 << 20).next_multiple_of(64))
                    .collect(),
            };
            bench::fpga(&args, publish)
        }
        What::Rdma(options) => rdma(options, common, publish),
    }
}

fn rdma(options: &RdmaOptions, common: Common, publish: Publish<'_>) -> Result<(), BenchError> {
    let args = RdmaArgs {
        common,
        nics: options.nics.clone(),
        role: match (options.listen, options.to) {
            (Some(address), _) => Role::Listen(address),
            (None, Some(address)) => Role::Connect(address),
            (None, None) => Role::Both,
        },
        sizes: bytes(&options.sizes)
            .into_iter()
            .map(|size| size.next_multiple_of(8))
            .collect(),
        round_trips: options.round_trips.clamp(8, 500_000),
    };
    let measured = bench::rdma(&args, publish)?;
    if !options.keep {
        return Ok(());
    }
    let measured = measured.ok_or_else(|| {
        let why = "there is nothing to keep: --keep needs results of exactly one card, \
                   with frames in GPU memory sent on both paths, direct and staged; select \
                   one card with --nics";
        BenchError::Thread(why.to_owned())
    })?;
    let directory = state::resolve_directory(options.state_dir.as_deref());
    let kept = tune::save(measured, directory.as_deref()).map_err(BenchError::Thread)?;
    print_error!("saved in {}", kept.display());
    Ok(())
}

/// Prints the tables. Text is printed immediately, JSON at the end.
struct Output {
    is_json: bool,
    tables: Vec<serde_json::Value>,
    code: u8,
}

impl Output {
    const fn new(is_json: bool) -> Self {
        Self {
            is_json,
            tables: Vec::new(),
            code: 0,
        }
    }

    fn add(&mut self, table: &Table) {
        if !self.is_json {
            let space = if self.tables.is_empty() { "" } else { "\n" };
            self.code = self.code.max(show(&format!("{space}{table}")));
        }
        self.tables.push(table.json());
    }

    fn end(self) -> u8 {
        if !self.is_json {
            return self.code;
        }
        show(&(serde_json::to_string_pretty(&self.tables).unwrap_or_default() + "\n"))
    }
}
