//! The core of daq: everything that knows nothing of a particular device.
//!
//! A *source* writes *frames* into the slots of a *ring*, which is cut from a *region* of pinned memory.
//! *Kernels* read one ring and fill another, *sinks* read rings and take frames out. *Ledgers* account for
//! every packet and frame on the way.
//!
//! | module | noun |
//! |---|---|
//! | [`region`] | one pinned allocation with a placement |
//! | [`ring`] | slots, one producer, readers, leases |
//! | [`reorder`] | the open slots of a ring, in which packets that arrive in any order are placed |
//! | [`gpu`] | GPUs: driver calls, memory that the CPU can write to, doorbells |
//! | [`staging`] | copies between rings in host memory and rings on a GPU |
//! | [`ledger`] | counters and the equations between them |
//! | [`log_limit`] | limits on repeated log messages |
//! | [`dma`] | devices that write memory by themselves |
//! | [`source`], [`kernel`], [`sink`] | the seams |
//! | [`entry`] | registry entries of drivers, kernels and sinks |
//! | [`mod@file`] | regular files, opened without blocking |
//! | [`config`], [`units`] | TOML with spans, errors that teach |

pub mod claim;
pub mod config;
pub mod dma;
pub mod entry;
pub mod examine;
pub mod file;
pub mod frame;
pub mod gpu;
pub mod kernel;
pub mod layout;
pub mod ledger;
pub mod log_limit;
pub mod notify;
pub mod plan;
pub mod region;
pub mod reorder;
pub mod ring;
pub mod sigmf;
pub mod sink;
pub mod source;
pub mod staging;
pub mod sync;
mod sys;
pub mod thread;
pub mod topology;
pub mod units;
