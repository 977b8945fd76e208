//! The command line and the documents: commands, configuration checks, topology and the examples in `configs/`.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod bench_program;
mod check;
mod commands;
mod documents;
mod examples;
mod inspect;
mod own_instrument;
mod python;
mod ten_hosts;
mod topology;
mod zeromq;
