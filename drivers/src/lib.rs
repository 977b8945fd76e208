//! Data sources of daq.

pub mod fpga;
pub mod hsb;
pub mod list;
pub mod packet;
pub mod rdma;
pub mod replay;
pub mod sender;
pub mod silence;
pub mod sim;
pub mod socket;
pub mod sys;
pub mod udp;
pub mod xdp;

use daq_core::entry::SourceEntry;

/// All built-in sources.
pub const SOURCES: &[SourceEntry] = &[
    udp::ENTRY,
    xdp::ENTRY,
    hsb::ENTRY,
    rdma::ENTRY,
    fpga::ENTRY,
    sim::ENTRY,
    replay::ENTRY,
];
