//! `daq bench`: measurements of this machine.

use super::{exit, show, state, tune};
use clap::{Subcommand, ValueEnum};
use daq_core::notify::Wait;
use daq_core::units::{ByteSize, Span};
use daq_diagnostics::bench::{
    self, BenchError, Common, DoorbellArgs, FpgaArgs, PersistentArgs, Publish, RdmaArgs, Role,
    StagingArgs, Table,
};
use daq_pipelines::console::print_error;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

/// The sizes of stores that are compared unless others are given.
const STORES: &str = "4 B,16 B,64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB";

#[derive(Debug, Subcommand)]
enum What {
    /// The staging engine beside other ways to bring frames to a GPU, and the bare copy as the ceiling.
    Staging {
        #[command(flatten)]
        shared: Shared,
        /// Frame sizes.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "8 KiB,64 KiB,1 MiB,4 MiB"
        )]
        frames: Vec<ByteSize>,
        /// Rings on the GPU at a time, for comparison with one; each takes 256 MiB of both memories.
        #[arg(long, default_value_t = 8)]
        rings: usize,
        /// How the engine's threads wait.
        #[arg(long, value_enum, default_value = "adaptive")]
        wait: WaitArg,
        /// Instead of comparing, stream for this long at a share of the ceiling and count what is lost.
        #[arg(long, value_name = "TIME")]
        soak: Option<Span>,
        /// That share.
        #[arg(long, default_value_t = 0.9, requires = "soak")]
        share: f64,
    },
    /// Bandwidth of copies by size.
    Copybw {
        #[command(flatten)]
        shared: Shared,
        /// Sizes of a copy.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"
        )]
        sizes: Vec<ByteSize>,
        /// Sizes of a store of the CPU, aligned and not, beside other ways to store; 4 MiB at most.
        #[arg(long, value_delimiter = ',', default_value = STORES)]
        stores: Vec<ByteSize>,
    },
    /// Latency of copies by size.
    Copylat {
        #[command(flatten)]
        shared: Shared,
        /// Sizes of a copy.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB"
        )]
        sizes: Vec<ByteSize>,
        /// Sizes of a store of the CPU, aligned and not, beside other ways to store; 4 MiB at most.
        #[arg(long, value_delimiter = ',', default_value = STORES)]
        stores: Vec<ByteSize>,
    },
    /// How long a word takes from the CPU to a kernel that waits for it and back, beside launches and copies.
    Doorbell {
        /// CUDA's number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Rounds, of which medians are taken.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Round trips of each way a round.
        #[arg(long, default_value_t = 20_000)]
        trips: usize,
        /// Sizes of what the CPU stores and the copy engine copies.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "4 B,64 B,256 B,1 KiB,4 KiB"
        )]
        sizes: Vec<ByteSize>,
        /// Sizes of frames that a kernel reads.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB"
        )]
        frames: Vec<ByteSize>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// What it takes to make and to free GPU memory that the CPU can store to, by backend and size.
    Apiperf {
        /// CUDA's number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Rounds, of which medians are taken.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Sizes of the memory.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB,256 MiB"
        )]
        sizes: Vec<ByteSize>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Kernels that stay on a GPU, in the engine: from a frame's commit to its result, alone and beside copies, and
    /// frames a second.
    #[command(name = "resident")]
    Persistent {
        #[command(flatten)]
        shared: Shared,
        /// Frames of each way a round.
        #[arg(long, default_value_t = 20_000)]
        trips: usize,
        /// Frame sizes, multiples of 16 bytes.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 B,256 B,1 KiB,4 KiB,16 KiB"
        )]
        frames: Vec<ByteSize>,
        /// Code to run instead of one that adds up a frame's words: a kernel of your own, as `file` in [kernel.NAME].
        #[arg(long)]
        file: Option<std::path::PathBuf>,
    },
    /// Cards of software into rings: in this process and in another, into host memory, and where there is a GPU through
    /// host memory and straight into its memory; how fast, at what cost, and how long until a kernel has seen a frame.
    Fpga {
        #[command(flatten)]
        shared: Shared,
        /// Frames of each way a round whose latency is taken.
        #[arg(long, default_value_t = 300)]
        trips: usize,
        /// Frame sizes, multiples of 64 bytes, 4 KiB to 8 MiB.
        #[arg(long, value_delimiter = ',', default_value = "64 KiB,1 MiB,4 MiB")]
        frames: Vec<ByteSize>,
    },
    /// From one host to another by network cards: bandwidth and latency of host and GPU memory, by queues alone and from
    /// ring to ring, direct and staged. Start it with --listen on one host, then with --to on the other, which prints;
    /// with neither it is both, on this host. The host that listens serves whoever comes first: use a network you trust.
    Rdma {
        #[command(flatten)]
        shared: Shared,
        /// Wait at this address for the side that measures, and end with it.
        #[arg(long, value_name = "ADDRESS", conflicts_with = "to")]
        listen: Option<std::net::SocketAddr>,
        /// Measure to the side that listens at this address.
        #[arg(long, value_name = "ADDRESS")]
        to: Option<std::net::SocketAddr>,
        /// The cards, as in `mlx5_0:PORT@GID`, as many on both sides; `software:ADDRESS` is one made of software. Without,
        /// the first card there is, or one of software. Queues alone use the first one.
        #[arg(long, value_delimiter = ',')]
        nics: Vec<String>,
        /// Round trips of each way a round.
        #[arg(long, default_value_t = 1000)]
        trips: usize,
        /// Keep in the state directory up to which size of a frame the card sends faster out of the GPU's memory than out
        /// of host memory: a sink `rdma` with `path = "auto"` goes by it. For one card at a time.
        #[arg(long, conflicts_with = "listen")]
        keep: bool,
        /// Where that is kept; without it, by the rules of systemd and XDG.
        #[arg(long, value_name = "DIR", requires = "keep")]
        state_dir: Option<PathBuf>,
        /// Sizes of a message, multiples of 8 bytes up to 64 MiB.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "8 B,64 B,512 B,4 KiB,32 KiB,256 KiB,1 MiB,4 MiB"
        )]
        sizes: Vec<ByteSize>,
    },
    /// What putting work on a GPU costs: kernels one by one beside the same recorded once and replayed.
    Launch {
        /// CUDA's number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Rounds, of which medians are taken.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Bursts of each way a round.
        #[arg(long, default_value_t = 2000)]
        bursts: usize,
        /// Kernels of a burst.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
        kernels: Vec<usize>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Shared {
    /// CUDA's number of the GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Rounds, of which medians are taken.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each way is measured a round.
    #[arg(long, value_name = "TIME", default_value = "300 ms")]
    window: Span,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WaitArg {
    Adaptive,
    Busy,
}

impl What {
    const fn is_json(&self) -> bool {
        match self {
            Self::Staging { shared, .. }
            | Self::Copybw { shared, .. }
            | Self::Copylat { shared, .. }
            | Self::Persistent { shared, .. }
            | Self::Fpga { shared, .. }
            | Self::Rdma { shared, .. } => shared.json,
            Self::Doorbell { json, .. }
            | Self::Apiperf { json, .. }
            | Self::Launch { json, .. } => *json,
        }
    }
}

impl Shared {
    fn common(&self) -> Common {
        Common {
            device: self.device,
            rounds: self.rounds.max(1),
            window: self.window.0,
        }
    }
}

fn bytes(sizes: &[ByteSize]) -> Vec<usize> {
    let sizes = sizes
        .iter()
        .map(|size| usize::try_from(size.0).unwrap_or(usize::MAX));
    sizes.map(|size| size.clamp(1, 64 << 20)).collect()
}

pub(super) fn bench(args: &Args) -> u8 {
    let mut output = Output::new(args.what.is_json());
    match measure(&args.what, &mut |table| output.add(&table)) {
        Ok(()) => output.end(),
        Err(error) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn measure(what: &What, publish: Publish<'_>) -> Result<(), BenchError> {
    match what {
        What::Staging {
            shared,
            frames,
            rings,
            wait,
            soak,
            share,
        } => {
            let args = StagingArgs {
                common: shared.common(),
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
        What::Copybw {
            shared,
            sizes,
            stores,
        } => bench::bandwidth(&shared.common(), &bytes(sizes), &bytes(stores), publish),
        What::Copylat {
            shared,
            sizes,
            stores,
        } => bench::latency(&shared.common(), &bytes(sizes), &bytes(stores), publish),
        What::Doorbell {
            device,
            rounds,
            trips: round_trips,
            sizes,
            frames,
            ..
        } => {
            let args = DoorbellArgs {
                device: *device,
                rounds: (*rounds).max(1),
                round_trips: (*round_trips).max(8),
                sizes: bytes(sizes),
                frames: bytes(frames),
            };
            bench::doorbell(&args, publish)
        }
        What::Apiperf {
            device,
            rounds,
            sizes,
            ..
        } => {
            let sizes: Vec<_> = sizes
                .iter()
                .map(|size| usize::try_from(size.0).unwrap_or(usize::MAX).max(1))
                .collect();
            bench::apiperf(*device, (*rounds).max(1), &sizes, publish)
        }
        What::Persistent {
            shared,
            trips: round_trips,
            frames,
            file,
        } => {
            let frames = bytes(frames).into_iter();
            let args = PersistentArgs {
                common: shared.common(),
                round_trips: (*round_trips).max(8),
                frames: frames.map(|frame| frame.next_multiple_of(16)).collect(),
                file: file.clone(),
            };
            bench::persistent(&args, publish)
        }
        What::Fpga {
            shared,
            trips: round_trips,
            frames,
        } => {
            let frames = bytes(frames).into_iter();
            let args = FpgaArgs {
                common: shared.common(),
                round_trips: (*round_trips).max(8),
                frames: frames
                    .map(|frame| frame.clamp(4 << 10, 8 << 20).next_multiple_of(64))
                    .collect(),
            };
            bench::fpga(&args, publish)
        }
        What::Rdma {
            shared,
            listen,
            to,
            nics,
            trips: round_trips,
            keep,
            state_dir,
            sizes,
        } => {
            let args = RdmaArgs {
                common: shared.common(),
                nics: nics.clone(),
                role: match (listen, to) {
                    (Some(address), _) => Role::Listen(*address),
                    (None, Some(address)) => Role::Dial(*address),
                    (None, None) => Role::Both,
                },
                sizes: bytes(sizes)
                    .into_iter()
                    .map(|size| size.next_multiple_of(8))
                    .collect(),
                round_trips: (*round_trips).clamp(8, 500_000),
            };
            let measured = bench::rdma(&args, publish)?;
            if !keep {
                return Ok(());
            }
            let measured = measured.ok_or_else(|| {
                let why = "there is nothing to keep: not both ways out of a GPU were measured, of one card";
                BenchError::Thread(why.to_owned())
            })?;
            let directory = state::resolve_directory(state_dir.as_deref());
            let kept = tune::save(measured, directory.as_deref()).map_err(BenchError::Thread)?;
            print_error!("kept in {}", kept.display());
            Ok(())
        }
        What::Launch {
            device,
            rounds,
            bursts,
            kernels,
            ..
        } => {
            let kernels: Vec<_> = kernels.iter().map(|count| (*count).max(1)).collect();
            bench::launch(
                *device,
                (*rounds).max(1),
                (*bursts).max(1),
                &kernels,
                publish,
            )
        }
    }
}

/// What was measured so far: text is shown at once, JSON at the end.
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
