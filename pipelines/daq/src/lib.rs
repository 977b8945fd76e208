//! The program `daq` as a library, for programs with sources, kernels, sinks, packet formats or DMA engines of their own.
//!
//! ```no_run
//! # mod own { pub use daq_pipelines::kernels::stats::ENTRY as KERNEL; }
//! fn main() -> std::process::ExitCode {
//!     daq::main_with(&daq::registry().with(&own::KERNEL))
//! }
//! ```
//! The program has all commands of daq. The entries appear in `list`, `new`, `check`, the JSON schema and the reference
//! pages. `docs/examples/own-instrument` is a complete example.

#![warn(unreachable_pub)]
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

pub use cli::main_with;
pub use daq_pipelines::registry;
