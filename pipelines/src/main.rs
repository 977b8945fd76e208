//! The `daq` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    daq_pipelines::cli::main()
}
