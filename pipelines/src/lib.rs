//! The runtime, the built-in kernels and the HTTP server.
//!
//! | module | noun |
//! |---|---|
//! | [`runtime`] | runs a plan: threads, ledgers, shutdown |
//! | [`kernels`] | the built-in compute steps |
//! | [`http`] | metrics, probes, status |
//! | [`attach`] | other processes that read rings |
//! | [`numbers`] | frames as numbers |
//! | [`report`] | the final ledger, the live block and the status line as text |
//! | [`clock`] | the state of the clocks that timestamps refer to |
//! | [`profiles`] | saved measurements of GPUs |
//! | [`program`] | exit codes, state directory, companion programs |
//! | [`console`] | output to the terminal while a pipeline runs |
//! | [`systemd`] | readiness and watchdog |

#![warn(unreachable_pub)]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or disappear, so write through `console`"
    )
)]

pub mod attach;
pub mod clock;
pub mod console;
pub mod history;
pub mod http;
pub mod kernels;
pub mod numbers;
pub mod profiles;
pub mod program;
pub mod report;
pub mod runtime;
mod sys;
pub mod systemd;

use daq_core::entry::Registry;

/// Returns the entries of all built-in sources, kernels and sinks.
pub fn registry() -> Registry {
    Registry::default()
        .with_all(daq_drivers::SOURCES)
        .with_all(daq_drivers::packet::FORMATS)
        .with_all(daq_drivers::fpga::ENGINES)
        .with_all(daq_emulators::DEVICES)
        .with_all(kernels::KERNELS)
        .with_all(daq_sinks::SINKS)
}
