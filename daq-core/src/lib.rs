//! The core of daq: everything that does not depend on a particular device.
//!
//! A *source* writes *frames* into the slots of a *ring*, which is a part of a *region* of pinned memory. *Kernels*
//! read one ring and fill another. *Sinks* read rings and write frames to files or send them to other hosts. *Ledgers*
//! account for every packet and frame.
//!
//! | Module | Content |
//! |---|---|
//! | [`region`] | one pinned allocation with a placement |
//! | [`ring`] | slots, one producer, readers, leases |
//! | [`reorder`] | the open slots of a ring, in which packets that arrive in any order are placed |
//! | [`gpu`] | GPUs: driver calls, memory that the CPU can write to |
//! | [`doorbell`] | words through which the CPU and a persistent kernel notify each other |
//! | [`mod@leak`] | what happens to the memory of a device that does not stop |
//! | [`staging`] | copies between rings in host memory and rings on a GPU |
//! | [`ledger`] | counters and the equations between them |
//! | [`log_limit`] | limits on repeated log messages |
//! | [`dma`] | DMA engines: devices that write memory without the CPU |
//! | [`source`], [`kernel`], [`sink`] | the interfaces between the core and drivers, kernels and sinks |
//! | [`outgoing`] | packets that sinks build with packet formats |
//! | [`recognise`] | how packet formats and sources recognise unknown packets |
//! | [`entry`] | registry entries of drivers, kernels and sinks |
//! | [`mod@file`] | regular files, opened without blocking |
//! | [`config`], [`units`] | configuration files, with errors that point at the text and suggest fixes |

#![warn(unreachable_pub)]

pub mod check;
pub mod claim;
pub mod config;
pub mod dma;
pub mod doorbell;
pub mod entry;
pub mod file;
pub mod frame;
pub mod gpu;
pub mod kernel;
pub mod layout;
pub mod leak;
pub mod ledger;
pub mod log_limit;
pub mod notify;
pub mod outgoing;
pub mod plan;
pub mod recognise;
pub mod region;
pub mod reorder;
pub mod ring;
pub mod sigmf;
pub mod sink;
pub mod source;
pub mod staging;
mod sync;
mod sys;
pub mod thread;
pub mod topology;
pub mod units;

// The fixtures depend on this crate, so its unit tests share only this file with them.
#[cfg(test)]
#[path = "../../tests/testkit/src/text.rs"]
#[expect(
    unreachable_pub,
    reason = "the crate `daq-testkit` exports the file's items"
)]
mod text;
#[cfg(test)]
use text::check_part;
