//! `daq bench` runs the program daq-bench, which contains the benchmarks.

use super::exit;
use daq_pipelines::console::print_error;
use daq_pipelines::program::{CALLER_VERSION, companion};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Name of the program with the benchmarks.
const PROGRAM: &str = "daq-bench";

/// Names of the benchmarks, for completions.
pub(super) const BENCHMARKS: [&str; 9] = [
    "staging",
    "gpus",
    "turn",
    "copy",
    "doorbell",
    "persistent",
    "fpga",
    "rdma",
    "tcp",
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The benchmark and its options.
    #[arg(
        value_name = "ARGUMENTS",
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    arguments: Vec<OsString>,
}

/// Replaces this process by daq-bench. Returns only if that fails.
pub(super) fn bench(args: &Args) -> u8 {
    let program = companion(PROGRAM);
    let error = Command::new(&program)
        .args(&args.arguments)
        .env(CALLER_VERSION, env!("CARGO_PKG_VERSION"))
        .exec();
    if error.kind() == ErrorKind::NotFound {
        print_error!(
            "error: the program {PROGRAM}, which contains the benchmarks, is neither beside daq nor in PATH; \
             in a checkout of daq, run: cargo install --path pipelines/bench"
        );
    } else {
        print_error!("error: cannot run {}: {error}", program.display());
    }
    exit::UNAVAILABLE
}
