//! `daq bench`: benchmarks of this machine.

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

/// Default sizes of CPU stores.
const STORES: &str = "4 B,16 B,64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB";

#[derive(Debug, Subcommand)]
enum What {
    /// Compare the copy engine thread with other methods to copy frames to a GPU. The upper limit is one large copy.
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
    /// Measure the bandwidth of copies by size.
    Copybw {
        #[command(flatten)]
        shared: Shared,
        /// Copy sizes.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"
        )]
        sizes: Vec<ByteSize>,
        /// Sizes of CPU stores to GPU memory, aligned and unaligned, at most 4 MiB.
        #[arg(long, value_delimiter = ',', default_value = STORES)]
        stores: Vec<ByteSize>,
    },
    /// Measure the latency of copies by size.
    Copylat {
        #[command(flatten)]
        shared: Shared,
        /// Copy sizes.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 B,1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB"
        )]
        sizes: Vec<ByteSize>,
        /// Sizes of CPU stores to GPU memory, aligned and unaligned, at most 4 MiB.
        #[arg(long, value_delimiter = ',', default_value = STORES)]
        stores: Vec<ByteSize>,
    },
    /// Measure the round trip of a word from the CPU to a persistent kernel, compared with launches and copies.
    Doorbell {
        /// CUDA device number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Number of rounds. The median is reported.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Round trips per method and round.
        #[arg(long, default_value_t = 20_000)]
        round_trips: usize,
        /// Sizes of CPU stores and of GPU copies.
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
    /// Measure how long it takes to allocate and free CPU-mapped GPU memory, by backend and size.
    Apiperf {
        /// CUDA device number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Number of rounds. The median is reported.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Allocation sizes.
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
    /// Measure persistent kernels in a pipeline: latency from a frame's commit to its result, with and without
    /// concurrent copies, and frames per second.
    Persistent {
        #[command(flatten)]
        shared: Shared,
        /// Frames per method and round.
        #[arg(long, default_value_t = 20_000)]
        round_trips: usize,
        /// Frame sizes, multiples of 16 bytes.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "64 B,256 B,1 KiB,4 KiB,16 KiB"
        )]
        frames: Vec<ByteSize>,
        /// CUDA file of the kernel, as `file` in [kernel.NAME]. The default kernel adds up the words of a frame.
        #[arg(long)]
        file: Option<std::path::PathBuf>,
    },
    /// Measure emulated FPGA cards: throughput, CPU time and latency until a kernel reads a frame. Emulated cards in
    /// this process and in another process are measured. The cards write to host memory and, if this machine has a GPU,
    /// to GPU memory.
    Fpga {
        #[command(flatten)]
        shared: Shared,
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
    Rdma {
        #[command(flatten)]
        shared: Shared,
        /// Listen at this address for the measuring side, and exit when the measuring side exits.
        #[arg(long, value_name = "ADDRESS", conflicts_with = "to")]
        listen: Option<std::net::SocketAddr>,
        /// Connect to the listening side at this address and measure.
        #[arg(long, value_name = "ADDRESS")]
        to: Option<std::net::SocketAddr>,
        /// Network cards, for example `mlx5_0:PORT@GID`. Both sides need the same number of cards. `emulated:ADDRESS`
        /// is an emulated card. The default is the first card, or an emulated one. The measurements of queue pairs
        /// alone (without rings) use only the first card.
        #[arg(long, value_delimiter = ',')]
        nics: Vec<String>,
        /// Round trips per method and round.
        #[arg(long, default_value_t = 1000)]
        round_trips: usize,
        /// Save the largest frame size at which the card sends faster from GPU memory than from host memory. A sink
        /// `rdma` with `path = "auto"` uses this value. Requires exactly one card.
        #[arg(long, conflicts_with = "listen")]
        keep: bool,
        /// Directory for the saved value. The default is the state directory by the rules of systemd and XDG.
        #[arg(long, value_name = "DIR", requires = "keep")]
        state_dir: Option<PathBuf>,
        /// Message sizes, multiples of 8 bytes, at most 64 MiB.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "8 B,64 B,512 B,4 KiB,32 KiB,256 KiB,1 MiB,4 MiB"
        )]
        sizes: Vec<ByteSize>,
    },
    /// Measure launch overhead: single launches compared with a CUDA graph of the same kernels.
    Launch {
        /// CUDA device number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Number of rounds. The median is reported.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Bursts per method and round.
        #[arg(long, default_value_t = 2000)]
        bursts: usize,
        /// Kernels per burst.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
        kernels: Vec<usize>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Shared {
    /// CUDA device number of the GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Number of rounds. The median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of a measurement per method and round.
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
            round_trips,
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
            round_trips,
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
            round_trips,
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
            round_trips,
            keep,
            state_dir,
            sizes,
        } => {
            let args = RdmaArgs {
                common: shared.common(),
                nics: nics.clone(),
                role: match (listen, to) {
                    (Some(address), _) => Role::Listen(*address),
                    (None, Some(address)) => Role::Connect(*address),
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
                let why = "there is nothing to keep: --keep needs results of exactly one card, \
                           with frames in GPU memory sent on both paths, direct and staged; select \
                           one card with --nics";
                BenchError::Thread(why.to_owned())
            })?;
            let directory = state::resolve_directory(state_dir.as_deref());
            let kept = tune::save(measured, directory.as_deref()).map_err(BenchError::Thread)?;
            print_error!("saved in {}", kept.display());
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
