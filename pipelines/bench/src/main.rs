//! `daq-bench` measures this machine: each benchmark compares methods on scenarios. `daq bench` runs this program.

#![warn(unreachable_pub)]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or disappear, so write through `console`"
    )
)]

mod bar;
mod chart;
mod comparison;
mod copies;
mod cores;
mod cpu;
mod doorbell;
mod figures;
mod fpga;
mod gpus;
mod harness;
mod launch;
mod mapping;
mod options;
mod persistent;
mod place;
mod rdma;
mod staging;
mod sys;
mod table;
mod tcp;
mod turn;

/// Errors of benchmarks.
pub(crate) use daq_diagnostics::fixture::FixtureError as BenchError;

use clap::Parser;
use daq_pipelines::console::{self, Progress, print_error};
use daq_pipelines::profiles::{MeasuredCard, save_card};
use daq_pipelines::program::{check_caller, exit, show, state_directory};
use options::{Common, FrameSizes, MAX_BYTES, bytes, check_range, count, duration};
use std::path::Path;
use std::process::ExitCode;
use table::Table;

/// Receives each table as soon as it is measured.
type Publish<'a> = &'a mut (dyn FnMut(Table) + Send);

/// A benchmark with its options.
#[derive(Clone, Debug, clap::Subcommand)]
enum Benchmark {
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
    /// Returns an error if options cannot be used together.
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Copy(args) => args.check(),
            _ => Ok(()),
        }
    }

    /// Measures, and passes the result tables to `publish`. Returns the result of [`Benchmark::Rdma`] that later plans
    /// use, if there is one.
    fn run(
        &self,
        common: &Common,
        publish: Publish<'_>,
    ) -> Result<Option<MeasuredCard>, BenchError> {
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

/// Benchmark data paths of this machine: to a GPU, from an FPGA, and to another host.
#[derive(Debug, clap::Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: Benchmark,
    #[command(flatten)]
    common: Common,
    /// Print JSON. The script `pipelines/bench/charts.py` in the source code draws charts of it.
    #[arg(long, global = true)]
    json: bool,
}

fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(cli) => bench(&cli),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { exit::USAGE } else { 0 }
        }
    };
    console::flush();
    ExitCode::from(code)
}

/// Runs a benchmark and prints its tables. Returns the exit code.
fn bench(args: &Cli) -> u8 {
    if let Err(why) = args.what.check() {
        print_error!("error: {why}");
        return exit::USAGE;
    }
    if let Err(why) = check_caller(env!("CARGO_PKG_NAME")) {
        print_error!("error: {why}");
        return exit::UNAVAILABLE;
    }
    let mut output = Output {
        is_json: args.json,
        tables: Vec::new(),
        code: 0,
    };
    let progress = Progress::start("bench");
    let mut common = args.common.clone();
    common.registry = daq_pipelines::registry();
    common.progress = progress.clone();
    let mut publish = |table| progress.paused(|| output.add(&table));
    let measured = args.what.run(&common, &mut publish);
    progress.end();
    let kept = measured.and_then(|measured| match &args.what {
        Benchmark::Rdma(options) if options.keep => keep(measured, options.state_dir.as_deref()),
        _ => Ok(()),
    });
    match kept {
        Ok(()) => output.end(),
        Err(error) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn keep(measured: Option<MeasuredCard>, directory: Option<&Path>) -> Result<(), BenchError> {
    let measured = measured.ok_or_else(|| {
        let why = "there is nothing to keep: --keep needs results of exactly one card, \
                   with frames in GPU memory sent on both paths, direct and staged; select \
                   one card with --nics";
        BenchError::Thread(why.to_owned())
    })?;
    let directory = state_directory(directory);
    let kept = save_card(measured, directory.as_deref()).map_err(BenchError::Thread)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
