//! Data sources of daq.

#![warn(unreachable_pub)]

pub mod fpga;
pub mod gige;
pub mod hsb;
mod nats;
pub mod packet;
mod process;
pub mod replay;
mod sender;
mod silence;
pub mod sim;
mod socket;
mod stream;
pub mod sys;
pub mod udp;
pub mod xdp;

use daq_core::entry::SourceEntry;

/// All built-in sources.
pub const SOURCES: &[SourceEntry] = &[
    udp::ENTRY,
    xdp::ENTRY,
    hsb::ENTRY,
    gige::ENTRY,
    stream::ENTRY,
    nats::ENTRY,
    fpga::ENTRY,
    sim::ENTRY,
    replay::ENTRY,
    process::ENTRY,
];
