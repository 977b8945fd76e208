//! What runs: the runtime, the built-in kernels, the HTTP side and the command line of the `daq` binary.
//!
//! | module | noun |
//! |---|---|
//! | [`bench`](mod@bench) | measurements of this machine |
//! | [`runtime`] | a plan made to run: threads, ledgers, the end |
//! | [`kernels`] | the built-in compute steps |
//! | [`http`] | metrics, probes, status |
//! | [`systemd`] | readiness and watchdog |
//! | [`doctor`] | what this machine lacks and the command that fixes it |
//! | [`selftest`] | whether what the CPU, a GPU and network cards store for each other arrives |
//! | [`cli`] | the command line |

#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or go away: write through `console`"
    )
)]

pub mod bench;
pub mod cli;
mod console;
pub mod doctor;
pub mod http;
pub mod kernels;
pub mod runtime;
pub mod selftest;
mod sys;
pub mod systemd;

use daq_core::entry::Registry;

/// Everything that a configuration can name.
pub const REGISTRY: Registry = Registry {
    sources: daq_drivers::SOURCES,
    kernels: kernels::KERNELS,
    sinks: daq_sinks::SINKS,
};
