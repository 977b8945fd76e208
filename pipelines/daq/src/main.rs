//! The `daq` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    daq::main_with(&daq::registry())
}
