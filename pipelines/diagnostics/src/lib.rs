//! Diagnosis, self-tests and benchmarks of this machine.
//!
//! | module | noun |
//! |---|---|
//! | [`doctor`] | what this machine lacks and the command that fixes it |
//! | [`selftest`] | whether what the CPU, a GPU and network cards store for each other arrives |
//! | [`bench`](mod@bench) | measurements of this machine |

#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or go away: write through `console`"
    )
)]

pub mod bench;
pub mod doctor;
pub mod selftest;
mod sys;
