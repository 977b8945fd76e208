//! The `daq` binary.

#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or disappear, so write through `console`"
    )
)]

mod cli;
mod sys;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
