//! Diagnosis and self-tests of this machine.
//!
//! | module | noun |
//! |---|---|
//! | [`inspect`] | recognises the format of packets and suggests a source |
//! | [`doctor`] | finds what this machine lacks and the commands that fix it |
//! | [`selftest`] | verifies transfers between the CPU, a GPU and network cards |
//! | [`fixture`] | pipelines, kernels and memory of self-tests and benchmarks |

#![warn(unreachable_pub)]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "a terminal may stall or disappear, so write through `console`"
    )
)]

pub mod doctor;
pub mod fixture;
pub mod inspect;
pub mod selftest;
mod sys;
